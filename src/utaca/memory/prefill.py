"""Reading a document into block memory, chunk by chunk (InfLLM, arXiv 2402.04617; code thunlp/InfLLM).

Differences from InfLLM's code (``inf_llm/attention/context_manager.py``):

* The window reaches back to a block edge. So it holds up to ``block_size - 1`` tokens more than ``n_local`` while
  decoding, and up to a chunk more while reading, all at their true distances.
* Representative tokens are chosen for each key-value head, not for each query head.
* A chunk of ``prefill_chunk`` tokens retrieves once, by its mean query. InfLLM retrieves again every 512 tokens.
* Two options do for blocks what TokenSelect (arXiv 2411.02886) does for single tokens: rank blocks by all of their
  tokens (``representatives=tokens``), and pack far keys before the window while decoding (``far_positions=packed``).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from time import perf_counter

import torch
from torch import Tensor
from torch.nn.functional import pad

from utaca.errors import UserError
from utaca.machine import return_freed_memory
from utaca.memory.attention import Segment, attention, best, received, represented
from utaca.memory.block_memory import BlockMemory
from utaca.memory.store import Store
from utaca.readers.load import Reader
from utaca.readers.room import check_blocks
from utaca.readers.turns import in_turn
from utaca.records.progress import progress
from utaca.settings.budgets import Budget, resolve
from utaca.settings.schema import OWN, TOKENS, MemorySettings
from utaca.sizes import chunks


@in_turn
@torch.inference_mode()
def prefill(
    reader: Reader,
    document: str | Tensor,
    *,
    clipped: bool = True,
    budget: Budget | None = None,
    description: str = "",
) -> BlockMemory:
    """Read a document once into a sealed block memory, which serves any number of questions, budgets and policies.

    ``document`` is a text, or token ids [N] that begin with what the chat template puts before a document
    (:meth:`Reader.document`). Reading depends on ``reader.settings.memory``, which the memory keeps. ``budget`` is the
    budget of the answers (:func:`memory_settings`). With a ``description``, a progress bar is shown. Raises
    :class:`UserError` if the document is empty, is neither text nor ids of the vocabulary, or does not fit into free
    memory.
    """
    if not isinstance(reader, Reader):
        raise UserError(f"the first argument must be a reader, such as utaca.load_reader('tiny'), not {reader!r}")
    memory = begun(reader, reader.document(document), clipped, budget)
    with progress(total=len(memory), unit="token", desc=description, disable=not description) as bar:
        for position in passes(memory):
            bar.update(position - bar.n)
    return_freed_memory()
    return memory


_PROBE = 64
"""Tokens that :func:`seconds_to_read` reads: enough for a rate, and few compared with a chunk."""


@in_turn
@torch.inference_mode()
def seconds_to_read(reader: Reader, tokens: Tensor, budget: Budget | None = None) -> float:
    """Estimate the seconds that :func:`prefill` takes for a document's ``tokens`` [N], by reading the first of them.

    They are read twice: the first pass of a process is slow, as weights come into memory. The estimate is too high for
    a small model, whose passes take long whatever their tokens. ``budget`` is as for :func:`prefill`.
    """
    probe = tokens[:_PROBE]
    seconds = 0.0
    for _ in range(2):
        memory = begun(reader, probe, budget=budget)
        started = perf_counter()
        for _ in passes(memory):
            pass
        if reader.device.type == "cuda":
            torch.cuda.synchronize(reader.device)
        seconds = perf_counter() - started
    return seconds * len(tokens) / len(probe)


@torch.inference_mode()
def passes(memory: BlockMemory, start: int = 0, see: Callable[[Tensor], object] = lambda hidden: None) -> Iterator[int]:
    """Read the rest of a memory from token ``start``; after each pass, yield the number of tokens read so far.

    ``start`` is 0, or the ``start`` of :func:`resumed`. ``see`` gets the last hidden states [T, D] of each pass. A
    caller that takes the passes one by one runs each of them under :func:`utaca.readers.turns.in_turn`.
    """
    reader = memory.reader
    m = memory.settings
    layout = memory.layout
    length = len(memory)
    together = chunks(m, memory.clipped)
    # With clipping, positions count from the window's start: at most a window (with the initial tokens, as long as no
    # block is far), and the chunks of a pass after it.
    most = m.n_init + m.n_local + m.block_size + together * m.prefill_chunk
    reader.rotary.reserve(max(m.n_local, min(length, most) if memory.clipped else length))
    while start < length:
        whole = min(together, (length - start) // m.prefill_chunk)
        # Chunks that see all tokens before them can pass as one: a block that then leaves the window is far to none.
        near = sum(layout.n_far(start + number * m.prefill_chunk) == 0 for number in range(whole))
        # Whole chunks that see far tokens pass side by side if each of them moves the window by whole blocks.
        count = 1 if near or m.prefill_chunk % m.block_size else max(1, whole)
        piece = memory.tokens[start : start + max(near, count) * m.prefill_chunk]
        see(reader.forward(piece[None], Chunks(memory, start, len(piece), count))[0])
        start += len(piece)
        yield start


@torch.inference_mode()
def resumed(old: BlockMemory, tokens: Tensor, start: int, mass: Sequence[Tensor]) -> BlockMemory:
    """A memory of ``tokens`` [N] whose first ``start`` tokens are copied from ``old`` instead of read.

    Both documents begin with the same ``start`` tokens, a pass of :func:`passes` over ``old`` ended at ``start``, and
    ``mass`` is ``old.attention_mass`` after that pass. A token's keys and values depend on no token after its chunk, so
    :func:`passes` continues from ``start`` as if it had read all tokens, up to the rounding of passes of other sizes.
    """
    # The old settings have the budget in place of -1 (memory_settings).
    memory = begun(old.reader, tokens, old.clipped, old.settings.prefill_budget)
    blocks = memory.layout.n_far(start)
    if tokens.is_cuda:
        torch.cuda.synchronize(tokens.device)  # the last pass may still be copying to host memory
    for layer, store in enumerate(old.stores):
        memory.fill(layer, store.tokens[:, :, :start], old.representatives[layer][:, :blocks], mass[layer])
    return memory


@torch.inference_mode()
def begun(reader: Reader, tokens: Tensor, clipped: bool = True, budget: Budget | None = None) -> BlockMemory:
    """A memory for a document's ``tokens`` [N], none of them read yet; raises :class:`UserError` if they do not fit.

    ``budget`` is the budget of the answers (:func:`memory_settings`). Chunks of a memory that is not ``clipped`` see
    all blocks, whatever their budget.
    """
    length = len(tokens)
    m = memory_settings(reader, budget if clipped else 0, length)
    layout = m.layout
    check_blocks(reader, m, length, chunks(m, clipped))
    layers, _, heads, width = reader.shape
    like = torch.empty(0, dtype=reader.dtype, device=reader.device)
    precise = torch.promote_types(like.dtype, torch.float32)
    blocks = 0 if m.representatives == TOKENS else layout.n_far(length)
    memory = BlockMemory(reader, m, tokens, clipped, layout)
    for _ in range(layers):
        memory.stores.append(Store(layout, length, heads, width, like, host=m.storage == "host"))
        memory.representatives.append(like.new_zeros(heads * width, blocks, dtype=precise))
        memory.attention_mass.append(like.new_zeros(heads, 0, dtype=precise))
    return memory


def memory_settings(reader: Reader, budget: Budget | None, length: int) -> MemorySettings:
    """The settings of block memory that a document of ``length`` tokens is read with, for answers under a ``budget``.

    They are a copy of the reader's. The budget counts if the reader's ``prefill_budget`` is -1
    (:data:`utaca.settings.schema.OWN`), and takes its place. Raises :class:`UserError` if it is needed but None.
    """
    m = replace(reader.settings.memory)
    if m.prefill_budget == OWN:
        if budget is None:
            raise UserError(
                "with reader.memory.prefill_budget=-1, a document is read with the budget of its answers; give that "
                "budget, for example utaca.prefill(reader, document, budget=8), or set reader.memory.prefill_budget "
                "to a number of blocks"
            )
        m.prefill_budget = resolve(budget, m.layout.blocks(length))
    return m


class Chunks:
    """Attention of ``count`` prefill chunks of equal size, whose keys and values are written to the memory.

    Each chunk attends to the initial tokens, to the blocks it retrieves, to the window that ends where the chunk
    begins, and to itself. Several chunks share a pass only if none retrieves; the result is as of one after another.

    The pass has tokens ``start`` to ``end``, and ``size`` in each chunk. For the first chunk ``n_far`` blocks are far
    and the window begins at token ``window_start``; the window of what follows the pass begins at ``next_start``.
    """

    def __init__(self, memory: BlockMemory, start: int, length: int, count: int) -> None:
        self.memory = memory
        self.start = start
        self.end = start + length
        self.count = count
        self.size = length // count
        self.n_far = memory.layout.n_far(start)
        self.window_start = memory.layout.window_start(start)
        self.next_start = memory.layout.window_start(self.end)

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        """See :class:`utaca.readers.attention.Attending`; the batch is 1, and T spans the tokens of all chunks.

        Writes keys and values to the memory, adds the attention that the window's tokens get, and represents the blocks
        that the next window leaves behind.
        """
        memory = self.memory
        m = self.memory.settings
        layout = self.memory.layout
        rotary = self.memory.reader.rotary
        store = memory.stores[layer]
        before = self.start - self.window_start
        count = self.count
        size = self.size
        store.write(self.start, key[0], value[0])
        keys, values = store.window(self.window_start, self.end)
        # The position of the window's first token. With clipping only distances within the window count.
        base = 0 if memory.clipped else self.window_start
        keys = rotary(keys, range(base, base + keys.shape[1]))
        local = rotary(query, range(base + before, base + before + query.shape[2]))
        local, new_keys, new_values = (self._chunks(x) for x in (local[0], keys[:, before:], values[:, before:]))
        # For each chunk, the ``before`` tokens of the window that come before the chunk: [count, G, before, D].
        old_keys, old_values = (x[:, :-size].unfold(1, before, size).permute(1, 0, 3, 2) for x in (keys, values))
        segments = []
        if self.n_far:
            edge = rotary(query, range(m.n_local - 1, m.n_local))
            distant = self._chunks(edge[0]) if memory.clipped else local
            far = self._retrieved(layer, edge)
            segments.append(Segment(distant, *far[:, None].expand(-1, count, -1, -1, -1)))
        segments += [Segment(local, old_keys, old_values), Segment(local, new_keys, new_values, causal=True)]
        # Attention mass [G, before + count * size] of the window's tokens: what they got so far, 0 for the new ones.
        total = pad(memory.attention_mass[layer], (0, count * size))
        out, lse = attention(segments, scaling)
        if m.representatives != TOKENS:
            # The window before the chunk, if it has tokens, and the chunk: the mass that far keys get is not kept.
            near = segments[-1 - bool(before) :]
            mass = [received(x.query, x.keys, lse, scaling, causal=x.causal) for x in near]
            for chunk, part in enumerate(torch.cat(mass, -1)):
                total[:, chunk * size : (chunk + 1) * size + before] += part
        n_far = layout.n_far(self.end)
        if n_far > self.n_far and m.representatives != TOKENS:
            # Represent the blocks that the next chunk's window leaves behind.
            first = layout.first_token(self.n_far)
            end = layout.first_token(n_far)
            keys = store.window(first, end)[0].unflatten(1, (-1, m.block_size))
            mass = total[:, first - self.window_start : end - self.window_start].unflatten(1, (-1, m.block_size))
            memory.representatives[layer][:, self.n_far : n_far] = represented(m, keys, mass).mT.flatten(0, 1)
        memory.attention_mass[layer] = total[:, self.next_start - self.window_start :].clone()
        store.leave(self.next_start)
        return out.transpose(0, 1).reshape(query.shape)

    def _chunks(self, x: Tensor) -> Tensor:
        """Tokens [heads, count * size, D] as [count, heads, size, D]."""
        return x.unflatten(1, (self.count, self.size)).transpose(0, 1)

    def _retrieved(self, layer: int, query: Tensor) -> Tensor:
        """Keys and values [2, G, n, D] of the initial tokens, and of the blocks that the chunk retrieves.

        ``query`` [1, H, T, D] is at the window's edge. Without clipping the chunk gets all far blocks.
        """
        memory = self.memory
        m = self.memory.settings
        layout = self.memory.layout
        ids = torch.arange(-layout.initial_blocks, 0, device=query.device)
        if m.prefill_budget or not memory.clipped:
            scores = memory.scores(layer, query, self.n_far)[0]
            ids = torch.cat((ids, best(scores, m.prefill_budget if memory.clipped else self.n_far)))
        return memory.place(memory.stores[layer].blocks(ids), ids)[:, :, layout.skipped :]
