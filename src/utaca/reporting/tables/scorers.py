"""CAS beside string match over all judged answers (paper, appendix "Evaluations of Conceptual Accuracy Score")."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from utaca.errors import UserError
from utaca.records import read
from utaca.reporting import statistics
from utaca.reporting.registry import Files, table
from utaca.reporting.statistics import ByDocument, Row, spread
from utaca.reporting.table import framed
from utaca.settings import schema

ALL = "all"
APART = 0.5
"""Difference of CAS and string match from which on they are said to disagree."""
LEAST = 0.1
"""Difference below which an answer is not listed."""
SHOWN = 12
"""Disagreements that are listed."""


@table(
    theme="judging",
    files="judged",
    when="judged",
    role="judge",
    columns="point n_judged cas_pct string_match_pct spearman cas_only_pct string_only_pct +n_failed_judgements",
)
def scorers(files: Files, config: schema.Config) -> pd.DataFrame:
    """CAS beside string match.

    Conceptual accuracy by the judge (CAS) beside string match (token F1), attribute by attribute, over all judged
    answers of the test split. Spearman's rho over attributes, ties sharing their
    rank. The last columns are attributes of which one of the two is above the other by 0.5 or more.
    """
    judged = _judged(files["judged"])
    documents = sorted(judged["document"].unique())
    counts = statistics.resamples(len(documents), config.scale.bootstrap, config.seed, "test")
    groups = [(ALL, judged), *judged.groupby("point", sort=False)]
    rows = [_row(name, scores, documents, counts) for name, scores in groups]
    return framed(rows, len(documents), f"config seed {config.seed}")


@table(
    theme="judging",
    files="judged",
    when="judged",
    role="judge",
    columns="attribute reference prediction cas string_match n_answers +document +point",
    other={"document": {"cell": "linked"}},
)
def disagreements(files: Files, config: schema.Config) -> pd.DataFrame:
    """Where CAS and string match disagree.

    The answers of the test split on which conceptual accuracy (CAS) and string match differ most, the widest apart
    first, with the first document and point of each; answers: how many gave this text.
    """
    judged = _judged(files["judged"])
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
    return framed(frame[keep], n_documents, f"config seed {config.seed}")


def _judged(scores: Sequence[str | Path]) -> pd.DataFrame:
    """Attributes of every answer once."""
    judged = read(scores, "scores").to_pandas()
    if judged.empty:
        raise UserError(f"{scores[0]} holds no scores; make it again with at least one answer")
    return judged.drop_duplicates(["point", "document", "attribute"]).reset_index(drop=True)


def _row(name: str, judged: pd.DataFrame, documents: Sequence[str], counts: np.ndarray) -> Row:
    rows = judged[judged["cas"].notna()]
    by_document = ByDocument.of(rows["document"], documents, counts)
    cas, strings = (rows[column].to_numpy(dtype=np.float64) for column in ("cas", "string_match"))
    row: Row = {"point": name, "n_judged": len(rows), "n_failed_judgements": len(judged) - len(rows)}
    by_document.put(row, "cas_pct", cas, 100)
    by_document.put(row, "string_match_pct", strings, 100)
    by_document.put(row, "cas_only_pct", cas - strings >= APART, 100)
    by_document.put(row, "string_only_pct", strings - cas >= APART, 100)
    spread(row, "spearman", by_document.correlation(cas, strings, statistics.ranks))
    return row
