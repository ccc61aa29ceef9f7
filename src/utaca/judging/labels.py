"""Three-way token labels of trajectories (paper, appendix "Uncertainty Label Construction and Verification").

An answer should be the sentences ``The {attribute} of {person} is {value}.`` in the order asked. It is aligned
with that pattern: tokens of the pattern are labelled here, tokens of the values by the labeller endpoint, which
compares them with the reference value and nothing else.

Rules of the alignment:

* A token that overlaps a value by at least one character is factual, also where it carries a space or the full
  stop of the sentence. All others are template tokens.
* A template token is 1, or 0 from the character on at which attribute or person stray from the asked ones, up to
  the end of that attribute or name.
* A sentence about another attribute that was asked and is still open is right in itself: its attribute is 0, for it
  was not its turn, its value is compared with the reference of the attribute it names, and the order continues there.
  Any other attribute stands in the place of the one whose turn it was.
* The labeller sees the sentence with the value, so a value given for another person or attribute is its to reject.
* Sentences beyond the last asked one are 0 throughout.
* Text outside the pattern is factual for the first attribute still open.
* A token without text (part of a character) shares the fate of the next token with text.
* The end-of-answer token is 1 where every asked sentence is there, ended by its full stop; otherwise 0.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
from pydantic import BaseModel, ConfigDict

from utaca.biographies.sentences import summary
from utaca.endpoints import prompts
from utaca.endpoints.client import Request, ask
from utaca.errors import UserError
from utaca.records import SCHEMAS
from utaca.records.schemas import CORRECT, HALLUCINATED
from utaca.settings import schema

_WORD = r"[^\W\d_][\w'’-]*"
_OPENING = re.compile(rf"(?:\A\s*|(?<=[.!?:])\s+|\n\s*)The (?P<attribute>{_WORD}(?: {_WORD}){{0,3}}?) of ")
_COLUMNS = ["document", "budget", "step", "token", "text", "finish"]


class TokenLabel(BaseModel):
    """One token's label as the labeller gives it."""

    model_config = ConfigDict(extra="forbid")
    index: int
    label: Literal[0, 1, 2]
    reason: str


class TokenLabels(BaseModel):
    """The labeller's answer."""

    model_config = ConfigDict(extra="forbid")
    labels: list[TokenLabel]


@dataclass(frozen=True)
class Sentence:
    """A pattern sentence found in an answer; offsets are characters of the answer.

    ``value_start`` is None where the sentence does not get as far as " is ". ``end`` excludes the full stop and what
    follows it.
    """

    start: int
    attribute: str
    person_start: int
    person_end: int
    value_start: int | None
    end: int
    finished: bool

    @property
    def attribute_start(self) -> int:
        return self.start + len("The ")

    @property
    def attribute_end(self) -> int:
        return self.attribute_start + len(self.attribute)


@dataclass(frozen=True)
class Part:
    """A factual stretch of an answer, the attribute whose reference judges it, and the start of its sentence."""

    attribute: str
    start: int
    end: int
    sentence: int


@dataclass(frozen=True)
class Alignment:
    """Factual parts, characters at which the pattern is violated, and whether all that was asked is there."""

    parts: tuple[Part, ...]
    wrong: bytes
    complete: bool


def sentences(answer: str) -> list[Sentence]:
    """The pattern sentences of an answer, in order; text before the first one is not covered.

    A sentence lasts until the next one opens (so a value may contain full stops) or the answer ends.
    """
    openings = list(_OPENING.finditer(answer))
    found = []
    for opening, following in zip(openings, [*openings[1:], None], strict=False):
        limit = len(answer[: following.start() if following else len(answer)].rstrip())
        person_start = opening.end()
        start = opening.start("attribute") - len("The ")
        copula = answer.find(" is ", person_start, max(limit, person_start) + 1)
        if copula < 0:
            end = max(limit, person_start)
            found.append(Sentence(start, opening["attribute"], person_start, end, None, end, False))
            continue
        value_start = copula + len(" is ")
        stopped = limit > value_start and answer[limit - 1] == "."
        end = max(limit - stopped, value_start)
        found.append(
            Sentence(start, opening["attribute"], person_start, copula, value_start, end, stopped and end > value_start)
        )
    return found


def _opening(attribute: str, person: str) -> str:
    return summary(attribute, person, "")[: -len(".")]


def _common(stated: str, wanted: str) -> int:
    """Length of the common beginning, letter case aside."""
    pairs = enumerate(zip(stated.lower(), wanted.lower(), strict=False))
    return next((i for i, (left, right) in pairs if left != right), min(len(stated), len(wanted)))


def _without_cut_opening(answer: str, last: Sentence, opening: str) -> Sentence:
    """The last sentence, ended before the next one where that was cut off while it still followed the pattern."""
    if last.value_start is not None and not last.finished:
        stop = answer.rfind(". ", last.value_start + 1)
        begun = answer[stop + 2 :]
        if stop > 0 and begun and opening.startswith(begun):
            return replace(last, end=stop, finished=True)
    return last


def align(answer: str, person: str, attributes: Sequence[str]) -> Alignment:
    """Align an answer with the sentences asked for (rules: see the module)."""
    parts: list[Part] = []
    wrong = bytearray(len(answer))
    by_name = {attribute.lower(): attribute for attribute in attributes}
    tried: set[str] = set()
    finished: set[str] = set()
    turn: str | None = attributes[0]

    def turn_after(attribute: str) -> str | None:
        at = attributes.index(attribute)
        return next((a for a in [*attributes[at + 1 :], *attributes[:at]] if a not in tried), None)

    def mark(start: int, stated: str, wanted: str) -> None:
        if stated.lower() != wanted.lower():
            offset = start + _common(stated, wanted)
            # A name that is merely too short is noticed at the character after it.
            end = min(len(answer), max(start + len(stated), offset + 1))
            wrong[offset:end] = b"\x01" * (end - offset)

    def outside(start: int, end: int) -> None:
        text = answer[start:end]
        start, end = start + len(text) - len(text.lstrip()), start + len(text.rstrip())
        if start >= end:
            return
        if turn is None:
            wrong[start:end] = b"\x01" * (end - start)
        else:
            parts.append(Part(turn, start, end, start))

    found = sentences(answer)
    position = 0
    for number, sentence in enumerate(found):
        outside(position, sentence.start)
        if turn is None:
            position = sentence.start
            break
        asked = turn
        subject = by_name.get(sentence.attribute.lower(), asked)
        if subject not in tried:
            tried.add(subject)
            turn = turn_after(subject)
        if number == len(found) - 1 and turn is not None:
            sentence = _without_cut_opening(answer, sentence, _opening(turn, person))
        mark(sentence.attribute_start, sentence.attribute, asked)
        position = sentence.end
        if sentence.value_start is None:
            rest = sentence.person_start + _common(answer[sentence.person_start : sentence.end], f"{person} is")
            if answer[rest : sentence.end].strip():
                parts.append(Part(subject, rest, sentence.end, sentence.start))
            continue
        mark(sentence.person_start, answer[sentence.person_start : sentence.person_end], person)
        if sentence.end > sentence.value_start:
            parts.append(Part(subject, sentence.value_start, sentence.end, sentence.start))
        if sentence.finished:
            position += 1
            finished.add(subject)
    if turn is None or not _opening(turn, person).startswith(answer[position:].lstrip()):
        outside(position, len(answer))
    return Alignment(tuple(parts), bytes(wrong), finished == set(attributes))


@dataclass(frozen=True)
class _Unit:
    """Tokens that share a label: one with text and those without text before it; offsets in the answer."""

    rows: tuple[dict[str, Any], ...]
    text: str
    start: int

    @property
    def end(self) -> int:
        return self.start + len(self.text)


def _units(rows: Sequence[dict[str, Any]]) -> list[_Unit]:
    units: list[_Unit] = []
    waiting: list[dict[str, Any]] = []
    position = 0
    for row in rows:
        waiting.append(row)
        if row["text"]:
            units.append(_Unit(tuple(waiting), row["text"], position))
            position += len(row["text"])
            waiting = []
    if waiting and units:
        units[-1] = replace(units[-1], rows=(*units[-1].rows, *waiting))
    elif waiting:
        units.append(_Unit(tuple(waiting), "", 0))
    return units


def _exactly(count: int) -> Callable[[TokenLabels], str | None]:
    def check(labels: TokenLabels) -> str | None:
        given = [verdict.index for verdict in labels.labels]
        if sorted(given) == list(range(count)):
            return None
        return f"must label each index from 0 to {count - 1} once, but labelled {given}"

    return check


def _settle(rows: Iterable[dict[str, Any]], label: int | None, source: str, reason: str) -> None:
    for row in rows:
        row.update(label=label, source=source, reason=reason)


def label(
    trajectories: pa.Table,
    documents: Iterable[Mapping[str, Any]],
    endpoint: schema.Endpoint,
    store: Path,
    used: list[dict[str, Any]] | None = None,
) -> pa.Table:
    """Label every token of the trajectories.

    ``trajectories`` needs the columns document, budget, step, token, text and finish; the texts of one (document,
    budget), in the order of the steps, concatenate to its answer. ``documents`` gives person and facts, the facts in
    the order asked. Returns a table of schema "labels" with a row for each token, trajectories in the order of their
    first appearance, tokens by step. Tokens whose request failed have a null label, the source "failed" and the kind
    of failure as reason. ``used`` is given rows of schema "usage". Raises :class:`UserError` where a trajectory's
    document is missing or has no facts.
    """
    by_id = {document["id"]: document for document in documents}
    answers: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for token in trajectories.select(_COLUMNS).to_pylist():
        answers.setdefault((token["document"], token["budget"]), []).append(token)

    rows: list[dict[str, Any]] = []
    requests: list[Request] = []
    asked: dict[str, list[_Unit]] = {}
    for (name, budget), tokens in answers.items():
        document = by_id.get(name)
        if document is None or not document["facts"]:
            raise UserError(f"document {name!r} was decoded but has no facts in the documents file; make both again")
        tokens.sort(key=lambda token: token["step"])
        rows.extend(tokens)
        for attribute, sentence, units in _label_template(tokens, document):
            request = _request(f"{name}/{budget}/{len(requests)}", attribute, sentence, units, document)
            requests.append(request)
            asked[request.key] = units

    replies = ask(endpoint, requests, store=store, description="labels")
    if used is not None:
        used.extend(replies.used)
    for key, units in asked.items():
        if key in replies.failures:
            for unit in units:
                _settle(unit.rows, None, "failed", replies.failures[key])
        else:
            for verdict in replies.values[key].labels:
                _settle(units[verdict.index].rows, verdict.label, "endpoint", verdict.reason)
    fields = SCHEMAS["labels"]
    return pa.Table.from_pylist([{name: row[name] for name in fields.names} for row in rows], schema=fields)


def _label_template(
    tokens: Sequence[dict[str, Any]], document: Mapping[str, Any]
) -> list[tuple[str, str, list[_Unit]]]:
    """Label the template tokens of an answer in place.

    Returns its factual parts: attribute, the sentence up to the last factual token, the factual tokens.
    """
    ended = tokens[-1]["finish"] == "eos"
    units = _units(tokens[: len(tokens) - ended])
    answer = "".join(unit.text for unit in units)
    alignment = align(answer, document["person"], [fact["attribute"] for fact in document["facts"]])
    if ended:
        reason = "" if alignment.complete else "ends before all that was asked is answered"
        _settle(tokens[-1:], int(alignment.complete), "template", reason)
    factual: dict[Part, list[_Unit]] = {}
    for unit in units:
        part = next((part for part in alignment.parts if unit.start < part.end and part.start < unit.end), None)
        if part is not None:
            factual.setdefault(part, []).append(unit)
        elif not unit.text or any(alignment.wrong[unit.start : unit.end]):
            _settle(unit.rows, HALLUCINATED, "template", "strays from the sentence asked for")
        else:
            _settle(unit.rows, CORRECT, "template", "")
    return [
        (part.attribute, answer[min(part.sentence, own[0].start) : own[-1].end], own) for part, own in factual.items()
    ]


def _request(key: str, attribute: str, sentence: str, units: Sequence[_Unit], document: Mapping[str, Any]) -> Request:
    prompt = prompts.load(__name__)
    task = {
        "task": "label",
        "person": document["person"],
        "attribute": attribute,
        "answer": next(fact["value"] for fact in document["facts"] if fact["attribute"] == attribute),
        "prediction": sentence,
        "tokens": [{"index": index, "text": unit.text} for index, unit in enumerate(units)],
    }
    return Request(key, prompt.messages(task), TokenLabels, prompt.version, _exactly(len(units)))
