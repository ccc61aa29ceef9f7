"""Every context-management method of the paper's long-context table behind one interface.

A method is a file here, named like the method, and a class in it whose fields are its settings.
"""

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from utaca.errors import UserError
from utaca.methods.bases.method import Method
from utaca.settings import schema
from utaca.settings.models import build_plain

__all__ = ["METHODS", "Method", "build", "method_of"]

_MODULES = [import_module(f"{__name__}.{name}") for name in (*schema.CONTEXT_METHODS, schema.FIXED, schema.ADAPTIVE)]
METHODS: dict[str, Any] = {
    kind.name: kind
    for module in _MODULES
    for kind in vars(module).values()
    if getattr(kind, "__module__", "") == module.__name__ and "name" in vars(kind)
}
"""Their classes by name."""


def build(name: str, settings: Mapping[str, Any]) -> Any:
    """The method ``name`` under the given settings, its own defaults for the others.

    Raises :class:`UserError`, in one sentence, for a method or setting that does not exist, for a value of another
    type, and for a budget that the method cannot meet.
    """
    if name not in METHODS:
        raise UserError(f"there is no method {name!r}; known are {', '.join(METHODS)}")
    return build_plain(METHODS[name], settings, f"methods.{name}")


def method_of(point: schema.PointSettings, methods: Mapping[str, Mapping[str, Any]]) -> Any:
    """The method of an operating point: its settings of the config, and the point's budget where it names one.

    Raises :class:`UserError` for settings that the method does not know and budgets that it cannot meet.
    """
    named = {name: value for name in ("budget", "policy") if (value := getattr(point, name))}
    if point.adaptive and not point.detected:
        # The variant of a detector is no part of what is decoded: its file is.
        named["trigger"] = point.trigger
    if point.base:
        named["base"] = build(point.base, methods.get(point.base, {}))
    settings = {} if point.in_blocks else methods.get(point.method, {})
    return build(point.method, {**settings, **named})
