"""GGUF files as readers: transformers reads each once, into a folder of bfloat16 safetensors in a cache."""

from __future__ import annotations

import fcntl
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from utaca.data_files import sha256
from utaca.errors import UserError
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


def is_gguf(path: str | Path) -> bool:
    """Whether a reader's path is that of a GGUF file, be it here or not."""
    return Path(path).suffix.lower() == ".gguf"


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
    return sha256(path)


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
                with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
                    _convert(Path(path), Path(scratch) / "model")
                    os.rename(Path(scratch) / "model", folder)
    return folder


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
    from utaca.readers.families import FAMILIES

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
    if kind not in FAMILIES:
        raise UserError(f"{path} is a {kind} model; supported are {', '.join(FAMILIES)}")
    scaling = _value(file, f"{kind}.rope.scaling.type")
    if scaling not in (None, "none") or any(tensor.name == "rope_freqs.weight" for tensor in file.tensors):
        raise UserError(
            f"{path} scales its rotary embedding, which transformers does not read of a GGUF file; set reader.path to "
            "the hub id or folder of the model that it was made from"
        )
    if _value(file, "tokenizer.ggml.model") != "llama" and _rule(file) not in _RULES:
        raise UserError(
            f"{path} has a tokenizer of the kind {_rule(file)!r}; supported are {', '.join(_RULES)}, and those of "
            "SentencePiece; set reader.path to the hub id or folder of the model that it was made from"
        )
    size = 2 * sum(prod(map(int, tensor.shape)) for tensor in file.tensors)
    check_room(folder, size, f"the conversion of {path} takes", "free some, or set UTACA_CACHE to a larger disk")


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

    from utaca.readers.files import in_a_sentence

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
