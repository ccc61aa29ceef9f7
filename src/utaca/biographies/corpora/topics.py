"""Topics of the padding prose: the paper's articles, and others for the tiny reader's training text."""

import re
from functools import partial
from typing import Annotated, Literal, TypeVar

from pydantic import Field

from utaca.data_files import DataFile, read

T = TypeVar("T")

DOMAINS = ("arts", "geography", "history", "science", "society", "technology")
ByDomain = Annotated[dict[Literal[DOMAINS], T], Field(min_length=len(DOMAINS))]
"""A table with an entry for each of the domains."""


class Topics(DataFile):
    """The form of a title inside a sentence, by domain and title, for the paper's articles and the training text."""

    paper: ByDomain[dict[str, str]]
    training: ByDomain[dict[str, str]]


_topics = partial(read, "biographies/topics.yaml", Topics)


def paper_articles() -> tuple[str, ...]:
    """Titles of the 90 Wikipedia articles that the paper pads its test documents with (its table of sources)."""
    return tuple(title for phrases in _topics().paper.values() for title in phrases)


def training_topics() -> tuple[str, ...]:
    """Topics of the tiny reader's training text, none of them among :func:`paper_articles`."""
    return tuple(title for phrases in _topics().training.values() for title in phrases)


def domain_and_phrase(topic: str) -> tuple[str | None, str]:
    """The domain of a topic, one of :data:`DOMAINS`, and the form of the topic inside a sentence.

    For a topic in neither table, the domain is None and the form is the topic without a final part in brackets.
    """
    for table in (_topics().paper, _topics().training):
        for domain, phrases in table.items():
            if topic in phrases:
                return domain, phrases[topic]
    return None, re.sub(r"\s*\([^)]*\)$", "", topic)
