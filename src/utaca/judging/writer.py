"""The writer role: an endpoint turns the facts of a person into a natural narrative (paper, test set)."""

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial

from pydantic import BaseModel

from utaca.endpoints import prompts
from utaca.endpoints.client import Request
from utaca.errors import UserError
from utaca.judging.roles import Role


class Narrative(BaseModel, extra="forbid"):
    """The writer's answer."""

    sentences: list[str]


def write_narratives(
    biographies: Iterable[tuple[str, str, Sequence[tuple[str, str]]]], writer: Role
) -> dict[str, list[str]]:
    """Write a narrative for each (id, person, facts), facts being (attribute, value) pairs; returns them by id.

    A narrative is a list of sentences that together name the person and hold every value verbatim; any other answer is
    requested again. Raises :class:`UserError` if a narrative is missing in the end: a split cannot lack a biography.
    """
    requests = []
    for key, person, facts in biographies:
        pairs = [{"attribute": attribute, "value": value} for attribute, value in facts]
        task = {"task": "biography", "person": person, "facts": pairs}
        check = partial(_fault, [person, *(value for _, value in facts)])
        requests.append(Request(key, task, prompts.load(__name__), Narrative, check))
    replies = writer.ask(requests, "biographies")
    if replies.failures:
        kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(Counter(replies.failures.values()).items()))
        name = f"{writer.endpoint.name} (model {writer.endpoint.model})"
        raise UserError(
            f"the writer endpoint {name} failed to write {len(replies.failures)} of {len(requests)} biographies "
            f"({kinds}); raise its attempts or use another writer: what it wrote is kept"
        )
    return {key: [sentence.strip() for sentence in answer.sentences] for key, answer in replies.values.items()}


def _fault(wanted: Sequence[str], narrative: Narrative) -> str | None:
    sentences = [sentence.strip() for sentence in narrative.sentences]
    if not all(sentences):
        return "must have no empty sentence"
    missing = [words for words in wanted if words not in " ".join(sentences)]
    return f"must contain, character for character: {'; '.join(missing)}" if missing else None
