"""Keep documents that were read in main or GPU memory, and let a new prompt continue from one of them.

A memory of the same tokens is used as it is; it may come from a file (:mod:`utaca.memory.saved`). Otherwise the memory
with the longest common prefix is copied, up to the last pass that ended within the prefix and at a whole number of
prefill chunks; only the tokens after the copy are read. The result equals a memory that is read from the beginning, up
to rounding (:func:`utaca.memory.prefill.resumed`). Keys and values of questions and answers are not reused, because
they are computed under other budgets. A document whose tokens are scored continues only from a document whose tokens
are scored too, and is neither saved in a file nor taken from one.
"""

import logging
from collections import OrderedDict
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from threading import Thread
from time import perf_counter

from torch import Tensor

from utaca.app.serving.scores import Scores
from utaca.machine import gib
from utaca.memory.block_memory import BlockMemory
from utaca.memory.prefill import begun, passes, resumed
from utaca.memory.saved import SavedDocuments
from utaca.readers.load import Reader
from utaca.readers.turns import in_turn
from utaca.settings.schema import OWN, TOKENS

_log = logging.getLogger(__name__)


@dataclass(eq=False)
class StoredDocument:
    """A document that was read, of ``size`` bytes, with the ``scores`` of its tokens if a client asks for the scores.

    ``mass`` maps the token position at the end of each prefill chunk to ``memory.attention_mass`` at that position, of
    a document from a file only at its own end; ``users`` is the number of unfinished answers that need the document.
    ``seconds`` are those of the passes that read it.
    """

    memory: BlockMemory
    size: int
    scores: Scores | None = None
    mass: dict[int, list[Tensor]] = field(default_factory=dict)
    users: int = 0
    seconds: float = 0.0

    def note(self, position: int) -> None:
        """Note the attention mass after the pass that ended at a ``position``, if a prefill chunk ends there."""
        if position % self.memory.settings.prefill_chunk == 0:
            self.mass[position] = list(self.memory.attention_mass)


class Memories:
    """Documents that were read, at most ``room`` bytes; ``saved``, if given, has documents of earlier servers too.

    To make room for a new document, the least recently used documents are removed, except those that unfinished answers
    need.
    """

    def __init__(self, reader: Reader, room: int, saved: SavedDocuments | None = None) -> None:
        self._reader = reader
        self._room = room
        self._saved = saved
        self._writing: Thread | None = None
        self._documents: OrderedDict[Hashable, StoredDocument] = OrderedDict()

    def __len__(self) -> int:
        return len(self._documents)

    @property
    def size(self) -> int:
        """Bytes of all stored documents."""
        return sum(stored.size for stored in list(self._documents.values()))

    def fault(self, length: int) -> str:
        """A sentence if a document of ``length`` tokens has no room even without all others; "" if it has room."""
        size = self._size(length)
        if size <= self._room:
            return ""
        return (
            f"the document's {length} tokens need {gib(size)} of block memory, and this server has {gib(self._room)} "
            "(--memory); shorten the document"
        )

    def get(self, key: Hashable) -> StoredDocument | None:
        """The document stored under a key, or None; it counts as used now."""
        if key in self._documents:
            self._documents.move_to_end(key)
        return self._documents.get(key)

    def begin(self, tokens: Sequence[int], *, scored: bool = False) -> tuple[StoredDocument, Iterator[int], int] | None:
        """Prepare a new document: return it, the passes that will read it, and the number of its tokens read before.

        These tokens come from a file or are copied from another document. Removes documents to make room, but does not
        store the new one (:meth:`keep`). None if documents of unfinished answers take the room. Questions about a
        ``scored`` document are read under the budget of the answer. Raises :class:`UserError` in the same cases as
        :func:`utaca.prefill`.
        """
        size = self._size(len(tokens))
        size_in_use = sum(stored.size for stored in self._documents.values() if stored.users)
        if size_in_use + size > self._room:
            return None
        ids = self._reader.document(tokens)
        # The document with most tokens to copy, and their number.
        source = None
        start = 0
        for candidate in self._documents.values():
            n_shared = self._shared(ids, candidate, scored)
            if n_shared > start:
                start = n_shared
                source = candidate
        self._make_room(size, source)
        found = in_turn(self._saved.find)(self._reader, ids) if self._saved and not scored else None
        if found:
            stored = StoredDocument(found.memory, size)
            stored.note(len(ids))
            return stored, iter(()), len(ids)
        if source:
            memory = in_turn(resumed)(source.memory, ids, start, source.mass[start])
            copied_mass = {position: mass for position, mass in source.mass.items() if position <= start}
            stored = StoredDocument(memory, size, mass=copied_mass)
        else:
            stored = StoredDocument(in_turn(begun)(self._reader, ids), size)
        if scored:
            copied_scores = source.scores.numbers[:start] if source else None
            stored.scores = Scores(self._reader, ids, copied_scores)
            stored.memory.settings.question_budget = OWN
        return stored, self._passes(stored, start), start

    def _make_room(self, size: int, source: StoredDocument | None) -> None:
        """Remove documents that no answer needs, the least recently used first, until ``size`` bytes have room.

        ``source`` is removed last, because the new document is copied from it.
        """
        unused = [key for key, stored in self._documents.items() if not stored.users]
        excess = self.size + size - self._room
        for key in sorted(unused, key=lambda key: self._documents[key] is source):
            if excess > 0:
                excess -= self._documents.pop(key).size

    @staticmethod
    def _shared(ids: Tensor, stored: StoredDocument, scored: bool) -> int:
        """Number of leading tokens of ``ids`` [N] that can be copied from a stored document, with scores if wanted."""
        if not stored.mass or (scored and not stored.scores):
            return 0
        length = min(len(ids), len(stored.memory))
        differing = (ids[:length] != stored.memory.tokens[:length]).nonzero()
        n_common = int(differing[0]) if len(differing) else length
        if scored:
            # Copied scores include that of the first token after the copy, which must therefore be equal too.
            n_common -= 1
        positions = [position for position in stored.mass if position <= n_common]
        return max(positions, default=0)

    def _passes(self, stored: StoredDocument, start: int) -> Iterator[int]:
        """Read a document from position ``start`` on, pass by pass; yields the position that each pass reaches."""
        memory = stored.memory
        remaining = passes(memory, start, stored.scores.add) if stored.scores else passes(memory, start)
        step = in_turn(lambda: next(remaining, None))
        started = perf_counter()
        while (position := step()) is not None:
            stored.seconds += perf_counter() - started
            stored.note(position)
            yield position
            started = perf_counter()

    def keep(self, key: Hashable, stored: StoredDocument) -> None:
        """Store a document that was read, under a key."""
        self._documents[key] = stored

    def save(self, stored: StoredDocument) -> None:
        """Save a document that was read, unless it is saved already, or its tokens are scored.

        A thread of its own writes the file, because answers do not wait for the disk. If the thread still writes the
        document before, this waits, so that waiting documents do not fill the memory.
        """
        if self._saved and not stored.scores and not self._saved.holds(self._reader, stored.memory.tokens):
            self.finish_saving()
            self._writing = Thread(target=_write, args=(self._saved, stored), name="utaca-saving")
            self._writing.start()

    def finish_saving(self) -> None:
        """Wait until the file of the last document is written."""
        if self._writing:
            self._writing.join()

    def _size(self, length: int) -> int:
        """Bytes of a document in block memory, with :attr:`StoredDocument.mass`; scores are small in comparison."""
        reader = self._reader
        m = reader.settings.memory
        layers, _, kv_heads, width = reader.shape
        item = reader.dtype.itemsize
        n_representatives = 0 if m.representatives == TOKENS else m.layout.n_far(length)
        window = min(length, m.n_local + m.block_size)
        # A number for each token of the window, at the end of each prefill chunk and at the end of the document.
        mass = (1 + length // m.prefill_chunk) * window
        keys_and_values = 2 * length * width * item
        # Representatives and mass are in float32 at least.
        return layers * kv_heads * (keys_and_values + (n_representatives * width + mass) * max(item, 4))


def _write(saved: SavedDocuments, stored: StoredDocument) -> None:
    """Write a document's file; an error is logged and ends nothing."""
    try:
        saved.keep(stored.memory, stored.seconds)
    except Exception:
        _log.exception("a document was not saved")
