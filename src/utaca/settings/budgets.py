"""Budgets as users write them: a number of blocks, or a share of the document's blocks.

| written | means |
|---|---|
| ``8`` | 8 blocks |
| ``"5%"`` | 5 of 100 blocks of the document, rounded down to whole blocks, but 1 block at least |

The document's blocks are all that it has behind its initial tokens, far or not. A share becomes a number
(:func:`resolve`) for each document, when the document is read or a question about it is asked. What comes after that
knows numbers only.
"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Annotated, Any

from pydantic import PlainValidator, WithJsonSchema

from utaca.errors import UserError, whole
from utaca.settings.validation import as_number, must

_FORM = r"(?:100|[1-9]?[0-9])(?:\.[0-9]{1,9})?%"
"""Regular expression for a share. Its value must be above 0 and at most 100, too (:func:`_percent`)."""
_SHARE = "a share of the document's blocks above 0% and up to 100%, as 5%"


def _percent(text: str) -> Fraction | None:
    """The percentage in the text of a share, exactly; None if it is no share."""
    if re.fullmatch(_FORM, text) is None:
        return None
    percent = Fraction(text.removesuffix("%"))
    return percent if 0 < percent <= 100 else None


def resolve(budget: object, blocks: int, name: str = "budget") -> int:
    """The number that a ``budget`` means for a document of so many ``blocks``; a number means itself.

    Raises :class:`UserError`, with the ``name`` of the option, if the budget is neither a whole number nor a share.
    """
    if not isinstance(budget, str):
        return whole(name, budget)
    percent = _percent(budget)
    if percent is None:
        raise UserError(f"{name} must be a whole number, or {_SHARE}, not {budget!r}")
    return max(1, int(percent * blocks / 100))


def checked(budget: Any, name: str = "budget") -> Budget:
    """The budget that a user gave; raises :class:`UserError` as :func:`resolve` does, and for a number below 1."""
    fewest = resolve(budget, 0, name)
    if fewest < 1:
        raise UserError(f"{name} must be at least 1, not {fewest}")
    return budget if isinstance(budget, str) else fewest


def in_words(budget: Budget) -> str:
    """A budget in words, as "8 blocks" or "5% of the document's blocks"."""
    return f"{budget} of the document's blocks" if isinstance(budget, str) else f"{budget} blocks"


def share_of(budget: Budget) -> str:
    """The budget if it is a share; "" for a number."""
    return budget if isinstance(budget, str) else ""


def in_order(budget: Budget) -> tuple[bool, Fraction]:
    """The key by which budgets are sorted: numbers in ascending order, then shares in ascending order."""
    if isinstance(budget, str):
        return True, _percent(budget) or Fraction()
    return False, Fraction(budget)


def _read(value: Any) -> Any:
    """The value of a config's key; the text of a whole number, which the command line may give, becomes a number."""
    return value if isinstance(value, bool) else as_number(value)


def _is_budget(value: Any) -> bool:
    """Whether a config's value is a budget, or 0 for none."""
    try:
        return resolve(value, 0) >= 0
    except UserError:
        return False


Budget = Annotated[
    int | str,
    PlainValidator(_read),
    must(f"be a whole number of at least 0, or {_SHARE}", _is_budget),
    WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 0}, {"type": "string", "pattern": f"^{_FORM}$"}]}),
]
"""The type of a budget, and of a config's key that is one; 0 there means that none is set."""
