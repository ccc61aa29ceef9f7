"""Three-way token labels of trajectories (paper, appendix "Uncertainty Label Construction and Verification").

An answer should be the sentences ``The {attribute} of {person} is {value}.`` in the order asked. It is aligned
with that pattern (:mod:`utaca.judging.alignment`): tokens of the pattern are labelled here, tokens of the values by the
labeller endpoint, which compares them with the reference value and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
from pydantic import BaseModel, ConfigDict

from utaca.endpoints import prompts
from utaca.endpoints.client import Request, ask
from utaca.errors import UserError
from utaca.judging.alignment import Part, align
from utaca.records import SCHEMAS
from utaca.records.schemas import CORRECT, HALLUCINATED
from utaca.settings import schema

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
