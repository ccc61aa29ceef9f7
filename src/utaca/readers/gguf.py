"""GGUF files as readers: each file is converted once to a folder of safetensors in a cache.

The weights are packed, at about the file's own size (:mod:`utaca.readers.packed`), or plain: dequantised to bfloat16.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import sys
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from utaca.data_files import sha256
from utaca.errors import UserError, in_a_sentence
from utaca.machine import check_room, chosen_dtype, gpus, return_freed_memory
from utaca.readers import gguf_faults
from utaca.readers.gguf_faults import MAGIC, OLD_MAGICS, first_bytes

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PretrainedConfig, PreTrainedTokenizerBase

    from utaca.settings.schema import ReaderSettings

CONVERSION = 3
"""Version of the conversion; files that another version, or another transformers, converted are converted again."""

PACKING = 1
"""Version of packed weights; files that another version packed are packed again."""

PARAMETERS = "parameters"
"""Key of the metadata of a file of packed weights: how many parameters the model has."""
PACKAGES = ("accelerate", "gguf")
"""Packages that reading a GGUF file needs in addition to the core."""

_SPECIAL = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
}
"""A tokenizer's special tokens, each with the key of its id in a GGUF file."""
_SPLITS = {
    "llama-bpe": "|".join(
        (
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)",
            r"[^\r\n\p{L}\p{N}]?\p{L}+",
            r"\p{N}{1,3}",
            r" ?[^\s\p{L}\p{N}]+[\r\n]*",
            r"\s*[\r\n]+",
            r"\s+(?!\S)",
            r"\s+",
        )
    ),
    "tekken": "|".join(
        (
            r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
            r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*",
            r"\p{N}",
            r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
            r"\s*[\r\n]+",
            r"\s+(?!\S)",
            r"\s+",
        )
    ),
}
"""How the tokenizers of Llama 3 and of Mistral split a text, by the rule's name in a GGUF file."""
_CONTROL = 3
_ADDED = (_CONTROL, 4)
"""Types in ``tokenizer.ggml.token_type`` of tokens that texts are searched for: control and user-defined tokens."""
_ELSEWHERE = "set reader.path to the model that it was made from"


def is_gguf(path: str | Path) -> bool:
    """Whether a reader's path is of a GGUF file: by its end, so that the file need not exist, or by its first bytes.

    Ollama, for one, keeps such files without the ending.
    """
    if os.path.isdir(path):
        return False
    return Path(path).suffix.lower() == ".gguf" or first_bytes(path, 4) == MAGIC


def is_old(path: str | Path) -> bool:
    """Whether a file is of a format that llama.cpp had before GGUF."""
    return first_bytes(path, 4) in OLD_MAGICS


def models() -> Path:
    """Folder of converted models, in the folder that UTACA_CACHE names, else in the user's cache."""
    user = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("UTACA_CACHE") or Path(user) / "utaca") / "models"


def conversion(path: str | Path, packed: bool = False) -> Path | None:
    """Folder for the conversion of a GGUF file; the folder need not exist. None if the GGUF file does not exist."""
    if not os.path.isfile(path):
        return None
    form = f"packed{PACKING}-" if packed else ""
    return models() / f"{digest(path)[:16]}-{CONVERSION}-{form}{version('transformers')}"


def is_packed(reader: ReaderSettings) -> bool:
    """Whether a reader's weights are read packed: as ``reader.weights`` says; if that is ``auto``, if they can be.

    They can be if the file is a GGUF file with weights of types that can be packed, the reader computes in bfloat16 on
    a CPU, and torch has the products for this CPU. If only these products are missing, a line on standard error says
    so.
    """
    if reader.weights != "auto" or not is_gguf(reader.path):
        return reader.weights == "packed"
    if not has_packable(reader.path):
        return False
    on_cpu = reader.device == "cpu" or (reader.device == "auto" and not gpus())
    return on_cpu and chosen_dtype(reader.dtype, reader.device) == "bfloat16" and not _fault_said()


def has_packable(path: str | Path) -> bool:
    """Whether a GGUF file has weights of a type that can be packed; False if it cannot be read."""
    folder = conversion(path, packed=True)
    if folder is None:
        return False
    state = Path(path).stat()
    kinds = gguf_faults.PACKABLE.values()
    # A conversion to packed weights shows that there are some, without a look into the file.
    return folder.is_dir() or not _kinds(Path(path), state.st_size, state.st_mtime_ns).isdisjoint(kinds)


@cache
def _kinds(path: Path, _size: int, _modified: int) -> frozenset[int]:
    """The numbers of the types of a file's tensors, cached as long as the file's size and time stay the same."""
    return gguf_faults.tensor_kinds(path)


@cache
def _fault_said() -> str:
    """Why packed weights cannot be read here, which is said once; "" if they can."""
    from utaca.readers import packed

    if fault := packed.fault():
        print(f"weights are read as bfloat16, not packed: {fault}", file=sys.stderr, flush=True)
    return fault


def any_conversion(path: str | Path) -> Path | None:
    """Folder of a conversion of a GGUF file that exists, of either form; all have the same tokenizer."""
    folders = [conversion(path, packed) for packed in (True, False)]
    return next((folder for folder in folders if folder is not None and folder.is_dir()), None)


def digest(path: str | Path) -> str:
    """SHA-256 of a file, computed once as long as the file stays as it is."""
    state = Path(path).stat()
    return _digest(Path(path).absolute(), state.st_size, state.st_mtime_ns)


@cache
def _digest(path: Path, _size: int, _modified: int) -> str:
    """SHA-256 of a file, cached as long as its size and time of modification stay the same."""
    try:
        return sha256(path)
    except OSError as error:
        raise UserError(
            f"{path} cannot be read ({error.strerror}); correct its permissions, or copy it again"
        ) from error


def converted(path: str | Path, packed: bool = False) -> Path:
    """Convert a GGUF file unless a conversion of that form exists, and return the folder of the converted model.

    The folder appears only when the conversion is complete; if several processes call this, one converts and the rest
    wait. Raises :class:`UserError` as :func:`check` does, and if the model cannot be read or saved.
    """
    folder = conversion(path, packed)
    if folder is not None and folder.is_dir():
        return folder
    check(path, packed)
    # It is None only for a file that does not exist, which check refuses.
    assert folder is not None
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _beside(folder, "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not folder.is_dir():
                print(f"converting {path}, once, into {folder}", file=sys.stderr, flush=True)
                scratch = _beside(folder, "making")
                # A process that was killed leaves its scratch folder.
                shutil.rmtree(scratch, ignore_errors=True)
                try:
                    (_convert_packed if packed else _convert)(Path(path), scratch)
                    os.rename(scratch, folder)
                finally:
                    shutil.rmtree(scratch, ignore_errors=True)
    except OSError as error:
        raise UserError(
            f"{folder.parent} cannot be written to ({error.strerror}); set UTACA_CACHE to a folder for converted models"
        ) from error
    return folder


def _beside(folder: Path, end: str) -> Path:
    # The folder's name has points, and pathlib would replace what follows the last one.
    return folder.with_name(f"{folder.name}.{end}")


def check(path: str | Path, packed: bool = False) -> None:
    """Raise :class:`UserError` if a GGUF file cannot be converted, or would be read otherwise than by llama.cpp.

    The file must hold a complete model of a supported architecture, this Python must have the packages that reading the
    file needs, and the disk must have room for the conversion. A file that is converted already is not checked again.
    """
    folder = conversion(path, packed)
    if folder is None:
        raise UserError(f"{path} does not exist; set reader.path to a GGUF file, a folder or a hub id")
    if folder.is_dir():
        return
    check_packages()
    size = gguf_faults.converted_bytes(Path(path), packed)
    check_room(folder, size, f"the conversion of {path} takes", "free some, or set UTACA_CACHE to a larger disk")


def check_packages() -> None:
    """Raise :class:`UserError` if this Python lacks a package that reading GGUF files needs."""
    if missing := [name for name in PACKAGES if find_spec(name) is None]:
        raise UserError(
            f'reading GGUF files needs {" and ".join(missing)}, not installed here; run: pip install "utaca[gguf]"'
        )


def tokenizer(path: Path) -> tuple[PreTrainedTokenizerBase, int]:
    """The tokenizer of a GGUF file, and how many tokens the file has, a row of the embedding each.

    Raises :class:`UserError` if transformers cannot read the tokenizer as the file says.
    """
    from gguf import GGUFReader
    from transformers import AddedToken, AutoTokenizer

    with in_a_sentence(f"{path} has a tokenizer that transformers cannot read", _ELSEWHERE):
        read = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
        file = GGUFReader(path)
        if (split := _SPLITS.get(file.get_field("tokenizer.ggml.pre").contents())) is not None:
            _set_split(read.backend_tokenizer, split)
        # Not every transformers takes them from the file; transformers 5.17 takes those of the tokenizer's class.
        for name, key in _SPECIAL.items():
            if (field := file.get_field(f"tokenizer.ggml.{key}")) is not None:
                setattr(read, name, read.convert_ids_to_tokens(field.contents()))
        tokens, types, template = (
            file.get_field(f"tokenizer.{key}").contents() for key in ("ggml.tokens", "ggml.token_type", "chat_template")
        )
        # transformers reads the tokens, but takes only some of them for tokens to search texts for; add the others.
        added = read.added_tokens_decoder
        vocabulary = read.get_vocab()
        for number, (token, kind) in enumerate(zip(tokens, types, strict=True)):
            if kind not in _ADDED or number in added:
                continue
            if vocabulary.get(token) == number:
                read.add_tokens(AddedToken(token, normalized=False, special=kind == _CONTROL))
            elif token in template:
                raise UserError(
                    f"{path} has a chat template with the token {token!r}, which transformers cannot read from GGUF "
                    f"files; {_ELSEWHERE}"
                )
    return read, len(tokens)


def _set_split(tokenizer: Tokenizer, split: str) -> None:
    """Let a byte-level tokenizer split texts by a regular expression, and take words that are a token as they are.

    Not every transformers reads either from the file.
    """
    from tokenizers import Regex, pre_tokenizers

    parts = [
        pre_tokenizers.Split(Regex(split), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(parts)
    tokenizer.model.ignore_merges = True


def _config(path: Path) -> PretrainedConfig:
    """The config of a GGUF file's model, as transformers reads it, and with two things that transformers passes over.

    These are the width of a head, which may differ from the model's width divided by the number of heads, and the
    rotary scaling of a Llama, which the file has as a tensor (:func:`utaca.readers.gguf_faults.rope_scaling`).
    """
    from gguf import GGUFReader
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(path.parent, gguf_file=path.name)
    file = GGUFReader(path)
    kind = file.get_field("general.architecture").contents()
    if kind == "qwen2":
        # It needs neither.
        return config
    keys = ("embedding_length", "attention.head_count", "attention.key_length")
    fields = {key: file.get_field(f"{kind}.{key}") for key in keys}
    values = {key: field.contents() for key, field in fields.items() if field is not None}
    config.head_dim = gguf_faults.head_size(kind, values)
    if any(tensor.name == gguf_faults.ROPE for tensor in file.tensors):
        config.rope_parameters = config.rope_parameters | (gguf_faults.rope_scaling(file) or {})
    return config


def _convert(path: Path, folder: Path) -> None:
    """Save the model of a GGUF file as bfloat16 safetensors, with its tokenizer."""
    import torch
    from transformers import AutoModelForCausalLM

    words, _ = tokenizer(path)
    with in_a_sentence(f"{path} cannot be read by transformers", _ELSEWHERE):
        about = {"gguf_file": path.name, "config": _config(path), "dtype": torch.bfloat16}
        read = AutoModelForCausalLM.from_pretrained(path.parent, **about)
    read.generation_config.eos_token_id = _ends(path, words)
    # transformers refuses to save a model that it read from a quantised file.
    del read.config.quantization_config, read.hf_quantizer
    read.save_pretrained(folder)
    words.save_pretrained(folder)
    for file in folder.iterdir():
        file.chmod(0o644)


def _convert_packed(path: Path, folder: Path) -> None:
    """Save the model of a GGUF file as packed safetensors, with its tokenizer."""
    import torch
    from gguf import GGUFReader, dequantize
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM, GenerationConfig

    from utaca.readers import packed

    words, _ = tokenizer(path)
    with in_a_sentence(f"{path} cannot be read by transformers", _ELSEWHERE):
        config = _config(path)
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16, trust_remote_code=False)
    file = GGUFReader(path)
    stored_names = gguf_faults.stored_names(file, model.state_dict())
    tensors = {tensor.name: tensor for tensor in file.tensors}
    heads_of = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}

    def weight(name: str) -> packed.Raw:
        """The weight of this name in transformers, with its rows in transformers' order."""
        tensor = tensors[stored_names[name]]
        kind = tensor.tensor_type
        held = tensor.data if kind.name in gguf_faults.PACKABLE else dequantize(tensor.data, kind)
        rows = torch.from_numpy(held.copy())
        if config.model_type == "llama" and (heads := heads_of.get(name.split(".")[-2])):
            # llama.cpp rotates dimensions 2i and 2i + 1 of a head together, transformers i and i + half of a head; the
            # file has the rows of each head in llama.cpp's order.
            rows = rows.view(heads, -1, 2, rows.shape[-1]).transpose(1, 2).reshape(rows.shape)
        return packed.Raw(kind.name, rows)

    folder.mkdir()
    about = {"format": "pt", PARAMETERS: str(sum(each.numel() for each in model.parameters()))}
    save_file(packed.convert(model, weight), folder / "model.safetensors", about)
    return_freed_memory()
    generation = GenerationConfig.from_model_config(config)
    generation.eos_token_id = _ends(path, words)
    generation.save_pretrained(folder)
    config.save_pretrained(folder)
    words.save_pretrained(folder)
    for saved in folder.iterdir():
        saved.chmod(0o644)


def _ends(path: Path, words: PreTrainedTokenizerBase) -> list[int] | None:
    """The tokens that end an answer, as llama.cpp has it: transformers does not take the end of a turn from a file."""
    from gguf import GGUFReader

    turn = GGUFReader(path).get_field("tokenizer.ggml.eot_token_id")
    # A generation config has None, and not an empty list, if it names no end token.
    return sorted({words.eos_token_id, turn and turn.contents()} - {None}) or None
