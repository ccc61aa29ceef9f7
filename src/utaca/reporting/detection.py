"""Tables of uncertainty detection on the fixed compact-budget traces of the test split."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from utaca.biographies.evidence import original
from utaca.detection.training.metrics import calibration_error, caught, detection_metrics, reliability
from utaca.errors import UserError
from utaca.records import check_source, read
from utaca.records.schemas import CORRECT, HALLUCINATED, UNKNOWN
from utaca.reporting import paper, statistics
from utaca.reporting.points import CAS, MTOKENS, Point, points
from utaca.reporting.registry import Files
from utaca.reporting.statistics import Draws, Estimate
from utaca.reporting.tables import NAN, NOT_RUN, Row, Show, Table, build_table, counted, plain_if, spread
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

CLASSES = {"hallucinated": HALLUCINATED, "correct": CORRECT, "unknown": UNKNOWN}
MARGIN_BINS = 30

COMPARED = {"auroc": ("auroc", 1), "balanced_accuracy": ("balanced_accuracy_pct", 100)}
"""Metrics by which detectors are held against each other: their columns and factors."""
_PERCENT = ("macc", "recall_n", "recall_p", "balanced_accuracy", "f1_n", "share_uncertain")
_PLAIN = ("auroc", "auprc", "ece")


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
    needed: np.ndarray | None  # [n] bool: an expansion changes the token; None where it was not tried
    runs: dict[str, list[Run]]

    def of(self, chosen: np.ndarray) -> Detections:
        """The verdicts on some tokens, ``chosen`` [n] bool."""
        runs = {
            name: [Run(*(None if x is None else x[chosen] for x in run)) for run in own]
            for name, own in self.runs.items()
        }
        needed = None if self.needed is None else self.needed[chosen]
        return Detections(self.documents, self.document[chosen], self.label[chosen], self.value[chosen], needed, runs)

    @cached_property
    def values(self) -> Detections:
        """The verdicts on tokens of values."""
        return self.of(self.value)

    def title(self, name: str) -> str:
        """How a row is called."""
        base = name.removesuffix("_youden")
        return DETECTORS.get(base, base) + (", thresholded" if base != name else "")


def load(path: str | Path | Sequence[str | Path]) -> Detections:
    """Read a file of schema "detections"; :class:`UserError` where it is empty or detectors saw different tokens."""
    data = read(path, "detections").to_pandas()
    if data.empty:
        raise UserError(f"{path} holds no verdicts; make it again with at least one test document")
    data["label"] = data["label"].fillna(-1).astype(int)
    identity = ["document", "budget", "step", "label", "value"]
    runs: dict[str, list[Run]] = {}
    first: pd.DataFrame | None = None
    for (name, seed), own in data.groupby(["detector", "seed"], sort=False):
        own = own.sort_values(["document", "budget", "step"], kind="stable").reset_index(drop=True)
        first = own if first is None else first
        if not own[identity].equals(first[identity]):
            raise UserError(f"{path} has verdicts of {name}, seed {seed}, on other tokens; remove it, make it again")
        p = (own["p_hallucinated"] + own["p_unknown"]).to_numpy(dtype=np.float64)
        found = Run(own["uncertain"].to_numpy(bool), own["score"].to_numpy(), None if np.isnan(p).any() else p)
        runs.setdefault(str(name), []).append(found)
    assert first is not None
    # A biography's documents with more and less of its evidence are resampled together.
    asked = first["document"].map(original)
    documents = tuple(sorted(asked.unique()))
    needed = None if first["needed"].isna().any() else first["needed"].to_numpy(bool)
    document = np.searchsorted(np.asarray(documents, dtype=object), asked.to_numpy(dtype=object))
    value = first["value"].to_numpy(bool)
    return Detections(documents, document, first["label"].to_numpy(), value, needed, runs)


def load_checked(path: str | Path, made_from: Sequence[str | Path]) -> Detections:
    """As :func:`load`; raises :class:`UserError` too where the verdicts were made from other files than these."""
    check_source(path, made_from)
    return load(path)


def detection(data: Detections, config: schema.Config) -> Table:
    """Token-level detection (paper, section "Uncertainty Detection Experiments").

    Figures are means over seeds, intervals hold documents and seeds. Tokens without a label are counted and left out of
    the figures. ``*_difference`` is the main variant's figure minus the row's, paired by document, ``*_p_holm`` its p
    after Holm over the column. Detectors of the paper that are not in the file stand as not run.
    """
    draws = Draws.of(len(data.documents), config, "detection")
    found = {name: figures([data], name, draws) for name in dict.fromkeys([*DETECTORS, *data.runs])}
    main, drawn_main = found[config.detector]
    rows = []
    for name, (row, resampled) in found.items():
        reference = paper.tables().detection.get(name, paper.Detection(NAN, NAN, NAN))
        row = _about(data, name) | row
        for metric, (column, factor) in COMPARED.items():
            difference, row[f"{column}_p"] = Estimate(NAN), NAN
            if resampled and name != config.detector:
                drawn = factor * (drawn_main[metric] - resampled[metric])
                difference = statistics.interval(main[column] - row[column], drawn)
                row[f"{column}_p"] = statistics.p_value(drawn)
            spread(row, f"{column}_difference", difference)
        rows.append(row | {f"paper_{metric}_pct": value for metric, value in reference._asdict().items()})
    for column, _ in COMPARED.values():
        for row, adjusted in zip(rows, statistics.holm([row[f"{column}_p"] for row in rows]), strict=True):
            row[f"{column}_p_holm"] = adjusted
    main_name = data.title(config.detector)
    return build_table("detection", rows, config, len(data.documents), _seeds(data), shows=_SHOWS, main=main_name)


def ablation(data: Detections, config: schema.Config, found: Sequence[Point] = ()) -> Table:
    """Component ablation (paper, table of the same name): variants that differ from the main one in these alone.

    CAS is that of the operating point under which most variants answer, of those ``found`` on the test split.
    """
    main = config.detectors[config.detector]
    draws = Draws.of(len(data.documents), config, "detection")
    adaptive = [point for point in found if point.key[0] == "utaca"]
    keys = [point.key for point in adaptive]
    key = max(keys, key=keys.count, default=None)
    answered = {point.detector: point for point in adaptive if point.key == key}
    rows = []
    for (margin, embedding, lstm), reference in paper.tables().ablation.items():
        wanted = replace(main, signals=["margin"] if margin else [], embedding=embedding, lstm=lstm)
        name = next((name for name, settings in config.detectors.items() if settings == wanted), "")
        row = {"margin": margin, "embedding": embedding, "lstm": lstm} | _about(data, name or NOT_RUN)
        row |= figures([data], name, draws)[0]
        row |= {"mtokens": NAN, "generation_seeds": 0}
        spread(row, "cas_pct", Estimate(NAN))
        if point := answered.get(name):
            row |= {"mtokens": point.ratio(*MTOKENS), "generation_seeds": len(point.seeds)}
            spread(row, "cas_pct", point.estimate(*CAS, Draws.of(len(point.documents), config, "test")), 100)
        rows.append(row | {f"paper_{metric}_pct": value for metric, value in reference._asdict().items()})

    trigger = ""
    if key:
        trigger = f"mTokens and CAS: as the trigger of K_max={key[1]}, {key[2].capitalize()}, where it was run as one."
    shows = {part: _component(part) for part in ("margin", "embedding", "lstm")} | _SHOWS
    shows["detector"] = lambda row: row["detector"]
    words = {"main": data.title(config.detector), "trigger": trigger}
    return build_table("ablation", rows, config, len(data.documents), _seeds(data), shows=shows, **words)


def triggers(data: Detections, config: schema.Config, split: str = "test") -> Table:
    """Detectors as triggers: which tokens that an expansion changes do they catch? Token agreement has all.

    ``caught_pct`` is the share by the detector's decision, ``caught_at_rate_pct`` the one among as many tokens as
    token agreement expands, those of the largest scores. No label has a part in it. Raises :class:`UserError` where the
    trajectories did not try the expanded pass.
    """
    needed = data.needed
    if needed is None:
        raise UserError("the detections do not tell which tokens an expansion changes; set trajectories.expanded")
    draws = Draws.of(len(data.documents), config, "triggers")
    share = 100 * float(needed.mean())
    of_values = data.values
    agreement = {"expansions_pct": share, "caught_pct": 100.0, "caught_at_rate_pct": 100.0}
    agreement |= {"auroc": 1.0, "value_auroc": 1.0}
    rows: list[Row] = [{"detector": "Token agreement", "run": True, "seeds": 0} | agreement]
    for name in dict.fromkeys([*DETECTORS, *data.runs]):
        runs = data.runs.get(name)
        if not runs:
            continue
        row, of_runs = (
            _about(data, name),
            {
                "expansions_pct": [100 * float(run.uncertain.mean()) for run in runs],
                "caught_pct": [100 * float(run.uncertain[needed].mean()) if needed.any() else NAN for run in runs],
                "caught_at_rate_pct": [100 * caught(run.score, needed) for run in runs],
                "auroc": [_auroc_of_needed(run, needed) for run in runs],
                "value_auroc": [_auroc_of_needed(run, of_values.needed) for run in of_values.runs[name]],
            },
        )
        for column, values in of_runs.items():
            row[column], row[f"{column}_sd"] = statistics.mean_sd(values)
        whole, *hits = (
            np.bincount(data.document[chosen], minlength=len(data.documents)).astype(np.float64)
            for chosen in (needed, *(needed & run.uncertain for run in runs))
        )
        drawn = draws.mean(name, [statistics.ratio(own, whole, draws.documents) for own in hits])
        spread(row, "caught_pct", statistics.interval(row["caught_pct"], 100 * drawn))
        rows.append(row)
    frame = pd.DataFrame(rows)
    frame["n_tokens"], frame["n_needed"] = len(needed), int(needed.sum())
    name = "triggers" if split == "test" else f"triggers_{split}"
    words = {"split": split, "expanded": config.trajectories.expanded}
    return build_table(name, frame, config, len(data.documents), _seeds(data), **words)


def _auroc_of_needed(run: Run, needed: np.ndarray | None) -> float:
    """AUROC of a detector's score for the tokens that an expansion changes; NaN where there is none, or no other."""
    assert needed is not None
    return detection_metrics(run.uncertain, np.where(needed, HALLUCINATED, CORRECT), run.score)["auroc"]


def reliability_bins(data: Detections) -> pd.DataFrame:
    """Reliability of p_N of every detector that has one, a row a bin, of all tokens and of those of values.

    Bins are those of :func:`utaca.detection.training.metrics.reliability`. Columns ``of`` ("all tokens", "values"),
    ``detector``, ``low``, ``high``, ``tokens``, ``mean_p``, ``share_uncertain``; seeds are pooled.
    """
    frames = []
    for of, own in (("all tokens", data), ("values", data.values)):
        for name, runs in own.runs.items():
            if all(run.p is not None for run in runs):
                pooled = reliability(np.concatenate([run.p for run in runs]), np.tile(own.label, len(runs)))
                frames.append(pd.DataFrame(pooled).assign(of=of, detector=own.title(name)))
    columns = ["of", "detector", "low", "high", "tokens", "mean_p", "share_uncertain"]
    return counted(pd.concat(frames, ignore_index=True)[columns], data.documents)


def margin_histogram(data: Detections) -> pd.DataFrame:
    """Logit margins of values by class (paper, section 3.1), and of the template's tokens: ``class``, ``low`` and
    ``high`` of the bin in logits, ``tokens``, ``share`` of the class."""
    margin = -data.runs["logit_margin"][0].score.astype(np.float64)
    edges = np.linspace(0, max(float(margin.max()), 1e-6), MARGIN_BINS + 1)
    frames = []
    chosen = {f"{name}, values": data.value & (data.label == label) for name, label in CLASSES.items()}
    for name, own in (chosen | {"template": ~data.value}).items():
        tokens = np.histogram(margin[own], edges)[0]
        share = tokens / tokens.sum() if tokens.sum() else np.full(MARGIN_BINS, NAN)
        columns = {"class": name, "low": edges[:-1], "high": edges[1:], "tokens": tokens, "share": share}
        frames.append(pd.DataFrame(columns))
    return counted(pd.concat(frames, ignore_index=True), data.documents)


def _about(data: Detections, name: str) -> Row:
    runs = data.runs.get(name, [])
    return {"detector": data.title(name), "run": bool(runs), "seeds": len(runs)}


def figures(found: Sequence[Detections], name: str, draws: Draws) -> tuple[Row, dict[str, np.ndarray]]:
    """A detector's figures, means over seeds with interval and spread, of all tokens and (``value_*``) of values alone.

    ``found`` are one, or one a seed where each saw tokens of its own. Gives too what :func:`measured` resamples.
    """
    (metrics, resampled), on_values = (
        measured(found, name, draws),
        measured([data.values for data in found], name, draws),
    )
    row = summary(metrics, resampled) | {f"value_{column}": x for column, x in summary(*on_values).items()}
    ran = bool(metrics)
    return row | {
        "n_value_tokens": on_values[0][0]["n_tokens"] if ran else 0,
        "n_tokens": ran * sum(int((data.label >= 0).sum()) for data in found),
        "n_documents": ran * len(found[0].documents),
        "n_failed_labels": ran * sum(int((data.label < 0).sum()) for data in found),
    }, resampled


def measured(
    found: Sequence[Detections], name: str, draws: Draws
) -> tuple[list[dict[str, float | int]], dict[str, np.ndarray]]:
    """All metrics of each run of a detector, calibration included, and most under every resample of documents and seeds
    [count]; nothing where it was not run."""
    pairs = [(data, run) for data in found for run in data.runs.get(name, [])]
    metrics = [
        detection_metrics(run.uncertain, data.label, run.score)
        | {"ece": NAN if run.p is None else calibration_error(run.p, data.label)}
        for data, run in pairs
    ]
    drawn = [resampled_run(data, run, draws.documents) for data, run in pairs]
    return metrics, {metric: draws.mean(name, [one[metric] for one in drawn]) for metric in (drawn[0] if drawn else ())}


def summary(metrics: Sequence[Mapping[str, float]], resampled: Mapping[str, np.ndarray]) -> Row:
    """Mean and spread of the ``metrics`` of a row's runs, with limits where they are ``resampled``."""
    row: Row = {}
    for metric in (*_PERCENT, *_PLAIN):
        factor, column = (1, metric) if metric in _PLAIN else (100, f"{metric}_pct")
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


def _seeds(data: Detections) -> str:
    return f"{max(map(len, data.runs.values()))} detector seeds"


def _component(name: str) -> Show:
    return lambda row: "yes" if row[name] else "no"


_COUNTS = ("n_value_tokens", "n_tokens", "n_documents", "n_failed_labels", "generation_seeds")
_SHOWS: dict[str, Show] = {
    "detector": lambda row: row["detector"] if row["run"] else f"{row['detector']} ({NOT_RUN})",
    **{column: plain_if("run", column) for column in _COUNTS},
}
"""Cells of detectors that may not have been run."""


def loaded(files: Files, split: str = "") -> Detections:
    """The verdicts on a split's fixed traces, ``split`` being "" or "validation_", beside what they were made from."""
    return load_checked(files[f"{split}detections"][0], files[f"{split}detected_from"])


def _ablation(files: Files, config: schema.Config) -> Table:
    answers, scores = files["test_answers"], files["test_scores"]
    found = points(answers, scores, config.shown("test", "generation")) if answers else []
    return ablation(loaded(files), config, found)


MAKERS = {
    "detection": lambda files, config: detection(loaded(files), config),
    "ablation": _ablation,
    "triggers": lambda files, config: triggers(loaded(files), config),
    "triggers_validation": lambda files, config: triggers(loaded(files, "validation_"), config, "validation"),
}
