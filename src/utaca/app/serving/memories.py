"""Documents that were read, in main memory (or the GPU's): which of them a new prompt may go on from.

A memory of equal tokens is used as it is. Otherwise the memory that has the longest beginning in common is copied as
far as the last pass that read no further than the common beginning and ended at a whole number of prefill chunks; only
what follows is read. There the new memory is what reading anew would make of it, up to rounding
(:func:`utaca.memory.prefill.resumed`). What was read of questions and answers is under other budgets, and not reused.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from utaca.layout import Layout
from utaca.memory.branch import BlockMemory
from utaca.memory.prefill import begun, passes, resumed
from utaca.readers.load import Reader
from utaca.settings.machine import gib, in_turn
from utaca.settings.schema import TOKENS


@dataclass(eq=False)
class Entry:
    """A document that was read. ``mass`` has ``memory.attention_mass`` by position, at ends of prefill chunks;
    ``users`` are the answers under way that need it."""

    memory: BlockMemory
    size: int
    mass: dict[int, list[Tensor]] = field(default_factory=dict)
    users: int = 0


class Memories:
    """Documents that were read, ``room`` bytes at most; if more is needed, the one that was used last longest ago
    leaves, unless an answer under way needs it."""

    def __init__(self, reader: Reader, room: int) -> None:
        self._reader, self._room = reader, room
        self._entries: OrderedDict[bytes, Entry] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def size(self) -> int:
        """Bytes of all documents that are kept."""
        return sum(entry.size for entry in list(self._entries.values()))

    def fault(self, length: int) -> str:
        """Why a document of ``length`` tokens cannot be read, whatever else leaves; "" if it can."""
        size = self._size(length)
        if size <= self._room:
            return ""
        return (
            f"the document's {length} tokens need {gib(size)} of block memory, and this server has {gib(self._room)} "
            "(--memory); shorten the document"
        )

    def get(self, key: bytes) -> Entry | None:
        """The document of exactly the tokens of a key."""
        entry = self._entries.get(key)
        if entry is not None:
            self._entries.move_to_end(key)
        return entry

    def begin(self, tokens: Sequence[int]) -> tuple[Entry, Iterator[int], int] | None:
        """A document to be read: its entry, the passes that read it, and how many of its tokens are copied.

        None if answers under way need the room. Raises :class:`UserError` as :func:`utaca.prefill`.
        """
        size = self._size(len(tokens))
        if sum(entry.size for entry in self._entries.values() if entry.users) + size > self._room:
            return None
        ids, start, source = self._reader.document(tokens), 0, None
        for entry in self._entries.values():
            if (shared := self._shared(ids, entry)) > start:
                start, source = shared, entry
        # The source leaves last: it is copied.
        unused = [key for key, entry in self._entries.items() if not entry.users]
        for key in sorted(unused, key=lambda key: self._entries[key] is source):
            if self.size + size > self._room:
                del self._entries[key]
        if source:
            memory = in_turn(resumed)(source.memory, ids, start, source.mass[start])
            entry = Entry(memory, size, {at: mass for at, mass in source.mass.items() if at <= start})
        else:
            entry = Entry(in_turn(begun)(self._reader, ids), size)
        return entry, self._passes(entry, start), start

    @staticmethod
    def _shared(ids: Tensor, entry: Entry) -> int:
        """How many tokens can be copied from an entry."""
        length = min(len(ids), len(entry.memory))
        parted = (ids[:length] != entry.memory.tokens[:length]).nonzero()
        common = int(parted[0]) if len(parted) else length
        return max((position for position in entry.mass if position <= common), default=0)

    def _passes(self, entry: Entry, start: int) -> Iterator[int]:
        memory, remaining = entry.memory, passes(entry.memory, start)
        step = in_turn(lambda: next(remaining, None))
        while (position := step()) is not None:
            if position % memory.settings.prefill_chunk == 0:
                entry.mass[position] = list(memory.attention_mass)
            yield position

    def keep(self, key: bytes, entry: Entry) -> None:
        """Keep a document that was read."""
        self._entries[key] = entry

    def _size(self, length: int) -> int:
        """Bytes of a document in block memory, with what :attr:`Entry.mass` keeps of it."""
        m, reader = self._reader.settings.memory, self._reader
        layers, _, groups, width = reader.shape
        item = reader.dtype.itemsize
        layout = Layout(m.n_init, m.n_local, m.block_size)
        blocks = 0 if m.representatives == TOKENS else layout.n_far(length)
        window = min(length, m.n_local + m.block_size)
        mass = (1 + length // m.prefill_chunk) * window
        return layers * groups * (2 * length * width * item + (blocks * width + mass) * max(item, 4))


def key_of(tokens: Sequence[int]) -> bytes:
    """What a document of these tokens is kept under."""
    return torch.tensor(tokens, dtype=torch.int32).numpy().tobytes()
