"""Bytes that reading a document takes, from a model's sizes alone; without heavy imports.

A job checks them against what is free before it reads, and a cluster is asked for them before a job starts.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from utaca.layout import Layout
from utaca.settings.schema import TOKENS, Memory

TILE = 256
"""Queries whose probabilities are materialised at once."""
TOGETHER = 4096
"""Most tokens of chunks that go through the model in one pass where none of them retrieves blocks."""


@dataclass(frozen=True)
class Sizes:
    """How many layers, query heads and key-value heads a model has, and how wide heads, residual stream and MLP are."""

    layers: int
    heads: int
    kv_heads: int
    head_size: int
    hidden: int
    intermediate: int

    @property
    def token(self) -> int:
        """Numbers of a token's key and value in a layer."""
        return 2 * self.kv_heads * self.head_size


def chunks(m: Memory, clipped: bool = True) -> int:
    """Prefill chunks that go through the model in one pass."""
    return max(1, TOGETHER // m.prefill_chunk) if m.prefill_budget == 0 and clipped else 1


def document_bytes(sizes: Sizes, m: Memory, length: int, item: int, device: str, together: int) -> Counter[str]:
    """Bytes of a document of ``length`` tokens in block memory and of the passes that read it, by ``cpu`` and ``cuda``.

    A number has ``item`` bytes; ``together`` chunks share a pass. A pass holds the residual stream, its sum and its
    norm, and then three tensors as wide as the MLP; or, of a layer's attention, six as wide as the query heads, the
    rotated and the widened keys of its window, and on a CPU two tiles of logits.
    """
    layers, heads, kv_heads, width = sizes.layers, sizes.heads, sizes.kv_heads, sizes.head_size
    token, passing = sizes.token * item, min(together * m.prefill_chunk, length)
    far = m.n_init + m.prefill_budget * m.block_size
    attending = 6 * passing * heads * width * item + 3 * (far + m.n_local + passing) * token
    if device == "cpu" and m.representatives == "attention_mass":
        attending += 2 * 4 * heads * min(passing, together * TILE) * (far + m.n_local + m.block_size + m.prefill_chunk)
    layout = Layout(m.n_init, m.n_local, m.block_size)
    blocks = 0 if m.representatives == TOKENS else layout.n_far(length)
    kept = layers * (blocks * kv_heads * width + (m.n_local + passing) * kv_heads) * max(item, 4)
    working = 3 * passing * sizes.hidden * item + max(3 * passing * sizes.intermediate * item, attending)
    needed = Counter({device: kept + working})
    if m.storage == "host":
        needed[device] += layers * (m.n_init + min(length, m.n_init + m.n_local + m.block_size)) * token
        stored = length * token
        # PyTorch rounds pinned memory up to a power of two.
        needed["cpu"] += layers * (1 << (stored - 1).bit_length() if device == "cuda" else stored)
    else:
        needed[device] += layers * length * token
    return needed


def whole_bytes(sizes: Sizes, length: int, item: int) -> int:
    """Bytes of ``length`` tokens that attend to all before them in one pass.

    Counted are keys and values, and the widest tensors of the pass: three of the MLP, and the residual stream, its sum
    and its norm.
    """
    return length * (sizes.layers * sizes.token + 3 * sizes.intermediate + 3 * sizes.hidden) * item
