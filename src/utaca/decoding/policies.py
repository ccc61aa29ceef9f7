"""Update policies: the block budget of the next token after one is accepted (paper, section 4.3)."""

import re
from dataclasses import dataclass

from utaca.errors import UserError, check_overrides, whole
from utaca.settings.schema import POLICY
from utaca.trace import Token


class Policy:
    """An update policy; derive from it and write :meth:`update` to bring your own.

    A policy is pure: the returned budget depends only on the arguments, and no state is kept from call to call. The
    token holds its margin, its GDM (None without a detector) and the other results of its pass. Decoding raises
    :class:`UserError` if the returned budget is out of range.
    """

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        check_overrides(cls)

    def update(self, k: int, k_max: int, token: Token) -> int:
        """Budget of the next token, from 1 to ``k_max``, after ``token`` of budget ``k`` was accepted unexpanded."""
        raise TypeError(f"{type(self).__name__} must have a method update(k, k_max, token)")

    def expand(self, k: int, k_max: int, token: Token) -> int:
        """Budget, above ``k`` and at most ``k_max``, under which a ``token`` of budget ``k`` is decoded again."""
        return k_max


@dataclass(frozen=True)
class _Counted(Policy):
    """A policy with a number of blocks, ``n``; raises :class:`UserError` if that is not a whole number."""

    n: int

    def __post_init__(self) -> None:
        whole(f"the number of {type(self).__name__}", self.n)


class Set(_Counted):
    """Set.n: the next token gets ``n`` blocks."""

    def update(self, k: int, k_max: int, token: Token | None = None) -> int:
        return min(self.n, k_max)


class Sub(_Counted):
    """Sub.n: the next token gets ``n`` blocks fewer than the accepted one, but at least 1."""

    def update(self, k: int, k_max: int, token: Token | None = None) -> int:
        return max(1, k - self.n)


def path(policy: Set | Sub, k_max: int, every: int, steps: int) -> list[int]:
    """The budgets of the first ``steps`` steps of an answer in which every ``every``-th step is expanded (0: none).

    A step that has K_max already is not expanded. These are the budgets of the accepted passes under the trigger
    :class:`utaca.Every`; they depend on no token.
    """
    budgets = []
    k = k_max
    for step in range(steps):
        expanded = k < k_max and every > 0 and step % every == 0
        budgets.append(k_max if expanded else k)
        k = k_max if expanded else policy.update(k, k_max)
    return budgets


def parse(text: str) -> Policy:
    """The policy written as ``set.N`` or ``sub.N``; raises :class:`UserError` for any other text."""
    match = re.fullmatch(POLICY, text)
    if match is None:
        raise UserError(
            f"update policy {text!r} is not understood; write set.N or sub.N with N at least 1, such as sub.16"
        )
    return (Set if match[1] == "set" else Sub)(int(match[2]))
