"""The writer role: an endpoint turns the facts of a person into a natural narrative (paper, test set)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from pydantic import BaseModel, ConfigDict

from utaca.endpoints import prompts
from utaca.endpoints.client import Request
from utaca.errors import UserError
from utaca.judging.roles import Role


class Narrative(BaseModel):
    """The writer's answer."""

    model_config = ConfigDict(extra="forbid")
    sentences: list[str]


def write_narratives(
    biographies: Iterable[tuple[str, str, Sequence[tuple[str, str]]]], writer: Role
) -> dict[str, list[str]]:
    """Narratives by id for (id, person, facts), the facts as (attribute, value) pairs.

    A narrative is a list of sentences that together name the person and hold every value verbatim; others are asked
    for again. Raises :class:`UserError` where any is missing in the end, for a split cannot lack a biography.
    """
    requests = [_request(key, person, facts) for key, person, facts in biographies]
    replies = writer.ask(requests, "biographies")
    if replies.failures:
        kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(Counter(replies.failures.values()).items()))
        name = f"{writer.endpoint.name} (model {writer.endpoint.model})"
        raise UserError(
            f"the writer endpoint {name} failed to write {len(replies.failures)} of {len(requests)} biographies "
            f"({kinds}); raise its attempts or use another writer: what it wrote is kept"
        )
    return {key: [sentence.strip() for sentence in answer.sentences] for key, answer in replies.values.items()}


def _request(key: str, person: str, facts: Sequence[tuple[str, str]]) -> Request:
    task = {
        "task": "biography",
        "person": person,
        "facts": [{"attribute": attribute, "value": value} for attribute, value in facts],
    }
    return Request(key, task, prompts.load(__name__), Narrative, _states(person, [value for _, value in facts]))


def _states(person: str, values: Sequence[str]) -> Callable[[Narrative], str | None]:
    def check(narrative: Narrative) -> str | None:
        if not all(sentence.strip() for sentence in narrative.sentences):
            return "must have no empty sentence"
        text = " ".join(sentence.strip() for sentence in narrative.sentences)
        missing = [wanted for wanted in (person, *values) if wanted not in text]
        return f"must contain, character for character: {'; '.join(missing)}" if missing else None

    return check
