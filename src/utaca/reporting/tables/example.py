"""One answer of the main point, token by token, for the reader of a report who has not seen any answer yet."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from utaca.records import read, rows
from utaca.reporting.registry import Files
from utaca.reporting.results import label_in_words
from utaca.reporting.statistics import Row
from utaca.reporting.table import framed
from utaca.reporting.tables.tokens import CLASSES
from utaca.settings import schema

_TRACE = ["document", "point", "step", "text", "k", "rolled_back"]


def example(files: Files, config: schema.Config) -> pd.DataFrame:
    """Make the table of the tokens of one answer: the budget of each, the token it replaced, and its label.

    The answer is the one whose CAS is nearest to the mean of the point, of those with an expansion if there are any.
    """
    point = config.main_point
    label = point.label
    scores = read(files["test_scores"], "scores", ["document", "point", "cas"]).to_pandas()
    cas = scores[scores["point"] == label].astype({"cas": float}).groupby("document")["cas"].mean()
    traces = [row for row in rows(files["test_traces"], "traces", _TRACE) if row["point"] == label]
    document = chosen(cas, {row["document"] for row in traces if row["rolled_back"]})
    verdicts = {
        row["step"]: row
        for row in rows(files["trace_labels"], "trace_labels")
        if row["point"] == label and row["document"] == document
    }
    steps = sorted((row for row in traces if row["document"] == document), key=lambda row: row["step"])
    (question,) = {
        row["question"]
        for row in rows(files["test_answers"], "answers", ["document", "point", "question"])
        if row["point"] == label and row["document"] == document
    }
    lead = f"Question about document {document}: {question}"
    return framed(
        _tokens(steps, verdicts),
        1,
        lead=" ".join(lead.split()),
        point=label_in_words(label, config),
        cas=_percent(cas[document]),
        mean=_percent(cas.mean()),
    )


def chosen(cas: pd.Series, expanding: set[str]) -> str:
    """The document whose mean CAS is nearest to the mean over documents; ties go to the first id.

    ``cas`` has each document's mean CAS, by id. Only documents in ``expanding`` can be chosen, if that has any.
    """
    distance = (cas - cas.mean()).abs().fillna(np.inf).sort_index()
    among = [document for document in distance.index if document in expanding] or list(distance.index)
    return str(distance[among].idxmin())


def _tokens(steps: Sequence[Mapping[str, Any]], verdicts: Mapping[int, Mapping[str, Any]]) -> list[Row]:
    """The rows of an answer's ``steps`` (schema "traces"); ``verdicts`` are rows of schema "trace_labels" by step."""
    names = {number: name for name, number in CLASSES.items()}
    table: list[Row] = []
    for step in steps:
        verdict = verdicts.get(step["step"], {})
        table.append(
            {
                "step": step["step"],
                "piece": step["text"],
                "k": step["k"],
                "first_token": verdict.get("text", "") if step["rolled_back"] else "",
                "expanded": step["rolled_back"],
                "label": names.get(verdict.get("accepted_label"), ""),
            }
        )
    return table


def _percent(share: float) -> str:
    """A share in percent, in words."""
    return "not judged" if np.isnan(share) else f"{100 * share:.0f} %"
