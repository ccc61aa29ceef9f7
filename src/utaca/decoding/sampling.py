"""Sampling of tokens, reproducible by a seed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from utaca.errors import UserError, whole


@dataclass(frozen=True)
class Sampling:
    """Nucleus sampling: softmax at ``temperature``, the fewest best tokens that hold ``top_p`` of it.

    Every step draws one number from the seed's stream and applies it to each of its passes, so a rollback that changes
    nothing in the logits changes no token, and paired and sequential decoding draw alike.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not all(isinstance(number, int | float) for number in (self.temperature, self.top_p)):
            raise UserError("sampling: temperature and top_p must be numbers, as in utaca.Sampling(0.7, top_p=0.9)")
        whole("sampling: seed", self.seed)
        if not self.temperature > 0:
            raise UserError("sampling: temperature must be above 0; leave sampling out for greedy decoding")
        if not 0 < self.top_p <= 1:
            raise UserError("sampling: top_p must be above 0 and at most 1")

    def draws(self) -> Callable[[], Callable[[Tensor], Tensor]]:
        """A source of choosers, one a step; a chooser maps logits [V] to the token's id []."""
        generator = torch.Generator().manual_seed(self.seed)

        def draw() -> Callable[[Tensor], Tensor]:
            number = torch.rand((), generator=generator, dtype=torch.float64).item()
            return lambda logits: self._choose(logits, number)

        return draw

    def _choose(self, logits: Tensor, number: float) -> Tensor:
        best = (logits.double() / self.temperature).softmax(-1).sort(descending=True, stable=True)
        before = best.values.cumsum(-1) - best.values
        kept = torch.where(before < self.top_p, best.values, 0.0)
        reached = kept.cumsum(-1)
        # The last kept token at the latest, whatever rounding does to the sum.
        place = (reached <= number * reached[-1]).sum().clamp(max=(kept > 0).sum() - 1)
        return best.indices[place]
