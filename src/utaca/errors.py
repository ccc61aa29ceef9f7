"""The one exception that a user may see, a sentence that names the fault and what to do; checks that raise it."""

import inspect
import operator
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class UserError(Exception):
    """A mistake in what the user supplied (config, file, model, endpoint).

    The message is one clear sentence that names the file, key or endpoint at fault and says what to do. Entry points
    print it without a traceback and end with an error status.
    """


def whole(name: str, value: object) -> int:
    """Convert a whole number of any integer type to an int; raises :class:`UserError`, with ``name``, for any other."""
    try:
        if isinstance(value, bool):
            raise TypeError
        return operator.index(value)
    except TypeError as error:
        raise UserError(f"{name} must be a whole number, not {value!r}") from error


@contextmanager
def in_a_sentence(sentence: str, advice: str) -> Iterator[None]:
    """Turn any error in the block into a :class:`UserError`: "``sentence`` (class and words of the error); ``advice``".

    If memory was lacking, or the user may not read the file, other advice takes the place of ``advice``. Errors of
    every class are caught, because the libraries that read a model's files raise such.
    """
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        # The second is PyTorch's, which is not imported here.
        if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
            advice = "free memory, or use a smaller model"
        elif isinstance(error, PermissionError):
            advice = "let this user read it"
        raise UserError(f"{sentence} ({cause(error)}); {advice}") from error


def cause(error: Exception) -> str:
    """An error in a line: its class, and its message up to 200 characters."""
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
    """Raise :class:`UserError` if a public method of a class cannot be called as the one that it overrides.

    It must take the positional arguments, those without a default, of the method of the nearest base class.
    """
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    for name, method in vars(kind).items():
        if name.startswith("_") or not inspect.isfunction(method):
            continue
        inherited = [vars(base)[name] for base in kind.__mro__[1:] if name in vars(base)]
        if not inherited or not inspect.isfunction(inherited[0]):
            continue
        arguments = []
        for parameter in inspect.signature(inherited[0]).parameters.values():
            if parameter.kind in positional and parameter.default is parameter.empty:
                arguments.append(parameter.name)
        check_takes(method, f"{kind.__name__}.{name}", *arguments)
