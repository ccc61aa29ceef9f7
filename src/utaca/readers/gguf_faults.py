"""What in a GGUF file would be read otherwise than llama.cpp reads it.

transformers takes some keys of a file and passes over the others. So every key of the model must be known here: either
it is taken, or it has a value at which it changes nothing. The same holds for tensors.
"""

from __future__ import annotations

import math
import mmap
import os
import re
import struct
from collections.abc import Iterable, Iterator, Mapping
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from utaca.errors import UserError, in_a_sentence

if TYPE_CHECKING:
    from gguf import GGUFReader

MAGIC = b"GGUF"
"""First bytes of a GGUF file."""
RULES: Mapping[str, tuple[str, ...]] = {"llama": ("llama-bpe", "tekken"), "qwen2": ("qwen2",), "qwen3": ("qwen2",)}
"""Supported architectures, as GGUF files name them, each with its supported rules of pre-tokenization.

A file of a Mistral model has the architecture llama.
"""
_BYTE_LEVEL = "gpt2"
"""The name in a GGUF file of the supported kind of tokenizer."""
_ELSEWHERE = "set reader.path to the hub id or folder of the model that it was made from"

PACKABLE: Mapping[str, int] = {
    **{"Q4_0": 2, "Q4_1": 3, "Q5_0": 6, "Q5_1": 7, "Q8_0": 8},
    **{"Q4_K": 12, "Q5_K": 13, "Q6_K": 14},
}
"""Types of weights that can be packed (:mod:`utaca.readers.packed`), with their numbers in a GGUF file."""
_STRING = 8
_ARRAY = 9
_WIDTHS = {**dict.fromkeys((0, 1, 7), 1), **dict.fromkeys((2, 3), 2), **dict.fromkeys((4, 5, 6), 4)}
_WIDTHS |= dict.fromkeys((10, 11, 12), 8)
"""Bytes of values in a file's header, by the numbers of their types."""

OLD_MAGICS = (b"lmgg", b"fmgg", b"tjgg", b"algg")
"""First bytes of files of llama.cpp's formats before GGUF."""
_VERSIONS = (2, 3)

_COUNTS = (
    "block_count", "context_length", "embedding_length", "feed_forward_length", "attention.head_count",
    "attention.head_count_kv",
)  # fmt: skip
_EPSILON = "attention.layer_norm_rms_epsilon"
_BASE = "rope.freq_base"
_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    **dict.fromkeys(("rope.scale_linear", "rope.scaling.factor"), (0, 1)),
    "rope.scaling.type": ("none", "linear"),
    "rope.scaling.attn_factor": (1,),
    "rope.scaling.yarn_log_multiplier": (0,),
    "attention.causal": (True,),
    "pooling_type": (0,),
    **dict.fromkeys(("expert_count", "expert_used_count", "attention.sliding_window", "attention.scale"), (0,)),
    **dict.fromkeys(("attention.max_alibi_bias", "attention.clamp_kqv"), (0,)),
    **dict.fromkeys(("attn_logit_softcapping", "final_logit_softcapping"), (0,)),
    **dict.fromkeys(("logit_scale", "embedding_scale", "residual_scale"), (0, 1)),
    "use_parallel_residual": (False,),
}
"""Keys that transformers passes over, with the values at which they change nothing."""
_WITHOUT_SCALING = ("rope.scaling.original_context_length", "rope.scaling.finetuned")
"""Keys that change nothing if the rotary embedding is not scaled."""

_IDS = ("bos_token_id", "eos_token_id", "eot_token_id", "unknown_token_id", "padding_token_id")


def first_bytes(path: str | Path, count: int) -> bytes:
    """The first bytes of a file; none if it is not a regular file that this user may read."""
    if not os.path.isfile(path):
        return b""
    try:
        with Path(path).open("rb") as file:
            return file.read(count)
    except OSError:
        return b""


def converted_bytes(path: Path, packed: bool) -> int:
    """Most bytes that the conversion of a GGUF file takes; raises :class:`UserError` if the file would be misread."""
    try:
        with in_a_sentence(f"{path} cannot be read", "copy or download it again"):
            file = _opened(path)
            if fault := next(_faults(file), ""):
                raise UserError(f"{path} {fault}")
    except UserError:
        # Not all programs that split files write into a part that it is one.
        if part := part_of(path):
            raise UserError(f"{path} {_split(*part)}") from None
        raise
    sizes = [(prod(map(int, tensor.shape)), tensor.tensor_type.name in PACKABLE) for tensor in file.tensors]
    if packed and not any(can_be for _, can_be in sizes):
        raise UserError(
            f"{path} has no weights of a type that can be packed ({', '.join(PACKABLE)}); leave reader.weights out"
        )
    # In bfloat16, two bytes a weight. A packed matrix takes 1.25 bytes a weight at most, and rows of embedding and
    # output matrix are kept as well.
    return 2 * sum(size for size, _ in sizes)


def tensor_kinds(path: Path) -> frozenset[int]:
    """The numbers of the types of a GGUF file's tensors; none if the file cannot be read.

    Only the file's header is read, and its values are passed over, which takes a fraction of the time that the package
    gguf takes to open a file.
    """
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return _kinds_in(content)
    except (OSError, ValueError, struct.error, KeyError):
        return frozenset()


def _kinds_in(content: mmap.mmap) -> frozenset[int]:
    """The numbers of the types of the tensors that the header of a GGUF file lists.

    The header has the numbers of tensors and of keys, then each key with the type of its value and the value, then each
    tensor with its name, number of dimensions, dimensions, type and place. A text is its length and its bytes.
    """
    # The first bytes are MAGIC and the format's version, of four bytes each.
    place = 8

    def read(form: str) -> int:
        """Read a number of a format of :mod:`struct` at ``place``, and continue after it."""
        nonlocal place
        place += struct.calcsize(form)
        return struct.unpack_from(form, content, place - struct.calcsize(form))[0]

    def skip(kind: int) -> None:
        """Continue after a value of the type of this number."""
        nonlocal place
        if kind == _STRING:
            length = read("<Q")
            place += length
        elif kind == _ARRAY:
            inner = read("<I")
            count = read("<Q")
            if inner in _WIDTHS:
                place += count * _WIDTHS[inner]
                return
            for _ in range(count):
                skip(inner)
        else:
            place += _WIDTHS[kind]

    tensors = read("<Q")
    for _ in range(read("<Q")):
        skip(_STRING)
        skip(read("<I"))
    found = set()
    for _ in range(tensors):
        skip(_STRING)
        dimensions = read("<I")
        place += 8 * dimensions
        found.add(read("<I"))
        place += 8
    return frozenset(found)


def stored_names(file: GGUFReader, names: Iterable[str]) -> dict[str, str]:
    """The names in a GGUF file of weights of a model of transformers, by their ``names`` there."""
    from gguf import MODEL_ARCH_NAMES, get_tensor_name_map

    kind = file.fields["general.architecture"].contents()
    arch = next(arch for arch, name in MODEL_ARCH_NAMES.items() if name == kind)
    known = get_tensor_name_map(arch, file.fields[f"{kind}.block_count"].contents())
    return {name: str(known.get_name(name, try_suffixes=(".weight", ".bias"))) for name in names}


def _split(number: int, count: int) -> str:
    """The fault of a file that is part ``number`` (from 1) of ``count``: the rest of a sentence."""
    return f"is part {number} of {count} of a split file; {merging('FIRST_PART')}"


def merging(first: object) -> str:
    """How to merge the parts of a split file; ``first`` is the path of the first part."""
    return f"merge them (llama-gguf-split --merge {first} MERGED.gguf), and set reader.path to the merged file"


def part_of(path: Path) -> tuple[int, int] | None:
    """Number (from 1) and count of a split file's part, by the part's name; None if it is not the name of one."""
    found = re.search(r"-(\d{5})-of-(\d{5})\.gguf$", path.name, re.IGNORECASE)
    return (int(found[1]), int(found[2])) if found and int(found[2]) > 1 else None


def _opened(path: Path) -> GGUFReader:
    """Open a GGUF file; raises :class:`UserError` if it is not one, by its first bytes and its length."""
    first = first_bytes(path, 8)
    if first[:4] in OLD_MAGICS:
        raise UserError(f"{path} has a format that is older than GGUF; convert its model with a current llama.cpp")
    if first[:4] != MAGIC:
        raise UserError(f"{path} is not a GGUF file (its first bytes are not GGUF); copy or download it again")
    version = int.from_bytes(first[4:], "little")
    if len(first) == 8 and version not in _VERSIONS:
        if int.from_bytes(first[4:], "big") in _VERSIONS:
            raise UserError(
                f"{path} is a GGUF file for big-endian machines; convert it: gguf-convert-endian {path} little"
            )
        remedy = "convert its model with a current llama.cpp" if version == 1 else "take another file of its model"
        raise UserError(f"{path} is a GGUF file of version {version}, but only versions 2 and 3 can be read; {remedy}")
    from gguf import GGUFReader

    try:
        return GGUFReader(path)
    except Exception as error:  # the type depends on where a file was cut
        raise UserError(
            f"{path} is not a complete GGUF file ({type(error).__name__}); copy or download it again"
        ) from error


def _faults(file: GGUFReader) -> Iterator[str]:
    """Why a file would be misread: the rest of a sentence that begins with its path.

    A caller takes only the first fault, because each check relies on those before it.
    """
    # Lists are left out here; of an entry that is one value, ``data`` has one item.
    values = {name: field.contents() for name, field in file.fields.items() if len(field.data) <= 1}
    if isinstance(count := values.get("split.count"), int) and count > 1:
        yield _split(int(values.get("split.no", 0)) + 1, count)
    kind = values.get("general.architecture")
    rule = values.get("tokenizer.ggml.pre")
    what = values.get("general.type", "model")
    if what == "adapter":
        yield "is an adapter; merge it into its base model (llama-export-lora), and set reader.path to the result"
    if what == "mmproj" or kind == "clip":
        yield "is the part of a model that reads images (mmproj); set reader.path to the language model's file"
    if what != "model":
        yield f"is a file of type {what}, not a model; set reader.path to the model's file"
    if not isinstance(kind, str):
        yield "has no general.architecture; copy or download it again"
    if kind not in RULES:
        yield f"is a {kind} model, but only {', '.join(RULES)} can be read; use one of these models"
    if (model := values.get("tokenizer.ggml.model")) != _BYTE_LEVEL:
        yield f"has a tokenizer of type {model}, but only {_BYTE_LEVEL} can be read from GGUF files; {_ELSEWHERE}"
    if rule not in RULES[kind]:
        yield f"is a {kind} model with tokenizer {rule}, but only {' or '.join(RULES[kind])} can be read; {_ELSEWHERE}"
    # The value of a list is None: no key that is taken has one.
    own = {name.partition(".")[2]: values.get(name) for name in file.fields if name.startswith(f"{kind}.")}
    yield from _key_faults(kind, own)
    yield from _tensor_faults(file, kind, own)
    yield from _tokenizer_faults(file, values, f"{kind}.vocab_size")


def head_size(kind: str, values: Mapping[str, Any]) -> int:
    """Width of a head, from the keys of an architecture ``kind``, whose names are given without it.

    Without a key for it, and always in qwen2, it is the model's width divided by the number of heads.
    """
    width: int = values["embedding_length"] // values["attention.head_count"]
    return width if kind == "qwen2" else values.get("attention.key_length", width)


def _key_faults(kind: str, values: Mapping[str, Any]) -> Iterator[str]:
    """Faults of the keys of the architecture ``kind``, whose names are given without it; see :func:`_faults`."""
    for key in _COUNTS:
        if type(value := values.get(key)) is not int or value < 1:
            yield f"has {kind}.{key}={_shown(value)}, which must be a whole number above 0; copy or download it again"
    for key, default in {_EPSILON: None, _BASE: 10_000.0}.items():
        value = values.get(key, default)
        if not (isinstance(value, float) and math.isfinite(value) and value > 0):
            yield f"has {kind}.{key}={_shown(value)}, which must be a number above 0; copy or download it again"
    heads = values["attention.head_count"]
    width = values["embedding_length"]
    length = values.get("attention.key_length", 1)
    if heads % values["attention.head_count_kv"] or (width % heads and (kind == "qwen2" or length == 1)):
        yield "has sizes of heads that do not divide each other; copy or download it again"
    for key, value in values.items():
        if key in ("rope.dimension_count", "attention.key_length", "attention.value_length"):
            neutral: tuple[Any, ...] = (head_size(kind, values),)
        elif key in _NEUTRAL:
            neutral = _NEUTRAL[key]
        elif key in (*_COUNTS, *_WITHOUT_SCALING, _EPSILON, _BASE, "vocab_size"):
            continue
        else:
            yield f"has {kind}.{key}, which cannot be read from GGUF files; {_ELSEWHERE}"
        if value not in neutral:
            yield (
                f"has {kind}.{key}={_shown(value)}, but it can be read from GGUF files only if it is "
                f"{' or '.join(map(_shown, neutral))}; {_ELSEWHERE}"
            )


def _shown(value: Any) -> str:
    """A key's value as a message shows it."""
    return "nothing" if value is None else f"{value:g}" if isinstance(value, float) else str(value).lower()


def _tensor_faults(file: GGUFReader, kind: str, values: Mapping[str, Any]) -> Iterator[str]:
    """Faults of the tensors: missing, unknown or of other sizes, and types that the package gguf does not read."""
    from gguf import dequantize

    layers = values["block_count"]
    if layers > len(file.tensors):
        yield f"lacks weights of its {layers} layers; copy or download it again, or {_ELSEWHERE}"
    wanted = _shapes(kind, values, len(_listed(file, "tokenizer.ggml.tokens")))
    stored = {tensor.name: tuple(reversed([int(size) for size in tensor.shape])) for tensor in file.tensors}
    # transformers would initialise missing weights and drop unknown ones.
    lacking = wanted.keys() - stored.keys() - {_OUTPUT, ROPE}
    for fault, names in {"lacks": lacking, "has unknown": stored.keys() - wanted.keys()}.items():
        if names:
            yield f"{fault} weights ({len(names)}: {min(names)}, ...); copy or download it again, or {_ELSEWHERE}"
    for name, shape in stored.items():
        if shape != wanted[name]:
            yield f"has {name} of size {[*shape]}, not {[*wanted[name]]}; copy or download it again"
    if ROPE in stored and rope_scaling(file) is None:
        yield f"has {ROPE} of another scaling than Llama 3's, which is not read from GGUF files; {_ELSEWHERE}"
    for tensor in {tensor.tensor_type: tensor for tensor in file.tensors}.values():
        try:
            dequantize(tensor.data[:1], tensor.tensor_type)
        except Exception:  # the error's class differs between versions of gguf
            yield f"has weights of type {tensor.tensor_type.name}, which the package gguf does not read; {_ELSEWHERE}"


_OUTPUT = "output.weight"
"""A tensor that is missing if the output matrix is the embedding."""


ROPE = "rope_freqs.weight"
"""A tensor of the numbers that the frequencies of a Llama's rotary embedding are divided by."""


def rope_scaling(file: GGUFReader) -> dict[str, Any] | None:
    """The scaling of a Llama's rotary embedding as transformers has it: that of Llama 3, with the file's factor.

    llama.cpp keeps what the scaling does to each frequency, and not the scaling. None if it is another one.
    """
    import numpy

    # What each frequency is divided by, the highest frequency first.
    stored = next(tensor for tensor in file.tensors if tensor.name == ROPE).data.astype(numpy.float64)
    field = file.get_field("llama.rope.freq_base")
    base = 10_000.0 if field is None else field.contents()
    # Tokens that each frequency takes for a full turn. Llama 3 divides the lowest frequencies, which turn at most
    # ``low`` times in the ``trained`` tokens, by the factor; it leaves those that turn ``high`` times or more as they
    # are, and goes smoothly from one to the other.
    lengths = 2 * math.pi * base ** (numpy.arange(len(stored)) / len(stored))
    factor = float(stored[-1])
    low, high, trained = 1.0, 4.0, 8192
    smooth = numpy.clip((trained / lengths - low) / (high - low), 0, 1)
    if not numpy.allclose(stored, 1 / ((1 - smooth) / factor + smooth), rtol=1e-4):
        return None
    named = {"low_freq_factor": low, "high_freq_factor": high, "original_max_position_embeddings": trained}
    return {"rope_type": "llama3", "factor": factor} | named


def _shapes(kind: str, values: Mapping[str, Any], n_vocab: int) -> dict[str, tuple[int, ...]]:
    """Shapes, by name, of all tensors that a model of ``values`` (keys of the file) and ``n_vocab`` tokens may have."""
    # The second of _COUNTS is the context's length, on which no shape depends.
    layers, _, width, inner, heads, kv_heads = (values[key] for key in _COUNTS)
    head = head_size(kind, values)
    layer = {
        **dict.fromkeys(("attn_norm.weight", "ffn_norm.weight"), (width,)),
        "attn_q.weight": (heads * head, width),
        "attn_output.weight": (width, heads * head),
        **dict.fromkeys(("attn_k.weight", "attn_v.weight"), (kv_heads * head, width)),
        **dict.fromkeys(("ffn_gate.weight", "ffn_up.weight"), (inner, width)),
        "ffn_down.weight": (width, inner),
    }
    if kind == "qwen2":
        layer["attn_q.bias"] = (heads * head,)
        layer |= dict.fromkeys(("attn_k.bias", "attn_v.bias"), (kv_heads * head,))
    if kind == "qwen3":
        layer |= dict.fromkeys(("attn_q_norm.weight", "attn_k_norm.weight"), (head,))
    whole = {"token_embd.weight": (n_vocab, width), _OUTPUT: (n_vocab, width), "output_norm.weight": (width,)}
    if kind == "llama":
        whole[ROPE] = (head // 2,)
    return whole | {f"blk.{number}.{name}": shape for number in range(layers) for name, shape in layer.items()}


def _tokenizer_faults(file: GGUFReader, values: Mapping[str, Any], count: str) -> Iterator[str]:
    """Faults of the tokens, their types and ids, and of the chat template; the key ``count`` may hold their number."""
    tokens = _listed(file, "tokenizer.ggml.tokens")
    if not tokens:
        yield "has no tokens; copy or download it again"
    if not _listed(file, "tokenizer.ggml.merges"):
        yield "has no merges of its tokenizer; copy or download it again"
    template = values.get("tokenizer.chat_template")
    if not template or not isinstance(template, str):
        yield "has no chat template; take the file of an instruction-tuned model"
    for key in _IDS:
        number = values.get(f"tokenizer.ggml.{key}", 0)
        if type(number) is not int or not 0 <= number < len(tokens):
            yield f"has tokenizer.ggml.{key}={_shown(number)}, but {len(tokens)} tokens; copy or download it again"
    if (rows := values.get(count, len(tokens))) != len(tokens):
        yield f"has {count}={_shown(rows)}, but {len(tokens)} tokens; copy or download it again"
    types = _listed(file, "tokenizer.ggml.token_type")
    if len(types) != len(tokens):
        yield f"has types of {len(types)} tokens, but {len(tokens)} tokens; copy or download it again"


def _listed(file: GGUFReader, key: str) -> list[Any]:
    """The list that a key holds; empty if there is none."""
    field = file.get_field(key)
    found = None if field is None else field.contents()
    return found if isinstance(found, list) else []
