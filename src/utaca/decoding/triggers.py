"""Triggers, which decide whether to expand a token's budget (paper, algorithm 1): the detector and its baselines."""

from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Real

from utaca.detection.detector import Detector
from utaca.errors import UserError, check_overrides, whole
from utaca.settings.triggers import TriggerSetting
from utaca.trace import Token


class Trigger:
    """A rule that says whether to expand a token's budget; derive from it and write :meth:`expands` to bring your own.

    Each token that was decoded under a budget ``k`` below K_max is passed to :meth:`expands`. If that returns True, the
    token is rolled back and decoded again under the budget that the policy expands to. A trigger is pure, like a
    policy: one object serves any number of answers. The ``detector``, if any, judges every token before that call.
    """

    detector: Detector | None = None

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        check_overrides(cls)

    def second_budget(self, k: int, k_max: int) -> int:
        """Another budget, up to ``k_max``, under which the token is also decoded in the same pass; 0: none.

        If the policy expands to this budget, the second step is the expansion, which then needs no pass of its own.
        """
        return 0

    def expands(self, step: int, token: Token, second: Token | None) -> bool:
        """Whether to decode the token of ``step`` (from 0) again; ``second``: the one under :meth:`second_budget`."""
        raise TypeError(f"{type(self).__name__} must have a method expands(step, token, second)")


@dataclass(frozen=True)
class Detected(Trigger):
    """Expand the tokens that a detector distrusts: UT-ACA."""

    detector: Detector

    def __post_init__(self) -> None:
        if not hasattr(self.detector, "step"):
            raise UserError("Detected needs a utaca.Detector; load one with utaca.load_detector(path)")

    def expands(self, step: int, token: Token, second: Token | None) -> bool:
        return token.distrusted


@dataclass(frozen=True)
class Margin(Trigger):
    """Expand the tokens whose logit margin is below ``threshold``, in logits: a trigger without training."""

    threshold: float

    def __post_init__(self) -> None:
        if not isinstance(self.threshold, Real) or self.threshold != self.threshold:  # NaN
            raise UserError(f"Margin needs a threshold in logits, such as utaca.Margin(2.5), not {self.threshold!r}")

    def expands(self, step: int, token: Token, second: Token | None) -> bool:
        return token.margin < self.threshold


@dataclass(frozen=True)
class Agreement(Trigger):
    """Expand the tokens that differ from those under K_max: token agreement, which imitates K_max token by token.

    With ``blocks``, compare with the token under this many blocks instead, which costs a second, small row of the pass.
    """

    blocks: int = 0

    def __post_init__(self) -> None:
        _at_least_0(self, self.blocks)

    def second_budget(self, k: int, k_max: int) -> int:
        # Under the budget of the first pass, the second would give the same token.
        budget = self.blocks or k_max
        return budget if budget != k else 0

    def expands(self, step: int, token: Token, second: Token | None) -> bool:
        return second is not None and second.token != token.token


@dataclass(frozen=True)
class Every(Trigger):
    """Expand every ``n``-th step, whatever its token (0: no step): a baseline at the expansion rate of a detector."""

    n: int

    def __post_init__(self) -> None:
        _at_least_0(self, self.n)

    def expands(self, step: int, token: Token, second: Token | None) -> bool:
        return self.n > 0 and step % self.n == 0


@dataclass(frozen=True)
class Replayed(Trigger):
    """Decide as ``trigger`` does, except at the steps of ``decisions``, from 0: True expands, False does not.

    Nothing is decided at a step whose budget is K_max already, so a decision for it has no effect.
    """

    trigger: Trigger
    decisions: Mapping[int, bool]

    def __post_init__(self) -> None:
        if not isinstance(self.trigger, Trigger) or not isinstance(self.decisions, Mapping):
            raise UserError("Replayed needs a trigger, and a mapping of steps to decisions such as {3: True}")
        for step in self.decisions:
            whole("a step of Replayed", step)

    @property
    def detector(self) -> Detector | None:
        return self.trigger.detector

    def second_budget(self, k: int, k_max: int) -> int:
        return self.trigger.second_budget(k, k_max)

    def expands(self, step: int, token: Token, second: Token | None) -> bool:
        if step in self.decisions:
            token.intervened = True
            return self.decisions[step]
        return self.trigger.expands(step, token, second)


def _at_least_0(trigger: Trigger, number: int) -> None:
    """Raise :class:`UserError` unless the ``number`` of a trigger is a whole number, 0 or more."""
    if whole(f"the number of {type(trigger).__name__}", number) < 0:
        raise UserError(f"{trigger} has a negative number; give 0 or more")


def trigger_of(setting: TriggerSetting, detector: Detector | None = None) -> Trigger:
    """The trigger that a setting of a config or command means.

    A setting of kind detector needs the ``detector``; one of kind margin needs a value.
    """
    if setting.kind == "margin":
        return Margin(float(setting.value))
    if setting.kind == "agreement":
        return Agreement(setting.value or 0)
    if setting.kind == "every":
        return Every(setting.value)
    if setting.kind == "never":
        return Every(0)
    return Detected(detector)
