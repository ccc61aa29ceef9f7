"""Where in an answer expansions fall: on words of the sentence, on a value's first token, or on the rest of a value.

A token belongs to a value if it overlaps the value by at least one character (:mod:`utaca.judging.alignment`). The
place is that of the accepted token; the token that was rolled back stood at the same step.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

import pandas as pd

from utaca.judging.alignment import align
from utaca.records import read, rows
from utaca.reporting.registry import Files
from utaca.reporting.results import name_in_words
from utaca.reporting.statistics import Draws, Row
from utaca.reporting.table import framed
from utaca.reporting.tables.tokens import pooled
from utaca.settings import schema

TEMPLATE, FIRST, REST = "template", "first", "rest"
PLACES = (TEMPLATE, FIRST, REST)
"""The words around a value, the value's first token, and its further tokens."""


def places(files: Files, config: schema.Config) -> pd.DataFrame:
    """Make the table of the places of expansions: one row for each point that expands, its detector's seeds pooled."""
    labels = config.shown(schema.TEST)
    documents = {row["id"]: row for row in rows(files["test_documents"], "documents", ["id", "person", "facts"])}
    steps = read(files["test_traces"], "traces", ["document", "point", "step", "text", "rolled_back"]).to_pandas()
    steps = steps[steps["point"].isin(labels)].sort_values(["document", "point", "step"], kind="stable")
    steps["place"] = [
        place
        for (name, _), answer in steps.groupby(["document", "point"], sort=False)
        for place in of_tokens(list(answer["text"]), documents[name])
    ]
    steps["number"], names = pd.factorize(steps["document"], sort=True)
    draws = Draws.of(len(names), config, "places")
    table: list[Row] = []
    for point, of_labels in pooled(labels, config):
        tokens = steps[steps["point"].isin(of_labels)]
        expanded = tokens["rolled_back"].to_numpy(dtype=bool)
        if not expanded.any():
            continue
        number = tokens["number"].to_numpy()
        row: Row = {
            "name": name_in_words(point, config),
            "n_tokens": len(tokens),
            "n_expanded": int(expanded.sum()),
            "n_documents": len(names),
        }
        for place in PLACES:
            is_here = (tokens["place"] == place).to_numpy()
            draws.mean_of(expanded.astype(float), number, is_here).put(row, f"{place}_expanded_pct", 100)
            draws.mean_of(is_here.astype(float), number, expanded).put(row, f"{place}_share_pct", 100)
        table.append(row)
    return framed(table, len(names))


def of_tokens(texts: Sequence[str], document: Mapping[str, Any]) -> list[str]:
    """The place of each token of an answer to the question about all facts of a ``document`` (schema "documents").

    ``texts`` are the answer's tokens. A token without text, which is a part of a character, has the place of the next
    token with text.
    """
    attributes = [fact["attribute"] for fact in document["facts"]]
    found = [TEMPLATE] * len(texts)
    ends = list(accumulate(map(len, texts)))
    for part in align("".join(texts), document["person"], attributes).parts:
        if part.end <= part.start:
            continue
        # The token with the part's first character, and the one behind its last character.
        first = bisect_right(ends, part.start)
        behind = bisect_right(ends, part.end - 1) + 1
        while first and not texts[first - 1]:
            first -= 1
        found[first:behind] = [FIRST] + [REST] * (behind - first - 1)
    return found
