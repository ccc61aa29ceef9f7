"""UT-ACA: a trigger expands the block budget of some tokens; the paper's trigger is the uncertainty detector."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from utaca.decoding import policies, triggers
from utaca.detection.detector import Detector
from utaca.errors import UserError
from utaca.methods.bases.method import Method
from utaca.methods.infllm import BLOCKS, InfLLM
from utaca.settings.budgets import Budget
from utaca.settings.triggers import TriggerSetting, TriggerText


@dataclass(frozen=True)
class Adaptive:
    """Each token is decoded under a compact budget, and once more under K_max if the trigger expands it.

    The paper's method (algorithm 1). ``budget`` is K_max and ``policy`` says how the budget shrinks after an accepted
    token, both in the units of ``base``: the method that reads and attends, the paper's InfLLM or another method whose
    budget may change from step to step. A ``trigger`` of kind detector means the one that :meth:`options` gets.
    ``drafts`` are as in :class:`utaca.decoding.options.Decoding`.
    """

    name: ClassVar[str] = "utaca"

    budget: Budget = 64
    policy: str = "sub.16"
    trigger: TriggerText = TriggerSetting()
    base: Method = InfLLM()
    drafts: int = 0

    def __post_init__(self) -> None:
        policies.parse(self.policy)
        if not self.base.adjustable:
            raise UserError(
                f"method {self.base.name} cannot change its budget from step to step, so UT-ACA cannot use it; choose "
                "another base"
            )
        if isinstance(self.budget, str) and self.base.reading != BLOCKS:
            raise UserError(f"method {self.base.name} has no blocks, so its budget is no share of them; give tokens")
        # The base method checks its settings under K_max, the largest budget of a step.
        object.__setattr__(self, "base", replace(self.base, budget=self.budget))

    def options(self, detector: Detector | None = None) -> dict[str, Any]:
        """Fields of :class:`utaca.decoding.options.Decoding` for the method's answers."""
        trigger = triggers.trigger_of(self.trigger, detector)
        policy = policies.parse(self.policy)
        return {"budget": self.budget, "policy": policy, "trigger": trigger, "drafts": self.drafts}
