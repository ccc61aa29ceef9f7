"""Read and write the text of a trigger: what expands a token's budget, in a config, a command or a request.

| text | kind | value |
|---|---|---|
| ``detector``, ``NAME``, ``detector.NAME``, the path of a file | detector | the name or path; "": the config's |
| ``margin``, ``margin.X`` | margin | X in logits; None: the reader's threshold |
| ``agreement``, ``agreement.N`` | agreement | N blocks; None: K_max |
| ``every.N`` | every | N steps |
| ``never`` | never | None |

The kinds are those of :mod:`utaca.decoding.triggers`, which has the triggers themselves.
"""

import re
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, PlainSerializer, WithJsonSchema

Kind = Literal["detector", "margin", "agreement", "every", "never"]
KINDS: tuple[Kind, ...] = ("detector", "margin", "agreement", "every", "never")

_FORMS = {
    # Nine digits: Python refuses to read a number of thousands of them.
    "margin": re.compile(r"margin(?:\.([0-9]{1,9}(?:\.[0-9]{1,9})?))?"),
    "agreement": re.compile(r"agreement(?:\.([1-9][0-9]{0,8}))?"),
    "every": re.compile(r"every\.([1-9][0-9]{0,8})"),
    "never": re.compile(r"never"),
}


@dataclass(frozen=True)
class TriggerSetting:
    """A trigger's kind and value; ``str`` gives the text that :func:`parse` reads."""

    kind: Kind = "detector"
    value: str | float | int | None = ""

    def __str__(self) -> str:
        if self.kind == "detector":
            return str(self.value)
        if self.value is None:
            return self.kind
        # Never as 1e+06.
        number = f"{self.value:.9f}".rstrip("0").rstrip(".") if isinstance(self.value, float) else str(self.value)
        return f"{self.kind}.{number}"


def parse(text: str) -> TriggerSetting:
    """Read the text of a trigger; a text that is of no other kind names a detector.

    Raises :class:`ValueError`, with a sentence, if a text begins as another kind but has none of its values.
    """
    kind, _, value = text.partition(".")
    if kind == "detector":
        return TriggerSetting("detector", value)
    # A name may have points in it, and a detector's file may be called like a kind, as margin.safetensors.
    if kind not in _FORMS or text.endswith(".safetensors"):
        return TriggerSetting("detector", text)
    match = _FORMS[kind].fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a trigger; write {_WRITTEN[kind]}")
    # None if the kind has no number, or if its number was left out.
    number = match[1] if match.lastindex else None
    if number is None:
        return TriggerSetting(kind, None)
    return TriggerSetting(kind, float(number) if kind == "margin" else int(number))


# How each kind is written, for messages.
_WRITTEN = {
    "margin": "margin, or margin.X with X logits, as in margin.2.5",
    "agreement": "agreement, or agreement.N with N blocks, as in agreement.4",
    "every": "every.N with N steps, as in every.40",
    "never": "never, without a number",
}


def _read(value: Any) -> Any:
    """The trigger of a config's value: a text, or nothing, which means the config's detector."""
    if isinstance(value, TriggerSetting):
        return value
    if value is None:
        return TriggerSetting()
    if isinstance(value, str):
        return parse(value)
    raise ValueError("a trigger is a text, as in every.40")


TriggerText = Annotated[
    TriggerSetting, BeforeValidator(_read), PlainSerializer(str), WithJsonSchema({"type": "string"})
]
"""The type of a config key that is a trigger, written as its text."""


def as_written(settings: Any) -> dict[str, Any]:
    """A dataclass of settings as a config writes it: nested mappings of plain values, with a trigger as its text."""

    def mapping(items: list[tuple[str, Any]]) -> Any:
        """The fields of a dataclass; those of :class:`TriggerSetting`, which its names show, become its text."""
        values = dict(items)
        return str(TriggerSetting(**values)) if values.keys() == {"kind", "value"} else values

    return asdict(settings, dict_factory=mapping)
