"""Turns of the threads of a process at the model."""

from collections.abc import Callable
from functools import wraps
from threading import RLock
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
_TURN = RLock()


def in_turn(work: Callable[P, T]) -> Callable[P, T]:
    """Decorate ``work`` so that only one thread of this process at a time runs any of the functions so decorated.

    PyTorch's settings of matrix products belong to the process, and passes of one model share the state of its modules:
    without turns, the results of one thread would depend on other threads.
    """

    @wraps(work)
    def alone(*args: P.args, **kwargs: P.kwargs) -> T:
        with _TURN:
            return work(*args, **kwargs)

    return alone
