"""Make typed settings from plain dicts; all faults are reported together, with one sentence for each."""

import difflib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import field, fields, make_dataclass
from datetime import date
from functools import wraps
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

import pydantic
import pydantic.dataclasses
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError

from utaca.errors import UserError

T = TypeVar("T")

# Python refuses to read numbers of thousands of digits.
_WHOLE = re.compile(r"-?[0-9]{1,1000}")
_FRACTION = re.compile(r"-?[0-9]{1,1000}\.[0-9]{1,1000}")


def as_number(value: Any) -> Any:
    """Turn the text of a whole number, which the command line gives for nested keys, into an int; others stay.

    Raises :class:`ValueError` for booleans, which Python takes for numbers.
    """
    if isinstance(value, bool):
        raise ValueError("true and false are not numbers")
    return int(value) if isinstance(value, str) and _WHOLE.fullmatch(value) else value


def _plain(value: Any) -> Any:
    """Turn texts of numbers into numbers, those in lists too; other values stay."""
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if isinstance(value, str) and _FRACTION.fullmatch(value):
        return float(value)
    return as_number(value) if isinstance(value, str) else value


def must(rule: str, holds: Callable[[Any], object]) -> pydantic.AfterValidator:
    """Make an annotation of a type: a value is refused unless ``holds`` is true of it.

    ``rule`` ends the message "KEY is VALUE but must …".
    """

    def check(value: Any) -> Any:
        """Return the value if the rule holds; else raise an error of the type "rule", which :func:`_sentence` words."""
        if not holds(value):
            raise PydanticCustomError("rule", "must {rule}", {"rule": rule, "value": value})
        return value

    return pydantic.AfterValidator(check)


Distinct = must("name each once", lambda names: len(set(names)) == len(names))
"""Annotation of a list in which each name occurs only once."""
Plain = Annotated[Any, pydantic.BeforeValidator(_plain)]
"""Any value; texts of numbers become numbers."""
Whole = Annotated[int, pydantic.BeforeValidator(as_number)]
"""A whole number, also given as text."""
Number = Annotated[float, pydantic.BeforeValidator(as_number)]
"""A number; a whole one may be given as text."""
_NUMBERS = {int: Whole, float: Number, tuple[int, ...]: tuple[Whole, ...], tuple[float, ...]: tuple[Number, ...]}
_TYPE_NAMES = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}


def keys(kind: type[T]) -> type[T]:
    """Decorate a class of config keys: its instances are validated, and invalid values raise :class:`Faults`.

    The docstring below a key says what the key means. Raises :class:`TypeError` if a key has none.
    """
    # Listed first: the oldest pydantic adds the inherited keys, which have their docstrings in the base class.
    own_keys = list(kind.__annotations__)
    options = pydantic.ConfigDict(extra="forbid", use_attribute_docstrings=True)
    validated = pydantic.dataclasses.dataclass(kind, config=options)
    for name in own_keys:
        if not validated.__pydantic_fields__[name].description:
            raise TypeError(f"the key {name} of {kind.__name__} has no meaning; write a docstring below it")
    pydantic_init = validated.__init__

    @wraps(pydantic_init)
    def init(self: T, *values: Any, **named: Any) -> None:
        """As pydantic's, with :class:`Faults` in place of pydantic's error."""
        try:
            pydantic_init(self, *values, **named)
        except pydantic.ValidationError as error:
            raise _faults(validated, error, "") from None

    validated.__init__ = init
    return validated


def build(kind: type[T], data: Any, where: str = "") -> T:
    """Make an instance of ``kind`` from a plain dict; ``where`` is the dict's dotted path, for messages.

    Keys that ``data`` lacks have their defaults. Raises :class:`Faults` with a sentence for every unknown or missing
    key, every wrong type and every value outside its range or choices.
    """
    try:
        return pydantic.TypeAdapter(kind).validate_python(data)
    except pydantic.ValidationError as error:
        raise _faults(kind, error, where) from None


def build_plain(kind: type[T], data: Mapping[str, Any], where: str) -> T:
    """Make an instance as :func:`build` does, of a dataclass that :func:`keys` does not decorate; lists become tuples.

    The values are validated by a twin of the class, in which numbers may be given as texts. The twin has the same
    fields and defaults; ``kind`` is then made of the twin's values.
    """
    options = pydantic.ConfigDict(extra="forbid", arbitrary_types_allowed=True)
    hints = get_type_hints(kind, include_extras=True)
    twin_fields = []
    for own in fields(kind):
        hint = hints[own.name]
        twin_fields.append((own.name, _NUMBERS.get(hint, hint), field(default=own.default)))
    twin = pydantic.dataclasses.dataclass(make_dataclass(kind.__name__, twin_fields), config=options)
    return kind(**vars(build(twin, data, where)))


class Faults(UserError):  # noqa: N818
    """The error of one or more mistakes; ``faults`` has a sentence for each.

    If there are several, ``title`` precedes them in the message, with their number in its braces.
    """

    def __init__(self, sentences: Iterable[str], title: str = "the config has {} faults:") -> None:
        self.faults = list(dict.fromkeys(sentences))
        several = len(self.faults) > 1
        # A single sentence is the whole message; True and False multiply the list by 1 and 0.
        super().__init__("\n- ".join([title.format(len(self.faults))] * several + self.faults))


def refuse(sentences: Iterable[str], *title: str) -> None:
    """Raise :class:`Faults`, with its ``title`` if one is given, unless there are no sentences."""
    if faults := list(sentences):
        raise Faults(faults, *title)


def unknown_key(path: str, names: Iterable[str]) -> str:
    """The sentence for a key that does not exist, with the most similar key that exists."""
    where, _, key = path.rpartition(".")
    names = sorted(names)
    near = difflib.get_close_matches(key, names, n=1, cutoff=0.5)
    hint = f"did you mean {join(where, near[0])}?" if near else f"allowed keys are {', '.join(names) or 'none'}."
    return f"unknown config key {path}; {hint}"


def join(where: str, name: str) -> str:
    """The dotted key of ``name`` in ``where``; either may be empty."""
    return f"{where}.{name}" if where and name else where or name


def refuse_misread(config: Mapping[str, Any]) -> None:
    """Raise :class:`Faults` for every key that is not a text, and for every text that no file can hold.

    YAML may parse a key as a number or a date. A text may have half of a surrogate pair, which JSON allows and UTF-8
    does not.
    """
    refuse(_misread(config, ""))


def _misread(value: Any, path: str) -> Iterator[str]:
    """Yield the faults of :func:`refuse_misread` in a value whose dotted key is ``path``."""
    where = path or "the config"
    if isinstance(value, list | tuple):
        for number, each in enumerate(value):
            yield from _misread(each, f"{path}[{number}]")
    elif isinstance(value, Mapping):
        for name, each in value.items():
            if isinstance(name, str):
                yield from _misread(name, f"{where}, key {name!r},")
                yield from _misread(each, join(path, name))
            else:
                yield f"{where} has the key {name}, which YAML takes for {_read_as(name)}; write the key in quotes."
    elif isinstance(value, str) and re.search("[\ud800-\udfff]", value):
        yield f"{where} holds {value!r}, which is not valid text, because it has half of a character; type it again."


def _read_as(value: Any) -> str:
    """The type of ``value`` in words: what YAML took a text for."""
    kinds = {bool: "true or false", int: "a number", float: "a number", type(None): "nothing (null)"}
    return kinds.get(type(value), "a date" if isinstance(value, date) else "another type")


def describe(hint: Any, bounds: Mapping[str, float]) -> str:
    """The allowed values of a type, in words; ``bounds`` has the inclusive minimum "ge" and maximum "le"."""
    if get_origin(hint) is Literal:
        return "one of " + ", ".join(json.dumps(choice) for choice in get_args(hint))
    if get_origin(hint) in (list, tuple):
        return "a list"
    limits = [f"{word} {bounds[key]}" for key, word in (("ge", "at least"), ("le", "at most")) if key in bounds]
    return " ".join([_TYPE_NAMES.get(hint, "a mapping of keys to values"), " and ".join(limits)]).strip()


def keys_of(kind: type) -> dict[str, tuple[Any, FieldInfo]]:
    """The keys of a class of config keys: (type, pydantic's field) by name; the type is without annotations."""
    hints = get_type_hints(kind)
    return {name: (hints[name], about) for name, about in kind.__pydantic_fields__.items()}


def bounds_of(about: FieldInfo) -> dict[str, float]:
    """The bounds of a key: its inclusive minimum under "ge" and maximum under "le", each only if the key has one."""
    bounds = {}
    for limit in about.metadata:
        for name in ("ge", "le"):
            if hasattr(limit, name):
                bounds[name] = getattr(limit, name)
    return bounds


def _faults(kind: type, error: pydantic.ValidationError, where: str) -> Faults:
    """The faults that pydantic found in a dict for ``kind``, whose dotted key is ``where``."""
    return Faults(_sentence(kind, fault, where) for fault in error.errors(include_url=False))


class _Place(NamedTuple):
    """Where a fault is: the dotted key ``path``, its type ``hint``, and the type ``owner`` of what holds the key.

    ``bounds`` are those of :func:`bounds_of`; ``hidden``: no message may show the key's value.
    """

    path: str
    hint: Any
    owner: Any
    bounds: dict[str, float]
    hidden: bool


def _place(kind: type, parts: Iterable[str | int], where: str) -> _Place:
    """Follow the ``parts`` of a fault's place, keys and places in lists, from ``kind`` at ``where`` down to the key."""
    place = _Place(where, kind, kind, {}, False)
    for part in parts:
        owner = place.hint
        hint: Any = Any
        bounds = {}
        hidden = False
        own_keys = getattr(owner, "__pydantic_fields__", ())
        if own_keys and isinstance(part, int):
            # A value that was given to the class by its place and without its key.
            part = list(own_keys)[part]
        if part in own_keys:
            hint, about = keys_of(owner)[part]
            bounds = bounds_of(about)
            hidden = bool((about.json_schema_extra or {}).get("hidden"))
        elif get_args(owner):
            # The values of a dict, or the items of a list.
            hint = get_args(owner)[1 if get_origin(owner) is dict else 0]
        path = f"{place.path}[{part}]" if isinstance(part, int) else join(place.path, part)
        place = _Place(path, hint, owner, bounds, hidden)
    return place


def _sentence(kind: type, fault: Any, where: str) -> str:
    """The sentence on one of pydantic's faults in a dict for ``kind``, whose dotted key is ``where``."""
    place = _place(kind, fault["loc"], where)
    path = place.path or "the config"
    allowed = describe(place.hint, place.bounds)
    value = fault["input"]
    if fault["type"] in ("unexpected_keyword_argument", "extra_forbidden"):
        return unknown_key(path, getattr(place.owner, "__pydantic_fields__", ()))
    if fault["type"] in ("missing", "missing_argument"):
        return f"{path} is missing; set it to {allowed}."
    if place.hidden:
        return f"{path} must be {allowed}."
    if fault["type"] == "rule":
        return f"{path} is {fault['ctx']['value']!r} but {fault['msg']}."
    if fault["type"] in ("literal_error", "greater_than_equal", "less_than_equal"):
        return f"{path} is {value!r} but must be {allowed}."
    if place.hint is str and not isinstance(value, Mapping | list):
        # Snakemake removes the quotes around a value of --config.
        advice = "begin it with a letter, or write it in quotes in a config file"
        if "." in path:
            advice = "write it in quotes"
        return f"{path} must be text, but YAML takes {value} for {_read_as(value)}; {advice}."
    return f"{path} must be {allowed}, not {value!r}."
