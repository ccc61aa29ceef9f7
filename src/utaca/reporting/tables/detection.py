"""Tables of uncertainty detection: verdicts of detectors on the test split's trajectories under compact budgets."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from utaca.biographies.evidence import original
from utaca.detection.training.metrics import (
    Spans,
    calibration_error,
    detection_metrics,
    labelled_spans,
    recall_at,
    rejection_ratio,
    risk_coverage_area,
    spans,
)
from utaca.errors import UserError
from utaca.records import check_source, read
from utaca.records.schemas import CORRECT
from utaca.reporting import paper, point_rows, registry, statistics
from utaca.reporting.registry import ENTRIES, Files
from utaca.reporting.results import NAMES, PointResult, points_shown
from utaca.reporting.statistics import NAN, Draws, Resampled, Row
from utaca.reporting.table import NOT_RUN, framed
from utaca.settings import schema

DETECTORS = NAMES["detectors"]
BASELINES = NAMES["baselines"]
"""Baselines beyond the paper's, which other projects compare with. They are the last rows."""
FALSE_ALARMS = 0.1
"""The rate of false alarms at which recall is measured."""
_SHARES = (
    "macc", "recall_n", "recall_p", "balanced_accuracy", "f1_n", "share_uncertain", "share_distrusted", "recall_at_10",
)  # fmt: skip
_SHARE_COLUMNS = {name: (f"{name}_pct", 100) for name in _SHARES}
_AREAS = ("auroc", "auprc", "ece", "aurc", "prr")
METRICS = {**_SHARE_COLUMNS, **{name: (name, 1) for name in _AREAS}}
"""The column and the factor of each metric of tokens."""
SPAN_METRICS = {name: (name, 1) for name in ("span_auroc", "span_max_auroc")}
"""Those of each metric of spans, which are the values of answers."""
COMPARED = ("auroc", "balanced_accuracy")
"""Metrics in which each detector is compared with the config's detector."""


class Run(NamedTuple):
    """Verdicts of a detector under one seed on the n tokens of :class:`Detections`."""

    uncertain: np.ndarray  # [n] bool, the detector distrusts the token
    score: np.ndarray  # [n], grows with uncertainty
    p: np.ndarray | None  # [n] probability of the uncertain class; None if the detector gives none


@dataclass(frozen=True)
class Detections:
    """Verdicts of all detectors on the same n tokens."""

    documents: tuple[str, ...]  # ids
    document: np.ndarray  # [n], index into ``documents``
    budget: np.ndarray  # [n], K of the token's trajectory, or K_max of a path
    label: np.ndarray  # [n], -1 if the labeller failed
    span: np.ndarray  # [n], number of the value that the token belongs to, -1 for a token of the template
    runs: dict[str, list[Run]]  # by name of the detector, a run for each seed

    @property
    def value(self) -> np.ndarray:
        """Which tokens [n] belong to a value, not to the template."""
        return self.span >= 0

    def spans(self, chosen: np.ndarray | bool = True) -> Spans:
        """The labelled spans, of the tokens that boolean ``chosen`` [n] selects."""
        return labelled_spans(np.where(chosen, self.span, -1), self.label)

    @property
    def seeds(self) -> str:
        """The largest number of seeds of a detector, in words."""
        return f"{max(map(len, self.runs.values()))} detector seeds"


def title(name: str) -> str:
    """Name of a detector in tables; names that end in "_youden" are detectors with a threshold of Youden's J."""
    base = name.removesuffix("_youden")
    remark = ", thresholded" if base != name else ""
    return {**DETECTORS, **BASELINES}.get(base, base) + remark


def learned_from(settings: schema.DetectorSettings) -> str:
    """What a detector variant was trained on: biographies, sets of benchmarks, or both, in words."""
    biographies = ["biographies"] if settings.mixed or not settings.sets else []
    return ", ".join([*biographies, *settings.sets])


def load(path: str | Path) -> Detections:
    """Read a file of schema "detections", in which all detectors judge the same tokens, each under each of its seeds.

    Raises:
        UserError: the file is empty, or its detectors judged different tokens.
    """
    data = read(path, "detections").to_pandas()
    if data.empty:
        raise UserError(f"{path} has no verdicts; make it again with at least one test document")
    data["label"] = data["label"].fillna(-1).astype(int)
    # Columns that are the same for all detectors.
    identity = ["document", "budget", "step", "label", "value"]
    runs: dict[str, list[Run]] = {}
    first: pd.DataFrame | None = None  # rows of the first detector and seed, whose tokens all others must have
    for (name, seed), rows in data.groupby(["detector", "seed"], sort=False):
        rows = rows.sort_values(["document", "budget", "step"], kind="stable").reset_index(drop=True)
        first = rows if first is None else first
        if not rows[identity].equals(first[identity]):
            raise UserError(
                f"{path} has verdicts of {name}, seed {seed}, on other tokens than before; remove {path} and make it "
                "again"
            )
        # Uncertain is either of two classes: hallucinated or unknown.
        p = (rows["p_hallucinated"] + rows["p_unknown"]).to_numpy(dtype=np.float64)
        known_p = None if np.isnan(p).any() else p
        run = Run(rows["uncertain"].to_numpy(bool), rows["score"].to_numpy(), known_p)
        runs.setdefault(str(name), []).append(run)
    assert first is not None
    # A biography's documents with more and less of its evidence are resampled together.
    document, documents = pd.factorize(first["document"].map(original), sort=True)
    budget = first["budget"].to_numpy()
    label = first["label"].to_numpy()
    begins = ~first.duplicated(["document", "budget"]).to_numpy()
    span = spans(first["value"].to_numpy(bool), begins)
    return Detections(tuple(documents), document, budget, label, span, runs)


def loaded(files: Files) -> Detections:
    """Read the verdicts among a table's ``files``; raises :class:`UserError` if they were made from other files."""
    (path,) = files["detections"]
    check_source(path, files["detected_from"])
    return load(path)


def detection(files: Files, config: schema.Config) -> pd.DataFrame:
    """Make the table of metrics of every detector and baseline, with the config's detector's advantage over each."""
    data = loaded(files)
    draws = Draws.of(len(data.documents), config, "detection")
    # The paper's detectors come first, even if they were not run, and other projects' baselines last.
    names = sorted({**DETECTORS, **data.runs}, key=lambda name: name in BASELINES)
    measurements = {name: measured(data, name, draws) for name in names}
    main = measurements[config.detector]
    reported = paper.tables().two_way | paper.tables().detection
    rows = []
    for name, metrics in measurements.items():
        row = _row(data, name, metrics, draws)
        is_compared = bool(metrics) and name != config.detector
        for metric in COMPARED:
            column, factor = METRICS[metric]
            # [0] is the mean over seeds; [1] would be its standard deviation.
            difference = main[metric][0] - metrics[metric][0] if is_compared else Resampled()
            row[f"{column}_p"] = difference.p
            difference.put(row, f"{column}_difference", factor)
        figures = reported.get(name)
        rows.append(row | paper.reference(ENTRIES["detection"].of_paper, figures))
    n_detectors = len([name for name in names if name not in BASELINES])
    for metric in COMPARED:
        # The baselines are a family of their own: they change no p of the detectors.
        for family in (rows[:n_detectors], rows[n_detectors:]):
            statistics.adjust(family, f"{METRICS[metric][0]}_p")
    return framed(rows, len(data.documents), data.seeds, main=title(config.detector))


def detection_budgets(files: Files, config: schema.Config) -> pd.DataFrame:
    """Make the table of metrics of the config's detector on the trajectories of each budget, and on all of them."""
    data = loaded(files)
    name = config.detector
    draws = Draws.of(len(data.documents), config, "detection")
    rows = []
    for budget_in_words, mask in budget_masks(data, config).items():
        metrics = measured(data, name, draws, mask)
        rows.append({"budget": budget_in_words} | _row(data, name, metrics, draws, mask))
    return framed(rows, len(data.documents), data.seeds, main=title(name))


def budget_masks(data: Detections, config: schema.Config) -> dict[str, np.ndarray]:
    """Which tokens [n] were decoded under each budget, by the budget in words, and at last all of them."""
    # A trajectory whose budgets sink and rise has the largest of them as its budget; it is called by its path, as in
    # "K_max=4, Sub.1".
    path_names = {path.budget: str(path) for path in config.scale.test.paths}
    masks = {}
    for budget in np.unique(data.budget).tolist():
        masks[path_names.get(budget, f"K={budget}")] = data.budget == budget
    masks["all"] = np.ones(len(data.budget), bool)
    return masks


def ablation(files: Files, config: schema.Config) -> pd.DataFrame:
    """Make the ablation table: detectors with only some components, measured on trajectories and as triggers.

    It has the rows of the paper's table; a row whose variant the run has not trained has no figures.
    """
    data = loaded(files)
    draws = Draws.of(len(data.documents), config, "detection")
    names = {components: _variant_with(components, config) for components in paper.tables().ablation}
    decoded = decoded_with(files, config, names.values())
    rows = []
    for components, figures in paper.tables().ablation.items():
        name = names[components]  # "" if the run has no such variant
        margin, embedding, lstm = components
        row: Row = {"margin": margin, "embedding": embedding, "lstm": lstm}
        row |= _row(data, name, measured(data, name, draws), draws)
        row["detector"] = title(name) or NOT_RUN
        row |= _generation(decoded.get(name), config)
        rows.append(row | paper.reference(ENTRIES["ablation"].of_paper, figures))
    trigger = _decoded_in_words(decoded)
    return framed(rows, len(data.documents), data.seeds, main=title(config.detector), trigger=trigger)


def two_way(files: Files, config: schema.Config) -> pd.DataFrame:
    """Make the table of the config's detector of three classes and its variant of two: metrics, and CAS as trigger."""
    data = loaded(files)
    names = (config.detector, registry.TWO_WAY)
    draws = Draws.of(len(data.documents), config, "detection")
    decoded = decoded_with(files, config, names)
    rows = []
    for name in names:
        row: Row = {"classes": config.detectors[name].classes}
        row |= _row(data, name, measured(data, name, draws), draws)
        row |= _generation(decoded.get(name), config)
        figures = paper.tables().two_way.get(name)
        rows.append(row | paper.reference(ENTRIES["two_way"].of_paper, figures))
    return framed(rows, len(data.documents), data.seeds, trigger=_decoded_in_words(decoded))


def _variant_with(components: tuple[bool, bool, bool], config: schema.Config) -> str:
    """The name of the detector variant that is the config's with only these components; "" if there is none.

    ``components`` say whether it has the margin, the embedding and the LSTM.
    """
    main = config.detectors[config.detector]
    margin, embedding, lstm = components
    signals = ["margin"] if margin else []
    # Training answers are chained for an LSTM only; 1 means that no answers are chained.
    chain = main.chain if lstm else 1
    wanted = replace(main, signals=signals, embedding=embedding, lstm=lstm, chain=chain)
    # The config's detector first: another variant may differ from it in its name only.
    for name in (config.detector, *config.detectors):
        settings = config.detectors[name]
        # Two detectors that were taken from folders, and not trained here, may differ in the folder.
        taken = main.taken if settings.taken and main.taken else settings.taken
        if replace(settings, taken=taken) == wanted:
            return name
    return ""


def decoded_with(files: Files, config: schema.Config, variants: Collection[str]) -> dict[str, PointResult]:
    """The results of points that differ only in their detector, one of ``variants``; by name of the detector.

    They have the K_max and policy that was decoded, in sections test and ablation, with most of the variants; the first
    if there are several such pairs. Empty if no variant was decoded with.
    """
    sections = schema.TEST, schema.ABLATION
    if not config.shown(schema.TEST, *sections):
        return {}
    points = points_shown(files, config, schema.TEST, *sections)
    adaptive = [point for point in points if point.decoder == schema.ADAPTIVE and point.detector in variants]
    keys = [point.key for point in adaptive]
    most_frequent = max(keys, key=keys.count, default=None)
    return {point.detector: point for point in adaptive if point.key == most_frequent}


def _generation(point: PointResult | None, config: schema.Config) -> Row:
    """Columns of a ``point`` decoded with a row's detector as the trigger; without figures if there is none."""
    columns = ("mtokens", "mtokens_with_tentative", "cas_pct")
    if point is None:
        return {"generation_seeds": 0} | point_rows.measured(columns, lambda _: Resampled())
    draws = Draws.of(len(point.documents), config, "test")
    figures = point_rows.measured(columns, lambda measure: point.resampled(measure, draws))
    return {"generation_seeds": len(point.seeds)} | figures


def _decoded_in_words(decoded: Mapping[str, PointResult]) -> str:
    """The caption's sentence on the K_max and policy of the points of :func:`decoded_with`; "" if there are none."""
    if not decoded:
        return ""
    point = next(iter(decoded.values()))
    setting = f"K_max={point.budget}, {point.policy.capitalize()}"
    return f"mTokens and CAS are those of {setting} with the row's detector as its trigger, if that point is decoded."


def _row(data: Detections, name: str, metrics: Metrics, draws: Draws, chosen: np.ndarray | bool = True) -> Row:
    """The columns of a detector's row: metrics over all tokens and, as ``value_*``, over the tokens of values only.

    ``metrics`` are those over all tokens that ``chosen`` [n] selects, empty if the detector was not run. Tokens without
    a label are counted but left out of the metrics.
    """
    row: Row = {"detector": title(name), "run": bool(metrics), "seeds": len(data.runs.get(name, ()))}
    of_values = measured(data, name, draws, data.value & chosen)
    of_spans = measured_spans(data, name, draws, chosen)
    scopes = [("", metrics, METRICS), ("value_", of_values, METRICS), ("", of_spans, SPAN_METRICS)]
    for prefix, figures, columns in scopes:
        for metric, (column, factor) in columns.items():
            mean, sd = figures.get(metric, (Resampled(), NAN))
            # The deviation stands after the figure in the CSV file; `put` adds the interval after both.
            row |= {f"{prefix}{column}": factor * mean.value, f"{prefix}{column}_sd": factor * sd}
            mean.put(row, f"{prefix}{column}", factor)
    labelled = data.label >= 0
    counts = {
        "n_value_tokens": int((labelled & data.value & chosen).sum()),
        "n_spans": len(data.spans(chosen).first),
        "n_tokens": int((labelled & chosen).sum()),
        "n_documents": len(data.documents),
        "n_failed_labels": int((~labelled & chosen).sum()),
    }
    return row | (counts if metrics else dict.fromkeys(counts, 0))


Metrics = Mapping[str, tuple[Resampled, float]]
"""A detector's (mean over seeds, standard deviation over seeds) of each metric; empty if it was not run."""


def measured(data: Detections, name: str, draws: Draws, chosen: np.ndarray | bool = True) -> Metrics:
    """Compute the metrics of the detector ``name`` on the labelled tokens, or on those of them that ``chosen`` selects.

    ``chosen`` is boolean [n]. Metrics of :func:`resampled_run` have resamples over documents and seeds; the other ones,
    such as the calibration error, have no interval.
    """
    tokens = (data.label >= 0) & chosen
    document = data.document[tokens]
    label = data.label[tokens]
    is_uncertain = label != CORRECT
    # For each seed: its metrics over all tokens, and those of them that are resampled in the resamples of documents.
    metrics = []
    resamples = []
    for run in data.runs.get(name, ()):
        p = None if run.p is None else run.p[tokens]
        of_tokens = Run(run.uncertain[tokens], run.score[tokens], p)
        of_run = detection_metrics(of_tokens.uncertain, label, of_tokens.score)
        of_run["ece"] = NAN if p is None else calibration_error(p, label)
        of_run["aurc"] = risk_coverage_area(of_tokens.score, is_uncertain)
        of_run["prr"] = rejection_ratio(of_tokens.score, is_uncertain)
        of_run["recall_at_10"] = recall_at(FALSE_ALARMS, of_tokens.score, is_uncertain)
        metrics.append(of_run)
        resamples.append(resampled_run(of_tokens, is_uncertain, document, draws.documents))
    return _over_seeds(name, list(METRICS), metrics, resamples, draws)


def measured_spans(data: Detections, name: str, draws: Draws, chosen: np.ndarray | bool = True) -> Metrics:
    """Compute the metrics of spans of the detector ``name``, as obalcells/hallucination_probes does.

    A span is a value of an answer; it is uncertain if one of its tokens is. ``span_auroc`` is over the tokens of spans,
    each with the label of its span, and ``span_max_auroc`` over spans, each with the largest score of its tokens.
    ``chosen`` [n] selects tokens, by default all. Both metrics have resamples over documents and seeds.
    """
    found = data.spans(chosen)
    # The first resample has each document once.
    counts = np.vstack([np.ones(len(data.documents)), draws.documents])
    metrics = []
    resamples = []
    for run in data.runs.get(name, ()):
        of_tokens = (run.score[found.token], found.is_uncertain[found.owner], data.document[found.token])
        of_spans = (found.largest(run.score), found.is_uncertain, data.document[found.first])
        areas = {
            "span_auroc": statistics.auroc(*of_tokens, counts),
            "span_max_auroc": statistics.auroc(*of_spans, counts),
        }
        metrics.append({metric: float(area[0]) for metric, area in areas.items()})
        resamples.append({metric: area[1:] for metric, area in areas.items()})
    return _over_seeds(name, list(SPAN_METRICS), metrics, resamples, draws)


def _over_seeds(
    name: str,
    wanted: Sequence[str],
    metrics: Sequence[Mapping[str, float]],
    resamples: Sequence[Mapping[str, np.ndarray]],
    draws: Draws,
) -> Metrics:
    """The ``wanted`` metrics of the detector ``name`` over its seeds; empty without seeds.

    For each seed, ``metrics`` has the metrics, and ``resamples`` the resamples [count] of those that have some.
    """
    if not metrics:
        return {}
    result = {}
    for metric in wanted:
        mean, sd = statistics.mean_sd([of_run[metric] for of_run in metrics])
        figure = Resampled(mean)
        if metric in resamples[0]:
            figure = Resampled(mean, draws.mean(name, [by_metric[metric] for by_metric in resamples]))
        result[metric] = figure, sd
    return result


def resampled_run(run: Run, negative: np.ndarray, document: np.ndarray, counts: np.ndarray) -> dict[str, np.ndarray]:
    """Compute the metrics of a detector under one seed in every resample of documents: arrays [count] by metric.

    ``negative`` [n] marks the tokens whose label is uncertain (the paper's N), ``document`` [n] is each token's column
    in ``counts`` [count, documents].
    """

    def by_document(selected: np.ndarray) -> np.ndarray:
        """How many of the tokens that ``selected`` [n] marks each document has."""
        return np.bincount(document[selected], minlength=counts.shape[1]).astype(np.float64)

    n_uncertain = by_document(negative)
    n_certain = by_document(~negative)
    hits = by_document(run.uncertain & negative)
    false_alarms = by_document(run.uncertain & ~negative)
    accepted_certain = n_certain - false_alarms
    recall_n = statistics.ratio(hits, n_uncertain, counts)
    recall_p = statistics.ratio(accepted_certain, n_certain, counts)
    n_tokens = n_uncertain + n_certain
    return {
        "macc": statistics.ratio(hits + accepted_certain, n_tokens, counts),
        "recall_n": recall_n,
        "recall_p": recall_p,
        "balanced_accuracy": (recall_n + recall_p) / 2,
        "f1_n": statistics.ratio(2 * hits, hits + false_alarms + n_uncertain, counts),
        "share_uncertain": statistics.ratio(n_uncertain, n_tokens, counts),
        "share_distrusted": statistics.ratio(hits + false_alarms, n_tokens, counts),
        "auroc": statistics.auroc(run.score, negative, document, counts),
    }
