"""Conceptual accuracy (CAS) of answers, attribute by attribute (paper, appendix "Evaluation Metrics Details")."""

from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import BaseModel

from utaca.endpoints import prompts
from utaca.endpoints.client import Request
from utaca.errors import UserError
from utaca.judging.alignment import about
from utaca.judging.roles import Role
from utaca.judging.rules.statements import in_free_words, without_remarks
from utaca.judging.strings import string_match


class Score(BaseModel, extra="forbid"):
    """The judge's answer."""

    score: float
    reason: str


def _in_range(answer: Score) -> str | None:
    """What is wrong with an answer; None if its score is in [0, 1]."""
    if 0 <= answer.score <= 1:
        return None
    return f"must give a score between 0 and 1, but gave {answer.score}"


def extract(answer: str, attribute: str, person: str) -> str:
    """Extract what an answer says of one attribute: the value in the first pattern sentence about it and the person.

    A pattern sentence is ``The {attribute} of {person} is {value}.`` (:mod:`utaca.judging.alignment`). Remarks after
    the value (an explanation, a source, another speaker's turn, a list) are left out, but a retraction of the value is
    kept. If the answer has no such sentence, its sentences that state the attribute in free words are returned; if
    there are none of these either, the whole answer, without surrounding space, for the judge to decide.
    """
    sentence = about(answer, attribute, person)
    if sentence:
        return without_remarks(answer[sentence.value_start : sentence.end].strip(), value=True)
    return in_free_words(answer, attribute) or answer.strip()


def score(
    answers: Iterable[Mapping[str, Any]], documents: Iterable[Mapping[str, Any]], judge: Role
) -> list[dict[str, Any]]:
    """Have the judge score answers; returns a row of schema "scores" for each fact of each answer's document, in order.

    ``answers`` need document, split, point and text, ``documents`` id, person and facts. If the request failed, ``cas``
    is null and ``failure`` holds the kind of failure. Raises :class:`UserError` if an answer's document is missing.
    """
    by_id = {document["id"]: document for document in documents}
    rows: list[dict[str, Any]] = []
    requests: list[Request] = []
    for answer in answers:
        document = by_id.get(answer["document"])
        if document is None:
            raise UserError(
                f"document {answer['document']!r} has an answer, but the documents file does not have it; remove the "
                "files of answers and documents, and run again"
            )
        for fact in document["facts"]:
            attribute = fact["attribute"]
            reference = fact["value"]
            prediction = extract(answer["text"], attribute, document["person"])
            judged = {"attribute": attribute, "prediction": prediction, "reference": reference}
            question = f"What is the {attribute} of {document['person']}?"
            task = {"task": "score", "question": question, **judged}
            # The request's key is the index of its row.
            requests.append(Request(str(len(rows)), task, prompts.load(__name__), Score, _in_range))
            row = {name: answer[name] for name in ("document", "split", "point")}
            row |= judged
            row["cas"] = None
            row["string_match"] = string_match(prediction, reference)
            row["reason"] = ""
            row["failure"] = None
            rows.append(row)
    replies = judge.ask(requests, "scores")
    for key, failure in replies.failures.items():
        rows[int(key)]["failure"] = failure
    for key, reply in replies.values.items():
        rows[int(key)].update(cas=reply.score, reason=reply.reason)
    return rows
