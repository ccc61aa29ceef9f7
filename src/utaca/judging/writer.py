"""The writer role: an endpoint turns the facts of a person into a natural narrative (paper, test set)."""

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

from pydantic import BaseModel

from utaca.endpoints import prompts
from utaca.endpoints.client import Request
from utaca.errors import UserError
from utaca.judging.roles import Role
from utaca.judging.rules.passages import passages


class Narrative(BaseModel, extra="forbid"):
    """The writer's answer."""

    sentences: list[str]


class Written(NamedTuple):
    """A narrative's sentences, and where it states its facts, as ``stated`` of schema "biographies"."""

    sentences: list[str]
    stated: list[dict[str, Any]]


def write_narratives(
    biographies: Iterable[tuple[str, str, Sequence[tuple[str, str]]]], writer: Role
) -> dict[str, Written]:
    """Have the writer write a narrative for each of ``biographies``; returns the narratives by the biography's id.

    A biography is given as (id, person, facts), the facts as (attribute, value) pairs. A narrative is a list of
    sentences that together name the person and state every fact, in any form that the rules of the judge take for the
    value; any other answer is requested again, with the facts that it lacks. Raises :class:`UserError` if a narrative
    is missing in the end: a split cannot lack a biography.
    """
    requests = []
    requested = {}  # person and facts, by id
    for key, person, facts in biographies:
        requested[key] = person, facts
        pairs = [{"attribute": attribute, "value": value} for attribute, value in facts]
        task = {"task": "biography", "person": person, "facts": pairs}
        requests.append(Request(key, task, prompts.load(__name__), Narrative, partial(_fault, person, facts)))
    replies = writer.ask(requests, "biographies")
    if replies.failures:
        counts = Counter(replies.failures.values())
        kinds = ", ".join(f"{count} {failure}" for failure, count in sorted(counts.items()))
        name = f"{writer.endpoint.name} (model {writer.endpoint.model})"
        raise UserError(
            f"the writer endpoint {name} failed to write {len(replies.failures)} of {len(requests)} biographies "
            f"({kinds}); raise its attempts or use another writer: what it wrote is kept"
        )
    narratives = {}
    for key, reply in replies.values.items():
        person, facts = requested[key]
        narratives[key] = _written(person, facts, reply)
    return narratives


def _written(person: str, facts: Sequence[tuple[str, str]], narrative: Narrative) -> Written:
    """The narrative's sentences without surrounding space, and the places of the facts that it states."""
    sentences = [sentence.strip() for sentence in narrative.sentences]
    places = passages(" ".join(sentences), person, facts)  # by attribute, in the joined text
    stated = [{"attribute": name, "start": start, "end": end} for name, (start, end) in places.items()]
    return Written(sentences, stated)


def _fault(person: str, facts: Sequence[tuple[str, str]], narrative: Narrative) -> str | None:
    """What is wrong with a narrative, for the writer to correct; None if nothing is."""
    written = _written(person, facts, narrative)
    if not all(written.sentences):
        return "must have no empty sentence"
    if person not in " ".join(written.sentences):
        return f"must name {person} in full"
    stated = {place["attribute"] for place in written.stated}
    missing = [f"{attribute}: {value}" for attribute, value in facts if attribute not in stated]
    if missing:
        return f"must state each of these facts, in the form given here or a usual one: {'; '.join(missing)}"
    return None
