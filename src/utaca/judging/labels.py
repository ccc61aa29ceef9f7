"""Three-way token labels of trajectories (paper, appendix "Uncertainty Label Construction and Verification").

An answer about a biography should consist of the requested sentences ``The {attribute} of {person} is {value}.`` in
order. The answer is aligned with that pattern (:mod:`utaca.judging.alignment`): the alignment labels the tokens of the
pattern; the labeller endpoint labels the tokens of the values, and compares only the values with the reference.

Answers to questions of benchmarks are in free words, without a pattern to align with. The labeller endpoint labels the
whole text of such an answer by the question and the reference answers (prompt ``answers.txt``). The end-of-answer token
is 1 if the answer has any text, otherwise 0: the labels of the other tokens say whether the answer is right.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import pyarrow as pa
from pydantic import BaseModel

from utaca.biographies.evidence import original
from utaca.endpoints import prompts
from utaca.endpoints.client import Request
from utaca.errors import UserError
from utaca.judging.alignment import Stretch, align
from utaca.judging.roles import Role
from utaca.records import SCHEMAS
from utaca.records.schemas import CORRECT, HALLUCINATED, TEMPLATE

Token = dict[str, Any]
Answers = dict[tuple[str, int], list[Token]]
"""The tokens of each (document, budget), by step."""
ANSWERS = f"{__package__}.answers"
"""Name of the prompt for answers in free words."""


class TokenLabel(BaseModel, extra="forbid"):
    """One token's label as the labeller gives it."""

    index: int
    label: Literal[0, 1, 2]
    reason: str


class TokenLabels(BaseModel, extra="forbid"):
    """The labeller's answer."""

    labels: list[TokenLabel]


@dataclass(frozen=True)
class Unit:
    """Tokens that share a label: a token with text, and the tokens without text before it.

    ``text`` begins at the character ``start`` of the answer.
    """

    tokens: tuple[Token, ...]
    text: str
    start: int

    @property
    def end(self) -> int:
        return self.start + len(self.text)

    def settle(self, label: int | None, source: str, reason: str) -> None:
        """Give all tokens of the unit this label, in place."""
        for token in self.tokens:
            token.update(label=label, source=source, reason=reason)


Question = tuple[Request, Sequence[Unit]]
"""A request to the labeller, and the units whose labels it requests."""


def label(trajectories: pa.Table, documents: Iterable[Mapping[str, Any]], labeller: Role) -> pa.Table:
    """Label every token of the trajectories of answers about biographies.

    ``trajectories`` needs the columns document, budget, step, token, text and finish; the texts of one (document,
    budget), in the order of the steps, concatenate to its answer. Returns a table of schema "labels" with a row for
    each token, trajectories in the order of their first appearance, tokens by step. Tokens whose request failed have a
    null label, the source "failed" and the kind of failure as reason. ``documents`` and errors are as for
    :func:`label_tokens`.
    """
    answers = answers_of(trajectories)
    label_tokens(answers, documents, labeller)
    return _table_of(answers)


def label_answers(
    trajectories: pa.Table, questions: Mapping[str, tuple[str, tuple[str, ...]]], labeller: Role
) -> pa.Table:
    """Label every token of the trajectories of answers in free words.

    ``questions`` maps the name of a document to the question (without text and instructions) and the reference answers,
    each of them right: those of the whole text, even if a prompt held a part. All else is as for :func:`label`.

    Raises:
        UserError: a trajectory's question is missing or has no reference answer.
    """
    answers = answers_of(trajectories)
    requests: list[Question] = []
    for (name, budget), tokens in answers.items():
        question, references = questions.get(name, ("", ()))
        if not references:
            raise UserError(
                f"question {name!r} has an answer, but no reference answer in its set; decode the set again"
            )
        units, end_unit = _units_of(tokens)
        text = "".join(unit.text for unit in units)
        if text.strip():
            task = {"task": "label_answer", "question": question, "answers": list(references), "prediction": text}
            requests.append(_question(f"{name}/{budget}", ANSWERS, task, units))
            end_unit.settle(CORRECT, TEMPLATE, "")
        else:
            end_unit.settle(HALLUCINATED, TEMPLATE, "ends before anything is said")
            for unit in units:
                unit.settle(HALLUCINATED, TEMPLATE, "says nothing")
    _ask(requests, labeller)
    return _table_of(answers)


def label_tokens(answers: Answers, documents: Iterable[Mapping[str, Any]], labeller: Role) -> None:
    """Label the tokens of answers in place.

    ``documents`` give the person and the facts, in the requested order. Answers about a variant with less evidence
    (:mod:`utaca.biographies.evidence`) are labelled by the facts of the original, so that a right guess is correct.
    Raises :class:`UserError` if an answer's document is missing or has no facts.
    """
    by_id = {document["id"]: document for document in documents}
    questions: list[Question] = []
    for (name, budget), tokens in answers.items():
        document = by_id.get(original(name))
        if document is None or not document["facts"]:
            raise UserError(
                f"document {name!r} has an answer, but the documents file does not have its facts; remove the files of "
                "answers and documents, and run again"
            )
        values = {fact["attribute"]: fact["value"] for fact in document["facts"]}
        for attribute, sentence, units in _label_template(tokens, document["person"], list(values)):
            task = {
                "task": "label",
                "person": document["person"],
                "attribute": attribute,
                "answer": values[attribute],
                "prediction": sentence,
            }
            questions.append(_question(f"{name}/{budget}/{len(questions)}", __name__, task, units))
    _ask(questions, labeller)


def _label_template(
    tokens: Sequence[Token], person: str, attributes: Sequence[str]
) -> list[tuple[str, str, list[Unit]]]:
    """Label the template tokens of an answer in place, by its alignment; returns its factual parts.

    A part has the attribute, the text of its sentence up to the last factual token, and the units to be labelled.
    """
    units, end_unit = _units_of(tokens)
    answer = "".join(unit.text for unit in units)
    alignment = align(answer, person, attributes)
    reason = "" if alignment.complete else "ends before all that was asked is answered"
    end_unit.settle(int(alignment.complete), TEMPLATE, reason)
    factual: dict[Stretch, list[Unit]] = {}
    for unit in units:
        # A unit that overlaps two parts belongs to the first.
        overlapping = [part for part in alignment.parts if unit.start < part.end and part.start < unit.end]
        if overlapping:
            factual.setdefault(overlapping[0], []).append(unit)
        elif not unit.text or any(alignment.wrong[unit.start : unit.end]):
            unit.settle(HALLUCINATED, TEMPLATE, "strays from the sentence asked for")
        else:
            unit.settle(CORRECT, TEMPLATE, "")
    result = []
    for part, of_part in factual.items():
        # A token may begin before the sentence that it is part of.
        start = min(part.sentence, of_part[0].start)
        result.append((part.attribute, answer[start : of_part[-1].end], of_part))
    return result


def answers_of(table: pa.Table) -> Answers:
    """The tokens of a table, each as a dict, by (document, budget) in the order in which these first appear."""
    answers: Answers = {}
    for token in table.to_pylist():
        answers.setdefault((token["document"], token["budget"]), []).append(token)
    for tokens in answers.values():
        tokens.sort(key=lambda token: token["step"])
    return answers


def _table_of(answers: Answers) -> pa.Table:
    """Labelled tokens as a table of schema "labels"."""
    fields = SCHEMAS["labels"]
    rows = []
    for tokens in answers.values():
        for token in tokens:
            rows.append({name: token[name] for name in fields.names})
    return pa.Table.from_pylist(rows, schema=fields)


def _units_of(tokens: Sequence[Token]) -> tuple[list[Unit], Unit]:
    """The units of an answer's text, and the unit of its end-of-answer token (without tokens if it has none).

    Tokens without text at the end of the text join the last unit; if no token has text, they are one unit without text.
    """
    has_end_token = tokens[-1]["finish"] == "eos"
    n_of_text = len(tokens) - has_end_token
    units: list[Unit] = []
    without_text: list[Token] = []  # tokens that wait for the next token with text
    position = 0
    for token in tokens[:n_of_text]:
        if not token["text"]:
            without_text.append(token)
            continue
        units.append(Unit((*without_text, token), token["text"], position))
        position += len(token["text"])
        without_text = []
    if without_text and units:
        units[-1] = replace(units[-1], tokens=(*units[-1].tokens, *without_text))
    elif without_text:
        units.append(Unit(tuple(without_text), "", 0))
    return units, Unit(tuple(tokens[n_of_text:]), "", position)


def _question(key: str, module: str, task: Mapping[str, Any], units: Sequence[Unit]) -> Question:
    """Make the request for the labels of ``units``, with the prompt of a module; it is paired with the units.

    ``task`` lacks only the units' texts, which are added as its ``tokens``.
    """
    tokens = [{"index": index, "text": unit.text} for index, unit in enumerate(units)]
    task = {**task, "tokens": tokens}

    def fault(answer: TokenLabels) -> str | None:
        """What is wrong with an answer; None if it labels each unit once."""
        indices = [labelled.index for labelled in answer.labels]
        if sorted(indices) == list(range(len(units))):
            return None
        return f"must label each index from 0 to {len(units) - 1} once, but labelled {indices}"

    return Request(key, task, prompts.load(module), TokenLabels, fault), units


def _ask(questions: Sequence[Question], labeller: Role) -> None:
    """Send the questions to the labeller, and label their units in place."""
    replies = labeller.ask([request for request, _ in questions], "labels")
    for request, units in questions:
        if request.key in replies.failures:
            for unit in units:
                unit.settle(None, "failed", replies.failures[request.key])
        else:
            for labelled in replies.values[request.key].labels:
                units[labelled.index].settle(labelled.label, "endpoint", labelled.reason)
