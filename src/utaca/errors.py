"""The one exception a user may see: a sentence that names the fault and its mend."""

from __future__ import annotations

import operator


class UserError(Exception):
    """A mistake in what the user supplied (config, file, model, endpoint).

    The message is one clear sentence naming the file, key or endpoint and the mend. Entry points
    print it without a traceback and exit with status 1.
    """


def whole(name: str, value: object) -> int:
    """The whole number that ``value`` is, of whatever type; raises :class:`UserError` where it is none."""
    try:
        if isinstance(value, bool):
            raise TypeError
        return operator.index(value)
    except TypeError as error:
        raise UserError(f"{name} must be a whole number, not {value!r}") from error
