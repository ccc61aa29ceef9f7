"""Bytes and minutes that reading and decoding take, computed from sizes of model and text; without heavy imports.

A job checks its bytes against what is free before it reads (:func:`document_bytes`, :func:`whole_bytes`), a run checks
that it fits before its first job (:mod:`utaca.runs.preflight`), and a cluster is asked for memory and time before a job
starts (:class:`Model`). Nothing depends on the machine that asks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from utaca.settings.schema import OWN, TOKENS, MemorySettings, ReaderSettings

TOGETHER = 4096
"""Most tokens of prefill chunks that share a pass of the model, if none of them retrieves blocks."""
LARGE = 1_000_000_000
"""Least number of parameters for which ``reader.device=auto`` means a GPU on a cluster."""
FACTS = {"train": 1, "validation": 1, "test": 6}
"""Attributes that a question asks about, by split."""

_PROCESS = {"cpu": 2 << 30, "cuda": 6 << 30}
"""Bytes of main memory of a process with PyTorch; CUDA's libraries are large."""
_SLACK = 1.25
"""Factor on estimated bytes, for what the estimates leave out."""
# FLOP/s in the products of long passes, and bytes/s read in a pass of one token: a tenth of what an H100, or a core,
# does.
_FLOPS = {"cpu": 20e9, "cuda": 50e12}
_BYTES = {"cpu": 1e9, "cuda": 0.5e12}
_LAYER_S = 1e-3
"""Seconds that each layer adds to a pass, however few tokens pass."""
_START_MIN = 15
"""Minutes that a job takes before it reads, at most."""


class Sizes(NamedTuple):
    """How many layers, query heads and key-value heads a model has, and how wide heads, residual stream and MLP are."""

    layers: int
    heads: int
    kv_heads: int
    head_size: int
    hidden: int
    intermediate: int

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Sizes:
        """Read the sizes of a ``config.json`` of transformers."""
        heads = config["num_attention_heads"]
        hidden = config["hidden_size"]
        return cls(
            layers=config["num_hidden_layers"],
            heads=heads,
            kv_heads=config.get("num_key_value_heads") or heads,
            head_size=config.get("head_dim") or hidden // heads,
            hidden=hidden,
            intermediate=config["intermediate_size"],
        )

    @property
    def token(self) -> int:
        """Count of numbers in a token's keys and values in one layer."""
        return 2 * self.kv_heads * self.head_size

    def cache_bytes(self, tokens: int, item: int) -> int:
        """Bytes of the keys and values of ``tokens`` tokens in all layers, at ``item`` bytes per number."""
        return self.layers * tokens * self.token * item


def chunks(m: MemorySettings, clipped: bool = True) -> int:
    """Number of prefill chunks that share a pass of the model: several only if prefill retrieves no blocks.

    ``clipped``: whether the positions of far keys are clipped, which the shared pass needs too.
    """
    if m.prefill_budget == 0 and clipped:
        return max(1, TOGETHER // m.prefill_chunk)
    return 1


def document_bytes(sizes: Sizes, m: MemorySettings, length: int, item: int, device: str, together: int) -> Counter[str]:
    """Bytes that a document in block memory takes while it is read, by device ("cpu" is main memory, "cuda" a GPU's).

    The document has ``length`` tokens; a number has ``item`` bytes; ``together`` prefill chunks share a pass;
    ``m.prefill_budget`` is a number of blocks, not :data:`OWN`. The bytes are those of the document's keys and values,
    of the blocks' representatives, and of a pass. A pass holds the residual stream, its sum and its norm; in addition
    to these either the MLP's part (three tensors of the MLP's width) or attention's part (six tensors as wide as the
    query heads, and rotated and widened keys), whichever is larger.
    """
    layers = sizes.layers
    kv_heads = sizes.kv_heads
    width = sizes.head_size
    token = sizes.token * item  # bytes of a token's keys and values in one layer
    passing = min(together * m.prefill_chunk, length)
    n_far = m.layout.n_far(length)
    # Tokens before the window that a pass attends to: the initial ones, and those of the retrieved blocks.
    before_window = m.n_init + min(m.prefill_budget, n_far + 1) * m.block_size
    queries = 6 * passing * sizes.heads * width * item
    attention = queries + (before_window + 3 * (m.n_local + passing)) * token
    mlp = 3 * passing * sizes.intermediate * item
    working = 3 * passing * sizes.hidden * item + max(mlp, attention)
    # Kept in float32 at least: the blocks' representatives, and the attention that each token of the window got.
    n_representatives = 0 if m.representatives == TOKENS else n_far
    kept = layers * (n_representatives * kv_heads * width + (m.n_local + passing) * kv_heads) * max(item, 4)
    needed = Counter({device: kept + working})
    if m.storage == "host":
        # The device has the initial tokens and the window; main memory has the whole document.
        needed[device] += sizes.cache_bytes(m.n_init + min(length, m.n_init + m.n_local + m.block_size), item)
        stored = length * token
        if device == "cuda":
            # PyTorch rounds pinned memory up to a power of two.
            stored = 1 << (stored - 1).bit_length()
        needed["cpu"] += layers * stored
    else:
        needed[device] += sizes.cache_bytes(length, item)
    return needed


def whole_bytes(sizes: Sizes, length: int, item: int) -> int:
    """Bytes of ``length`` tokens that attend to all before them in one pass.

    The bytes are those of keys and values and of the pass's widest tensors: three of the MLP, and the residual stream,
    its sum and its norm.
    """
    return sizes.cache_bytes(length, item) + 3 * length * (sizes.intermediate + sizes.hidden) * item


@dataclass(frozen=True)
class Work:
    """What a job decodes: ``documents`` of up to ``length`` tokens, and ``tokens`` of answers about each of them.

    ``points`` answers are decoded side by side, under the ``budgets`` of block memory that they have. ``whole`` is the
    number of times that a document, cut to the reader's positions, is read by full attention.
    """

    documents: int
    length: int
    tokens: int
    points: int
    whole: int = 0
    budgets: tuple[int, ...] = ()


@dataclass(frozen=True)
class Model:
    """The sizes of a reader, and from these the memory and time that a cluster's job requests for its :class:`Work`.

    Memory is what the job checks when it starts (:func:`document_bytes`), plus the weights and a process. Time is
    computed from rates that are slow on purpose; a job that is stopped too soon continues from its journal in its next
    try, which requests more time.
    """

    reader: ReaderSettings
    sizes: Sizes
    parameters: int
    positions: int

    @property
    def device(self) -> str:
        """Type of the device on which a cluster's jobs decode."""
        if self.reader.device != "auto":
            return self.reader.device
        return "cuda" if self.parameters >= LARGE else "cpu"

    @property
    def item(self) -> int:
        """Bytes of a number on a cluster: 2 in bfloat16, which "auto" means on a GPU, else 4."""
        dtype = self.reader.dtype
        is_bfloat16 = dtype == "bfloat16" or (dtype == "auto" and self.device == "cuda")
        return 2 if is_bfloat16 else 4

    def memory_bytes(self, work: Work) -> int:
        """Upper estimate of a job's main memory, in bytes: a process, the weights, a document, answers under way."""
        sizes = self.sizes
        item = self.item
        device = self.device
        m = self.reader.memory
        if m.prefill_budget == OWN:
            # Documents are read under the budgets of the answers; the largest needs most.
            m = replace(m, prefill_budget=max(work.budgets, default=0))
        weights = self.parameters * item
        if device == "cpu" and item < 4:
            # A matrix may be copied to float32.
            weights += 4 * self.parameters
        needed = document_bytes(sizes, m, work.length, item, device, chunks(m))
        if device == "cpu":
            # Each answer under way has a copy of the window.
            needed["cpu"] += sizes.cache_bytes(work.points * (m.n_local + m.block_size), item)
            if work.whole:
                # The document is also read by full attention.
                needed["cpu"] += whole_bytes(sizes, min(work.length, self.positions), item)
        return _PROCESS[device] + int(_SLACK * (weights + needed["cpu"]))

    def minutes(self, work: Work) -> int:
        """Upper estimate of a job's minutes: start, reading and answering.

        A document is read into block memory once, or once for each budget if ``prefill_budget`` is that of the answers
        (:data:`OWN`), and once more for each method that reads documents whole. A token costs two operations per
        weight, and attention is taken to cost as much again.
        """
        is_read_per_budget = self.reader.memory.prefill_budget == OWN
        n_readings = work.whole + (len(set(work.budgets)) if is_read_per_budget else 1)
        reading_s = n_readings * work.length * 4 * self.parameters / _FLOPS[self.device]
        # A step of decoding reads all weights.
        step_s = self.parameters * self.item / _BYTES[self.device] + self.sizes.layers * _LAYER_S
        seconds = work.documents * (reading_s + work.tokens * work.points * step_s)
        return _START_MIN + int(seconds / 60)


def shown_bytes(tokens: int, width: int) -> int:
    """Bytes of main memory of a job that trains detectors on embeddings [tokens, width] of trajectories.

    A number takes two bytes as read from disk, and four as used for learning.
    """
    return _PROCESS["cpu"] + int(_SLACK * tokens * width * 6)
