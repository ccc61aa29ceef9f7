"""Suites: all operating points of a document, and replays of its decisions, decoded from one prefill."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from utaca.decoding.loop import Generation, generate
from utaca.decoding.peak import PeakMemory
from utaca.decoding.policies import parse
from utaca.decoding.replays import Replays, replay_row
from utaca.decoding.trajectories import ask
from utaca.detection.detector import Detector
from utaca.memory import BlockMemory, prefill
from utaca.readers.load import Reader
from utaca.records import SCHEMAS, progress
from utaca.records.journal import Journal
from utaca.settings.schema import Point


@dataclass(frozen=True)
class Trigger:
    """The detector of an operating point: its variant and seed, and the digest of the file it was read from."""

    detector: Detector
    digest: str
    variant: str
    seed: int


@dataclass
class Decoded:
    """Answers and traces (schemas of the same names) by suite and label, and replays (schema "replays")."""

    answers: dict[tuple[str, str], pa.Table] = field(default_factory=dict)
    traces: dict[tuple[str, str], pa.Table] = field(default_factory=dict)
    replays: pa.Table | None = None


def decode_suites(
    reader: Reader,
    documents: Sequence[Mapping[str, Any]],
    suites: Mapping[str, Sequence[Point]],
    triggers: Mapping[str, Trigger],
    journal: Journal,
    *,
    paired: bool = False,
    replays: Replays | None = None,
) -> Decoded:
    """Answers and traces of every point of the suites, and the decisions of one of them replayed the other way.

    ``triggers`` holds the detector of every point of method utaca, by label. A point that several suites share is
    decoded once. ``paired`` runs a token's compact and expanded pass as one (:func:`utaca.decoding.generate.generate`).
    """
    points = {suite: {point.label: point for point in own} for suite, own in suites.items()}
    found: dict[tuple[str, str], list[Answered]] = {(suite, label): [] for suite in points for label in points[suite]}
    replayed = [SCHEMAS["replays"].empty_table()]
    name = f"suites {', '.join(suites)}"
    for given in progress(documents, total=len(documents), unit="document", description=name):
        document = _Document(reader, given, journal, paired)
        for (suite, label), answers in found.items():
            answers.append(document.answer(points[suite][label], triggers.get(label), suite))
        if replays is not None:
            suite = next(suite for suite, own in points.items() if replays.label in own)
            point, trace = points[suite][replays.label], found[suite, replays.label][-1].trace.to_pylist()
            for step, of in replays.drawn(trace, point, given["id"]):
                replayed.append(document.replay(point, triggers[replays.label], trace, step, of))
    return Decoded(
        {key: pa.concat_tables(answer.answer for answer in answers) for key, answers in found.items()},
        {key: pa.concat_tables(answer.trace for answer in answers) for key, answers in found.items()},
        pa.concat_tables(replayed) if replays is not None else None,
    )


@dataclass(frozen=True)
class Answered:
    """An answer (schema "answers", one row) and its trace (schema "traces")."""

    answer: pa.Table
    trace: pa.Table


class _Document:
    """A document's answers, journaled; it is read when the first one that is not journaled yet is asked for."""

    def __init__(self, reader: Reader, document: Mapping[str, Any], journal: Journal, paired: bool) -> None:
        self._reader, self._document, self._journal, self._paired = reader, document, journal, paired
        self._memory: BlockMemory | None = None
        self._seconds, self._peak = 0.0, 0

    def answer(self, point: Point, trigger: Trigger | None, suite: str) -> Answered:
        about = {"suite": suite, "point": point.label}
        if trigger is not None:
            about |= {"detector": trigger.variant, "seed": trigger.seed}
        return unpacked(self._table("answer", point, trigger, lambda: self._decode(point, trigger)), about)

    def replay(
        self, point: Point, trigger: Trigger, trace: Sequence[Mapping[str, Any]], step: int, of: int
    ) -> pa.Table:
        """The answer with one decision of the trace turned, a row of schema "replays"."""

        def make() -> pa.Table:
            expanded = trace[step]["rolled_back"]
            generation = self._generate(point, trigger, {step: not expanded})
            return pa.Table.from_pylist([replay_row(trace, step, generation)], SCHEMAS["replays"])

        table = self._table(f"replay of {step}", point, trigger, make)
        return told(table, document=self._document["id"], point=point.label, of=of)

    def _table(self, what: str, point: Point, trigger: Trigger | None, make: Callable[[], pa.Table]) -> pa.Table:
        # Suites and names of detectors are no part of an answer.
        parts = what, point.method, point.budget, point.policy, trigger.digest if trigger else "", self._document["id"]
        return self._journal.table("/".join(map(str, parts)), make)

    def _read(self) -> BlockMemory:
        if self._memory is None:
            started = time.perf_counter()
            with PeakMemory(self._reader.device) as peak:
                self._memory = prefill(self._reader, self._document["text"])
            self._seconds, self._peak = time.perf_counter() - started, peak.bytes
        return self._memory

    def _generate(self, point: Point, trigger: Trigger | None, interventions: Mapping[int, bool]) -> Generation:
        text, longest = ask(self._reader, self._document)
        return generate(
            self._read(),
            text,
            budget=point.budget,
            policy=parse(point.policy) if point.policy else None,
            detector=trigger.detector if trigger else None,
            oracle=point.method == "oracle",
            max_new_tokens=longest,
            interventions=interventions,
            paired=self._paired,
        )

    def _decode(self, point: Point, trigger: Trigger | None) -> pa.Table:
        memory = self._read()
        with PeakMemory(self._reader.device) as peak:
            generation = self._generate(point, trigger, {})
        return packed(
            generation,
            point,
            document=self._document["id"],
            question=ask(self._reader, self._document)[0],
            n_context=len(memory),
            dropped=0,
            prefill_seconds=self._seconds,
            peak_bytes=max(self._peak, peak.bytes),
        )


def packed(generation: Generation, point: Point, **about: Any) -> pa.Table:
    """One answer as a table that a journal can hold: a row a token, one at least, with the answer beside each.

    ``about`` are the columns of schema "answers" that neither the answer nor the point tell.
    """
    answer = about | {
        "method": point.method,
        "budget": point.budget,
        "policy": point.policy,
        "text": generation.text,
        "n_generated": len(generation.trace),
        "finish": generation.finish,
        "selected": generation.mean_selected_tokens,
        "attended": generation.mean_attended_tokens,
        "selected_with_tentative": generation.mean_selected_with_tentative,
        "attended_with_tentative": generation.mean_attended_with_tentative,
        "rollbacks": generation.rollbacks,
        "decode_seconds": generation.seconds,
    }
    trace = list(_trace_rows(about["document"], generation)) or [None]
    return pa.table(
        {
            "answer": pa.array([answer] * len(trace), pa.struct(SCHEMAS["answers"])),
            "trace": pa.array(trace, pa.struct(SCHEMAS["traces"])),
        }
    )


def unpacked(pair: pa.Table, about: Mapping[str, str | int]) -> Answered:
    """What :func:`packed` holds, in the place where it is used: its suite, its point, its detector."""
    answer = pa.table(pair["answer"][:1].combine_chunks().flatten(), SCHEMAS["answers"])
    trace = pa.table(pair["trace"].drop_null().combine_chunks().flatten(), SCHEMAS["traces"])
    answer = told(answer, **({"detector": ""} | about))
    return Answered(answer, told(trace, point=about["point"]))


def told(table: pa.Table, **values: str | int) -> pa.Table:
    """``table`` with columns of one value each in the place of its own."""
    for name, value in values.items():
        kind = table.schema.field(name)
        table = table.set_column(table.schema.get_field_index(name), kind, pa.array([value] * len(table), kind.type))
    return table


def _trace_rows(document: str, generation: Generation) -> Iterator[dict[str, Any]]:
    for step, token in enumerate(generation.trace):
        first = token.tentative or token
        hallucinated, correct, unknown = token.gdm or (None, None, None)
        yield {
            "document": document,
            "point": "",
            "step": step,
            "token": token.token,
            "text": token.text,
            "k": token.k,
            "margin": token.margin,
            "logprob": token.logprob,
            "rolled_back": token.rolled_back,
            "intervened": token.intervened,
            "tentative_token": first.token,
            "tentative_k": first.k,
            "tentative_margin": first.margin,
            "tentative_logprob": first.logprob,
            "p_hallucinated": hallucinated,
            "p_correct": correct,
            "p_unknown": unknown,
            "attended": token.attended,
            "top_tokens": token.top_tokens,
            "top_logits": token.top10.tolist(),
            "tentative_top_tokens": first.top_tokens,
            "tentative_top_logits": first.top10.tolist(),
            "selected": [ids.tolist() for ids in token.selected],
            "scores": [scores.tolist() for scores in token.scores],
        }
