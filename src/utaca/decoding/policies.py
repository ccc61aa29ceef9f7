"""Update policies: how the budget shrinks after an accepted token (paper, section 4.3)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Protocol

from utaca.errors import UserError
from utaca.settings.schema import POLICY


class Policy(Protocol):
    """An update policy; write a class with this one method to bring your own."""

    def update(self, k: int, k_max: int) -> int:
        """Budget of the next token, at least 1, after a token was accepted under budget ``k``."""


@dataclass(frozen=True)
class Set:
    """Set.n: the next token gets ``n`` blocks."""

    n: int

    def update(self, k: int, k_max: int) -> int:
        return min(self.n, k_max)


@dataclass(frozen=True)
class Sub:
    """Sub.n: the next token gets ``n`` blocks less, at least 1."""

    n: int

    def update(self, k: int, k_max: int) -> int:
        return max(1, k - self.n)


def parse(text: str) -> Policy:
    """The policy written as ``set.N`` or ``sub.N``. Raises :class:`UserError` for anything else."""
    match = re.fullmatch(POLICY, text)
    if match is None:
        raise UserError(
            f"update policy {text!r} is not understood; write set.N or sub.N with N at least 1, as in sub.16"
        )
    return {"set": Set, "sub": Sub}[match[1]](int(match[2]))
