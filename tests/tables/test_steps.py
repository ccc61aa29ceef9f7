"""Expansions by step, from traces made for the purpose."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from configs import decoding, point, reference_config

from utaca.records import SCHEMAS, write
from utaca.reporting.tables.steps import FROM, steps
from utaca.settings import schema

POINTS = [point("infllm", 4), *(point("utaca", 8, "sub.2", seed=seed, seeds=2) for seed in (0, 1))]


def test_expansions_are_counted_by_span_and_seeds_are_one_row(tmp_path: Path) -> None:
    rng, rows = np.random.default_rng(0), []
    for of in POINTS:
        for document, length in (("a", 5), ("b", 30), ("c", 100)):
            rows += [
                dict.fromkeys(SCHEMAS["traces"].names)
                | {"document": document, "point": of.label, "step": step, "rolled_back": bool(rng.random() < 0.3)}
                for step in range(length)
            ]
    write(tmp_path / "one.parquet", "traces", rows[:50])
    write(tmp_path / "two.parquet", "traces", rows[50:])
    config = reference_config(
        scale=schema.Scale(name="smoke", detector_steps=1, bootstrap=300),
        detectors={"utaca": schema.Detector()},
        **decoding(test=POINTS),
    )
    files = [tmp_path / "one.parquet", tmp_path / "two.parquet"]
    (row,) = steps({"test_traces": files}, config).to_dict("records")
    frame = pd.DataFrame(rows)
    own = frame[frame["point"] != POINTS[0].label]
    assert row["seeds"] == 2
    for first, last in zip(FROM, (*FROM[1:], 1000), strict=True):
        span = own[(own["step"] >= first) & (own["step"] < last)]
        assert row[f"from_{first}_pct"] == pytest.approx(100 * span["rolled_back"].mean())
    assert row["from_0_pct_low"] <= row["from_0_pct"] <= row["from_0_pct_high"]
