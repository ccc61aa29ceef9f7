"""The tables of human judgements: token labels compared with the labeller's, scores compared with the judge's."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from utaca.biographies.evidence import condition_of, original
from utaca.judging.sheets import RANDOM, SPLITS, Correction, HumanScore, matched, read_sheet
from utaca.records import read, rows
from utaca.records.schemas import CORRECT, HALLUCINATED, TEMPLATE, UNKNOWN
from utaca.reporting import paper, statistics
from utaca.reporting.registry import ENTRIES, Files
from utaca.reporting.results import of_config
from utaca.reporting.statistics import NAN, Draws, Resampled, Row, kappa
from utaca.reporting.table import framed
from utaca.settings import schema
from utaca.settings.schema import EVIDENCE

_CLASSES = {"hallucinated": HALLUCINATED, "correct": CORRECT, "unknown": UNKNOWN}
ALL = "all"
_Reviewed = tuple[Correction, Mapping[str, Any]]  # a correction and the token that it belongs to


def labels(files: Files, config: schema.Config) -> pd.DataFrame:
    """Shares of the label classes by split, and the agreement of the labeller with the human reviewer."""
    sheet = next((read_sheet(Path(path), Correction) for path in files["label_sheet"]), None)
    reviewed: dict[str, list[_Reviewed]] = {ALL: []}
    tokens = {}
    for split, path in zip(SPLITS, files["labels"], strict=True):
        tokens[split] = read(path, "labels").select(["document", "label", "source"]).to_pandas()
        uncorrected = read(files[f"{split}_uncorrected"], "labels").to_pylist() if sheet else []
        reviewed[split] = matched(uncorrected, [correction for correction in sheet or [] if correction.split == split])
        reviewed[ALL] += reviewed[split]
    table = []
    for split, of_split in [*tokens.items(), (ALL, pd.concat(tokens.values()))]:
        table.append(_labels_row(split, of_split, reviewed[split], sheet is not None, config))
        # A split whose documents are decoded under several conditions of their evidence has a row for each.
        conditions = of_split["document"].map(condition_of)
        for condition in EVIDENCE if split != ALL and conditions.nunique() > 1 else ():
            chosen = [pair for pair in reviewed[split] if condition_of(pair[0].document) == condition]
            name = f"{split}, {condition} evidence"
            table.append(_labels_row(name, of_split[conditions == condition], chosen, sheet is not None, config))
    n_documents = sum(of_split["document"].map(original).nunique() for of_split in tokens.values())
    remark = "" if sheet is not None else " (no corrections yet)"
    return framed(table, n_documents, f"config seed {config.seed}", reviewed=remark)


def _labels_row(
    split: str, tokens: pd.DataFrame, reviewed: Sequence[_Reviewed], sheet: bool, config: schema.Config
) -> Row:
    row: Row = {"split": split, "sheet": sheet, "n_tokens": len(tokens)}
    for prefix, of_kind in (("", tokens), ("value_", tokens[tokens["source"] != TEMPLATE])):
        labelled = int(of_kind["label"].notna().sum())
        for name, label in _CLASSES.items():
            row[f"{prefix}{name}_pct"] = 100 * float((of_kind["label"] == label).sum()) / labelled if labelled else NAN
    row |= {f"n_{one}": int((tokens["source"] == one).sum()) for one in (TEMPLATE, "endpoint", "person", "failed")}
    row |= {
        "n_reviewed_answers": len({(c.split, c.document, c.budget) for c, _ in reviewed}),
        "n_reviewed": len(reviewed),
        "n_changed": sum(c.human != c.label for c, _ in reviewed),
    }
    compared = [c for c, token in reviewed if c.sample == RANDOM and token["source"] == "endpoint"]
    documents = sorted({(c.split, original(c.document)) for c in compared})
    confusion = np.zeros((len(documents), len(_CLASSES), len(_CLASSES)))
    for c in compared:
        confusion[documents.index((c.split, original(c.document))), c.label, c.human] += 1
    row |= {"n_compared": len(compared), "n_compared_documents": len(documents)}
    counts = Draws.of(len(documents), config, f"labels:{split}").documents
    agreement = statistics.resampled_ratio(np.trace(confusion, axis1=1, axis2=2), confusion.sum((1, 2)), counts)
    coefficient = Resampled(float(kappa(confusion.sum(0))), kappa(np.tensordot(counts, confusion, axes=1)))
    agreement.put(row, "agreement_pct", 100)
    coefficient.put(row, "kappa")
    return row


def human_points(files: Files, config: schema.Config) -> pd.DataFrame:
    """Means of CAS, human scores and string match by operating point."""
    judged = rows(list(files["judged"]), "scores")
    sheet = next((read_sheet(Path(path), HumanScore) for path in files["score_sheet"]), None)
    columns = ["split", "point", "document", "cas", "string_match", "human"]
    pairs = [row | {"human": score.human} for score, row in matched(judged, sheet or [])]
    scored = pd.DataFrame(pairs, columns=columns).astype(dict.fromkeys(columns[3:], float))
    points = dict.fromkeys((row["split"], row["point"]) for row in judged) if sheet is not None else ()
    table = [
        _human_row(split, point, scored[(scored["split"] == split) & (scored["point"] == point)], config)
        for split, point in points
    ]
    frame = pd.DataFrame([*table, _human_row(ALL, ALL, scored, config)])
    frame.insert(0, "sheet", sheet is not None)
    remark = "" if sheet is not None else " (no human scores yet)"
    return framed(frame, len({row["document"] for row in judged}), f"config seed {config.seed}", scored=remark)


def _human_row(split: str, point: str, scored: pd.DataFrame, config: schema.Config) -> Row:
    judged = scored[scored["cas"].notna()]
    document, documents = pd.factorize(judged["document"], sort=True)
    row: Row = {"split": split, "point": point, "n_documents": len(documents), "n_scored": len(judged)}
    row["n_failed_judgements"] = len(scored) - len(judged)
    cas, person, strings = (judged[name].to_numpy() for name in ("cas", "human", "string_match"))
    draws = Draws.of(len(documents), config, "human")
    means = {"cas": cas, "human": person, "string_match": strings, "difference": cas - person}
    for name, values in (means | {"distance": np.abs(cas - person)}).items():
        draws.mean_of(values, document).put(row, f"{name}_pct", 100)
    draws.correlation(cas, person, document).put(row, "correlation")
    of_point = of_config(config.operating[point], config) if point in config.operating else None
    figures = paper.tables().human.get(of_point.key) if of_point and of_point.in_paper else None
    return row | paper.reference(ENTRIES["human_points"].of_paper, figures)
