"""Top-p: every token attends to the fewest best blocks whose probability reaches p."""

import re
from dataclasses import dataclass, replace
from typing import ClassVar

from torch import Tensor

from utaca.memory import BlockMemory
from utaca.methods.infllm import InfLLM
from utaca.readers.load import Reader
from utaca.settings.schema import PACKED, TOP_P_POLICY


@dataclass(frozen=True)
class TopP(InfLLM):
    """Block memory whose budget follows the retrieval scores, for each token and layer, without any training.

    Top-p selection as in Twilight (Lin et al., arXiv 2502.02770), for InfLLM's blocks: the softmax of the retrieval
    scores gives each block a probability, and a token attends to the fewest of the best blocks whose probability
    reaches p, at most ``budget`` blocks. ``policy`` names p, as in ``top_p.0.9``. All but the question's last token is
    read under ``budget``.
    """

    name: ClassVar[str] = "top_p"

    policy: str = "top_p.0.9"

    def __post_init__(self) -> None:
        super().__post_init__()
        known = re.fullmatch(TOP_P_POLICY, self.policy)
        self.require(known is not None, f"policy {self.policy!r} is not top_p.X with X below 1, such as top_p.0.9")

    @property
    def p(self) -> float:
        """The probability that the blocks of a token reach."""
        return float(self.policy.removeprefix("top_p."))

    def check(self, reader: Reader) -> None:
        self.require(
            reader.settings.memory.far_positions != PACKED,
            "packed positions need a fixed number of blocks, but top_p chooses it for each token; set "
            "reader.memory.far_positions=clipped",
        )

    def bind(self, reading: BlockMemory) -> BlockMemory:
        """The same reading, from which tokens attend to fewer blocks."""
        return replace(reading, block_top_p=self.p)

    def read(self, reader: Reader, document: str | Tensor, room: int) -> BlockMemory:
        """Read a document as :class:`InfLLM` does."""
        return self.bind(super().read(reader, document, room))
