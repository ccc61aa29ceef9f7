"""GGUF files as readers: transformers reads each once, into a folder of bfloat16 safetensors in a cache."""

from __future__ import annotations

import fcntl
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from utaca.data_files import sha256
from utaca.errors import UserError, in_a_sentence
from utaca.settings.machine import check_room

if TYPE_CHECKING:
    from gguf import GGUFReader

CONVERSION = 2
"""Version of the conversion; what another one made is made anew."""

PACKAGES = ("accelerate", "gguf")
"""What reading a GGUF file takes beside the core."""

_LLAMA3 = "|".join(
    (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)",
        r"[^\r\n\p{L}\p{N}]?\p{L}+",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    )
)
_RULES = ("llama-bpe", "qwen2", "smollm")
"""How a file's ``tokenizer.ggml.pre`` may say that text is split before byte pairs are merged."""


_NUMBERS = (
    "block_count", "context_length", "embedding_length", "feed_forward_length", "attention.head_count",
    "attention.layer_norm_rms_epsilon",
)  # fmt: skip
"""What a file must tell of its model: transformers would take that of another."""

_WHOLE = ("token_embd", "output_norm")
_LAYER = ("attn_norm", "attn_q", "attn_k", "attn_v", "attn_output", "ffn_norm", "ffn_gate", "ffn_up", "ffn_down")
_FURTHER = {
    "llama": (),
    "qwen2": ("attn_q.bias", "attn_k.bias", "attn_v.bias"),
    "qwen3": ("attn_q_norm.weight", "attn_k_norm.weight"),
}
"""What each kind of model has in a layer beside :data:`_LAYER`."""


def is_gguf(path: str | Path) -> bool:
    """Whether a reader's path is that of a GGUF file, be it here or not."""
    return Path(path).suffix.lower() == ".gguf" and not Path(path).is_dir()


def models() -> Path:
    """The folder of converted models: in UTACA_CACHE, else in the user's cache."""
    user = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("UTACA_CACHE") or Path(user) / "utaca") / "models"


def conversion(path: str | Path) -> Path | None:
    """The folder that a GGUF file is converted to, be it made or not; None where the file is not here."""
    if not Path(path).is_file():
        return None
    state = Path(path).stat()
    return models() / f"{_digest(Path(path).absolute(), state.st_size, state.st_mtime_ns)[:16]}-{CONVERSION}"


@cache
def _digest(path: Path, _size: int, _modified: int) -> str:
    try:
        return sha256(path)
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}); let this user read it, or copy it anew") from error


def converted(path: str | Path) -> Path:
    """The folder with the model of a GGUF file, which is converted where it was not yet.

    The folder appears when all is done, or not at all; of several processes one converts. Raises :class:`UserError` as
    :func:`check` does, and where the model cannot be read or saved.
    """
    folder = conversion(path)
    if folder is not None and folder.is_dir():
        return folder
    check(path)
    assert folder is not None
    with _writing(folder.parent):
        folder.parent.mkdir(parents=True, exist_ok=True)
        with folder.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not folder.is_dir():
                print(f"converting {path}, once, into {folder}", file=sys.stderr, flush=True)
                scratch = folder.with_suffix(".making")
                # A process that was killed leaves its own.
                shutil.rmtree(scratch, ignore_errors=True)
                try:
                    _convert(Path(path), scratch)
                    os.rename(scratch, folder)
                finally:
                    shutil.rmtree(scratch, ignore_errors=True)
    return folder


@contextmanager
def made_anew(path: str | Path) -> Iterator[None]:
    """What is said of a converted model's files with the mend of a conversion; of other readers as it is."""
    try:
        yield
    except UserError as fault:
        if not is_gguf(path):
            raise
        said = str(fault).rpartition("; ")[0]
        raise UserError(
            f"{conversion(path)}, which {path} was converted to, is spoilt ({said}); remove it, and it is made anew"
        ) from fault


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UserError(
            f"{folder} cannot be written to ({error.strerror}); set UTACA_CACHE to a folder for converted models"
        ) from error


def check(path: str | Path) -> None:
    """Raise :class:`UserError` where a GGUF file holds no whole model of a supported family, where this Python cannot
    read it, or where its conversion has no room; what is converted already is not looked at again."""
    folder = conversion(path)
    if folder is None:
        raise UserError(f"{path} is not here; set reader.path to a GGUF file, a folder or a hub id")
    if folder.is_dir():
        return
    check_packages()
    with Path(path).open("rb") as opened:
        first = opened.read(4)
    if first != b"GGUF":
        raise UserError(f"{path} is no GGUF file, by its first bytes; copy or download it anew")
    from gguf import GGUFReader

    try:
        file = GGUFReader(path)
    except Exception as error:  # a cut file fails wherever it was cut
        raise UserError(f"{path} is no whole GGUF file ({type(error).__name__}); copy or download it anew") from error
    kind = _value(file, "general.architecture")
    pieces = _value(file, "split.count") or 1
    if pieces > 1:
        raise UserError(f"{path} is one of {pieces} pieces of a model; join them first: llama-gguf-split --merge")
    if kind not in _FURTHER:
        raise UserError(f"{path} is a {kind} model; of GGUF files, supported are {', '.join(_FURTHER)}")
    if file.byte_order == "S":
        raise UserError(f"{path} has the bytes of its numbers in the other order; take the file for this machine")
    if lacking := [key for key in _NUMBERS if _value(file, f"{kind}.{key}") is None]:
        raise UserError(f"{path} does not say {kind}.{lacking[0]}, as models have it; copy or download it anew")
    scales = _value(file, f"{kind}.rope.scaling.type") not in (None, "none")
    scales |= _value(file, f"{kind}.rope.scale_linear") not in (None, 1.0)
    if scales or any(tensor.name == "rope_freqs.weight" for tensor in file.tensors):
        raise UserError(
            f"{path} scales its rotary embedding, which transformers does not read of a GGUF file; set reader.path to "
            "the hub id or folder of the model that it was made from"
        )
    if _value(file, f"{kind}.attention.sliding_window"):
        raise UserError(f"{path} uses sliding-window attention, which block memory does not support")
    if _value(file, "tokenizer.ggml.model") != "llama" and _rule(file) not in _RULES:
        raise UserError(
            f"{path} has a tokenizer of the kind {_rule(file)!r}; supported are {', '.join(_RULES)}, and those of "
            "SentencePiece; set reader.path to the hub id or folder of the model that it was made from"
        )
    if not _value(file, "tokenizer.chat_template"):
        raise UserError(f"{path} has no chat template; take the file of an instruction-tuned model")
    _check_tensors(file, path, kind)
    size = 2 * sum(prod(map(int, tensor.shape)) for tensor in file.tensors)
    check_room(folder, size, f"the conversion of {path} takes", "free some, or set UTACA_CACHE to a larger disk")


def _check_tensors(file: GGUFReader, path: str | Path, kind: str) -> None:
    """Raise :class:`UserError` where a file has not its model's weights: transformers would make up what is missing,
    and drop what it does not know."""
    wanted = {f"{name}.weight" for name in _WHOLE}
    for layer in range(_value(file, f"{kind}.block_count") or 0):
        names = (*(f"{name}.weight" for name in _LAYER), *_FURTHER[kind])
        wanted |= {f"blk.{layer}.{name}" for name in names}
    there = {tensor.name for tensor in file.tensors}
    others = {"lacks": wanted - there, "has unknown": there - wanted - {"output.weight"}}
    for fault, names in others.items():
        if names:
            first = sorted(names)[0]
            raise UserError(
                f"{path} {fault} weights of a {kind} model ({len(names)}: {first}, ...); copy or download it anew, or "
                "set reader.path to the hub id or folder of the model that it was made from"
            )


def check_packages() -> None:
    """Raise :class:`UserError` where this Python cannot read GGUF files."""
    if missing := [name for name in PACKAGES if find_spec(name) is None]:
        raise UserError(
            f'reading GGUF files needs {" and ".join(missing)}, not installed here; run: pip install "utaca[gguf]"'
        )


def _value(file: GGUFReader, key: str) -> Any:
    field = file.get_field(key)
    return None if field is None else field.contents()


def _rule(file: GGUFReader) -> str:
    return str(_value(file, "tokenizer.ggml.pre"))


def _convert(path: Path, folder: Path) -> None:
    """Save the model of a GGUF file as bfloat16 safetensors, with its tokenizer."""
    import torch
    from gguf import GGUFReader
    from transformers import AutoModelForCausalLM, AutoTokenizer

    with in_a_sentence(f"{path} cannot be read by transformers", "set reader.path to the model that it was made from"):
        tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
        if (rule := _rule(GGUFReader(path))) in ("llama-bpe", "smollm"):
            tokenizer.backend_tokenizer.pre_tokenizer = _splitting(rule)
        read = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.bfloat16)
    # What was read from a quantised file refuses to be saved.
    del read.config.quantization_config, read.hf_quantizer
    read.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    for file in folder.iterdir():
        file.chmod(0o644)


def _splitting(rule: str) -> Any:
    """The pre-tokenizer of a rule that transformers does not read."""
    from tokenizers import Regex, pre_tokenizers

    if rule == "smollm":
        # Digits stand alone before words are split, so that line breaks before a digit stay together.
        first, regex = pre_tokenizers.Digits(individual_digits=True), True
    else:
        first, regex = pre_tokenizers.Split(Regex(_LLAMA3), "isolated"), False
    return pre_tokenizers.Sequence([first, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=regex)])
