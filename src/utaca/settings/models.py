"""The dataclasses of the config as pydantic models: every fault of a plain dict at once, each a sentence.

The dataclasses stay the one description: a model is made of a dataclass's fields, types and metadata
(:func:`utaca.settings.schema.setting`), and what it accepts becomes an instance of the dataclass.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from datetime import date
from functools import cache, partial
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import pydantic

from utaca.errors import UserError
from utaca.settings import schema

T = TypeVar("T")
_TYPE_NAMES = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}


def build(kind: type[T], data: Any, where: str = "") -> T:
    """An instance of the dataclass ``kind`` from a plain dict; ``where`` is the dict's dotted path, for messages.

    Keys left out take their default. Raises :class:`Faults` that names every unknown or missing key, every wrong
    type and every value outside its range or choices, a sentence each.
    """
    try:
        return _instance(kind, model(kind).model_validate(_known(data)))
    except pydantic.ValidationError as error:
        raise Faults(_sentence(kind, fault, where) for fault in error.errors(include_url=False)) from None


class Faults(UserError):  # noqa: N818
    """Several mistakes at once; ``faults`` has a sentence for each."""

    def __init__(self, sentences: Iterable[str]) -> None:
        self.faults = list(dict.fromkeys(sentences))
        several = len(self.faults) > 1
        super().__init__("\n- ".join([f"the config has {len(self.faults)} faults:"] * several + self.faults))


def unknown_key(path: str, known: Iterable[str]) -> str:
    """The sentence for a key that does not exist, with the nearest one that does."""
    where, _, key = path.rpartition(".")
    names = sorted(known)
    near = difflib.get_close_matches(key, names, n=1, cutoff=0.5)
    hint = f"did you mean {join(where, near[0])}?" if near else f"allowed are {', '.join(names) or 'none'}."
    return f"unknown config key {path}; {hint}"


def join(where: str, name: str) -> str:
    return f"{where}.{name}" if where and name else where or name


@cache
def model(kind: type) -> type[pydantic.BaseModel]:
    """The pydantic model of a dataclass, strict but that a whole number may stand for a number."""
    hints = get_type_hints(kind)
    declared: dict[str, Any] = {}
    for each in fields(kind):
        about = each.metadata
        checks = {"ge": about.get("minimum"), "le": about.get("maximum"), "description": about.get("help")}
        field = partial(pydantic.Field, **{name: value for name, value in checks.items() if value is not None})
        hint = Literal[tuple(about["choices"])] if "choices" in about else _annotation(hints[each.name])
        if _needed(each, hints[each.name]):
            nested = is_dataclass(hints[each.name])
            # What a missing mapping lacks is named key by key.
            declared[each.name] = (hint, field(default_factory=dict, validate_default=True) if nested else field())
        else:
            declared[each.name] = (hint, field(default=_default(each)))
    settings = pydantic.ConfigDict(extra="forbid", strict=True, arbitrary_types_allowed=True, protected_namespaces=())
    about = (kind.__doc__ or "").partition("\n")[0]
    return pydantic.create_model(kind.__name__, __config__=settings, __doc__=about, **declared)


def typed(hint: Any, value: Any) -> Any:
    """A value as ``hint`` wants it where it came as a text, as the command line gives all that is nested; whatever
    does not fit is left as it is, for :func:`build` to name."""
    if is_dataclass(hint) and isinstance(value, Mapping):
        hints, empty = get_type_hints(hint), {f.name for f in fields(hint) if f.default == ""}
        return {
            name: "" if each is None and name in empty else typed(hints.get(name, Any), each)
            for name, each in value.items()
        }
    if get_origin(hint) is dict and isinstance(value, Mapping):
        return {name: typed(get_args(hint)[1], each) for name, each in value.items()}
    if get_origin(hint) in (list, tuple) and isinstance(value, list | tuple):
        return [typed(get_args(hint)[0], each) for each in value]
    if not isinstance(value, str):
        return value
    if hint is bool:
        return {"true": True, "false": False}.get(value.lower(), value)
    if hint in (int, float):
        try:
            return hint(value)
        except ValueError:
            return value
    return value


def refuse_misread(config: Mapping[str, Any]) -> None:
    """Raise :class:`Faults` for every key that YAML took for something else than a text, and for every text with half
    of a character, as JSON may have it, which no file can keep."""
    if found := list(_misread(config, "")):
        raise Faults(found)


def _misread(value: Any, path: str) -> Iterator[str]:
    where = path or "the config"
    if isinstance(value, list | tuple):
        yield from (fault for number, each in enumerate(value) for fault in _misread(each, f"{path}[{number}]"))
    elif isinstance(value, Mapping):
        for name, each in value.items():
            if isinstance(name, str):
                yield from _misread(name, f"{where}, key {name!r},")
                yield from _misread(each, join(path, name))
            else:
                yield f"{where} has the key {name}, which YAML takes for {_read_as(name)}; write it in quotes."
    elif isinstance(value, str) and re.search("[\ud800-\udfff]", value):
        yield f"{where} holds {value!r}, which is no text: it has half of a character; write it anew."


def _read_as(value: Any) -> str:
    kinds = {bool: "true or false", int: "a number", float: "a number", type(None): "nothing (null)"}
    return kinds.get(type(value), "a date" if isinstance(value, date) else "another type")


def describe(kind: Any, metadata: Mapping[str, Any]) -> str:
    """What a value may be, in words."""
    if "choices" in metadata:
        return "one of " + ", ".join(json.dumps(choice) for choice in metadata["choices"])
    if get_origin(kind) in (list, tuple):
        return "a list"
    bounds = [
        f"{word} {metadata[key]}" for key, word in (("minimum", "at least"), ("maximum", "at most")) if key in metadata
    ]
    return " ".join([_TYPE_NAMES.get(kind, "a mapping of keys to values"), " and ".join(bounds)]).strip()


def _annotation(hint: Any) -> Any:
    origin, inner = get_origin(hint), get_args(hint)
    if origin is list:
        return list[_annotation(inner[0])]  # type: ignore[misc]
    if origin is dict:
        return dict[str, _annotation(inner[1])]  # type: ignore[misc]
    if origin is tuple:
        return Annotated[tuple[inner], pydantic.Strict(False)]  # type: ignore[valid-type]
    if isinstance(hint, type) and is_dataclass(hint):
        # An instance may stand for the mapping.
        ready = pydantic.WrapValidator(lambda value, parse: value if isinstance(value, hint) else parse(value))
        return Annotated[model(hint), ready]
    return hint


def _needed(declared: Field[Any], hint: Any) -> bool:
    if declared.default_factory is not MISSING:
        return is_dataclass(hint) and any(f.default == schema.MISSING for f in fields(hint))
    return declared.default is MISSING or declared.default == schema.MISSING


def _default(declared: Field[Any]) -> Any:
    return declared.default if declared.default_factory is MISSING else declared.default_factory()


def _known(value: Any) -> Any:
    """Without what is still to be set."""
    if isinstance(value, Mapping):
        return {name: _known(each) for name, each in value.items() if not _is_missing(each)}
    return [_known(each) for each in value] if isinstance(value, list) else value


def _is_missing(value: Any) -> bool:
    return isinstance(value, str) and value == schema.MISSING


def _instance(kind: Any, accepted: Any) -> Any:
    hints = get_type_hints(kind)
    given = {
        f.name: _value(hints[f.name], getattr(accepted, f.name))
        for f in fields(kind)
        if f.name in accepted.model_fields_set or _needed(f, hints[f.name])
    }
    return kind(**given)


def _value(hint: Any, value: Any) -> Any:
    if isinstance(value, pydantic.BaseModel):
        return _instance(hint, value)
    if isinstance(value, list) and get_origin(hint) is list:
        return [_value(get_args(hint)[0], each) for each in value]
    if isinstance(value, dict) and get_origin(hint) is dict:
        return {name: _value(get_args(hint)[1], each) for name, each in value.items()}
    return value


@dataclass
class _Place:
    """Where a fault is: its path, its type, what else is known of its key, and the dataclass that holds it."""

    path: str
    hint: Any
    metadata: Mapping[str, Any]
    owner: Any


def _place(kind: type, parts: Iterable[str | int], where: str) -> _Place:
    place = _Place(where, kind, {}, kind)
    for part in parts:
        inner: Any = Any
        metadata: Mapping[str, Any] = {}
        owner = place.hint
        if is_dataclass(owner):
            inner = get_type_hints(owner).get(str(part), Any)
            metadata = next((f.metadata for f in fields(owner) if f.name == part), {})
        elif get_args(owner):
            inner = get_args(owner)[0 if get_origin(owner) in (list, tuple) else 1]
        path = f"{place.path}[{part}]" if isinstance(part, int) else join(place.path, part)
        place = _Place(path, inner, metadata, owner)
    return place


def _sentence(kind: type, fault: Any, where: str) -> str:
    place = _place(kind, fault["loc"], where)
    path, allowed = place.path or "the config", describe(place.hint, place.metadata)
    if fault["type"] == "extra_forbidden":
        return unknown_key(place.path, [f.name for f in fields(place.owner)])
    if fault["type"] == "missing":
        return f"{path} is missing; set it to {allowed}."
    if place.metadata.get("hidden"):
        return f"{path} must be {allowed}."
    if fault["type"] in ("literal_error", "greater_than_equal", "less_than_equal"):
        return f"{path} is {fault['input']!r} but must be {allowed}."
    if place.hint is str and not isinstance(fault["input"], Mapping | list):
        # Snakemake takes quotes off what --config gives.
        mend = "write it in quotes" if "." in path else "begin it with a letter, or write it in quotes in a config file"
        return (
            f"{path} must be a text, but is {fault['input']}, which YAML takes for {_read_as(fault['input'])}; {mend}."
        )
    return f"{path} must be {allowed}, not {fault['input']!r}."
