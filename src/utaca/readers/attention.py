"""The one attention function through which utaca drives a Hugging Face model.

transformers calls the registered function with queries, keys and values; the function hands these to the object that
the caller passed to the model as ``attending=...`` (prefill, decoding and training pass different objects). The
model is called with ``position_ids`` all zero, for which rotary embedding is the identity, so that queries and keys
arrive unrotated and the object can rotate them to any positions (InfLLM's clipped positions).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from transformers import AttentionInterface

from utaca.errors import UserError

ATTENTION = "utaca"


class Attending(Protocol):
    """An object that computes the attention of a forward pass."""

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        """Compute the attention output of one layer.

        ``query`` is [B, H, T, D] (B rows, H query heads, T tokens), ``key`` and ``value`` are [B, G, T, D] (G key-value
        heads), all before rotation; returns [B, H, T, D].
        """


class OneRow:
    """The attention of a pass whose one row was repeated: it attends once, and every repetition gets the result."""

    def __init__(self, attending: Attending) -> None:
        self._attending = attending

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        """See :class:`Attending`."""
        out = self._attending.attend(layer, query[:1], key[:1], value[:1], scaling)
        return out.expand(len(query), -1, -1, -1)


class Output:
    """Output of a pass over R rows: last hidden states [R, T, D], and embeddings [R, D] of the last tokens, by site.

    ``head`` computes logits from hidden states.
    """

    def __init__(self, hidden: Tensor, embeddings: dict[str, Tensor], head: Callable[[Tensor], Tensor]) -> None:
        self.hidden = hidden
        self.embeddings = embeddings
        self._head = head

    @cached_property
    def logits(self) -> Tensor:
        """Logits [R, V] of the last tokens, computed for all rows in one product with the output matrix."""
        return self._head(self.hidden[:, -1])


class Step:
    """A row of a pass of the model: ``tokens`` [T] that follow a ``state``, under a ``budget``; commits nothing.

    The results are set once the pass has run. They describe the last token: ``k`` is the budget that was used, and
    ``retrieved`` the number of blocks or nominal tokens that were retrieved under it, a mean over layers; ``attended``
    the number of keys that the token attended to, averaged over layers and heads; ``selected`` [layers, k] the
    retrieved blocks, ascending, and ``scores`` [layers, k] their retrieval scores, both None if the method retrieves no
    blocks (-1 stands for a block that ``block_top_p`` left out); ``captured`` the numbers [layers] that each signal
    captured, by signal.
    """

    output: Output
    row: int
    k: int
    retrieved: float
    attended: float
    selected: Tensor | None = None
    scores: Tensor | None = None
    captured: Mapping[str, Tensor] = MappingProxyType({})

    def __init__(self, state: Any, tokens: Tensor, budget: int) -> None:
        self.state = state
        self.tokens = tokens
        self.budget = budget
        self.size = len(tokens)

    @property
    def hidden(self) -> Tensor:
        """Last hidden states [T, D] of the step's row."""
        return self.output.hidden[self.row]

    @property
    def logits(self) -> Tensor:
        """Logits [V] of the last token."""
        return self.output.logits[self.row]

    @property
    def embeddings(self) -> dict[str, Tensor]:
        """Embeddings [D] of the last token, by site."""
        return {site: rows[self.row] for site, rows in self.output.embeddings.items()}


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float,
    attending: Attending,
    # Arguments that transformers always sends and that are not needed: positions are all zero, transformers caches
    # nothing, and hidden states are collected outside of the attention.
    position_ids: object = None,
    use_cache: object = None,
    output_hidden_states: object = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Compute attention as transformers calls it.

    Raises :class:`UserError` if a model requests another kind of attention, such as a window or a softcap. Arguments
    that are None, False or 0 request nothing.
    """
    for name, wanted in {"attention_mask": attention_mask, **others}.items():
        if wanted is not None and not (isinstance(wanted, bool | int | float) and wanted == 0):
            raise UserError(
                f"the attention of {module.config.model_type} models uses {name}, which block memory does not support; "
                "use another model"
            )
    return attending.attend(module.layer_idx, query, key, value, scaling).transpose(1, 2), None


AttentionInterface.register(ATTENTION, _attention)


def on_device(numbers: Sequence[int], device: torch.device) -> Tensor:
    """Whole numbers as a tensor [n] on a device; the host does not wait for a GPU, which copies from pinned memory."""
    if device.type == "cpu":
        return torch.tensor(numbers)
    return torch.tensor(numbers, pin_memory=True).to(device, non_blocking=True)


class Rotary:
    """Tables of a model's rotary ``embedding``, by which a caller rotates queries and keys to any positions.

    The model scales queries and keys by its ``attention_scaling`` (yarn) even at position zero, so the tables leave
    this factor out. The tables cover the positions that were reserved in advance: reading the positions of a call from
    a tensor would make a pass wait for the device.
    """

    def __init__(self, embedding: nn.Module, device: torch.device) -> None:
        self._embedding = embedding
        self._device = device
        self._tables = self._compute(1024)
        self._converted: dict[torch.dtype, tuple[Tensor, Tensor]] = {}

    def reserve(self, length: int) -> None:
        """Extend the tables to all positions below ``length``; the caller of a pass knows its largest position."""
        if length > len(self._tables[0]):
            self._tables = self._compute(length)
            self._converted.clear()

    def _compute(self, length: int) -> tuple[Tensor, Tensor]:
        """Cosines and sines [length, R] of the R rotated dimensions; the first R / 2 sines are negated."""
        x = torch.zeros(1, dtype=torch.float32, device=self._device)
        cos, sin = self._embedding(x, torch.arange(length, device=self._device)[None])
        scale = self._embedding.attention_scaling
        half = cos.shape[-1] // 2
        sin = torch.cat((-sin[..., :half], sin[..., half:]), -1)
        return cos[0] / scale, sin[0] / scale

    def at(self, positions: Tensor | range, dtype: torch.dtype) -> Rotation:
        """Build the rotation to ``positions``: a range, or a tensor of integers, [T] or broadcastable to [..., T].

        Raises :class:`IndexError` if a position was not reserved (on a GPU, an unreserved position in a tensor fails an
        assertion of the device instead).
        """
        if isinstance(positions, range):
            self._check(positions.stop)
            positions = slice(positions.start, positions.stop)
        cos, sin = (table[positions] for table in self.tables(dtype))
        return Rotation(cos, sin)

    def behind(self, starts: Sequence[int], length: int, dtype: torch.dtype) -> Rotation:
        """Build the rotation of several rows, each to the ``length`` positions from one of ``starts`` on.

        It rotates tensors [rows, heads, length, D]. The host knows the starts, so that nothing is copied to the device.
        """
        self._check(max(starts) + length)
        tables = self.tables(dtype)
        if len(starts) == 1:
            cos, sin = (table[starts[0] : starts[0] + length][None, None] for table in tables)
        else:
            cos, sin = (torch.stack([table[start : start + length] for start in starts])[:, None] for table in tables)
        return Rotation(cos, sin)

    def _check(self, length: int) -> None:
        """Raise :class:`IndexError` unless all positions below ``length`` are reserved."""
        if length > len(self._tables[0]):
            raise IndexError(f"a position is beyond the {len(self._tables[0])} reserved; call reserve first")

    def tables(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Cosines and signed sines [positions, R] in a type; :meth:`reserve` may replace them by longer ones."""
        if dtype not in self._converted:
            cos, sin = self._tables
            self._converted[dtype] = cos.to(dtype), sin.to(dtype)
        return self._converted[dtype]

    def __call__(self, x: Tensor, positions: Tensor | range) -> Tensor:
        """Rotate ``x`` [..., T, D] to ``positions``, see :meth:`at`."""
        return self.at(positions, x.dtype)(x)


class Rotation:
    """A rotation to given positions, applicable to several tensors; cosines and signed sines are [..., T, R]."""

    def __init__(self, cos: Tensor, sin: Tensor) -> None:
        self._cos = cos
        self._sin = sin

    def joined_with(self, other: Rotation) -> Rotation:
        """This rotation and ``other`` at once: a tensor becomes two, along a new first dimension."""
        cos = torch.stack((self._cos, other._cos.expand_as(self._cos)))
        return Rotation(cos, torch.stack((self._sin, other._sin.expand_as(self._sin))))

    def __call__(self, x: Tensor) -> Tensor:
        """Rotate the first R dimensions of ``x`` [..., T, D] and keep the other dimensions unchanged."""
        turning = self._cos.shape[-1]
        if turning < x.shape[-1]:
            turned = self(x[..., :turning])
            return torch.cat((turned, x[..., turning:].expand(*turned.shape[:-1], -1)), -1)
        # Dimension i turns with i + R / 2, which the roll brings to its place; the sines have the signs (Rotary).
        return torch.addcmul(x * self._cos, x.roll(turning // 2, -1), self._sin)
