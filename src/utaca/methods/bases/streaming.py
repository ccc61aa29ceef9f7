"""Methods that read a document chunk by chunk into a small cache, by the rule by which they decode as well."""

from abc import abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from utaca.methods.bases.method import Method, MethodReading, MethodState
from utaca.readers.load import Reader


@dataclass
class Streamed(MethodReading):
    """A document that a streaming method has read; ``cache`` is the state after its last token."""

    cache: MethodState | None = None


@dataclass(frozen=True)
class StreamingMethod(Method):
    """A method that reads a document ``chunk`` tokens at a time; ``chunk`` bounds its memory.

    Each method says whether ``chunk`` also changes the answers.
    """

    prefill = "linear"

    chunk: int = 512

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require(self.chunk >= 1, "chunk must be at least 1")

    @abstractmethod
    def cache(self, reading: MethodReading) -> MethodState:
        """The state before the document's first token: an empty cache."""

    @torch.inference_mode()
    def read(self, reader: Reader, document: str | Tensor, room: int) -> Streamed:
        """Pass the document through the cache, ``chunk`` tokens at a time."""
        tokens, dropped = self.tokens(reader, document, room)
        reading = Streamed(reader, tokens, dropped, self)
        reading.cache = self.cache(reading)
        for chunk in tokens.split(self.chunk):
            reading.cache.advance(chunk)
        return reading

    def state(self, reading: Streamed, repeated: int, room: int) -> MethodState:
        """A copy of the cache after the document."""
        if repeated:
            raise ValueError("a cache cannot go back; this method must not observe the document's end")
        return reading.cache.fork()
