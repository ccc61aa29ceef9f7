"""Suites: all operating points of a document decoded from one prefill."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from utaca.decoding.generate import Generation, generate
from utaca.decoding.peak import PeakMemory
from utaca.decoding.policies import parse
from utaca.decoding.trajectories import ask
from utaca.detection.detector import Detector
from utaca.memory import BlockMemory, prefill
from utaca.readers.load import Reader
from utaca.records import SCHEMAS, progress
from utaca.records.journal import Journal
from utaca.settings.schema import Point


class _Prefilled:
    """A document's memory, made when the first operating point that is not journaled yet asks for it."""

    def __init__(self, reader: Reader, text: str) -> None:
        self._reader, self._text, self._memory = reader, text, None
        self.seconds, self.peak = 0.0, 0

    def __call__(self) -> BlockMemory:
        if self._memory is None:
            started = time.perf_counter()
            with PeakMemory(self._reader.device) as peak:
                self._memory = prefill(self._reader, self._text)
            self.seconds, self.peak = time.perf_counter() - started, peak.bytes
        return self._memory


def decode_suite(
    reader: Reader,
    documents: Sequence[Mapping[str, Any]],
    suite: str,
    points: Sequence[Point],
    detector: Detector | None,
    journal: Journal,
    *,
    paired: bool = False,
) -> dict[str, tuple[pa.Table, pa.Table]]:
    """Answers and traces (schemas "answers" and "traces") by operating point.

    ``detector`` serves the adaptive points and may be None where there are none; ``paired`` runs their compact and
    expanded passes as one (:func:`utaca.decoding.generate.generate`).
    """
    answers: dict[str, list[pa.Table]] = {point.label: [] for point in points}
    traces: dict[str, list[pa.Table]] = {point.label: [] for point in points}
    for document in progress(documents, total=len(documents), unit="document", description=f"suite {suite}"):
        memory = _Prefilled(reader, document["text"])
        for point in points:
            pair = journal.table(
                f"{suite}/{point.label}/{document['id']}",
                lambda m=memory, p=point, d=document: _decode(reader, m, d, suite, p, detector, paired),
            )
            answers[point.label].append(pa.table(pair["answer"][:1].combine_chunks().flatten(), SCHEMAS["answers"]))
            traces[point.label].append(pa.table(pair["trace"].combine_chunks().flatten(), SCHEMAS["traces"]))
    return {p.label: (pa.concat_tables(answers[p.label]), pa.concat_tables(traces[p.label])) for p in points}


def _decode(
    reader: Reader,
    prefilled: _Prefilled,
    document: Mapping[str, Any],
    suite: str,
    point: Point,
    detector: Detector | None,
    paired: bool,
) -> pa.Table:
    """One answer as a table a journal can hold: a row a token, the answer beside the first."""
    memory = prefilled()
    text, longest = ask(reader, document)
    with PeakMemory(reader.device) as peak:
        generation = generate(
            memory,
            text,
            budget=point.budget,
            policy=parse(point.policy) if point.policy else None,
            detector=detector if point.policy else None,
            max_new_tokens=longest,
            paired=paired,
        )
    answer = {
        "document": document["id"],
        "suite": suite,
        "point": point.label,
        "method": point.method,
        "budget": point.budget,
        "policy": point.policy,
        "question": text,
        "text": generation.text,
        "n_context": len(memory),
        "n_generated": len(generation.trace),
        "finish": generation.finish,
        "selected": generation.mean_selected_tokens,
        "attended": generation.mean_attended_tokens,
        "selected_with_tentative": generation.mean_selected_with_tentative,
        "attended_with_tentative": generation.mean_attended_with_tentative,
        "rollbacks": generation.rollbacks,
        "prefill_seconds": prefilled.seconds,
        "decode_seconds": generation.seconds,
        "peak_bytes": max(prefilled.peak, peak.bytes),
    }
    trace = list(_trace_rows(document["id"], point.label, generation))
    return pa.table(
        {
            "answer": pa.array([answer] * len(trace), pa.struct(SCHEMAS["answers"])),
            "trace": pa.array(trace, pa.struct(SCHEMAS["traces"])),
        }
    )


def _trace_rows(document: str, point: str, generation: Generation) -> Iterator[dict[str, Any]]:
    for step, token in enumerate(generation.trace):
        first = token.tentative or token
        hallucinated, correct, unknown = token.gdm or (None, None, None)
        yield {
            "document": document,
            "point": point,
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
