"""CAS beside string match: the weighted rank correlation and its tables."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from configs import decoding, point
from hypothesis import given
from hypothesis import strategies as st
from test_generation_tables import FIXED, config, made  # noqa: F401

from utaca.records import write
from utaca.reporting import statistics
from utaca.reporting.table import Table
from utaca.reporting.tables import scorers

VALUES = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4), st.integers(0, 3)), min_size=3, max_size=30)


@given(VALUES)
def test_weighted_spearman_is_that_of_repeated_values(drawn: list[tuple[int, int, int]]) -> None:
    x, y, weights = (np.array(column, dtype=float) for column in zip(*drawn, strict=True))
    repeated = pd.DataFrame({"x": np.repeat(x, weights.astype(int)), "y": np.repeat(y, weights.astype(int))})
    ranks = repeated.rank()
    varies = (ranks.nunique() > 1).all()
    expected = np.corrcoef(ranks["x"], ranks["y"])[0, 1] if varies else np.nan
    found = statistics.correlation(statistics.ranks(x, weights), statistics.ranks(y, weights), weights)
    assert found == pytest.approx(expected, nan_ok=True)


def test_scorers_table(tmp_path, config) -> None:  # noqa: F811
    _, scores = made(tmp_path, FIXED)
    frame = pd.concat([pd.read_parquet(path) for path in scores])
    frame.loc[frame.index[:5], "string_match"] = 1.0
    frame["failure"] = None
    records = frame.to_dict("records")
    records[0]["cas"] = None
    path = tmp_path / "all.parquet"
    write(path, "scores", records)
    table = scorers.scorers({"judged": [path]}, config).set_index("point")
    assert list(table.index) == ["all", "infllm-K8", "infllm-K16", "infllm-K32"]
    judged = pd.DataFrame(records[1:])
    ranks = judged[["cas", "string_match"]].astype(float).rank()
    assert table.loc["all", "spearman"] == pytest.approx(ranks.corr().iloc[0, 1])
    assert table.loc["all", "n_failed_judgements"] == 1
    apart = judged["cas"].astype(float) - judged["string_match"]
    assert table.loc["all", "cas_only_pct"] == pytest.approx(100 * (apart >= 0.5).mean())
    assert table.loc["all", "string_only_pct"] == pytest.approx(100 * (apart <= -0.5).mean())
    assert table.loc["all", "spearman_low"] < table.loc["all", "spearman_high"]


def test_disagreements_are_the_widest_and_shown_once(tmp_path, config) -> None:  # noqa: F811
    def row(document: str, said: str, cas: float | None, string: float, label: str = "p") -> dict:
        return {
            "document": document, "suite": "test", "point": label, "attribute": "birth date", "prediction": said,
            "reference": "June 3, 1888", "cas": cas, "string_match": string, "reason": "", "failure": None,
        }  # fmt: skip

    path = tmp_path / "scores.parquet"
    given_rows = [
        row("a", "1888-06-03", 1.0, 0.0),
        row("b", "1888-06-03", 1.0, 0.0),
        row("c 1", "June 3, 1889", 0.0, 0.67, "infllm-K8"),
    ]
    write(path, "scores", [*given_rows, row("d", "June 3, 1888", 1.0, 1.0), row("e", "?", None, 0.0)])
    config = replace(config, **decoding(test=[point("infllm", 8)]))
    table = Table.of("disagreements", scorers.disagreements({"judged": [path]}, config), config)
    header, cells = table.cells()
    linked = [row[header.index("Document")] for row in cells]
    assert linked == ["a", "[c 1](../traces/test.html#c%201/infllm-K8)"], "where the viewer has it"
    assert list(table.frame["prediction"]) == ["1888-06-03", "June 3, 1889"]
    assert list(table.frame["n_answers"]) == [2, 1]
    assert list(table.frame["document"]) == ["a", "c 1"]
