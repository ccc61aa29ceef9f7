"""Suites of the context-management methods: their answers at operating points, in the tables that all suites have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import pyarrow as pa

from utaca.decoding.generate import Generation, NotFiniteError
from utaca.decoding.suites import Answered, Decoded, packed, unpacked
from utaca.decoding.trajectories import ask
from utaca.errors import UserError
from utaca.methods.answers import Answer, Answers
from utaca.methods.method import Method
from utaca.methods.registry import build
from utaca.readers.load import Reader
from utaca.records import progress
from utaca.records.fingerprint import fingerprint
from utaca.records.journal import Journal
from utaca.settings.checks import digest
from utaca.settings.schema import NOT_RUN, Point


def method_of(point: Point, methods: Mapping[str, Mapping[str, Any]]) -> Method:
    """The method of an operating point: its settings of the config, and the point's budget where it names one.

    Raises :class:`UserError` for settings that the method does not know and budgets that it cannot meet.
    """
    return build(point.method, {**methods[point.method], **({"budget": point.budget} if point.budget else {})})


def lacking(what: str) -> Answer:
    """The answer of a method that was not run, and why."""
    return Answer(Generation(1, finish=NOT_RUN + what), 0, 0, float("nan"), 0)


def decode_methods(
    reader: Reader,
    documents: Sequence[Mapping[str, Any]],
    suites: Mapping[str, Sequence[Point]],
    methods: Mapping[str, Mapping[str, Any]],
    journal: Journal,
) -> Decoded:
    """Answers and traces of every point of the suites, all of them of methods (schemas of the same names).

    Methods that can share a reading of the document follow each other. An answer that a machine's memory does not
    suffice for, or whose method lacks something (:meth:`Method.missing`) or cannot do with the document, is a row too,
    without tokens; its ``finish`` says so. Raises :class:`UserError` where a method cannot work with this reader.
    """
    points = {(suite, point.label): point for suite, own in suites.items() for point in own}
    made = {key: method_of(point, methods) for key, point in points.items()}
    for method in made.values():
        if not method.missing():
            method.check(reader)
    readings = list(dict.fromkeys(method.reading for method in made.values()))
    order = sorted(points, key=lambda key: readings.index(made[key].reading))
    identities = {method: fingerprint(digest(asdict(method)), method.files()) for method in made.values()}
    found: dict[tuple[str, str], list[Answered]] = {key: [] for key in points}
    name = f"suites {', '.join(suites)}"
    for document in progress(documents, total=len(documents), unit="document", description=name):
        answers = Answers(reader, document["text"])
        question, longest = ask(reader, document)
        for key in order:
            point, method = points[key], made[key]

            def decode(point: Point = point, method: Method = method) -> pa.Table:
                try:
                    lacks = method.missing()
                    answer = lacking(lacks) if lacks else answers.answer(method, question, longest)  # noqa: B023
                except NotFiniteError:
                    raise
                except UserError as error:
                    # What a method cannot do with this document, as LLMLingua-2 with a budget far below its length.
                    answer = lacking(str(error))
                return packed(
                    answer.generation,
                    point,
                    document=document["id"],  # noqa: B023
                    question=question,  # noqa: B023
                    n_context=answer.n_context,
                    dropped=answer.dropped,
                    prefill_seconds=answer.prefill_seconds,
                    peak_bytes=answer.peak_bytes,
                )

            item = f"answer/{method.name}/{identities[method]}/{document['id']}"
            suite, label = key
            about = {"suite": suite, "point": label, "budget": point.budget}
            # What is missing now may be there next time.
            pair = decode() if method.missing() else journal.table(item, decode)
            found[key].append(unpacked(pair, about))
    return Decoded(
        {key: pa.concat_tables(one.answer for one in own) for key, own in found.items()},
        {key: pa.concat_tables(one.trace for one in own) for key, own in found.items()},
    )
