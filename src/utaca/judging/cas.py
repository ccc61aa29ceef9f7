"""Conceptual accuracy (CAS) of answers, attribute by attribute (paper, appendix "Evaluation Metrics Details")."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict

from utaca.endpoints import prompts
from utaca.endpoints.client import Request
from utaca.errors import UserError
from utaca.judging.alignment import about
from utaca.judging.roles import Role
from utaca.judging.rules.statements import in_free_words, without_remarks
from utaca.judging.strings import string_match


class Score(BaseModel):
    """The judge's answer."""

    model_config = ConfigDict(extra="forbid")
    score: float
    reason: str


def _in_range(answer: Score) -> str | None:
    return None if 0 <= answer.score <= 1 else f"must give a score between 0 and 1, but gave {answer.score}"


def extract(answer: str, attribute: str, person: str) -> str:
    """What an answer says of one attribute: the value of its first pattern sentence about that attribute and person.

    Remarks after the value are left out (an explanation, a source, another speaker's turn, a list), but not what takes
    it back. An answer without such a sentence gives those that state the attribute in free words, and where none does
    it is returned whole, without surrounding space: the judge then decides what it says.
    """
    if sentence := about(answer, attribute, person):
        return without_remarks(answer[sentence.value_start : sentence.end].strip(), value=True)
    return in_free_words(answer, attribute) or answer.strip()


def score(
    answers: Iterable[Mapping[str, Any]],
    documents: Iterable[Mapping[str, Any]],
    judge: Role,
) -> list[dict[str, Any]]:
    """Judge answers: a row of schema "scores" for each answer and fact that its document asks for, in their order.

    ``cas`` is null where the request failed, ``failure`` then holds the kind of failure, and is null otherwise.
    Raises :class:`UserError` where an answer's document is missing.
    """
    by_id = {document["id"]: document for document in documents}
    prompt = prompts.load(__name__)
    rows: list[dict[str, Any]] = []
    requests: list[Request] = []
    for answer in answers:
        document = by_id.get(answer["document"])
        if document is None:
            raise UserError(
                f"document {answer['document']!r} was answered but is not in the documents file; make both again"
            )
        for fact in document["facts"]:
            prediction = extract(answer["text"], fact["attribute"], document["person"])
            task = {
                "task": "score",
                "question": f"What is the {fact['attribute']} of {document['person']}?",
                "attribute": fact["attribute"],
                "prediction": prediction,
                "reference": fact["value"],
            }
            requests.append(Request(str(len(rows)), task, prompt, Score, _in_range))
            rows.append(
                {
                    "document": answer["document"],
                    "split": answer["split"],
                    "point": answer["point"],
                    "attribute": fact["attribute"],
                    "prediction": prediction,
                    "reference": fact["value"],
                    "cas": None,
                    "string_match": string_match(prediction, fact["value"]),
                    "reason": "",
                    "failure": None,
                }
            )
    replies = judge.ask(requests, "scores")
    for key, kind in replies.failures.items():
        rows[int(key)]["failure"] = kind
    for key, answer in replies.values.items():
        rows[int(key)].update(cas=answer.score, reason=answer.reason)
    return rows
