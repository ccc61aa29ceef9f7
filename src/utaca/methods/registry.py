"""The methods by name, and their construction from config."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, get_type_hints

from utaca.errors import UserError
from utaca.methods.full import FullAttention
from utaca.methods.method import Method
from utaca.methods.snapkv import SnapKV
from utaca.methods.window import WindowOnly

METHODS: dict[str, type[Method]] = {
    method.name: method
    for method in (
        FullAttention,
        WindowOnly,
        SnapKV,
    )
}


def build(name: str, settings: Mapping[str, Any]) -> Method:
    """The method ``name`` under the given settings, its own defaults for the others.

    Raises :class:`UserError`, in one sentence, for a method or setting that does not exist, for a value of another
    type, and for a budget that the method cannot meet.
    """
    if name not in METHODS:
        raise UserError(f"there is no method {name!r}; known are {', '.join(METHODS)}")
    method = METHODS[name]
    kinds = get_type_hints(method)
    known = [field.name for field in fields(method)]
    given = {}
    for key, value in settings.items():
        if key not in known:
            raise UserError(f"method {name} has no setting {key!r}; it has {', '.join(known)}")
        kind = kinds[key]
        sequence = getattr(kind, "__origin__", None) is tuple
        value = tuple(value) if sequence and isinstance(value, list | tuple) else value
        accepted = (int, float) if kind is float else tuple if sequence else kind
        if not isinstance(value, accepted) or (isinstance(value, bool) and kind is not bool):
            raise UserError(f"method {name}: {key}={value!r} must be of type {getattr(kind, '__name__', kind)}")
        given[key] = value
    return method(**given)
