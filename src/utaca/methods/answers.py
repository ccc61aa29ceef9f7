"""Answers of any method about a document, by greedy decoding."""

from __future__ import annotations

import time
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from utaca.decoding.generate import Generation, NotFiniteError, Token, piece, predicted
from utaca.decoding.peak import PeakMemory
from utaca.methods.method import Method, Reading
from utaca.readers.load import Reader
from utaca.settings.machine import return_freed_memory

LONGEST_CYCLE, LOOPED = 16, 48
"""An answer that was not ended by the reader is incoherent where its last ``LOOPED`` tokens are one cycle of at most
``LONGEST_CYCLE`` tokens, over and over."""


@dataclass
class Answer:
    """What a method answered.

    ``generation`` has a block size of 1, so that its ``k`` are nominal tokens; its ``finish`` is ``eos``, ``length``,
    ``incoherent`` (see :data:`LOOPED`) or ``memory``, the machine's being too small: no token then. ``n_context`` are
    the document's tokens that were read, ``dropped`` those that were cut; ``prefill_seconds`` is the time of the
    document's reading, also where it was shared.
    """

    generation: Generation
    n_context: int
    dropped: int
    prefill_seconds: float
    peak_bytes: int


class Answers:
    """Answers about one document, its text or token ids [N].

    The latest reading is kept, for the next method that can share it (:attr:`Method.reading`) and for no longer, so
    that no method's peak memory counts another's reading.
    """

    def __init__(self, reader: Reader, document: str | Tensor) -> None:
        self._reader, self._document = reader, document
        self._kept: tuple[Hashable, Reading, float, int] | None = None

    def answer(self, method: Method, question: str, max_new_tokens: int) -> Answer:
        """The answer to a question, of at most so many tokens, the end token included."""
        method.check(self._reader)
        prompt = self._reader.encode_question(question)
        reading, seconds, peak = None, 0.0, 0
        try:
            reading, seconds, peak = self._read(method, len(prompt) + max_new_tokens)
            with PeakMemory(self._reader.device) as decoding:
                generation = decode(method, reading, prompt, max_new_tokens)
            peak = max(peak, decoding.bytes)
        except (MemoryError, RuntimeError) as error:
            if not _out_of_memory(error):
                raise
            generation, self._kept = Generation(1, finish="memory"), None
        n_context, dropped = (len(reading), reading.dropped) if reading else (0, 0)
        return Answer(generation, n_context, dropped, seconds, peak)

    def _read(self, method: Method, room: int) -> tuple[Reading, float, int]:
        # A reading leaves a certain room, so one for another room may be cut elsewhere.
        key = method.reading, room
        if self._kept is None or self._kept[0] != key:
            self._kept = None
            return_freed_memory()
            started = time.perf_counter()
            with PeakMemory(self._reader.device) as peak:
                reading = method.read(self._reader, self._document, room)
            self._kept = key, reading, time.perf_counter() - started, peak.bytes
        return self._kept[1:]


@torch.inference_mode()
def decode(method: Method, reading: Reading, prompt: Tensor, max_new_tokens: int) -> Generation:
    """The answer to ``prompt`` [T], which follows the document that was read."""
    reader, found = reading.reader, Generation(1)
    started = time.perf_counter()
    again = min(max(0, method.observes - len(prompt)), len(reading))
    state = method.state(reading, again, again + len(prompt) + max_new_tokens)
    passing = torch.cat((reading.tokens[len(reading) - again :], prompt))
    if method.alone and len(passing) > 1:
        state.run(passing[:-1])
        passing = passing[-1:]
    text, finish = "", "length"
    for step in range(max_new_tokens):
        hidden = state.run(passing)
        known = predicted(reader, hidden[-1])
        if known["token"] < 0:
            raise NotFiniteError(
                f"reader {reader.settings.name} gave logits that are no numbers at step {step} of an answer of method "
                f"{method.name}; try reader.dtype=float32, or check the weights",
                found.trace,
            )
        token = Token(
            **known,
            k=round(method.nominal(state)),
            embeddings={site: rows[0] for site, rows in reader.embeddings().items()},
            selected=[],
            scores=[],
            attended=sum(state.attended) / len(state.attended),
        )
        found.trace.append(token)
        if token.token in reader.stop_tokens:
            finish = "eos"
            break
        token.text, text = piece(reader.tokenizer, [t.token for t in found.trace], text)
        passing = prompt.new_tensor([token.token])
    found.seconds = time.perf_counter() - started
    found.finish = "incoherent" if finish == "length" and loops([t.token for t in found.trace]) else finish
    return found


def loops(tokens: Sequence[int]) -> bool:
    """Whether an answer's end goes in a circle, see :data:`LOOPED`."""
    end = list(tokens[-LOOPED:])
    return len(end) == LOOPED and any(end[period:] == end[:-period] for period in range(1, LONGEST_CYCLE + 1))


def _out_of_memory(error: Exception) -> bool:
    """PyTorch tells of a lack of main memory by a mere RuntimeError."""
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or "can't allocate memory" in str(error)
