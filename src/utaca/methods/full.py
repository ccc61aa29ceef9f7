"""Full attention without context management: the baseline of all other methods."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from utaca.methods.bases.dense import Continuation, DenseMethod
from utaca.methods.bases.method import MethodState


class Everything(Continuation):
    """An answer under full attention."""

    def look(self, layer: int, query: Tensor, scaling: float) -> Tensor:
        return self.everything(layer, query, scaling)


@dataclass(frozen=True)
class FullAttention(DenseMethod):
    """Every token attends to every token before it, at true positions.

    The method has no budget: all keys are nominal tokens. ``budget`` exists for the interface and must be 0.
    """

    name: ClassVar[str] = "full"
    state = Everything

    budget: int = 0

    def __post_init__(self) -> None:
        self.require(self.budget == 0, "it attends to everything and takes no budget; leave budget out")

    def nominal(self, state: MethodState) -> float:
        """All tokens so far, since there is no budget."""
        return state.length
