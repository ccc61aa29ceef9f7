"""Tables of uncertainty detection on the fixed compact-budget traces."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from utaca.biographies.evidence import original
from utaca.detection.training.metrics import calibration_error, detection_metrics
from utaca.errors import UserError
from utaca.records import check_source, read
from utaca.records.schemas import CORRECT
from utaca.reporting import paper, statistics
from utaca.reporting.points import points_shown
from utaca.reporting.registry import Files
from utaca.reporting.statistics import Draws, Estimate, Row, spread
from utaca.reporting.table import NAN, NOT_RUN, framed
from utaca.settings import schema

DETECTORS = {
    "top10_std": "Top-10 Std",
    "logit_margin": "Logit Margin",
    "evidential_mass": "Evidential Mass",
    "evidential": "Evidential",
    "utaca": "UT-ACA",
    "two_way": "UT-ACA, two-way",
}
"""The paper's rows; others go by the name of their variant."""
COMPARED = {"auroc": ("auroc", 1), "balanced_accuracy": ("balanced_accuracy_pct", 100)}
"""Metrics by which detectors are held against each other: their columns and factors."""
_PERCENT = ("macc", "recall_n", "recall_p", "balanced_accuracy", "f1_n", "share_uncertain")
_SHARES_OF_ONE = ("auroc", "auprc", "ece")


class Run(NamedTuple):
    """A detector of one seed on the tokens of :class:`Detections`."""

    uncertain: np.ndarray  # [n] bool
    score: np.ndarray  # [n]
    p: np.ndarray | None  # [n] probability of the uncertain class


@dataclass(frozen=True)
class Detections:
    """Verdicts of all detectors on the same tokens; a name has a run a seed."""

    documents: tuple[str, ...]
    document: np.ndarray  # [n], place among the documents
    label: np.ndarray  # [n], -1 where the labeller failed
    value: np.ndarray  # [n] bool: a token of a value, not of the template
    runs: dict[str, list[Run]]

    @cached_property
    def values(self) -> Detections:
        """The verdicts on tokens of values."""
        chosen = self.value
        runs = {
            name: [Run(*(None if x is None else x[chosen] for x in run)) for run in each]
            for name, each in self.runs.items()
        }
        return Detections(self.documents, self.document[chosen], self.label[chosen], chosen[chosen], runs)

    @property
    def names(self) -> list[str]:
        """The paper's detectors, be they in the file or not, then the others."""
        return list(dict.fromkeys([*DETECTORS, *self.runs]))

    @property
    def seeds(self) -> str:
        """How many seeds the detectors have."""
        return f"{max(map(len, self.runs.values()))} detector seeds"


def title(name: str) -> str:
    """How a detector's row is called."""
    base = name.removesuffix("_youden")
    return DETECTORS.get(base, base) + (", thresholded" if base != name else "")


def load(path: str | Path) -> Detections:
    """Read a file of schema "detections"; :class:`UserError` where it is empty or detectors saw different tokens."""
    data = read(path, "detections").to_pandas()
    if data.empty:
        raise UserError(f"{path} holds no verdicts; make it again with at least one test document")
    data["label"] = data["label"].fillna(-1).astype(int)
    identity = ["document", "budget", "step", "label", "value"]
    runs: dict[str, list[Run]] = {}
    first: pd.DataFrame | None = None
    for (name, seed), rows in data.groupby(["detector", "seed"], sort=False):
        rows = rows.sort_values(["document", "budget", "step"], kind="stable").reset_index(drop=True)
        first = rows if first is None else first
        if not rows[identity].equals(first[identity]):
            raise UserError(f"{path} has verdicts of {name}, seed {seed}, on other tokens; remove it, make it again")
        p = (rows["p_hallucinated"] + rows["p_unknown"]).to_numpy(dtype=np.float64)
        run = Run(rows["uncertain"].to_numpy(bool), rows["score"].to_numpy(), None if np.isnan(p).any() else p)
        runs.setdefault(str(name), []).append(run)
    assert first is not None
    # A biography's documents with more and less of its evidence are resampled together.
    people = first["document"].map(original)
    documents = tuple(sorted(people.unique()))
    document = np.searchsorted(np.asarray(documents, dtype=object), people.to_numpy(dtype=object))
    value = first["value"].to_numpy(bool)
    return Detections(documents, document, first["label"].to_numpy(), value, runs)


def loaded(files: Files) -> Detections:
    """The verdicts on the test split's fixed traces; raises :class:`UserError` if they are of another run's files."""
    (path,) = files["detections"]
    check_source(path, files["detected_from"])
    return load(path)


def detection(files: Files, config: schema.Config) -> pd.DataFrame:
    """Figures of every detector and baseline on the test split's trajectories."""
    data = loaded(files)
    draws = Draws.of(len(data.documents), config, "detection")
    results = {name: metrics_of(data, name, draws) for name in data.names}
    main, drawn_main = results[config.detector]
    rows = []
    for name, (row, resampled) in results.items():
        for metric, (column, factor) in COMPARED.items():
            difference, row[f"{column}_p"] = Estimate(NAN), NAN
            if resampled and name != config.detector:
                drawn = factor * (drawn_main[metric] - resampled[metric])
                difference = statistics.interval(main[column] - row[column], drawn)
                row[f"{column}_p"] = statistics.p_value(drawn)
            spread(row, f"{column}_difference", difference)
        rows.append(row | paper.beside(paper.Detection, paper.tables().detection.get(name)))
    for column, _ in COMPARED.values():
        statistics.adjust(rows, f"{column}_p")
    return framed(rows, len(data.documents), data.seeds, main=title(config.detector))


def ablation(files: Files, config: schema.Config) -> pd.DataFrame:
    """Figures of the detector with some of its components, and CAS of the answers that it triggers."""
    data, main = loaded(files), config.detectors[config.detector]
    draws = Draws.of(len(data.documents), config, "detection")
    points = points_shown(files, config, "test") if files["test_answers"] else []
    adaptive = [point for point in points if point.key[0] == "utaca"]
    # CAS is that of the operating point under which most variants answer.
    keys = [point.key for point in adaptive]
    key = max(keys, key=keys.count, default=None)
    answered = {point.detector: point for point in adaptive if point.key == key}
    rows = []
    for (margin, embedding, lstm), printed in paper.tables().ablation.items():
        wanted = replace(main, signals=["margin"] if margin else [], embedding=embedding, lstm=lstm)
        name = next((name for name, settings in config.detectors.items() if settings == wanted), "")
        row = {"margin": margin, "embedding": embedding, "lstm": lstm} | metrics_of(data, name, draws)[0]
        row |= {"detector": title(name) or NOT_RUN, "mtokens": NAN, "generation_seeds": 0}
        spread(row, "cas_pct", Estimate(NAN))
        if point := answered.get(name):
            row["generation_seeds"] = len(point.seeds)
            point.put(row, "mtokens")
            point.put(row, "cas_pct", draws=Draws.of(len(point.documents), config, "test"))
        rows.append(row | paper.beside(paper.Ablation, printed))
    trigger = ""
    if key:
        trigger = f"mTokens and CAS: as the trigger of K_max={key[1]}, {key[2].capitalize()}, where it was run as one."
    words = {"main": title(config.detector), "trigger": trigger}
    return framed(rows, len(data.documents), data.seeds, **words)


def _about(data: Detections, name: str) -> Row:
    runs = data.runs.get(name, [])
    return {"detector": title(name), "run": bool(runs), "seeds": len(runs)}


def metrics_of(data: Detections, name: str, draws: Draws) -> tuple[Row, dict[str, np.ndarray]]:
    """A detector's figures, means over seeds with interval and spread, of all tokens and (``value_*``) of values alone.

    Gives too what :func:`measured` resamples. Tokens without a label are counted and left out of the figures.
    """
    (metrics, resampled), on_values = measured(data, name, draws), measured(data.values, name, draws)
    row = _about(data, name) | summary(metrics, resampled)
    row |= {f"value_{column}": x for column, x in summary(*on_values).items()}
    ran = bool(metrics)
    return row | {
        "n_value_tokens": on_values[0][0]["n_tokens"] if ran else 0,
        "n_tokens": ran * int((data.label >= 0).sum()),
        "n_documents": ran * len(data.documents),
        "n_failed_labels": ran * int((data.label < 0).sum()),
    }, resampled


def measured(data: Detections, name: str, draws: Draws) -> tuple[list[dict[str, float | int]], dict[str, np.ndarray]]:
    """All metrics of each run of a detector, calibration included, and most under every resample of documents and seeds
    [count]; nothing where it was not run."""
    runs = data.runs.get(name, [])
    metrics = [
        detection_metrics(run.uncertain, data.label, run.score)
        | {"ece": NAN if run.p is None else calibration_error(run.p, data.label)}
        for run in runs
    ]
    drawn = [resampled_run(data, run, draws.documents) for run in runs]
    return metrics, {metric: draws.mean(name, [one[metric] for one in drawn]) for metric in (drawn[0] if drawn else ())}


def summary(metrics: Sequence[Mapping[str, float]], resampled: Mapping[str, np.ndarray]) -> Row:
    """Mean and spread of the ``metrics`` of a row's runs, with limits where they are ``resampled``."""
    row: Row = {}
    for metric in (*_PERCENT, *_SHARES_OF_ONE):
        factor, column = (1, metric) if metric in _SHARES_OF_ONE else (100, f"{metric}_pct")
        mean, sd = statistics.mean_sd([m[metric] for m in metrics]) if metrics else (NAN, NAN)
        limits = statistics.interval(mean, resampled[metric]) if metric in resampled else Estimate(mean)
        row[column], row[f"{column}_sd"] = factor * mean, factor * sd
        spread(row, column, limits, factor)
    return row


def resampled_run(data: Detections, run: Run, counts: np.ndarray) -> dict[str, np.ndarray]:
    """Figures of one run under every resample of documents [count], by metric."""
    known = data.label >= 0
    document, negative = data.document[known], data.label[known] != CORRECT

    def by_document(selected: np.ndarray) -> np.ndarray:
        return np.bincount(document[selected], minlength=len(data.documents)).astype(np.float64)

    n, p, flagged = by_document(negative), by_document(~negative), run.uncertain[known]
    hits, alarms = by_document(flagged & negative), by_document(flagged & ~negative)
    recall_n, recall_p = statistics.ratio(hits, n, counts), statistics.ratio(p - alarms, p, counts)
    return {
        "macc": statistics.ratio(hits + p - alarms, n + p, counts),
        "recall_n": recall_n,
        "recall_p": recall_p,
        "balanced_accuracy": (recall_n + recall_p) / 2,
        "f1_n": statistics.ratio(2 * hits, hits + alarms + n, counts),
        "share_uncertain": statistics.ratio(n, n + p, counts),
        "auroc": statistics.auroc(run.score[known], negative, document, counts),
    }
