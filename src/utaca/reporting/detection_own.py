"""The table of uncertainty detection on the trajectories that the detectors made themselves.

On fixed traces every detector sees the same tokens; along its own answers it sees what its decisions led to, and judges
only the tokens that are tried below K_max.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from utaca.detection.detector import distrust
from utaca.errors import UserError
from utaca.records import check_source, read
from utaca.records.schemas import TEMPLATE
from utaca.records.trace_labels import KIND, TRACE_LABELS
from utaca.reporting import statistics
from utaca.reporting.detection import COMPARED, Detections, Run, figures, load_checked
from utaca.reporting.registry import Files
from utaca.reporting.statistics import Draws, Estimate
from utaca.reporting.tables import NAN, Row, Table, build_table, spread
from utaca.settings import schema


def detection_own(labels: Sequence[str | Path], fixed: Detections, config: schema.Config) -> Table:
    """Detection along the answers of the operating points with a detector, and of the same detectors on ``fixed``.

    ``labels`` are files of kind "trace_labels"; a point that suites share counts once, and one that ran
    with several detector seeds is one row, a mean over them. ``*_difference`` is a row's figure minus that of the same
    detectors on the fixed traces, paired by document; those of validation chose the detectors and are not shown. Raises
    :class:`UserError` where there are no tokens, or they are of other documents than the fixed traces.
    """
    data = _read(labels, config)
    rows: list[Row] = []
    beside: dict[tuple[str, tuple[int, ...]], tuple[Row, dict[str, np.ndarray]]] = {}
    for (split, budget, policy, detector), own in data.groupby(["split", "budget", "policy", "detector"], sort=False):
        documents = fixed.documents if split == "test" else tuple(sorted(set(data["document"][data["split"] == split])))
        if other := sorted(set(own["document"]) - set(documents)):
            raise UserError(
                f"document {other[0]} has answers of detector {detector}, but no fixed traces that it was measured on; "
                "make the detections again"
            )
        purpose = f"detection_own:{split}"
        draws = Draws.of(len(documents), config, purpose)
        by_seed = {int(seed): _detections(one, documents, config) for seed, one in own.groupby("seed")}
        about: Row = {"detector": fixed.title(detector), "split": split, "run": True, "seeds": len(by_seed)}
        key = detector, tuple(by_seed)
        if split == "test" and key not in beside:
            alone = [replace(fixed, runs={detector: [fixed.runs[detector][seed]]}) for seed in by_seed]
            beside[key] = figures(alone, detector, draws)
            budgets = ", ".join(map(str, config.scale.test.budgets))
            rows.append({**about, "traces": f"fixed, K={budgets}", **beside[key][0]})
        row, resampled = figures(list(by_seed.values()), detector, draws)
        row = {**about, "traces": f"own, K_max={budget}, {policy.capitalize()}", **row}
        for metric, (column, factor) in COMPARED.items():
            difference = Estimate(NAN)
            if split == "test":
                reference, drawn = beside[key]
                difference = statistics.interval(
                    row[column] - reference[column], factor * (resampled[metric] - drawn[metric])
                )
            spread(row, f"{column}_difference", difference)
        rows.append(row | {"n_replaced": int(own["replaced"].sum())})
    frame = pd.DataFrame(rows)
    frame["n_replaced"] = frame["n_replaced"].fillna(0).astype(int)
    n_documents = int(data.groupby("split")["document"].nunique().sum())
    return build_table(
        "detection_own", frame, config, n_documents, f"detector seed {config.detector_seed} where there is one"
    )


def _read(labels: Sequence[str | Path], config: schema.Config) -> pd.DataFrame:
    """Labelled tokens of all suites with their split; those of a point that several share once."""
    table = pd.concat([read(path, KIND, TRACE_LABELS.names).to_pandas() for path in labels], ignore_index=True)
    if table.empty:
        raise UserError(f"{labels[0]} holds no judged token; make it again with at least one document")
    table["split"] = table["suite"].map({name: suite.split for name, suite in config.suites.items()})
    table["label"] = table["label"].fillna(-1).astype(int)
    return table.drop_duplicates(["split", "budget", "policy", "detector", "seed", "document", "step"])


def _detections(tokens: pd.DataFrame, documents: tuple[str, ...], config: schema.Config) -> Detections:
    """The tokens that one detector judged, and its verdicts on them."""
    detector = str(tokens["detector"].iloc[0])
    p = tokens[["p_hallucinated", "p_correct", "p_unknown"]].to_numpy(np.float32, copy=True)
    score = distrust(torch.from_numpy(p), config.detectors[detector].decision).numpy()
    run = Run(tokens["uncertain"].to_numpy(bool), score, (p[:, 0] + p[:, 2]).astype(np.float64))
    document = np.searchsorted(np.asarray(documents, dtype=object), tokens["document"].to_numpy(dtype=object))
    value = (tokens["source"] != TEMPLATE).to_numpy(bool)
    return Detections(documents, document, tokens["label"].to_numpy(), value, None, {detector: [run]})


def _own(files: Files, config: schema.Config) -> Table:
    for path in files["trace_labels"]:
        check_source(path, files[f"{Path(path).stem}_decoded"])
    return detection_own(files["trace_labels"], load_checked(files["detections"][0], files["detected_from"]), config)


MAKERS = {"detection_own": _own}
