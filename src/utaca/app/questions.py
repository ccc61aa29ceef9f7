"""Which questions a reader understands, in words, and an example that it can answer."""

import re
from dataclasses import dataclass
from importlib.resources import files

from utaca.readers.questions import question
from utaca.settings.schema import ReaderSettings

ONE_FORM = "compact"
"""The wording (``reader.prompt``) of readers that were trained on questions of this wording only."""
_ATTRIBUTES = ("birth date", "job title")
_PERSON = "Clara Whitfield"
"""Whom ``example.txt``, a page of an invented newspaper, has facts about."""
_FORM = re.compile(r"summari[sz]e the .+ of .+", re.IGNORECASE | re.DOTALL)
"""What :data:`ONE_FORM` looks like, whatever its attributes and person."""


@dataclass(frozen=True)
class Example:
    """A short document, and a question about it."""

    document: str
    question: str


def understands(reader: ReaderSettings, subject: str = "") -> str:
    """A sentence on the questions that a reader understands; it begins with ``subject``, or with the reader's name."""
    subject = subject or f"Reader {reader.name}"
    if reader.prompt == ONE_FORM:
        example = question(_ATTRIBUTES, "NAME", ONE_FORM)
        return f'{subject} understands only questions such as "{example}"'
    return f"{subject} understands any question."


def limit(reader: ReaderSettings) -> str:
    """The sentence of :func:`understands` for a reader that does not understand every question; else ""."""
    return understands(reader) if reader.prompt == ONE_FORM else ""


def is_understood(reader: ReaderSettings, text: str) -> bool:
    """Whether a question has the form that a reader understands."""
    return reader.prompt != ONE_FORM or _FORM.fullmatch(text.strip()) is not None


def example(reader: ReaderSettings) -> Example:
    """An example for a reader; the facts asked for lie outside of its window, so that it must retrieve them."""
    document = (files("utaca.app") / "example.txt").read_text(encoding="ascii").rstrip()
    if reader.prompt == ONE_FORM:
        return Example(document, question(("birth date", "university"), _PERSON, ONE_FORM))
    return Example(document, f"When was {_PERSON} born, and at which university did she study?")
