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
"""The label of each class; labels are also indices into a confusion matrix."""
ALL = "all"
"""What a row over all splits, or all points, is called."""
_Reviewed = tuple[Correction, Mapping[str, Any]]  # a correction, and the token's row before it (schema "labels")


def labels(files: Files, config: schema.Config) -> pd.DataFrame:
    """Make the table of the shares of label classes by split, and of the labeller's agreement with a human reviewer."""
    # None if no person has reviewed labels; the paths of the sheet are then empty.
    sheet = next((read_sheet(Path(path), Correction) for path in files["label_sheet"]), None)
    reviewed: dict[str, list[_Reviewed]] = {ALL: []}
    tokens = {}
    for split, path in zip(SPLITS, files["labels"], strict=True):
        tokens[split] = read(path, "labels").select(["document", "label", "source"]).to_pandas()
        # The sheet is matched with the labels as the person saw them; `labels` are those after the corrections.
        uncorrected = read(files[f"{split}_uncorrected"], "labels").to_pylist() if sheet else []
        corrections = [correction for correction in sheet or [] if correction.split == split]
        reviewed[split] = matched(uncorrected, corrections)
        reviewed[ALL] += reviewed[split]
    table = []
    for split, of_split in [*tokens.items(), (ALL, pd.concat(tokens.values()))]:
        table.append(_labels_row(split, of_split, reviewed[split], sheet is not None, config))
        # A split whose documents are decoded under several conditions of their evidence has a row for each.
        conditions = of_split["document"].map(condition_of)
        if split == ALL or conditions.nunique() < 2:
            continue
        for condition in EVIDENCE:
            chosen = [pair for pair in reviewed[split] if condition_of(pair[0].document) == condition]
            name = f"{split}, {condition} evidence"
            table.append(_labels_row(name, of_split[conditions == condition], chosen, sheet is not None, config))
    n_documents = sum(of_split["document"].map(original).nunique() for of_split in tokens.values())
    remark = "" if sheet is not None else "No person has corrected labels yet."
    return framed(table, n_documents, f"config seed {config.seed}", reviewed=remark)


def _labels_row(
    split: str, tokens: pd.DataFrame, reviewed: Sequence[_Reviewed], sheet: bool, config: schema.Config
) -> Row:
    """The row of a split: counts and shares over its ``tokens``, and its agreement over the ``reviewed`` ones.

    ``tokens`` are rows of schema "labels". ``sheet`` says whether there is a sheet of corrections.
    """
    row: Row = {"split": split, "sheet": sheet, "n_tokens": len(tokens)}
    of_values = tokens[tokens["source"] != TEMPLATE]
    for prefix, counted in (("", tokens), ("value_", of_values)):
        labelled = int(counted["label"].notna().sum())
        for name, label in _CLASSES.items():
            n_of_class = float((counted["label"] == label).sum())
            row[f"{prefix}{name}_pct"] = 100 * n_of_class / labelled if labelled else NAN
    for source in (TEMPLATE, "endpoint", "person", "failed"):
        row[f"n_{source}"] = int((tokens["source"] == source).sum())
    corrections = [correction for correction, _ in reviewed]
    answers = {(correction.split, correction.document, correction.budget) for correction in corrections}
    row["n_reviewed_answers"] = len(answers)
    row["n_reviewed"] = len(corrections)
    # Only tokens of answers drawn at random show how far the two agree, and of these only tokens that the labeller
    # labelled: the alignment labels the others (template), or their request failed.
    compared = []
    for correction, token in reviewed:
        if correction.sample == RANDOM and token["source"] == "endpoint":
            compared.append(correction)
    return row | _agreement(compared, split, config)


def _agreement(compared: Sequence[Correction], split: str, config: schema.Config) -> Row:
    """The columns on how far the labeller and the person agree over the ``compared`` tokens, resampled by document."""
    documents = sorted({(correction.split, original(correction.document)) for correction in compared})
    # Counts by document, label of the labeller and label of the person.
    confusion = np.zeros((len(documents), len(_CLASSES), len(_CLASSES)))
    for correction in compared:
        document = documents.index((correction.split, original(correction.document)))
        confusion[document, correction.label, correction.human] += 1
    row: Row = {"n_compared": len(compared), "n_compared_documents": len(documents)}
    counts = Draws.of(len(documents), config, f"labels:{split}").documents
    agreement = statistics.resampled_ratio(np.trace(confusion, axis1=1, axis2=2), confusion.sum((1, 2)), counts)
    coefficient = Resampled(float(kappa(confusion.sum(0))), kappa(np.tensordot(counts, confusion, axes=1)))
    agreement.put(row, "agreement_pct", 100)
    coefficient.put(row, "kappa")
    return row


def human_points(files: Files, config: schema.Config) -> pd.DataFrame:
    """Make the table of the means of CAS, human scores and string match by operating point."""
    judged = rows(list(files["judged"]), "scores")
    # None if no person has scored answers.
    sheet = next((read_sheet(Path(path), HumanScore) for path in files["score_sheet"]), None)
    columns = ["split", "point", "document", "cas", "string_match", "human"]
    pairs = [row | {"human": score.human} for score, row in matched(judged, sheet or [])]
    # The last three columns are scores, with None for a failed judgement.
    scored = pd.DataFrame(pairs, columns=columns).astype(dict.fromkeys(columns[3:], float))
    table = []
    if sheet is not None:
        for split, point in dict.fromkeys((row["split"], row["point"]) for row in judged):
            of_point = scored[(scored["split"] == split) & (scored["point"] == point)]
            table.append(_human_row(split, point, of_point, config))
    table.append(_human_row(ALL, ALL, scored, config))
    frame = pd.DataFrame(table)
    frame.insert(0, "sheet", sheet is not None)
    remark = "" if sheet is not None else "No person has scored the answers yet."
    return framed(frame, len({row["document"] for row in judged}), f"config seed {config.seed}", scored=remark)


def _human_row(split: str, point: str, scored: pd.DataFrame, config: schema.Config) -> Row:
    """The row of a point: means over the attributes that both a person and the judge have scored.

    ``scored`` has a row for each attribute that a person has scored. ``split`` and ``point`` are :data:`ALL` in the row
    over all points. ``difference`` is the judge's score minus the person's, ``distance`` the same without its sign.
    """
    judged = scored[scored["cas"].notna()]
    document, documents = pd.factorize(judged["document"], sort=True)
    row: Row = {"split": split, "point": point, "n_documents": len(documents), "n_scored": len(judged)}
    row["n_failed_judgements"] = len(scored) - len(judged)
    cas = judged["cas"].to_numpy()
    person = judged["human"].to_numpy()
    draws = Draws.of(len(documents), config, "human")
    means = {
        "cas": cas,
        "human": person,
        "string_match": judged["string_match"].to_numpy(),
        "difference": cas - person,
        "distance": np.abs(cas - person),
    }
    for name, values in means.items():
        draws.mean_of(values, document).put(row, f"{name}_pct", 100)
    draws.correlation(cas, person, document).put(row, "correlation")
    figures = None
    if point in config.operating:
        of_point = of_config(config.operating[point], config)
        if of_point.in_paper:
            figures = paper.tables().human.get(of_point.key)
    return row | paper.reference(ENTRIES["human_points"].of_paper, figures)
