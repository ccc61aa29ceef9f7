"""The one exception that a user may see: a sentence that names the fault and how to mend it."""

import inspect
import operator
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class UserError(Exception):
    """A mistake in what the user supplied (config, file, model, endpoint).

    The message is one clear sentence naming the file, key or endpoint and the mend. Entry points
    print it without a traceback and exit with status 1.
    """


def whole(name: str, value: object) -> int:
    """``value``, of any integer type, as an int; raises :class:`UserError` if it is not a whole number."""
    try:
        if isinstance(value, bool):
            raise TypeError
        return operator.index(value)
    except TypeError as error:
        raise UserError(f"{name} must be a whole number, not {value!r}") from error


@contextmanager
def in_a_sentence(sentence: str, mend: str) -> Iterator[None]:
    """Turn any error in the block into a :class:`UserError`: the sentence, the first words of the cause, the mend.

    The libraries that read a model's files raise errors of every class.
    """
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        full = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"  # torch's
        mend = "free memory, or use a smaller model" if full else mend
        mend = "let this user read it" if isinstance(error, PermissionError) else mend
        raise UserError(f"{sentence} ({cause(error)}); {mend}") from error


def cause(error: Exception) -> str:
    """An error's class and first words."""
    words = " ".join(str(error).split())
    return f"{type(error).__name__}: {words[:200]}" if words else type(error).__name__


def check_takes(function: Callable[..., object], name: str, *arguments: str) -> None:
    """Raise :class:`UserError` if the function that a user calls ``name`` cannot be called with these ``arguments``."""
    try:
        inspect.signature(function).bind(*arguments)
    except ValueError:
        # A function of C may not say what it takes.
        return
    except TypeError as error:
        raise UserError(f"{name} must take {', '.join(arguments)} ({error}); correct its definition") from error


def check_overrides(kind: type) -> None:
    """Raise :class:`UserError` if a method of a class cannot be called as the one that it overrides."""
    for name, own in vars(kind).items():
        if name.startswith("_") or not inspect.isfunction(own):
            continue
        overridden = next((vars(base)[name] for base in kind.__mro__[1:] if name in vars(base)), None)
        if inspect.isfunction(overridden):
            positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
            parameters = inspect.signature(overridden).parameters.values()
            taken = [one.name for one in parameters if one.kind in positional and one.default is one.empty]
            check_takes(own, f"{kind.__name__}.{name}", *taken)
