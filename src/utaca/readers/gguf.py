"""GGUF files as readers: each file is converted once to a folder of bfloat16 safetensors in a cache."""

from __future__ import annotations

import fcntl
import os
import shutil
import sys
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
"""Version of the conversion; files that another version converted are converted again."""

PACKAGES = ("accelerate", "gguf")
"""Packages that reading a GGUF file needs in addition to the core."""

KIND = "qwen2"
"""The name in a GGUF file of the supported architecture, and of the supported rule of pre-tokenization."""

_NUMBERS = (
    "block_count", "context_length", "embedding_length", "feed_forward_length", "attention.head_count",
    "attention.layer_norm_rms_epsilon",
)  # fmt: skip
"""Keys that a file must have; for a missing key, transformers would use the value of another model."""

_WHOLE = ("token_embd.weight", "output_norm.weight")
_LAYER = (
    *(f"{name}.weight" for name in ("attn_norm", "attn_output", "ffn_norm", "ffn_gate", "ffn_up", "ffn_down")),
    *(f"attn_{name}.{part}" for name in "qkv" for part in ("weight", "bias")),
)

_SPECIAL = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
}
"""A tokenizer's special tokens, each with the key of its id in a GGUF file."""


def is_gguf(path: str | Path) -> bool:
    """Whether a reader's path ends like the path of a GGUF file; the file need not exist."""
    return Path(path).suffix.lower() == ".gguf" and not os.path.isdir(path)


def models() -> Path:
    """Folder of converted models, in the folder that UTACA_CACHE names, else in the user's cache."""
    user = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("UTACA_CACHE") or Path(user) / "utaca") / "models"


def conversion(path: str | Path) -> Path | None:
    """Folder for the conversion of a GGUF file; the folder need not exist. None if the GGUF file does not exist."""
    if not os.path.isfile(path):
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
    """Convert a GGUF file unless a conversion exists, and return the folder of the converted model.

    The folder appears only when the conversion is complete; if several processes call this, one converts and the rest
    wait. Raises :class:`UserError` as :func:`check` does, and if the model cannot be read or saved.
    """
    folder = conversion(path)
    if folder is not None and folder.is_dir():
        return folder
    check(path)
    assert folder is not None
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with folder.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not folder.is_dir():
                print(f"converting {path}, once, into {folder}", file=sys.stderr, flush=True)
                scratch = folder.with_suffix(".making")
                # A process that was killed leaves its scratch folder.
                shutil.rmtree(scratch, ignore_errors=True)
                try:
                    _convert(Path(path), scratch)
                    os.rename(scratch, folder)
                finally:
                    shutil.rmtree(scratch, ignore_errors=True)
    except OSError as error:
        raise UserError(
            f"{folder.parent} cannot be written to ({error.strerror}); set UTACA_CACHE to a folder for converted models"
        ) from error
    return folder


def check(path: str | Path) -> None:
    """Raise :class:`UserError` if a GGUF file cannot be converted.

    The file must hold a complete Qwen2 model, this Python must have the packages that reading the file needs, and the
    disk must have room for the conversion. A file that is converted already is not checked again.
    """
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
    except Exception as error:  # the type depends on where a file was cut
        raise UserError(f"{path} is no whole GGUF file ({type(error).__name__}); copy or download it anew") from error
    mend = "set reader.path to the hub id or folder of the model that it was made from"
    kind, rule = _value(file, "general.architecture"), _value(file, "tokenizer.ggml.pre")
    if (kind, rule) != (KIND, KIND):
        raise UserError(f"{path} is a {kind} model with a {rule} tokenizer; of GGUF files {KIND} alone is read; {mend}")
    if lacking := [key for key in _NUMBERS if _value(file, f"{kind}.{key}") is None]:
        raise UserError(f"{path} does not say {kind}.{lacking[0]}, as models have it; copy or download it anew")
    if _value(file, f"{kind}.rope.scaling.type") not in (None, "none"):
        raise UserError(f"{path} scales its rotary embedding, which is not read of GGUF files; {mend}")
    if not _value(file, "tokenizer.chat_template"):
        raise UserError(f"{path} has no chat template; take the file of an instruction-tuned model")
    layers = range(_value(file, f"{kind}.block_count"))
    wanted = {*_WHOLE, *(f"blk.{layer}.{name}" for layer in layers for name in _LAYER)}
    stored = {tensor.name for tensor in file.tensors}
    # transformers would initialise missing weights and drop unknown ones.
    for fault, names in {"lacks": wanted - stored, "has unknown": stored - wanted - {"output.weight"}}.items():
        if names:
            first = min(names)
            raise UserError(f"{path} {fault} weights ({len(names)}: {first}, ...); copy or download it anew, or {mend}")
    size = 2 * sum(prod(map(int, tensor.shape)) for tensor in file.tensors)
    check_room(folder, size, f"the conversion of {path} takes", "free some, or set UTACA_CACHE to a larger disk")


def check_packages() -> None:
    """Raise :class:`UserError` if this Python lacks a package that reading GGUF files needs."""
    if missing := [name for name in PACKAGES if find_spec(name) is None]:
        raise UserError(
            f'reading GGUF files needs {" and ".join(missing)}, not installed here; run: pip install "utaca[gguf]"'
        )


def _value(file: GGUFReader, key: str) -> Any:
    field = file.get_field(key)
    return None if field is None else field.contents()


def _convert(path: Path, folder: Path) -> None:
    """Save the model of a GGUF file as bfloat16 safetensors, with its tokenizer."""
    import torch
    from gguf import GGUFReader
    from transformers import AutoModelForCausalLM, AutoTokenizer

    with in_a_sentence(f"{path} cannot be read by transformers", "set reader.path to the model that it was made from"):
        tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
        read = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.bfloat16)
    # Not every transformers takes them from the file; transformers 5.17 takes those of the tokenizer's class.
    file = GGUFReader(path)
    for name, key in _SPECIAL.items():
        if (number := _value(file, f"tokenizer.ggml.{key}")) is not None:
            setattr(tokenizer, name, tokenizer.convert_ids_to_tokens(number))
    # transformers refuses to save a model that it read from a quantised file.
    del read.config.quantization_config, read.hf_quantizer
    read.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    for file in folder.iterdir():
        file.chmod(0o644)
