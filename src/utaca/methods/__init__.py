"""Every context-management method of the paper's long-context table behind one interface.

Each method has a file here of the method's name, with a class whose fields are the method's settings.
"""

from collections.abc import Mapping
from importlib import import_module
from types import ModuleType
from typing import Any

from utaca.errors import UserError, in_a_sentence
from utaca.methods.bases.method import Method
from utaca.settings import schema
from utaca.settings.validation import build_plain

__all__ = ["METHODS", "Method", "build", "method_of"]


def _load(name: str) -> ModuleType:
    """Import the module ``name`` of this package; an error in it becomes a :class:`UserError` that names the file."""
    with in_a_sentence(f"the method {name} cannot be loaded", f"correct methods/{name}.py, or remove it"):
        return import_module(f"{__name__}.{name}")


def _methods_of(module: ModuleType) -> dict[str, Any]:
    """The classes of methods that a module defines, by the methods' names.

    They are known by their constant ``name``: the class of UT-ACA is not a subclass of :class:`Method`.
    """
    own = [thing for thing in vars(module).values() if getattr(thing, "__module__", "") == module.__name__]
    return {thing.name: thing for thing in own if "name" in vars(thing)}


METHODS: dict[str, Any] = {}
"""Classes of the methods, by name."""
for _module in (*schema.CONTEXT_METHODS, *schema.IN_BLOCKS):
    METHODS |= _methods_of(_load(_module))


def build(name: str, settings: Mapping[str, Any]) -> Any:
    """Make the method ``name`` with the given ``settings``, and the defaults of its class for all other settings.

    Raises :class:`UserError`, in one sentence, if the method or a setting does not exist, if a value has the wrong
    type, or if the method cannot meet the budget.
    """
    if name not in METHODS:
        raise UserError(f"there is no method {name!r}; choose one of {', '.join(METHODS)}")
    return build_plain(METHODS[name], settings, f"methods.{name}")


def method_of(point: schema.PointSettings, methods: Mapping[str, Mapping[str, Any]]) -> Any:
    """Make the method of an operating point.

    Its settings are those of the config's section ``methods`` (``methods``, by name), replaced by those that the point
    itself names, such as its budget. Methods of block memory have no settings there. Raises :class:`UserError` if the
    method does not know a setting or cannot meet the budget.
    """
    of_point: dict[str, Any] = {}
    if point.budget:
        of_point["budget"] = point.budget
    if point.policy:
        of_point["policy"] = point.policy
    if point.drafts:
        of_point["drafts"] = point.drafts
    if point.draft_budget:
        of_point["draft_budget"] = point.draft_budget
    # A detector is the default trigger. The method gets it when it decodes: its variant's name is not a setting.
    if point.adaptive and not point.detected:
        of_point["trigger"] = point.trigger
    if point.base:
        of_point["base"] = build(point.base, methods.get(point.base, {}))
    of_config = {} if point.in_blocks else methods.get(point.method, {})
    return build(point.method, {**of_config, **of_point})
