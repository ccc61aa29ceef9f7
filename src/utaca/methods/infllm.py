"""InfLLM: every token attends to the blocks that suit its query best."""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from utaca.detection.detector import Detector
from utaca.memory import BlockMemory, prefill
from utaca.methods.bases.method import Method
from utaca.readers.load import Reader
from utaca.settings.budgets import Budget, resolve
from utaca.settings.schema import OWN

BLOCKS = "blocks"
"""The :attr:`Method.reading` of methods that answer from block memory."""


def shared_reading(method: Method, reader: Reader) -> Hashable:
    """What identifies a method's reading by a reader; methods for which it is equal may share a document's reading.

    That is :attr:`Method.reading`, together with the budget if the reader reads documents into block memory under the
    budget of the answers (``reader.memory.prefill_budget=-1``).
    """
    depends_on_budget = method.reading == BLOCKS and reader.settings.memory.prefill_budget == OWN
    return (method.reading, method.budget) if depends_on_budget else method.reading


@dataclass(frozen=True)
class InfLLM(Method):
    """Block memory under one budget for all tokens; :mod:`utaca.memory` forms the blocks and retrieves them.

    Xiao et al., arXiv 2402.04617; thunlp/InfLLM, MIT. ``budget`` counts blocks, or is a share of the document's, as
    "5%". Block size, window and all else are settings of the reader (``reader.memory``). ``drafts`` and
    ``draft_budget`` are as in :class:`utaca.decoding.options.Decoding`.
    """

    name: ClassVar[str] = "infllm"
    prefill: ClassVar[str] = "linear"
    positions: ClassVar[str] = "clipped"
    adjustable: ClassVar[bool] = True

    budget: Budget = 32
    drafts: int = 0
    draft_budget: int = 0

    def __post_init__(self) -> None:
        self.require(resolve(self.budget, 0) >= 1, "budget must be at least 1")

    @property
    def reading(self) -> Hashable:
        return BLOCKS

    def bind(self, reading: BlockMemory) -> BlockMemory:
        """The reading as it is: a block memory names no method."""
        return reading

    def options(self, detector: Detector | None = None) -> dict[str, Any]:
        return {"budget": self.budget, "drafts": self.drafts, "draft_budget": self.draft_budget}

    def read(self, reader: Reader, document: str | Tensor, room: int) -> BlockMemory:
        """Read a document into block memory, which needs no ``room`` for question and answer beforehand."""
        return prefill(reader, document, budget=self.budget)
