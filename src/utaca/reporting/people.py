"""The tables of what people decided: token labels beside the labeller's, scores beside the judge's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from utaca.biographies.evidence import condition_of, original
from utaca.judging.sheets import (
    RANDOM,
    SPLITS,
    Correction,
    HumanScore,
    matched_labels,
    matched_scores,
    read_corrections,
    read_scores,
)
from utaca.records import read, rows
from utaca.records.schemas import CORRECT, HALLUCINATED, TEMPLATE, UNKNOWN
from utaca.reporting import statistics
from utaca.reporting.points import point_in_words
from utaca.reporting.statistics import Estimate, kappa
from utaca.reporting.tables import NAN, Row, Table, build_table, plain_if, spread
from utaca.settings import schema
from utaca.settings.schema import EVIDENCE

NO_CORRECTIONS, NO_SCORES = "no corrections", "no human scores"
_CLASSES = {"hallucinated": HALLUCINATED, "correct": CORRECT, "unknown": UNKNOWN}
ALL = "all"

# Table "Preliminary human comparison": Llama-3.1-8B, UT-ACA with at most 96 blocks, Sub.16; means over 30 samples, %.
PAPER_POINT, PAPER = "utaca-K96-sub16", {"cas": 74.6, "human": 76.6, "string_match": 27.9}


# Labels


def labels(
    uncorrected: Mapping[str, pa.Table],
    corrected: Mapping[str, pa.Table],
    sheet: Sequence[Correction] | None,
    config: schema.Config,
) -> Table:
    """Labels by split and over all: their shares, who decided them, and the agreement of labeller and person.

    A split whose documents are decoded under several conditions of their evidence has a row for each.
    ``uncorrected`` and ``corrected`` (schema "labels") are by split; ``sheet`` is None where nobody reviewed.
    """
    pairs = {split: matched_labels(table, split, sheet or []) for split, table in uncorrected.items()}
    tokens = {split: table.select(["document", "label", "source"]).to_pandas() for split, table in corrected.items()}
    found = []
    for split, own in tokens.items():
        found.append(_labels_row(split, own, pairs[split], sheet is not None, config))
        conditions = own["document"].map(condition_of)
        for condition in EVIDENCE if conditions.nunique() > 1 else ():
            reviewed = [pair for pair in pairs[split] if condition_of(pair[0].document) == condition]
            name = f"{split}, {condition} evidence"
            found.append(_labels_row(name, own[conditions == condition], reviewed, sheet is not None, config))
    every = [pair for own in pairs.values() for pair in own]
    found.append(_labels_row(ALL, pd.concat(tokens.values()), every, sheet is not None, config))
    n_documents = sum(own["document"].nunique() for own in tokens.values())
    shows = {"n_reviewed": plain_if("sheet", "n_reviewed", NO_CORRECTIONS)}
    shows |= {column: plain_if("sheet", column) for column in ("n_changed", "n_compared")}
    return build_table("labels", found, config, n_documents, f"config seed {config.seed}", shows=shows)


def _labels_row(
    split: str,
    tokens: pd.DataFrame,
    pairs: Sequence[tuple[Correction, Mapping[str, Any]]],
    sheet: bool,
    config: schema.Config,
) -> Row:
    row: Row = {"split": split, "sheet": sheet, "n_tokens": len(tokens)}
    for prefix, own in (("", tokens), ("value_", tokens[tokens["source"] != TEMPLATE])):
        labelled = int(own["label"].notna().sum())
        for name, label in _CLASSES.items():
            row[f"{prefix}{name}_pct"] = 100 * float((own["label"] == label).sum()) / labelled if labelled else NAN
    row |= {
        f"n_{source}": int((tokens["source"] == source).sum()) for source in (TEMPLATE, "endpoint", "person", "failed")
    }
    row |= {
        "n_reviewed_answers": len({(c.split, c.document, c.budget) for c, _ in pairs}),
        "n_reviewed": len(pairs),
        "n_changed": sum(c.human != c.label for c, _ in pairs),
    }
    compared = [c for c, token in pairs if c.sample == RANDOM and token["source"] == "endpoint"]
    documents = sorted({(c.split, original(c.document)) for c in compared})
    place = {document: number for number, document in enumerate(documents)}
    confusion = np.zeros((len(documents), len(_CLASSES), len(_CLASSES)))
    for c in compared:
        confusion[place[c.split, original(c.document)], c.label, c.human] += 1
    row |= {"n_compared": len(compared), "n_compared_documents": len(documents)}
    agreement, coefficient = Estimate(NAN), Estimate(NAN)
    if documents:
        counts = statistics.resamples(len(documents), config.scale.bootstrap, config.seed, f"labels:{split}")
        agreement = statistics.ratio_interval(np.trace(confusion, axis1=1, axis2=2), confusion.sum((1, 2)), counts)
        resampled = np.tensordot(counts, confusion, axes=1)
        coefficient = statistics.interval(float(kappa(confusion.sum(0))), kappa(resampled))
    spread(row, "agreement_pct", agreement, 100)
    spread(row, "kappa", coefficient)
    return row


# Scores


def human(scores: Sequence[str | Path], sheet: Sequence[HumanScore] | None, config: schema.Config) -> Table:
    """CAS, a person's scores and string match of the same answers, by operating point and over all.

    ``scores`` are files of schema "scores" in the order of the points; ``sheet`` is None where nobody scored.
    Attributes whose judgement failed are counted and left out.
    """
    judged = rows(list(scores), "scores")
    columns = ["suite", "point", "document", "cas", "string_match", "human"]
    pairs = [row | {"human": score.human} for score, row in matched_scores(judged, sheet or [])]
    scored = pd.DataFrame(pairs, columns=columns).astype(dict.fromkeys(columns[3:], float))
    points = list(dict.fromkeys((row["suite"], row["point"]) for row in judged)) if sheet is not None else []
    found = [
        _human_row(suite, point, scored[(scored["suite"] == suite) & (scored["point"] == point)], config)
        for suite, point in points
    ]
    frame = pd.DataFrame([*found, _human_row(ALL, ALL, scored, config)])
    frame.insert(0, "sheet", sheet is not None)
    shows = {"point": point_in_words(config), "n_scored": plain_if("sheet", "n_scored", NO_SCORES)}
    n_documents = len({row["document"] for row in judged})
    return build_table("human", frame, config, n_documents, f"config seed {config.seed}", shows=shows)


def _human_row(suite: str, point: str, scored: pd.DataFrame, config: schema.Config) -> Row:
    known = scored[scored["cas"].notna()]
    names, at = np.unique(known["document"].to_numpy(dtype=object), return_inverse=True)
    row: Row = {"suite": suite, "point": point, "n_documents": len(names), "n_scored": len(known)}
    row["n_failed_judgements"] = len(scored) - len(known)
    judge, person, strings = (known[name].to_numpy() for name in ("cas", "human", "string_match"))
    counts = statistics.resamples(len(names), config.scale.bootstrap, config.seed, "human")
    means = {"cas": judge, "human": person, "string_match": strings, "difference": judge - person}
    for name, values in (means | {"distance": np.abs(judge - person)}).items():
        spread(row, f"{name}_pct", statistics.mean_interval(values, at, counts), 100)
    products = (np.ones(len(known)), judge, person, judge**2, person**2, judge * person)
    moments = np.stack([np.bincount(at, values, len(names)) for values in products])
    value = float(_correlation(moments.sum(1)))
    spread(row, "correlation", statistics.interval(value, _correlation(moments @ counts.T)))
    return row | {f"paper_{name}_pct": x if point == PAPER_POINT else NAN for name, x in PAPER.items()}


def _correlation(moments: np.ndarray) -> np.ndarray:
    """Pearson's r from [6, ...] sums: 1, x, y, x squared, y squared, x y. NaN where either does not vary."""
    n, x, y, xx, yy, xy = moments
    spread = (n * xx - x**2) * (n * yy - y**2)
    with np.errstate(divide="ignore", invalid="ignore"):
        # Sums of equal numbers leave a rounding error, no variance.
        return np.where(spread > 1e-9 * n**4, (n * xy - x * y) / np.sqrt(spread), np.nan)


def _labels(files: Mapping[str, Sequence[str]], config: schema.Config) -> Table:
    uncorrected = {split: read(files[f"{split}_uncorrected"], "labels") for split in SPLITS}
    corrected = {split: read(path, "labels") for split, path in zip(SPLITS, files["labels"], strict=True)}
    sheet = next((read_corrections(Path(path)) for path in files["label_sheet"]), None)
    return labels(uncorrected, corrected, sheet, config)


def _human(files: Mapping[str, Sequence[str]], config: schema.Config) -> Table:
    return human(files["judged"], next((read_scores(Path(path)) for path in files["score_sheet"]), None), config)


MAKERS = {"labels": _labels, "human": _human}
