"""Typed config from plain dicts; all faults are reported at once, with one sentence for each."""

import difflib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import field, fields, make_dataclass
from datetime import date
from functools import wraps
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

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
    """Convert the text of a whole number, as the command line gives in nested keys, to int; ValueError for booleans."""
    if isinstance(value, bool):
        raise ValueError("true and false are no numbers")
    return int(value) if isinstance(value, str) and _WHOLE.fullmatch(value) else value


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if isinstance(value, str) and _FRACTION.fullmatch(value):
        return float(value)
    return as_number(value) if isinstance(value, str) else value


def must(rule: str, holds: Callable[[Any], object]) -> pydantic.AfterValidator:
    """Annotation of a type for whose values ``holds`` is true; ``rule`` says what they must do, for the message."""

    def check(value: Any) -> Any:
        if not holds(value):
            raise PydanticCustomError("rule", "must {rule}", {"rule": rule, "value": value})
        return value

    return pydantic.AfterValidator(check)


Distinct = must("name each once", lambda names: len(set(names)) == len(names))
"""Annotation of a list in which each name occurs only once."""
Plain = Annotated[Any, pydantic.BeforeValidator(_plain)]
"""Any value; texts of numbers become numbers."""
Whole = Annotated[int, pydantic.BeforeValidator(as_number)]
Number = Annotated[float, pydantic.BeforeValidator(as_number)]
_NUMBERS = {int: Whole, float: Number, tuple[int, ...]: tuple[Whole, ...], tuple[float, ...]: tuple[Number, ...]}
_TYPE_NAMES = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}


def keys(kind: type[T]) -> type[T]:
    """Decorate a class of config keys: its instances are validated, and invalid values raise :class:`Faults`.

    The docstring below a key says what the key means. Raises :class:`TypeError` if a key has none.
    """
    # Listed first: the oldest pydantic adds the inherited keys, which have their docstrings in the base class.
    own = list(kind.__annotations__)
    settings = pydantic.ConfigDict(extra="forbid", use_attribute_docstrings=True)
    made = pydantic.dataclasses.dataclass(kind, config=settings)
    for name in own:
        if not made.__pydantic_fields__[name].description:
            raise TypeError(f"the key {name} of {kind.__name__} has no meaning; write a docstring below it")
    check = made.__init__

    @wraps(check)
    def init(self: T, *values: Any, **named: Any) -> None:
        try:
            check(self, *values, **named)
        except pydantic.ValidationError as error:
            raise _faults(made, error, "") from None

    made.__init__ = init
    return made


def build(kind: type[T], data: Any, where: str = "") -> T:
    """An instance of ``kind`` from a plain dict; ``where`` is the dict's dotted path, for messages.

    Keys that ``data`` lacks have their defaults. Raises :class:`Faults` with a sentence for every unknown or missing
    key, every wrong type and every value outside its range or choices.
    """
    try:
        return pydantic.TypeAdapter(kind).validate_python(data)
    except pydantic.ValidationError as error:
        raise _faults(kind, error, where) from None


def build_plain(kind: type[T], data: Mapping[str, Any], where: str) -> T:
    """As :func:`build`, for a dataclass that :func:`keys` does not decorate; lists become tuples."""
    settings = pydantic.ConfigDict(extra="forbid", arbitrary_types_allowed=True)
    hints = get_type_hints(kind, include_extras=True)
    columns = [(x.name, _NUMBERS.get(hints[x.name], hints[x.name]), field(default=x.default)) for x in fields(kind)]
    twin = pydantic.dataclasses.dataclass(make_dataclass(kind.__name__, columns), config=settings)
    return kind(**vars(build(twin, data, where)))


class Faults(UserError):  # noqa: N818
    """One or more mistakes; ``faults`` has a sentence for each, and ``title`` precedes them if there are several."""

    def __init__(self, sentences: Iterable[str], title: str = "the config has {} faults:") -> None:
        self.faults = list(dict.fromkeys(sentences))
        several = len(self.faults) > 1
        super().__init__("\n- ".join([title.format(len(self.faults))] * several + self.faults))


def refuse(sentences: Iterable[str], *title: str) -> None:
    """Raise :class:`Faults` if there are any sentences."""
    if faults := list(sentences):
        raise Faults(faults, *title)


def unknown_key(path: str, names: Iterable[str]) -> str:
    """The sentence for a key that does not exist, with the most similar key that exists."""
    where, _, key = path.rpartition(".")
    names = sorted(names)
    near = difflib.get_close_matches(key, names, n=1, cutoff=0.5)
    hint = f"did you mean {join(where, near[0])}?" if near else f"allowed are {', '.join(names) or 'none'}."
    return f"unknown config key {path}; {hint}"


def join(where: str, name: str) -> str:
    return f"{where}.{name}" if where and name else where or name


def refuse_misread(config: Mapping[str, Any]) -> None:
    """Raise :class:`Faults` for every key that YAML parsed as another type than text, and for every text with half of a
    surrogate pair, which JSON allows but UTF-8 files cannot hold."""
    refuse(_misread(config, ""))


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


def describe(hint: Any, bounds: Mapping[str, float]) -> str:
    """The allowed values of a type, in words; ``bounds`` has the inclusive minimum "ge" and maximum "le"."""
    if get_origin(hint) is Literal:
        return "one of " + ", ".join(json.dumps(choice) for choice in get_args(hint))
    if get_origin(hint) in (list, tuple):
        return "a list"
    limits = [f"{word} {bounds[key]}" for key, word in (("ge", "at least"), ("le", "at most")) if key in bounds]
    return " ".join([_TYPE_NAMES.get(hint, "a mapping of keys to values"), " and ".join(limits)]).strip()


def keys_of(kind: type) -> dict[str, tuple[Any, FieldInfo]]:
    """Type, without pydantic's annotations, and pydantic field of each key of a class of config keys, by name."""
    hints = get_type_hints(kind)
    return {name: (hints[name], about) for name, about in kind.__pydantic_fields__.items()}


def bounds_of(about: FieldInfo) -> dict[str, float]:
    """The inclusive minimum "ge" and maximum "le" of a key, each only if the key has one."""
    return {name: getattr(limit, name) for limit in about.metadata for name in ("ge", "le") if hasattr(limit, name)}


def _faults(kind: type, error: pydantic.ValidationError, where: str) -> Faults:
    return Faults(_sentence(kind, fault, where) for fault in error.errors(include_url=False))


def _sentence(kind: type, fault: Any, where: str) -> str:
    path = where
    hint = kind
    bounds = {}
    hidden = False
    owner = kind
    for part in fault["loc"]:
        owner = hint
        hint = Any
        bounds = {}
        hidden = False
        named = getattr(owner, "__pydantic_fields__", ())
        if named and isinstance(part, int):
            part = list(named)[part]
        if part in named:
            hint, about = keys_of(owner)[part]
            bounds = bounds_of(about)
            hidden = bool((about.json_schema_extra or {}).get("hidden"))
        elif get_args(owner):
            hint = get_args(owner)[1 if get_origin(owner) is dict else 0]
        path = f"{path}[{part}]" if isinstance(part, int) else join(path, part)
    allowed = describe(hint, bounds)
    value = fault["input"]
    path = path or "the config"
    if fault["type"] in ("unexpected_keyword_argument", "extra_forbidden"):
        return unknown_key(path, getattr(owner, "__pydantic_fields__", ()))
    if fault["type"] in ("missing", "missing_argument"):
        return f"{path} is missing; set it to {allowed}."
    if hidden:
        return f"{path} must be {allowed}."
    if fault["type"] == "rule":
        return f"{path} is {fault['ctx']['value']!r} but {fault['msg']}."
    if fault["type"] in ("literal_error", "greater_than_equal", "less_than_equal"):
        return f"{path} is {value!r} but must be {allowed}."
    if hint is str and not isinstance(value, Mapping | list):
        # Snakemake removes the quotes around a value of --config.
        mend = "write it in quotes" if "." in path else "begin it with a letter, or write it in quotes in a config file"
        return f"{path} must be a text, but is {value}, which YAML takes for {_read_as(value)}; {mend}."
    return f"{path} must be {allowed}, not {value!r}."
