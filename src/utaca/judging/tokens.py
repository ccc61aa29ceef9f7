"""What every labelling of tokens has in common: answers as tokens with text, the labeller's reply, the table made."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import pyarrow as pa
from pydantic import BaseModel, ConfigDict

from utaca.endpoints import prompts
from utaca.endpoints.client import Request
from utaca.judging.roles import Role
from utaca.records import SCHEMAS

Answers = dict[tuple[str, int], list[dict[str, Any]]]
"""The tokens of each (document, budget), by step."""


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
class Unit:
    """Tokens that share a label: one with text and those without text before it; offsets in the answer."""

    rows: tuple[dict[str, Any], ...]
    text: str
    start: int

    @property
    def end(self) -> int:
        return self.start + len(self.text)


@dataclass(frozen=True)
class Question:
    """A request to the labeller, and the tokens that it is asked about."""

    request: Request
    units: Sequence[Unit]


def answers(table: pa.Table) -> Answers:
    """The tokens of a table, one dict each, in the order in which (document, budget) first appear."""
    found: Answers = {}
    for token in table.to_pylist():
        found.setdefault((token["document"], token["budget"]), []).append(token)
    for tokens in found.values():
        tokens.sort(key=lambda token: token["step"])
    return found


def parted(tokens: Sequence[dict[str, Any]]) -> tuple[list[Unit], Sequence[dict[str, Any]]]:
    """The units of an answer, and its end-of-answer token where it has one."""
    ended = tokens[-1]["finish"] == "eos"
    return _units(tokens[: len(tokens) - ended]), tokens[len(tokens) - ended :]


def _units(rows: Sequence[dict[str, Any]]) -> list[Unit]:
    units: list[Unit] = []
    waiting: list[dict[str, Any]] = []
    position = 0
    for row in rows:
        waiting.append(row)
        if row["text"]:
            units.append(Unit(tuple(waiting), row["text"], position))
            position += len(row["text"])
            waiting = []
    if waiting and units:
        units[-1] = replace(units[-1], rows=(*units[-1].rows, *waiting))
    elif waiting:
        units.append(Unit(tuple(waiting), "", 0))
    return units


def question(key: str, module: str, task: Mapping[str, Any], units: Sequence[Unit]) -> Question:
    """A task, its tokens added, under the prompt of the module that asks."""
    task = {**task, "tokens": [{"index": index, "text": unit.text} for index, unit in enumerate(units)]}
    return Question(Request(key, task, prompts.load(module), TokenLabels, _exactly(len(units))), units)


def _exactly(count: int) -> Callable[[TokenLabels], str | None]:
    def check(labels: TokenLabels) -> str | None:
        given = [verdict.index for verdict in labels.labels]
        if sorted(given) == list(range(count)):
            return None
        return f"must label each index from 0 to {count - 1} once, but labelled {given}"

    return check


def settle(rows: Iterable[dict[str, Any]], label: int | None, source: str, reason: str) -> None:
    """Give tokens their label, in place."""
    for row in rows:
        row.update(label=label, source=source, reason=reason)


def ask(questions: Sequence[Question], labeller: Role) -> None:
    """Give the tokens that questions are about their labels, in place.

    Those whose request failed have a null label, the source "failed" and the kind of failure as reason.
    """
    replies = labeller.ask([asked.request for asked in questions], "labels")
    for asked in questions:
        key = asked.request.key
        if key in replies.failures:
            for unit in asked.units:
                settle(unit.rows, None, "failed", replies.failures[key])
        else:
            for verdict in replies.values[key].labels:
                settle(asked.units[verdict.index].rows, verdict.label, "endpoint", verdict.reason)


def table(labelled: Answers) -> pa.Table:
    """Labelled tokens as a table of schema "labels"."""
    fields = SCHEMAS["labels"]
    rows = [{name: row[name] for name in fields.names} for tokens in labelled.values() for row in tokens]
    return pa.Table.from_pylist(rows, schema=fields)
