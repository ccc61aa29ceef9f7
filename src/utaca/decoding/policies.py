"""Update policies: how the budget goes on after a token (paper, section 4.3)."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from utaca.errors import UserError, whole
from utaca.records.schemas import CORRECT
from utaca.settings.schema import POLICY
from utaca.trace import Token


class Policy:
    """An update policy; derive from it and write :meth:`update` to bring your own.

    A policy is pure: what it returns depends on its arguments alone, and it keeps nothing from call to call. The token
    is the accepted one, or the one just distrusted, with its margin, GDM and all else that is known of it; its GDM is
    None where no detector judges, as under token agreement. The token is None where budgets are worked out without an
    answer, as for a threshold that aims at a mean budget. Decoding raises :class:`UserError` for a budget out of range.
    """

    def update(self, k: int, k_max: int, token: Token | None) -> int:
        """Budget of the next token, from 1 to ``k_max``, after ``token`` was accepted under budget ``k``."""
        raise TypeError(f"{type(self).__name__} must have a method update(k, k_max, token)")

    def expand(self, k: int, k_max: int, token: Token | None) -> int:
        """Budget, above ``k`` and at most ``k_max``, under which a ``token`` distrusted at ``k`` is generated again."""
        return k_max


@dataclass(frozen=True)
class Set(Policy):
    """Set.n: the next token gets ``n`` blocks."""

    n: int

    def __post_init__(self) -> None:
        whole(f"the number of {type(self).__name__}", self.n)

    def update(self, k: int, k_max: int, token: Token | None) -> int:
        return min(self.n, k_max)


@dataclass(frozen=True)
class Sub(Policy):
    """Sub.n: the next token gets ``n`` blocks less, at least 1."""

    n: int

    def __post_init__(self) -> None:
        whole(f"the number of {type(self).__name__}", self.n)

    def update(self, k: int, k_max: int, token: Token | None) -> int:
        return max(1, k - self.n)


@dataclass(frozen=True)
class Proportional(Policy):
    """Goes on as ``base`` does, and expands by the share of what lies above that the detector's distrust is.

    Of the blocks from ``k`` to K_max it adds the part p_hallucinated + p_unknown, rounded up; all of them where no
    detector judges. Beyond the paper, which always expands to K_max.
    """

    base: Policy

    def update(self, k: int, k_max: int, token: Token | None) -> int:
        return self.base.update(k, k_max, token)

    def expand(self, k: int, k_max: int, token: Token | None) -> int:
        if token is None or token.gdm is None:
            return k_max
        return min(k_max, k + max(1, math.ceil((1 - token.gdm[CORRECT]) * (k_max - k))))


POLICIES: dict[str, type[Policy]] = {"set": Set, "sub": Sub}
"""By the name that config gives them, before a dot and their number."""


def parse(text: str) -> Policy:
    """The policy written as ``set.N`` or ``sub.N``, or either with ``.prop``; :class:`UserError` for anything else."""
    match = re.fullmatch(POLICY, text)
    if match is None:
        raise UserError(
            f"update policy {text!r} is not understood; write set.N or sub.N with N at least 1, as in sub.16, or "
            "either with .prop, as in set.1.prop"
        )
    policy = POLICIES[match[1]](int(match[2]))
    return Proportional(policy) if match[3] else policy
