"""Weights of GGUF files at their own size: matrix products on a CPU that read four or eight bits per weight.

torch multiplies by a matrix of four-bit digits, ``(digit - 8) * scale + zero``, whose groups share a scale and a zero
in bfloat16. A code of four bits is one digit. A longer code is two digits, 16 times the first plus the second: the
matrix is twice as wide, and is multiplied by the input times 16 next to the input. So one kernel serves all types, and
only scales and zeros are rounded.

That product is fast for few rows. For many, the matrix is unpacked into memory that all layers share, in the type that
the processor multiplies fastest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, GenerationConfig, PretrainedConfig, PreTrainedModel

from utaca.readers.attention import ATTENTION
from utaca.readers.families import FAMILIES
from utaca.readers.gguf_blocks import KINDS, Groups, groups
from utaca.readers.head import EXACT, ROUNDING, SUM_ERROR
from utaca.readers.many_rows import CONVERTS, MANY, shared

BYTES = "U8"
"""The type, as a file's header calls it, of packed digits."""
FEW = {1: 96, 2: 48} if CONVERTS else {1: 128, 2: 40}
"""Most rows of an input that are multiplied by the digits themselves, by the number of digits; docs/reader.md."""
TILE = 64
"""Outputs whose digits lie together, as torch's kernel for AVX-512 reads them."""
_CENTRE = {1: 8, 2: 8 * 16 + 8}
"""The code that the kernel takes for zero, by the number of digits."""
_SHIFT = {4: 0, 5: 120, 6: 104, 8: 0}
"""What is added to codes, by their bits: the middle of five and six bits then is the code that is taken for zero."""
_TILES = 16
"""Tiles of a matrix whose digits are taken apart together, so that they stay in the processor's cache."""
_PART = 4096
"""Rows of a matrix whose exact values are computed at once."""
_CANDIDATES = 64
"""Tokens of a hidden state whose exact logits are computed first: the best ones by the packed product."""
_TOLERANCE = 2.0**-7
"""Largest difference between the kernel's product and the dequantised one, of the largest product."""


class Digits(NamedTuple):
    """A packed matrix [N, K]: bytes [N', K * digits / 2] of two digits each, and bfloat16 scales and zeros
    [groups, N', 2]. N' is N, rounded up to a multiple of :data:`TILE`."""

    codes: Tensor
    scales: Tensor


def pack(weights: Groups, bits: int) -> Digits:
    """Pack a matrix [N, K] whose codes have 4 to 8 ``bits``: 4 make one digit, more make two."""
    rows, count = weights.scales.shape
    digits = weights.codes.view(rows, count, -1) + _SHIFT[bits]
    # The weight of the code that the kernel takes for zero (_CENTRE): every weight is then (code - centre) * scale
    # plus this.
    zeros = (_CENTRE[1 if bits == 4 else 2] - _SHIFT[bits] - weights.zero) * weights.scales
    if weights.minima is not None:
        zeros -= weights.minima
    if bits > 4:
        # [N, groups, 2, group]: in each group, all first digits and then all second ones.
        digits = torch.stack((digits >> 4, digits & 15), 2)
        # Both digits of a weight get the zero, and the first is multiplied by 16 times the input.
        zeros /= 17
    filled = -(-rows // TILE) * TILE
    wide = torch.zeros(filled, digits[0].numel(), dtype=torch.uint8)
    wide[:rows] = digits.flatten(1)
    # A byte holds a digit of two outputs of a tile: one of the tile's first half, and one of its second half.
    low, high = wide.view(-1, 2, TILE // 2, wide.shape[1]).transpose(2, 3).unbind(1)
    scales = torch.zeros(count, filled, 2, dtype=torch.bfloat16)
    scales[:, :rows] = torch.stack((weights.scales.T, zeros.T), -1)
    return Digits((low | high << 4).reshape(filled, -1), scales)


class PackedLinear(nn.Module):
    """A linear layer [..., K] to [..., N] with a packed matrix, on a CPU in bfloat16.

    ``sample`` are rows of the matrix that identify a model, as a parameter, so that a model has the
    same identity and type whether its weights are packed or not.
    """

    codes: Tensor
    scales: Tensor

    def __init__(
        self, columns: int, rows: int, digits: Digits, sample: Tensor | None = None, bias: nn.Parameter | None = None
    ) -> None:
        super().__init__()
        self.in_features = columns
        self.out_features = rows
        self.register_buffer("codes", digits.codes)
        self.register_buffer("scales", digits.scales)
        self.sample = None if sample is None else nn.Parameter(sample, requires_grad=False)
        self.bias = bias
        self.digits = 2 * digits.codes.shape[1] // columns  # of each weight: 1 or 2
        self.group = columns // len(digits.scales)  # weights in a row that share a scale and a zero

    def forward(self, hidden: Tensor) -> Tensor:
        """The layer's output [..., N] for ``hidden`` [..., K]."""
        rows = hidden.reshape(-1, self.in_features)
        out = self.product(rows)
        if self.bias is not None:
            out = out + self.bias
        return out.view(*hidden.shape[:-1], self.out_features)

    def product(self, rows: Tensor) -> Tensor:
        """Product [R, N] of rows [R, K] with the matrix: by its digits for few rows, unpacked for many."""
        if len(rows) > FEW[self.digits]:
            product = rows.to(MANY) @ self.unpacked(MANY)
            return product[:, : self.out_features].to(rows.dtype)
        if self.digits == 2:
            # In the order of the digits (pack): for each group, the inputs of the first digits, then of the second.
            parts = rows.view(len(rows), -1, self.group)
            rows = torch.stack((16 * parts, parts), 2).flatten(1)
        size = self.group * self.digits
        kernel = torch.ops.aten._weight_int4pack_mm_for_cpu
        return kernel(rows.contiguous(), self.codes, size, self.scales)[:, : self.out_features]

    def unpacked(self, dtype: torch.dtype) -> Tensor:
        """The transposed matrix [K, N'] in a ``dtype``, in memory that the next call in this thread overwrites."""
        filled = self.codes.shape[0]
        count = len(self.scales)
        scales, zeros = (part.to(dtype).contiguous()[:, None] for part in self.scales.unbind(-1))
        if self.digits == 2:
            # Codes are taken from 128 on here, which a signed byte can hold, and not from their centre.
            zeros = zeros * 17 - (_CENTRE[2] - 128) * scales
        matrix = shared(self.in_features * filled, dtype)
        tiles = self.codes.view(-1, self.in_features * self.digits, TILE // 2)
        # [K, tiles, halves of a tile, outputs].
        outputs = matrix.view(self.in_features, -1, 2, TILE // 2)
        for start in range(0, len(tiles), _TILES):
            packed = tiles[start : start + _TILES]
            if self.digits == 1:
                halves = (packed & 15).sub_(8), (packed >> 4).sub_(8)
            else:
                # Bytes of first digits and of second ones; the low bits of both make codes of a tile's first half, the
                # high bits those of its second half. The bit 128 turned, a code as a signed byte is 128 less.
                first, second = packed.view(len(packed), count, 2, -1).unbind(2)
                halves = (first << 4 | second & 15).bitwise_xor_(128), (first & 240 | second >> 4).bitwise_xor_(128)
            for number, half in enumerate(halves):
                codes = half.view(torch.int8).view(len(packed), self.in_features, -1).transpose(0, 1)
                outputs[:, start : start + _TILES, number] = codes
        groups = matrix.view(count, self.group, filled)
        torch.addcmul(zeros, groups, scales, out=groups)
        return matrix.view(self.in_features, filled)


class PackedRows(nn.Module):
    """An embedding whose rows are the file's own bytes [V, bytes], and are dequantised where they are read.

    ``kind`` is the name of the type, in bytes. ``sample`` is as in :class:`PackedLinear`.
    """

    kind: Tensor
    rows: Tensor

    def __init__(self, kind: Tensor, rows: Tensor, sample: Tensor) -> None:
        super().__init__()
        self.register_buffer("kind", kind)
        self.register_buffer("rows", rows)
        self.sample = nn.Parameter(sample, requires_grad=False)

    def values(self, which: Tensor | slice) -> Tensor:
        """Float32 rows [n, D] by their numbers [n]."""
        return groups(self.rows[which], bytes(self.kind.tolist()).decode()).values()

    def forward(self, tokens: Tensor) -> Tensor:
        """Embeddings [..., D] of ``tokens`` [...], in the reader's type."""
        return self.values(tokens.flatten()).to(self.sample.dtype).view(*tokens.shape, -1)


class PackedHead(PackedLinear):
    """A packed output matrix, whose best products are computed exactly, from the rows of the file.

    ``errors`` [V] are the lengths of the differences between packed and exact rows. ``exact`` has the exact rows; it is
    None if they are those of the embedding (:meth:`tie`).
    """

    errors: Tensor

    def __init__(self, columns: int, digits: Digits, errors: Tensor, exact: PackedRows | None) -> None:
        super().__init__(columns, len(errors), digits)
        self.register_buffer("errors", errors)
        self.exact = exact
        self._tied: tuple[PackedRows, ...] = ()

    def tie(self, embedding: PackedRows) -> None:
        """Take the exact rows from the embedding, which is the same matrix."""
        # Within a tuple, the embedding does not become a part of this module.
        self._tied = (embedding,)

    def logits(self, hidden: Tensor) -> Tensor:
        """Float32 products [N, V] of hidden states [N, D].

        Those of each row's :data:`utaca.readers.head.EXACT` best tokens are exact with respect to the file's matrix,
        because every token that may be one of them, by the bound on its packed product's error, is computed exactly.
        """
        exact = self.exact or self._tied[0]
        if len(hidden) > FEW[self.digits]:
            # For so many rows, to compute all logits exactly costs less than to look for the best ones.
            found = hidden.new_empty(len(hidden), self.out_features, dtype=torch.float32)
            for start in range(0, self.out_features, _PART):
                part = slice(start, start + _PART)
                found[:, part] = hidden.float() @ exact.values(part).T
            return found
        packed = self.product(hidden).float()
        # No exact logit [N, V] is above its bound: the packed one, its rounding, and at most the length of the hidden
        # state times that of the row's error (Cauchy-Schwarz).
        bounds = packed + ROUNDING * packed.abs() + SUM_ERROR + hidden.float().norm(dim=1, keepdim=True) * self.errors
        for row, logits, bound in zip(hidden.float(), packed, bounds, strict=True):
            count = min(_CANDIDATES, len(bound))
            first = bound.topk(count).indices
            logits[first] = exact.values(first) @ row
            bound[first] = -torch.inf
            # The least of the best exact logits so far: what cannot exceed it is none of the best.
            worst = logits[first].topk(min(EXACT, count)).values[-1]
            if len(others := (bound > worst).nonzero().flatten()):
                for part in others.split(_PART):
                    logits[part] = exact.values(part) @ row
        return packed


@cache
def fault() -> str:
    """Why packed weights cannot be read on this machine; "" if they can.

    torch has kernels for several processors, and each lays the digits out in its own way. So the products of small
    matrices, packed as for AVX-512, are compared with the dequantised ones.
    """
    chance = torch.Generator().manual_seed(0)
    rows, columns = 96, 512
    for kind in KINDS.values():
        codes = torch.randint(0, 2**kind.bits, (rows, columns), generator=chance).to(torch.uint8)
        scales, minima = torch.rand(2, rows, columns // kind.group, generator=chance).unbind()
        weights = Groups(codes, scales, minima * 2**kind.bits, kind.zero)
        layer = PackedLinear(columns, rows, pack(weights, kind.bits))
        hidden = torch.randn(5, columns, generator=chance).bfloat16()
        # [5, rows], by the definition of the weights and without the kernel.
        expected = hidden.float() @ weights.values().T
        try:
            found = layer.product(hidden).float()
        except (AttributeError, RuntimeError) as error:  # no such kernel, or none for this processor
            return f"this torch has no product with packed weights for this processor ({type(error).__name__})"
        if not (found - expected).abs().max() <= _TOLERANCE * expected.abs().max():
            return "torch lays packed weights out in another way on this processor"
    return ""


def convert(model: PreTrainedModel, file: Callable[[str], Raw]) -> dict[str, Tensor]:
    """What a file of packed weights holds of a ``model``, which is on the device meta.

    ``file`` gives a weight by its name in transformers; it lacks an output matrix that is the embedding.
    Matrices of other types than those of :data:`utaca.readers.gguf_blocks.KINDS`, and all vectors, stay bfloat16.
    """
    parts = FAMILIES[model.config.model_type].parts(model)
    tied = model.config.tie_word_embeddings
    found: dict[str, Tensor] = {}
    for name, module in model.named_modules():
        for own, _ in module.named_parameters(recurse=False):
            weight = f"{name}.{own}"
            raw = file(_name_of(model, parts.embedding) + ".weight" if tied and module is parts.head else weight)
            if raw.kind not in KINDS:
                # A head that is the embedding is not stored twice.
                if not (tied and module is parts.head):
                    found[weight] = raw.rows.bfloat16()
            elif module is parts.embedding:
                found |= _named(name, _rows(raw))
            elif module is parts.head:
                digits, errors = _packed(raw)
                found |= _named(name, digits._asdict() | {"errors": errors})
                found |= {} if tied else _named(f"{name}.exact", _rows(raw))
            else:
                found |= _named(name, _packed(raw)[0]._asdict() | {"sample": _sample(raw)})
    return found


class Raw(NamedTuple):
    """A weight in a GGUF file: of a type in KINDS its rows' bytes [N, bytes], of another one its float32 values."""

    kind: str
    rows: Tensor


def _named(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The ``tensors`` of a module, by names that begin with the module's own name ``prefix``."""
    return {f"{prefix}.{name}": tensor for name, tensor in tensors.items()}


def _name_of(model: nn.Module, wanted: nn.Module) -> str:
    """Dotted name of a module ``wanted`` within ``model``."""
    return next(name for name, module in model.named_modules() if module is wanted)


def _packed(raw: Raw) -> tuple[Digits, Tensor]:
    """Pack a matrix; also returns the length [N] of each row's difference from the exact row."""
    bits = KINDS[raw.kind].bits
    parts = []
    errors = []
    for rows in raw.rows.split(_PART):
        exact = groups(rows, raw.kind)
        digits = pack(exact, bits)
        # The packed weights as groups of the same codes, to compute their values: scale * code - minimum, where the
        # minimum is what pack has put into its zeros, by now rounded.
        scales, zeros = digits.scales[:, : len(rows)].float().unbind(-1)
        minima = (_CENTRE[1 if bits == 4 else 2] - _SHIFT[bits]) * scales - (1 if bits == 4 else 17) * zeros
        rounded = Groups(exact.codes, scales.T, minima.T, 0)
        parts.append(digits)
        errors.append((rounded.values() - exact.values()).norm(dim=1))
    codes, scales = zip(*parts, strict=True)
    return Digits(torch.cat(codes), torch.cat(scales, 1)), torch.cat(errors)


def _sample(raw: Raw) -> Tensor:
    """Two or three rows of a matrix in bfloat16, for the digest :attr:`utaca.readers.load.Reader.identity`."""
    rows = raw.rows[:: max(1, len(raw.rows) // 2)]
    return groups(rows, raw.kind).values().bfloat16()


def _rows(raw: Raw) -> dict[str, Tensor]:
    """The tensors of :class:`PackedRows` for an embedding, by their names there."""
    return {"kind": torch.tensor([*raw.kind.encode()], dtype=torch.uint8), "rows": raw.rows, "sample": _sample(raw)}


def fit(model: PreTrainedModel, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Replace the modules of a ``model`` on the device meta whose weights a file of packed weights has packed.

    ``shapes`` are those of the tensors in the file, by name. Raises :class:`ValueError` if they contradict the model's.
    """

    def empty(name: str, dtype: torch.dtype) -> Tensor:
        """A tensor without numbers, in the place of the file's tensor of this name."""
        return torch.empty(shapes[name], dtype=dtype, device="meta")

    def rows(name: str) -> PackedRows:
        """The rows of a matrix whose tensors' names begin with ``name``."""
        about = (("kind", torch.uint8), ("rows", torch.uint8), ("sample", torch.bfloat16))
        return PackedRows(*(empty(f"{name}.{part}", dtype) for part, dtype in about))

    for tensor in shapes:
        name, _, part = tensor.rpartition(".")
        # A module is replaced once, at its codes or rows; the exact rows of a head come with the head.
        if part not in ("codes", "rows") or name.endswith(".exact"):
            continue
        module = model.get_submodule(name)
        if part == "rows":
            model.set_submodule(name, rows(name))
            continue
        digits = Digits(empty(tensor, torch.uint8), empty(f"{name}.scales", torch.bfloat16))
        if f"{name}.errors" in shapes:
            exact = rows(f"{name}.exact") if f"{name}.exact.rows" in shapes else None
            new = PackedHead(module.in_features, digits, empty(f"{name}.errors", torch.float32), exact)
        else:
            sample = empty(f"{name}.sample", torch.bfloat16)
            new = PackedLinear(module.in_features, module.out_features, digits, sample, module.bias)
        filled = -(-module.out_features // TILE) * TILE
        # The shapes of codes and scales that the model's sizes and the file's number of digits and groups imply.
        wanted = (filled, module.in_features * new.digits // 2), (module.in_features // new.group, filled, 2)
        if new.digits not in FEW or wanted != (tuple(digits.codes.shape), tuple(digits.scales.shape)):
            raise ValueError(f"{name} is packed in another size")
        model.set_submodule(name, new)
    parts = FAMILIES[model.config.model_type].parts(model)
    if isinstance(parts.head, PackedHead) and parts.head.exact is None:
        parts.head.tie(parts.embedding)


def load(file: Path, config: PretrainedConfig) -> tuple[PreTrainedModel, set[str], set[str]]:
    """The model of a ``config`` with the weights of a ``file``, which stay mapped from the disk.

    Also returns the names of weights that the file lacks and of those that the model lacks.
    """
    stored = load_file(file)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(
            config, dtype=torch.bfloat16, attn_implementation=ATTENTION, trust_remote_code=False
        )
    fit(model, {name: tuple(tensor.shape) for name, tensor in stored.items()})
    about = model.load_state_dict(stored, strict=False, assign=True)
    missing = set(about.missing_keys)
    parts = FAMILIES[config.model_type].parts(model)
    if config.tie_word_embeddings and not isinstance(parts.head, PackedHead):
        # The embedding is of a type that is not packed: the file holds it once, in bfloat16.
        parts.head.weight = parts.embedding.weight
        missing.discard(_name_of(model, parts.head) + ".weight")
    # The frequencies are computed from the config, and not stored.
    model.set_submodule(_name_of(model, parts.rotary), type(parts.rotary)(config))
    if (file.parent / "generation_config.json").is_file():
        model.generation_config = GenerationConfig.from_pretrained(file.parent)
    return model, missing, set(about.unexpected_keys)
