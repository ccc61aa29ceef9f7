"""UT-ACA: a detector widens the budget of the tokens that it distrusts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from utaca.decoding.policies import parse
from utaca.detection.detector import Detector
from utaca.errors import UserError
from utaca.methods.bases.method import Method
from utaca.methods.infllm import InfLLM


@dataclass(frozen=True)
class UTACA:
    """Each token is decoded under a compact budget, and again under K_max where the detector distrusts it.

    The paper's method (algorithm 1). ``budget`` is K_max and ``policy`` says how the budget shrinks after an accepted
    token, both in the units of ``base``: the method that retrieves, the paper's InfLLM or another one whose steps may
    have a budget each. All else that a :class:`Method` has is as the base has it.
    """

    name: ClassVar[str] = "utaca"

    budget: int = 64
    policy: str = "sub.16"
    base: Method = InfLLM()

    def __post_init__(self) -> None:
        parse(self.policy)
        if not self.base.adjustable:
            raise UserError(f"method {self.base.name} cannot give a step another budget than the last one")
        # What the base checks, it checks of its widest step.
        object.__setattr__(self, "base", replace(self.base, budget=self.budget))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.base, name)

    def options(self, detector: Detector | None = None) -> dict[str, Any]:
        return {"budget": self.budget, "policy": parse(self.policy), "detector": detector}


@dataclass(frozen=True)
class TokenAgreement(UTACA):
    """As :class:`UTACA`, but what expands is that the token would be another, which no detector can know.

    With a ``witness``, that it is another under so many blocks, which any decoder can: it takes a second, small pass.
    """

    name: ClassVar[str] = "agreement"

    witness: int = 0

    def options(self, detector: Detector | None = None) -> dict[str, Any]:
        return super().options() | {"agreement": True, "witness": self.witness}


@dataclass(frozen=True)
class NoDetector(UTACA):
    """As :class:`UTACA`, but every so many tokens are expanded, whatever they are; 0: none.

    What a trigger is worth beyond its rate, and beyond a question that is read under K_max.
    """

    name: ClassVar[str] = "no_detector"

    every: int = 0

    def options(self, detector: Detector | None = None) -> dict[str, Any]:
        return super().options() | {"every": self.every}
