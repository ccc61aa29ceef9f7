"""The fixed patterns of summaries and abstentions (paper, appendix on data construction)."""

from __future__ import annotations

from collections.abc import Iterable


def summary(attribute: str, person: str, value: str) -> str:
    """The sentence that states one fact."""
    return f"The {attribute} of {person} is {value}."


def abstention(attribute: str, person: str) -> str:
    """The sentence that abstains from a fact."""
    return f"The {attribute} of {person} is unknown."


def summaries(facts: Iterable[tuple[str, str]], person: str) -> str:
    """The summaries of (attribute, value) pairs, in their order, joined by a space."""
    return " ".join(summary(attribute, person, value) for attribute, value in facts)
