"""The tables of what people decided: token labels beside the labeller's, scores beside the judge's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from utaca.biographies.evidence import condition_of, original
from utaca.judging.sheets import RANDOM, SPLITS, Correction, HumanScore, matched, read_sheet
from utaca.records import read, rows
from utaca.records.schemas import CORRECT, HALLUCINATED, TEMPLATE, UNKNOWN
from utaca.reporting import statistics
from utaca.reporting.registry import Files
from utaca.reporting.statistics import ByDocument, Estimate, Row, kappa, spread
from utaca.reporting.table import NAN, framed
from utaca.settings import schema
from utaca.settings.schema import EVIDENCE

NO_CORRECTIONS, NO_SCORES = "no corrections", "no human scores"
_CLASSES = {"hallucinated": HALLUCINATED, "correct": CORRECT, "unknown": UNKNOWN}
ALL = "all"

# Table "Preliminary human comparison": Llama-3.1-8B, UT-ACA with at most 96 blocks, Sub.16; means over 30 samples, %.
PAPER_POINT, PAPER = "utaca-K96-sub16", {"cas": 74.6, "human": 76.6, "string_match": 27.9}


# Labels


def labels(files: Files, config: schema.Config) -> pd.DataFrame:
    """Shares of labels by split, and the agreement of labeller and person."""
    sheet = next((read_sheet(Path(path), Correction) for path in files["label_sheet"]), None)
    pairs = {
        split: matched(
            read(files[f"{split}_uncorrected"], "labels").to_pylist() if sheet else [],
            [correction for correction in sheet or [] if correction.split == split],
        )
        for split in SPLITS
    }
    tokens = {
        split: read(path, "labels").select(["document", "label", "source"]).to_pandas()
        for split, path in zip(SPLITS, files["labels"], strict=True)
    }
    rows = []
    for split, of_split in tokens.items():
        rows.append(_labels_row(split, of_split, pairs[split], sheet is not None, config))
        # A split whose documents are decoded under several conditions of their evidence has a row for each.
        conditions = of_split["document"].map(condition_of)
        for condition in EVIDENCE if conditions.nunique() > 1 else ():
            reviewed = [pair for pair in pairs[split] if condition_of(pair[0].document) == condition]
            name = f"{split}, {condition} evidence"
            rows.append(_labels_row(name, of_split[conditions == condition], reviewed, sheet is not None, config))
    every = [pair for of_split in pairs.values() for pair in of_split]
    rows.append(_labels_row(ALL, pd.concat(tokens.values()), every, sheet is not None, config))
    n_documents = sum(of_split["document"].nunique() for of_split in tokens.values())
    reviewed = "" if sheet is not None else f" ({NO_CORRECTIONS} yet)"
    return framed(rows, n_documents, f"config seed {config.seed}", reviewed=reviewed)


def _labels_row(
    split: str,
    tokens: pd.DataFrame,
    pairs: Sequence[tuple[Correction, Mapping[str, Any]]],
    sheet: bool,
    config: schema.Config,
) -> Row:
    row: Row = {"split": split, "sheet": sheet, "n_tokens": len(tokens)}
    for prefix, of_kind in (("", tokens), ("value_", tokens[tokens["source"] != TEMPLATE])):
        labelled = int(of_kind["label"].notna().sum())
        for name, label in _CLASSES.items():
            row[f"{prefix}{name}_pct"] = 100 * float((of_kind["label"] == label).sum()) / labelled if labelled else NAN
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


def human(files: Files, config: schema.Config) -> pd.DataFrame:
    """Means of CAS, human scores and string match by point."""
    judged = rows(list(files["judged"]), "scores")
    sheet = next((read_sheet(Path(path), HumanScore) for path in files["score_sheet"]), None)
    columns = ["split", "point", "document", "cas", "string_match", "human"]
    pairs = [row | {"human": score.human} for score, row in matched(judged, sheet or [])]
    scored = pd.DataFrame(pairs, columns=columns).astype(dict.fromkeys(columns[3:], float))
    points = list(dict.fromkeys((row["split"], row["point"]) for row in judged)) if sheet is not None else []
    of_points = [
        _human_row(split, point, scored[(scored["split"] == split) & (scored["point"] == point)], config)
        for split, point in points
    ]
    frame = pd.DataFrame([*of_points, _human_row(ALL, ALL, scored, config)])
    frame.insert(0, "sheet", sheet is not None)
    n_documents = len({row["document"] for row in judged})
    remark = "" if sheet is not None else f" ({NO_SCORES} yet)"
    return framed(frame, n_documents, f"config seed {config.seed}", scored=remark)


def _human_row(split: str, point: str, scored: pd.DataFrame, config: schema.Config) -> Row:
    judged_rows = scored[scored["cas"].notna()]
    documents = sorted(judged_rows["document"].unique())
    row: Row = {"split": split, "point": point, "n_documents": len(documents), "n_scored": len(judged_rows)}
    row["n_failed_judgements"] = len(scored) - len(judged_rows)
    judge, person, strings = (judged_rows[name].to_numpy() for name in ("cas", "human", "string_match"))
    counts = statistics.resamples(len(documents), config.scale.bootstrap, config.seed, "human")
    by_document = ByDocument.of(judged_rows["document"], documents, counts)
    means = {"cas": judge, "human": person, "string_match": strings, "difference": judge - person}
    for name, values in (means | {"distance": np.abs(judge - person)}).items():
        by_document.put(row, f"{name}_pct", values, 100)
    spread(row, "correlation", by_document.correlation(judge, person))
    return row | {f"paper_{name}_pct": x if point == PAPER_POINT else NAN for name, x in PAPER.items()}
