"""Three-way token labels of trajectories (paper, appendix "Uncertainty Label Construction and Verification").

An answer should be the sentences ``The {attribute} of {person} is {value}.`` in the order asked. It is aligned
with that pattern (:mod:`utaca.judging.alignment`): tokens of the pattern are labelled here, tokens of the values by the
labeller endpoint, which compares them with the reference value and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from utaca.biographies.evidence import original
from utaca.errors import UserError
from utaca.judging import tokens
from utaca.judging.alignment import Part, align
from utaca.judging.roles import Role
from utaca.judging.tokens import Unit, settle
from utaca.records.schemas import CORRECT, HALLUCINATED, TEMPLATE


def label(trajectories: pa.Table, documents: Iterable[Mapping[str, Any]], labeller: Role) -> pa.Table:
    """Label every token of the trajectories.

    ``trajectories`` needs the columns document, budget, step, token, text and finish; the texts of one (document,
    budget), in the order of the steps, concatenate to its answer. Returns a table of schema "labels" with a row for
    each token, trajectories in the order of their first appearance, tokens by step. Tokens whose request failed have a
    null label, the source "failed" and the kind of failure as reason. Documents and errors are those of
    :func:`label_tokens`.
    """
    answers = tokens.answers(trajectories)
    label_tokens(answers, documents, labeller)
    return tokens.table(answers)


def label_tokens(answers: tokens.Answers, documents: Iterable[Mapping[str, Any]], labeller: Role) -> None:
    """Label the tokens of answers in place.

    ``documents`` gives person and facts, the facts in the order asked; they hold for a document with less evidence too
    (:mod:`utaca.biographies.evidence`), so that a right guess is correct. Raises :class:`UserError` where an answer's
    document is missing or has no facts.
    """
    by_id = {document["id"]: document for document in documents}
    asked: list[tokens.Question] = []
    for (name, budget), own in answers.items():
        document = by_id.get(original(name))
        if document is None or not document["facts"]:
            raise UserError(f"document {name!r} was decoded but has no facts in the documents file; make both again")
        values = {fact["attribute"]: fact["value"] for fact in document["facts"]}
        for attribute, sentence, units in _label_template(own, document["person"], list(values)):
            task = {
                "task": "label",
                "person": document["person"],
                "attribute": attribute,
                "answer": values[attribute],
                "prediction": sentence,
            }
            asked.append(tokens.question(f"{name}/{budget}/{len(asked)}", __name__, task, units))
    tokens.ask(asked, labeller)


def _label_template(
    own: Sequence[dict[str, Any]], person: str, attributes: Sequence[str]
) -> list[tuple[str, str, list[Unit]]]:
    """Label the template tokens of an answer in place.

    Returns its factual parts: attribute, the sentence up to the last factual token, the factual tokens.
    """
    units, end = tokens.parted(own)
    answer = "".join(unit.text for unit in units)
    alignment = align(answer, person, attributes)
    reason = "" if alignment.complete else "ends before all that was asked is answered"
    settle(end, int(alignment.complete), TEMPLATE, reason)
    factual: dict[Part, list[Unit]] = {}
    for unit in units:
        part = next((part for part in alignment.parts if unit.start < part.end and part.start < unit.end), None)
        if part is not None:
            factual.setdefault(part, []).append(unit)
        elif not unit.text or any(alignment.wrong[unit.start : unit.end]):
            settle(unit.rows, HALLUCINATED, TEMPLATE, "strays from the sentence asked for")
        else:
            settle(unit.rows, CORRECT, TEMPLATE, "")
    return [
        (part.attribute, answer[min(part.sentence, found[0].start) : found[-1].end], found)
        for part, found in factual.items()
    ]
