"""CAS beside string match over all judged answers (paper, appendix "Evaluations of Conceptual Accuracy Score")."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from utaca.errors import UserError
from utaca.records import read
from utaca.reporting import statistics
from utaca.reporting.points import fragment, of_label, point_in_words
from utaca.reporting.tables import VIEWER, Row, Table, build_table, spread
from utaca.settings import schema
from utaca.settings.schema import BLOCK_METHODS

ALL = "all"
APART = 0.5
"""Difference of CAS and string match from which on they are said to disagree."""
LEAST = 0.1
"""Difference below which an answer is not listed."""
SHOWN = 12
"""Disagreements that are listed."""


def spearman(first: np.ndarray, second: np.ndarray, weights: np.ndarray) -> float:
    """Spearman's rank correlation of values [n] that occur ``weights`` [n] times each; ties share their mean rank.

    NaN where either does not vary.
    """
    x, y = _ranks(first, weights), _ranks(second, weights)
    total = max(weights.sum(), 1.0)
    x, y = x - weights @ x / total, y - weights @ y / total
    spread_ = np.sqrt((weights @ x**2) * (weights @ y**2))
    # Equal ranks leave a rounding error, no variance.
    return float(weights @ (x * y) / spread_) if spread_ > 1e-9 * total else float("nan")


def _ranks(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    _, place = np.unique(values, return_inverse=True)
    each = np.bincount(place, weights=weights)
    return (np.cumsum(each) - each / 2)[place]


def scorers(scores: Sequence[str | Path], config: schema.Config) -> Table:
    """How CAS and string match agree, by operating point and over all; failed judgements are left out and counted.

    ``*_only_pct`` are attributes of which one score is above the other by at least :data:`APART`.
    """
    judged = _judged(scores)
    documents = np.array(sorted(judged["document"].unique()), dtype=object)
    counts = statistics.resamples(len(documents), config.scale.bootstrap, config.seed, "test")
    groups = [(ALL, judged), *judged.groupby("point", sort=False)]
    rows = [_row(name, own, documents, counts) for name, own in groups]
    shows, seed = {"point": point_in_words(config)}, f"config seed {config.seed}"
    return build_table("scorers", rows, config, len(documents), seed, shows=shows)


def disagreements(scores: Sequence[str | Path], config: schema.Config) -> Table:
    """Answers on which CAS and string match differ most, each with its texts; the same texts are shown once."""
    judged = _judged(scores)
    n_documents = judged["document"].nunique()
    judged = judged[judged["cas"].notna()].assign(difference=lambda f: f["cas"] - f["string_match"])
    judged = judged[judged["difference"].abs() >= LEAST]
    texts = ["attribute", "reference", "prediction"]
    order = judged.assign(distance=judged["difference"].abs().round(6)).sort_values(
        ["distance", "document", "attribute", "point"], ascending=[False, True, True, True], kind="stable"
    )
    answers = order.groupby(texts, sort=False).size().rename("n_answers")
    frame = order.drop_duplicates(texts).head(SHOWN).join(answers, on=texts)
    keep = ["document", "point", *texts, "cas", "string_match", "difference", "n_answers", "reason"]
    shows = {"document": lambda row: _linked(row, config), "point": point_in_words(config)}
    return build_table("disagreements", frame[keep], config, n_documents, f"config seed {config.seed}", shows=shows)


def _linked(row: Mapping[str, Any], config: schema.Config) -> str:
    """The document, with the address of the answer where the trace viewer of the test split has it."""
    point = of_label(row["point"], config)
    if point is None or point.retriever not in BLOCK_METHODS:
        return row["document"]
    return f"[{row['document']}]({VIEWER}/test.html{fragment(row['document'], row['point'])})"


def _judged(scores: Sequence[str | Path]) -> pd.DataFrame:
    """Attributes of every answer once: suites may share points."""
    judged = read(scores, "scores").to_pandas()
    if judged.empty:
        raise UserError(f"{scores[0]} holds no scores; make it again with at least one answer")
    return judged.drop_duplicates(["point", "document", "attribute"]).reset_index(drop=True)


def _row(name: str, judged: pd.DataFrame, documents: np.ndarray, counts: np.ndarray) -> Row:
    known = judged[judged["cas"].notna()]
    at = np.searchsorted(documents, known["document"].to_numpy(dtype=object))
    cas, strings = (known[column].to_numpy(dtype=np.float64) for column in ("cas", "string_match"))
    row: Row = {"point": name, "n_judged": len(known), "n_failed_judgements": len(judged) - len(known)}
    means = {
        "cas": cas,
        "string_match": strings,
        "cas_only": (cas - strings >= APART).astype(np.float64),
        "string_only": (strings - cas >= APART).astype(np.float64),
    }
    for column, values in means.items():
        spread(row, f"{column}_pct", statistics.mean_interval(values, at, counts), 100)
    resampled = np.array([spearman(cas, strings, weights[at]) for weights in counts])
    value = spearman(cas, strings, np.ones(len(known)))
    spread(row, "spearman", statistics.interval(value, resampled))
    return row


MAKERS = {
    "scorers": lambda files, config: scorers(files["judged"], config),
    "disagreements": lambda files, config: disagreements(files["judged"], config),
}
