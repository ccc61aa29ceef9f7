"""Block memory: a document that was read, from which answers are decoded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from utaca.memory.branch import Branch
from utaca.memory.document import Document
from utaca.settings.schema import OWN


@dataclass(repr=False)
class BlockMemory(Document):
    """A document as methods with block memory read it (:class:`utaca.decoding.options.Reading`).

    ``dropped``: of the document, no token is cut. There is no default ``budget``: each decoding must name one.
    ``block_top_p`` is that of the branches (:class:`utaca.memory.branch.Branch`).
    """

    block_top_p: float = 1.0

    dropped: ClassVar[int] = 0
    adjustable: ClassVar[bool] = True
    chains: ClassVar[bool] = True
    budget: ClassVar[None] = None

    def begin(
        self, prompt: Tensor, new: int, budget: int, captures: Mapping[str, Callable]
    ) -> tuple[Branch, list[tuple[Tensor, int]], Tensor]:
        """See :class:`utaca.decoding.options.Reading`.

        The first step of decoding passes the prompt's last token, under K_max (paper, algorithm 1).
        """
        m = self.settings
        # 0 means the budget under which the document was read.
        question_budget = budget if m.question_budget == OWN else m.question_budget or m.prefill_budget
        if not self.clipped:
            # Blocks at true positions stand for full attention, so the question must see all blocks too.
            question_budget = self.layout.blocks(len(self) + len(prompt))
        branch = Branch(self, len(prompt) + new, captures, budget, self.block_top_p)
        pieces = prompt[:-1].split(m.question_chunk or m.prefill_chunk) if len(prompt) > 1 else ()
        return branch, [(piece, question_budget) for piece in pieces], prompt[-1:]
