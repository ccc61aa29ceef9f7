"""What figures of single tokens draw: how well detectors find wrong ones, which classes they have, where K expands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from utaca.detection.training.metrics import calibration_bins, calibration_error, detection_metrics, threshold_curve
from utaca.records import read
from utaca.records.schemas import CORRECT, HALLUCINATED, UNKNOWN
from utaca.reporting.registry import Files
from utaca.reporting.results import Identity, PointResult, name_in_words, of_config, variant_in_words
from utaca.reporting.statistics import NAN, Draws, Row
from utaca.reporting.table import framed
from utaca.reporting.tables.detection import DETECTORS, Detections, Run, budget_masks, loaded, title
from utaca.settings import schema

CLASSES = {"hallucinated": HALLUCINATED, "correct": CORRECT, "unknown": UNKNOWN}
"""The labels of tokens, by the names that figures show."""
TENTHS = 10
"""Number of equal parts of an answer, to show where it expands its budget."""
_FALSE_ALARMS = np.linspace(0, 1, 201) ** 2
"""Rates of false alarms at which ROC curves are drawn; they are closest where the curves are steep."""


def detector_curves(files: Files, config: schema.Config) -> pd.DataFrame:
    """Make the points of the ROC curves of the paper's detectors, and of the config's reliability diagram.

    Column ``panel`` says what a row is. A row of "roc" has a rate of false alarms ``x`` and the recall of uncertain
    tokens ``y`` at it, the mean over seeds; ``area`` is the mean AUROC. The row of "decision" has both rates of the
    detector's own decisions. A row of "reliability" is a bin of one ``seed``: mean p_N ``x``, share of uncertain tokens
    ``y``, number of tokens ``n``; ``area`` is that seed's ECE.
    """
    data = loaded(files)
    rows: list[Row] = []
    for name in dict.fromkeys([config.detector, *DETECTORS]):
        if name in data.runs:
            rows += _roc(data, name)
    rows += _reliability(data, config.detector)
    frame = pd.DataFrame(rows, columns=["panel", "detector", "is_main", "seed", "x", "y", "n", "area"])
    frame["is_main"] = frame["detector"] == title(config.detector)
    return framed(frame.assign(n_documents=len(data.documents)), len(data.documents), data.seeds)


def _roc(data: Detections, name: str) -> list[Row]:
    """The rows of a detector's ROC curve and of its decisions, means over its seeds; none without both classes."""
    metrics = [detection_metrics(run.uncertain, data.label, run.score) for run in data.runs[name]]
    area = float(np.mean([of_run["auroc"] for of_run in metrics]))
    if np.isnan(area):
        return []
    recalls = np.mean([_recalls(run, data.label) for run in data.runs[name]], axis=0)
    shown = {"detector": title(name), "seed": NAN, "n": NAN, "area": area}
    # Each curve begins without any alarm, below what the highest score flags.
    rates = [(0.0, 0.0), *zip(_FALSE_ALARMS, recalls, strict=True)]
    rows = [shown | {"panel": "roc", "x": float(x), "y": float(y)} for x, y in rates]
    false_alarms = 1 - float(np.mean([of_run["recall_p"] for of_run in metrics]))
    recall = float(np.mean([of_run["recall_n"] for of_run in metrics]))
    return [*rows, shown | {"panel": "decision", "x": false_alarms, "y": recall}]


def _recalls(run: Run, label: np.ndarray) -> np.ndarray:
    """The recall of uncertain tokens at each of the rates of :data:`_FALSE_ALARMS`, by thresholds on a run's score."""
    labelled = label >= 0
    is_uncertain = label[labelled] != CORRECT
    _, hits, false_alarms = threshold_curve(run.score[labelled].astype(np.float64), is_uncertain)
    n_uncertain = int(is_uncertain.sum())
    x = np.append(0, false_alarms) / (len(is_uncertain) - n_uncertain)
    # Of several recalls at one rate, `interp` takes the last and highest.
    return np.interp(_FALSE_ALARMS, x, np.append(0, hits) / n_uncertain)


def _reliability(data: Detections, name: str) -> list[Row]:
    """The rows of a detector's reliability diagram: its ten bins under each seed; none without probabilities."""
    rows: list[Row] = []
    for seed, run in enumerate(data.runs.get(name, ())):
        if run.p is None:
            continue
        area = calibration_error(run.p, data.label)
        for n_tokens, mean_p, share in zip(*calibration_bins(run.p, data.label), strict=True):
            row = {"panel": "reliability", "detector": title(name), "seed": seed, "area": area}
            rows.append(row | {"x": float(mean_p), "y": float(share), "n": int(n_tokens)})
    return rows


def class_shares(files: Files, config: schema.Config) -> pd.DataFrame:
    """Make the shares of the classes among the labelled tokens, by the budget that they were decoded under."""
    data = loaded(files)
    rows: list[Row] = []
    for budget, mask in budget_masks(data, config).items():
        label = data.label[mask & (data.label >= 0)]
        row: Row = {"budget": budget, "n_tokens": len(label), "n_documents": len(data.documents)}
        for name, number in CLASSES.items():
            row[f"{name}_pct"] = 100 * float((label == number).mean()) if len(label) else NAN
        rows.append(row)
    return framed(rows, len(data.documents))


def expansions(files: Files, config: schema.Config) -> pd.DataFrame:
    """Make the shares of tokens that adaptive points of the test split expand, by tenth of the answer.

    ``position`` counts tenths from 1. Points that differ only in the detector's seed are one, and a point that expands
    nothing is left out.
    """
    labels = config.shown(schema.TEST)
    steps = read(files["test_traces"], "traces", ["document", "point", "step", "rolled_back"]).to_pandas()
    steps = steps[steps["point"].isin(labels)]
    length = steps.groupby(["document", "point"])["step"].transform("max") + 1
    steps["position"] = 1 + TENTHS * steps["step"] // length
    steps["place"], documents = pd.factorize(steps["document"], sort=True)
    draws = Draws.of(len(documents), config, "expansions")
    rows: list[Row] = []
    for point, of_labels in pooled(labels, config):
        own = steps[steps["point"].isin(of_labels)]
        if not own["rolled_back"].any():
            continue
        shown = {"name": name_in_words(point, config), "family": point.family, "n_documents": len(documents)}
        shown["variant"] = variant_in_words(point, config)
        for position, tokens in own.groupby("position"):
            expanded = tokens["rolled_back"].to_numpy(dtype=np.float64)
            row = shown | {"position": position, "n_tokens": len(tokens), "n_expanded": int(expanded.sum())}
            draws.mean_of(expanded, tokens["place"].to_numpy()).put(row, "share_pct", 100)
            rows.append(row)
    columns = ["name", "family", "variant", "position", "n_tokens", "n_expanded", "n_documents"]
    columns += ["share_pct", "share_pct_low", "share_pct_high"]
    return framed(pd.DataFrame(rows, columns=columns), len(documents))


def pooled(labels: Sequence[str], config: schema.Config) -> list[tuple[PointResult, list[str]]]:
    """The adaptive points behind ``labels``, without results, each with its labels, one for each seed."""
    by_identity: dict[Identity, list[str]] = {}
    for label in labels:
        point = of_config(config.operating[label], config)
        if point.trigger:
            by_identity.setdefault(point.identity, []).append(label)
    pooled = []
    for of_labels in by_identity.values():
        points = [of_config(config.operating[label], config) for label in of_labels]
        seeds = [seed for point in points for seed in point.seeds]
        pooled.append((replace(points[0], seeds=tuple(sorted(seeds))), of_labels))
    return pooled
