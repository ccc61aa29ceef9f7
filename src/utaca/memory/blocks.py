"""InfLLM's block memory of a document.

Keys and values of the document are kept unrotated. After ``n_init`` initial tokens they lie in blocks of
``block_size`` tokens; a block that has left the local window is *far* and is reached by retrieval alone, at one
clipped distance. Nothing but the position of a query decides which blocks are far (:class:`Layout`), so rolling
back has nothing to undo here.

Differences from InfLLM's code (thunlp/InfLLM, ``inf_llm/attention/context_manager.py``): the window reaches back to
a block's edge, so it holds up to ``block_size - 1`` more tokens than ``n_local`` while decoding and up to a chunk
more while prefilling, always at true distances; representative tokens are chosen for each key-value head instead of
each query head.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from utaca.errors import UserError
from utaca.memory.storage import Store, check_room
from utaca.readers.load import Reader
from utaca.records.progress import counter
from utaca.settings.machine import return_freed_memory
from utaca.settings.schema import Memory

CHUNKS_AT_ONCE = 16
"""Prefill chunks that go through a layer together where none retrieves blocks."""


@dataclass(frozen=True)
class Layout:
    """Which tokens are initial, in blocks, in the window."""

    length: int
    n_init: int
    n_local: int
    block_size: int

    @property
    def blocks(self) -> int:
        """Whole blocks of the document."""
        return max(0, (self.length - self.n_init) // self.block_size)

    def far(self, position: int) -> int:
        """Blocks wholly outside of the window of the token at ``position``: the first so many."""
        outside = position + 1 - self.n_local - self.n_init
        return min(max(0, outside // self.block_size), self.blocks)

    def window(self, position: int) -> int:
        """First token of the window of the token at ``position``; 0: nothing is far, initial tokens included."""
        far = self.far(position)
        return self.n_init + far * self.block_size if far else 0


@dataclass
class BlockMemory:
    """A document's keys, values and representative keys; sealed once prefilled and never written again.

    ``keys`` and ``values``: a store a layer; ``representatives``: a tensor a layer, [G * D, blocks], in
    float32 at least; the scores of a long document's blocks are found fastest along the blocks.
    """

    reader: Reader
    tokens: Tensor
    layout: Layout
    clipped: bool
    keys: list[Store]
    values: list[Store]
    representatives: list[Tensor]
    _scores: list[Tensor] = field(default_factory=list, repr=False)

    @property
    def settings(self) -> Memory:
        return self.reader.settings.memory

    def __len__(self) -> int:
        return len(self.tokens)

    def block_tokens(self, blocks: Tensor) -> Tensor:
        """Positions of the tokens of the given blocks, in their order."""
        size = self.layout.block_size
        return (self.layout.n_init + blocks[:, None] * size + torch.arange(size, device=blocks.device)).flatten()

    def reserve(self, new: int) -> None:
        """Make sure of the positions of ``new`` tokens, read in one pass or behind the document."""
        layout = self.layout
        near = min(layout.length, layout.n_init + layout.n_local + layout.block_size) if self.clipped else layout.length
        self.reader.rotary.reserve(near + new)

    def select(self, layer: int, query: Tensor, far: int, budget: int) -> tuple[Tensor, Tensor]:
        """The ``budget`` blocks, of the first ``far``, whose representatives suit ``query`` [H, D] best.

        Returns their ids, ascending, and their scores, both [budget], or [far] where there are fewer.

        One selection a layer for all heads: the sum over heads of the dot product of query head and the representative
        of its key-value head (InfLLM, paper section 3.2). Ties go to the lowest id. Scores that are no numbers rank
        first, so that they spread into the logits, where they are noticed.
        """
        return best_blocks(self.score(layer, query, far), budget)

    def score(self, layer: int, query: Tensor, far: int) -> Tensor:
        """Scores [far] of the first ``far`` blocks for ``query`` [H, D], see :meth:`select`."""
        representatives = self.representatives[layer][:, :far]
        grouped = query.to(representatives.dtype).view(len(representatives) // query.shape[1], -1, query.shape[1])
        return grouped.sum(1).flatten() @ representatives

    def advance(self, layer: int, start: int, end: int) -> None:
        """To be called once a pass over tokens ``start`` to ``end`` has attended and scored: its window moves on."""
        layout = self.layout
        self._represent(layer, layout.far(start), layout.far(end) if end < layout.length else layout.blocks)
        self.keys[layer].leave(layout.window(end))
        self.values[layer].leave(layout.window(end))

    def _represent(self, layer: int, first: int, end: int) -> None:
        """Fill in the representatives of blocks ``first`` to ``end``."""
        if first == end:
            return
        m, positions = self.settings, [self.layout.n_init + b * self.layout.block_size for b in (first, end)]
        keys = self.keys[layer].near(*positions).unflatten(1, (end - first, -1))
        if m.representatives == "mean":
            chosen = keys
        else:
            scores = self._scores[layer][:, slice(*positions)].unflatten(1, (end - first, -1))
            best = scores.topk(min(m.n_representatives, m.block_size), dim=2).indices
            chosen = keys.gather(2, best[..., None].expand(-1, -1, -1, keys.shape[-1]))
        representatives = self.representatives[layer]
        representatives[:, first:end] = chosen.to(representatives.dtype).mean(2).mT.flatten(0, 1)


def best_blocks(scores: Tensor, budget: int) -> tuple[Tensor, Tensor]:
    """The ``budget`` best of ``scores`` [far], see :meth:`BlockMemory.select`."""
    if budget >= len(scores) or budget == 0:
        chosen = torch.arange(min(budget, len(scores)), device=scores.device)
        return chosen, scores[chosen]
    # Sorting all blocks of a long document would cost more than the attention to those chosen. topk leaves open
    # which of the blocks at the least score are taken: the first, the i-th being where their count reaches i. No
    # shape depends on a score, so that nothing waits for the device.
    best, found = scores.topk(budget)
    tied = best == best[-1]
    first = torch.searchsorted((scores == best[-1]).cumsum(0), tied.cumsum(0))
    chosen = torch.where(tied, first, found).sort().values
    return chosen, scores[chosen]


def diffuseness(scores: Tensor, heads: int, width: int) -> Tensor:
    """How little any block stands out, [...], among ``scores`` [..., far] of ``heads`` queries of ``width``.

    0: one does, 1: none. The entropy of the softmax over blocks of the heads' mean score, scaled as attention scales,
    over that of blocks all alike; 0 where there is only one block.
    """
    far = scores.shape[-1]
    if far < 2:
        return scores.new_zeros(scores.shape[:-1])
    logs = (scores / (heads * math.sqrt(width))).log_softmax(-1)
    return -(logs.exp() * logs).sum(-1) / math.log(far)


def joint_attention(
    queries: list[Tensor], keys: list[Tensor], values: list[Tensor], mask: Tensor | None, scaling: float
) -> tuple[Tensor, Tensor]:
    """Attention over several segments of keys under one softmax.

    Each segment has queries [H, T, D] of its own (its rotation), keys and values [G, n, D]; ``mask`` [T, sum of n] adds
    to the logits. Returns the output [H, T, D] and the probabilities [G, H / G, T, sum of n].
    """
    h, t, d = queries[0].shape
    g = len(keys[0])
    logits = torch.cat([q.reshape(g, -1, d) @ k.mT for q, k in zip(queries, keys, strict=True)], dim=-1).unflatten(
        1, (h // g, t)
    )
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32)) * scaling
    if mask is not None:
        logits = logits + mask
    probabilities = logits.softmax(-1)
    joined = torch.cat(values, 1)
    out = probabilities.to(joined.dtype).flatten(1, 2) @ joined
    return out.view(h, t, d), probabilities


def causal_mask(new: int, total: int, device: torch.device) -> Tensor:
    """Additive mask [new, total] under which the last ``new`` of ``total`` keys are the queries' own tokens."""
    return torch.full((new, total), -math.inf, device=device).triu(total - new + 1)


class _Chunk:
    """Attention of one prefill chunk, which also writes the chunk into the memory."""

    def __init__(self, memory: BlockMemory, start: int, length: int) -> None:
        self.memory, self.start, self.length = memory, start, length
        self.far = memory.layout.far(start)
        self.window = memory.layout.window(start)

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        memory, m, start, end = self.memory, self.memory.settings, self.start, self.start + self.length
        memory.keys[layer].write(start, key[0])
        memory.values[layer].write(start, value[0])
        near = Segment.near(memory, layer, self.window, end)
        base = self.window if memory.clipped else 0
        local_query = memory.reader.rotary(query[0], range(start - base, end - base))
        queries, keys, values = [local_query], [near.keys], [near.values]
        if self.far:
            asking = memory.reader.rotary(query[0], range(m.n_local - 1, m.n_local))
            far_query = asking if memory.clipped else local_query
            budget = m.prefill_budget if memory.clipped else self.far
            chosen, _ = memory.select(layer, asking.mean(1), self.far, budget)
            distant = Segment.far(memory, layer, chosen)
            queries, keys, values = [far_query, local_query], [distant.keys, near.keys], [distant.values, near.values]
        mask = causal_mask(self.length, sum(k.shape[1] for k in keys), query.device)
        out, probabilities = joint_attention(queries, keys, values, mask, scaling)
        if m.representatives != "mean":
            given = probabilities[..., -near.keys.shape[1] :] if m.representatives == "attention_mass" else None
            _score(memory, layer, slice(self.window, end), local_query, near.keys, given)
        memory.advance(layer, start, end)
        return out[None]


def _score(
    memory: BlockMemory, layer: int, window: slice, query: Tensor, keys: Tensor, probabilities: Tensor | None
) -> None:
    """Add to the score of each token of a window what the queries [H, T, D] of its last T tokens give it.

    ``keys`` [G, n, D] are the window's, rotated like the queries; ``probabilities`` [G, H / G, T, n] what they got.
    """
    scores = memory._scores[layer][:, window]
    if probabilities is not None:
        scores += probabilities.sum((1, 2))
        return
    # Linear form: a key's dot product with the sum of the queries that follow it within the window.
    (g, n, _), length = keys.shape, query.shape[1]
    grouped = query.float().unflatten(0, (g, -1)).sum(1)
    sums = torch.cat((torch.zeros_like(grouped[:, :1]), grouped.cumsum(1)), 1)
    at = torch.arange(n, device=keys.device) - (n - length)
    first = (at + 1).clamp(0, length)
    last = (at + 1 + memory.layout.n_local).clamp(0, length)
    scores += torch.einsum("gnd,gnd->gn", keys.float(), sums[:, last] - sums[:, first])


class _Chunks:
    """Attention of several whole prefill chunks at once, each with its own window, none with retrieved blocks.

    Chunk after chunk, as :class:`_Chunk` goes, gives the same; here the model's layers run on thousands of tokens.
    """

    def __init__(self, memory: BlockMemory, start: int, chunks: int) -> None:
        self.memory, self.start, self.chunks = memory, start, chunks
        self.end = start + chunks * memory.settings.prefill_chunk
        self.window = memory.layout.window(start)

    @staticmethod
    def suit(memory: BlockMemory, start: int) -> bool:
        """Whether the chunks from ``start`` on see initial tokens and windows of one size, and nothing else."""
        m = memory.settings
        return (
            memory.clipped
            and m.prefill_budget == 0
            and m.prefill_chunk % m.block_size == 0
            and memory.layout.far(start) > 0
        )

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        memory, m, size = self.memory, self.memory.settings, self.memory.settings.prefill_chunk
        rotary, before = memory.reader.rotary, self.start - self.window
        wide = before + size
        _, h, t, d = query.shape
        g = key.shape[1]
        kept = memory.keys[layer], memory.values[layer]
        for store, new in zip(kept, (key, value), strict=True):
            store.write(self.start, new[0])
        # [chunks, G, wide, D]
        all_keys, all_values = (x.near(self.window, self.end).unfold(1, wide, size).permute(1, 0, 3, 2) for x in kept)
        near_keys = rotary(all_keys, range(wide))
        queries = query[0].view(g, h // g, self.chunks, size, d).permute(2, 0, 1, 3, 4)
        near = rotary(queries, range(before, wide))
        far = rotary(queries, range(m.n_local - 1, m.n_local))
        initial, initial_values = (x.initial for x in kept)
        logits = torch.cat((far.flatten(2, 3) @ initial.mT, near.flatten(2, 3) @ near_keys.mT), -1)
        logits = logits.unflatten(2, (h // g, size))
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32)) * scaling
        logits += causal_mask(size, m.n_init + wide, query.device)
        probabilities = logits.softmax(-1)
        weights = probabilities.to(value.dtype).flatten(2, 3)
        out = weights[..., m.n_init :] @ all_values + weights[..., : m.n_init] @ initial_values
        if m.representatives != "mean":
            mass = m.representatives == "attention_mass"
            for i in range(self.chunks):
                window = slice(self.window + i * size, self.window + i * size + wide)
                given = probabilities[i, ..., m.n_init :] if mass else None
                _score(memory, layer, window, near[i].flatten(0, 1), near_keys[i], given)
        memory.advance(layer, self.start, self.end)
        return out.unflatten(2, (h // g, size)).permute(1, 2, 0, 3, 4).reshape(1, h, t, d)


@dataclass
class Segment:
    """Keys, rotated as they are attended to, and values of some document tokens, [G, n, D]."""

    keys: Tensor
    values: Tensor

    @staticmethod
    def near(memory: BlockMemory, layer: int, start: int, end: int) -> Segment:
        """The window's tokens; positions count from its start, or from the document's where positions are unclipped."""
        keys = memory.keys[layer].near(start, end)
        base = 0 if memory.clipped else start
        rotated = memory.reader.rotary(keys, range(base, base + keys.shape[1]))
        return Segment(rotated, memory.values[layer].near(start, end))

    @staticmethod
    def far(memory: BlockMemory, layer: int, blocks: Tensor) -> Segment:
        """Initial tokens and the given blocks; unrotated, which puts them at the query's clipped distance."""
        keys, values = memory.keys[layer].far(blocks), memory.values[layer].far(blocks)
        if not memory.clipped:
            initial = torch.arange(memory.layout.n_init, device=blocks.device)
            keys = memory.reader.rotary(keys, torch.cat((initial, memory.block_tokens(blocks))))
        return Segment(keys, values)


@torch.inference_mode()
def prefill(reader: Reader, document: str | Tensor, *, clipped: bool = True, description: str = "") -> BlockMemory:
    """Read a document once into a sealed block memory.

    ``document`` is its text, or token ids [N] that already carry what the chat template puts before it. The result
    serves any number of branches, budgets and policies: prefill depends on ``reader.settings.memory`` alone. With
    ``clipped=False`` every token is attended to at its true position, which equals full attention. Keys and values lie
    where ``reader.settings.memory.storage`` says (:class:`utaca.memory.storage.Store`). A ``description`` shows a
    progress bar. Raises :class:`UserError` for an empty document, for token ids outside the vocabulary, and
    where the document does not fit into the memory that is free.
    """
    tokens = reader.encode_document(document) if isinstance(document, str) else document.to(reader.device)
    m = reader.settings.memory
    _check(tokens, reader.model.config.vocab_size)
    layout = Layout(len(tokens), m.n_init, m.n_local, m.block_size)
    heads, layers, size, dtype = reader.shape.kv_heads, reader.shape.layers, reader.shape.head_size, reader.dtype
    check_room(layout, (heads, size), layers, dtype, reader.device, m.storage)

    def stores() -> list[Store]:
        return [Store(layout, (heads, size), dtype, reader.device, m.storage) for _ in range(layers)]

    def zeros(*shape: int, kind: torch.dtype) -> list[Tensor]:
        return [torch.zeros(*shape, dtype=kind, device=reader.device) for _ in range(layers)]

    memory = BlockMemory(
        reader,
        tokens,
        layout,
        clipped,
        keys=stores(),
        values=stores(),
        representatives=zeros(heads * size, layout.blocks, kind=torch.promote_types(dtype, torch.float32)),
        _scores=zeros(heads, len(tokens), kind=torch.float32) if m.representatives != "mean" else [],
    )
    memory.reserve(min(m.prefill_chunk, len(tokens)))
    bar = counter(total=len(tokens), done=0, unit="token", description=description) if description else None
    start = 0
    while start < len(tokens):
        chunks = min(CHUNKS_AT_ONCE, (len(tokens) - start) // m.prefill_chunk)
        together = chunks > 0 and _Chunks.suit(memory, start)
        chunk = tokens[start : start + m.prefill_chunk * (chunks if together else 1)]
        reader.forward(chunk[None], _Chunks(memory, start, chunks) if together else _Chunk(memory, start, len(chunk)))
        start += len(chunk)
        if bar is not None:
            bar.update(len(chunk))
    if bar is not None:
        bar.close()
    memory._scores = []
    return_freed_memory()
    return memory


def _check(tokens: Tensor, vocabulary: int) -> None:
    if len(tokens) == 0:
        raise UserError("the document is empty; give at least one token of text")
    low, high = int(tokens.min()), int(tokens.max())
    if low < 0 or high >= vocabulary:
        raise UserError(
            f"the document has token id {low if low < 0 else high}, but the reader's vocabulary has {vocabulary} "
            "entries; encode it with the reader's own tokenizer"
        )
