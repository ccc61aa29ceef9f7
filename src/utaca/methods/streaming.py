"""Methods that read a document chunk by chunk into a small cache, by the same rule by which they decode."""

from __future__ import annotations

from abc import abstractmethod
from copy import copy
from dataclasses import dataclass

import torch
from torch import Tensor

from utaca.methods.method import Method, Reading, State
from utaca.readers.load import Reader


class Cache(State):
    """A state that can be read into and forked.

    Its lists hold an item a layer, and what they hold is replaced, never written to, so that a fork shares it.
    """

    def fork(self) -> Cache:
        """A state that goes on from here and leaves this one as it is."""
        other = copy(self)
        for name, value in vars(self).items():
            if isinstance(value, list):
                setattr(other, name, list(value))
        return other


@dataclass
class Streamed(Reading):
    """A document that has passed through a cache."""

    cache: Cache


@dataclass(frozen=True)
class StreamingMethod(Method):
    """A method that reads a document ``chunk`` tokens at a time; ``chunk`` bounds its memory.

    Whether it also changes answers is the method's to say.
    """

    prefill = "linear"

    chunk: int = 512

    def __post_init__(self) -> None:
        super().__post_init__()
        self.demand(self.chunk >= 1, "chunk must be at least 1")

    @abstractmethod
    def cache(self, reader: Reader) -> Cache:
        """The empty cache."""

    @torch.inference_mode()
    def read(self, reader: Reader, document: str | Tensor, room: int) -> Streamed:
        tokens, dropped = self.tokens(reader, document, room)
        cache = self.cache(reader)
        for chunk in tokens.split(self.chunk):
            cache.run(chunk)
        return Streamed(reader, tokens, dropped, cache)

    def state(self, reading: Streamed, again: int, room: int) -> State:
        if again:
            raise ValueError("a cache cannot go back; this method must not observe the document's end")
        return reading.cache.fork()
