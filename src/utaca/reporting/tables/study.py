"""The tables of the paper's study of CAS: judge, person and string match on a sample of answers, and two cases of them.

The answers are those of one point of UT-ACA about the documents of the review page (:mod:`utaca.judging.review`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from utaca.errors import UserError
from utaca.judging.review import sample
from utaca.judging.rules import statements
from utaca.judging.sheets import HumanScore, matched, read_sheet
from utaca.records import rows
from utaca.reporting import paper
from utaca.reporting.registry import ENTRIES, Files
from utaca.reporting.results import label_in_words, of_config
from utaca.reporting.statistics import NAN, Draws, Row
from utaca.reporting.table import framed
from utaca.settings import schema
from utaca.settings.budgets import in_order

SCORES = ("string_match", "cas", "human")
CORRECT = 0.5
"""An attribute counts as correct if a person gives it at least this score."""
RIGHT, WRONG, UNLIKE = 0.9, 0.1, 0.5
"""A value is right from a CAS of ``RIGHT``, wrong up to a CAS of ``WRONG``, and in another form than the reference if
its string match is below ``UNLIKE``."""
CASES = {"form": "Right in a different form", "wrong": "Wrong values"}


@dataclass(frozen=True)
class Study:
    """The studied answers: those of the point with label ``point`` about a sample of documents.

    ``answers`` has a frame for each document of the sample, in the sample's order. A frame has a row for each
    attribute, with the columns number (of the document in the sample, from 1), document, person, attribute, reference,
    prediction, and the scores in [0, 1]: string_match, cas (NaN if the judgement failed) and human (NaN if no person
    scored it). ``sheet`` says whether there is a sheet of human scores.
    """

    point: str
    answers: Sequence[pd.DataFrame]
    sheet: bool

    @classmethod
    def of(cls, files: Files, config: schema.Config) -> Study:
        """Read the study from the files ``judged``, ``score_sheet`` and ``test_documents``.

        Raises :class:`UserError` if the sheet is of another run, or a document or the scores of the point are missing.
        """
        point = point_of(config)
        judged = rows(list(files["judged"]), "scores")
        sheet = next((read_sheet(Path(path), HumanScore) for path in files["score_sheet"]), None)
        human_scores = {}
        for score, _ in matched(judged, sheet or []):
            human_scores[score.split, score.point, score.document, score.attribute] = score.human
        documents = rows(list(files["test_documents"]), "documents", ["id", "person"])
        persons = {row["id"]: row["person"] for row in documents}
        # The point's scores about each document of the sample.
        by_document: dict[str, list[Row]] = {name: [] for name in sample(row["document"] for row in judged)}
        for row in judged:
            if row["split"] != schema.TEST or row["point"] != point or row["document"] not in by_document:
                continue
            key = row["split"], row["point"], row["document"], row["attribute"]
            by_document[row["document"]].append(row | {"human": human_scores.get(key)})
        answers = []
        for number, (name, scores) in enumerate(by_document.items(), start=1):
            if name not in persons:
                raise UserError(
                    f"document {name!r} has scores, but the documents file does not have it; remove the files of "
                    "scores and documents, and run again"
                )
            if not scores:
                raise UserError(f"{files['judged'][0]} has no scores of {point} for document {name}; score it again")
            # The files have single precision, in which 0.9 is less than RIGHT: rounding makes it 0.9 again.
            frame = pd.DataFrame(scores).astype(dict.fromkeys(SCORES, float)).round(dict.fromkeys(SCORES, 6))
            answers.append(frame.assign(number=number, person=persons[name]))
        return cls(point, answers, sheet is not None)

    def framed(self, table: Sequence[Row], config: schema.Config) -> pd.DataFrame:
        """Make the frame of a ``table`` of these answers, with the words that the captions of such tables share."""
        remark = "" if self.sheet else "No person has scored the answers yet, so columns of human scores are left out."
        return framed(table, len(self.answers), point=label_in_words(self.point, config), scored=remark)


def point_of(config: schema.Config) -> str:
    """Label of the point whose answers people are asked to score, one of the test split's points with a detector.

    It is the point whose human scores the paper reports. If the run lacks it, points with the config's detector come
    first, then points with a larger K_max (a number before a share), then the order of the config.
    """
    # `tried` lists the points in block memory whose trigger is a detector.
    points = {label: of_config(config.operating[label], config) for label in config.tried(schema.TEST)}

    def preference(label: str) -> tuple[Any, ...]:
        point = points[label]
        # `point.key` does not say which detector decided, so `in_paper` is checked too.
        is_papers = point.in_paper and point.key in paper.tables().human
        is_share, number = in_order(point.budget)
        return is_papers, point.detector == config.detector, not is_share, number

    return max(points, key=preference)


def human(files: Files, config: schema.Config) -> pd.DataFrame:
    """Make the table of CAS, string match and human scores: a row for each studied answer, and a row of means."""
    study = Study.of(files, config)
    columns = ENTRIES["human"].of_paper
    # The correlation of CAS and human scores is over the attributes of all answers, so only the row of means has it.
    table = [_scores(answer) | {"n_documents": 1, "correlation": NAN} for answer in study.answers]
    by_answer = pd.DataFrame(table)
    draws = Draws.of(len(table), config, "human")
    mean: Row = {"number": NAN, "document": "", "person": "mean", "n_documents": len(table)}
    for name in SCORES:
        values = by_answer[f"{name}_pct"]
        # An answer without a score by the judge or by a person has no part in that mean.
        is_scored = values.notna().to_numpy()
        draws.mean_of(values.to_numpy(), np.arange(len(by_answer)), is_scored).put(mean, f"{name}_pct")
    # Means over the answers that a person scored: pandas leaves out NaN.
    mean["n_right"] = by_answer["n_right"].mean()
    mean["n_scored"] = by_answer["n_scored"].mean()
    mean["n_failed_judgements"] = int(by_answer["n_failed_judgements"].sum())
    both = pd.concat(study.answers).dropna(subset=["cas", "human"])
    # `number` counts documents from 1, the draws have them from column 0.
    document = both["number"].to_numpy() - 1
    draws.correlation(both["cas"].to_numpy(), both["human"].to_numpy(), document).put(mean, "correlation")
    # The paper reports the means only, of a single point.
    (figures,) = paper.tables().human.values()
    result = [row | paper.reference(columns, None) for row in table]
    result.append(mean | paper.reference(columns, figures))
    return study.framed(result, config)


def _scores(answer: pd.DataFrame) -> Row:
    """The columns of an answer: means of its scores in percent, and numbers of attributes.

    ``n_scored`` counts those that a person scored and ``n_right`` those that the person found right; both are NaN if no
    person scored the answer.
    """
    scored = answer["human"].dropna()
    first = answer.iloc[0]
    row: Row = {name: first[name] for name in ("number", "document", "person")}
    for name in SCORES:
        row[f"{name}_pct"] = 100 * answer[name].mean()
    row["n_right"] = (scored >= CORRECT).sum() if len(scored) else NAN
    row["n_scored"] = len(scored) or NAN
    row["n_failed_judgements"] = int(answer["cas"].isna().sum())
    return row


def cas_cases(files: Files, config: schema.Config) -> pd.DataFrame:
    """Make the table of two of the studied answers, attribute by attribute: right values in another form, wrong values.

    A case that no answer has is one row without figures.
    """
    study = Study.of(files, config)
    answers = {"form": in_another_form(study.answers), "wrong": with_wrong_values(study.answers)}
    columns = ENTRIES["cas_cases"].of_paper
    table: list[Row] = []
    for case, answer in answers.items():
        texts: Row = {"case": CASES[case], "reference": "", "prediction": ""}
        figures = paper.tables().cas_cases[case]
        if answer is None:
            missing: Row = {"number": NAN, "document": "", "person": "none of these answers", "attribute": ""}
            missing |= dict.fromkeys(columns, NAN)
            table.append(texts | missing | paper.reference(columns, figures))
            continue
        for scored in answer.to_dict("records"):
            shown = ("number", "document", "person", "attribute", "reference", "prediction")
            row: Row = texts | {name: scored[name] for name in shown}
            for name in SCORES:
                row[f"{name}_pct"] = 100 * scored[name]
            table.append(row | paper.reference(columns, None))
        # The paper reports the means of a case. The table has no counts, which `_scores` makes too.
        mean = _scores(answer)
        for count in ("n_right", "n_scored", "n_failed_judgements"):
            del mean[count]
        mean["attribute"] = "mean"
        table.append(texts | mean | paper.reference(columns, figures))
    return study.framed(table, config)


def in_another_form(answers: Sequence[pd.DataFrame]) -> pd.DataFrame | None:
    """Find the answer whose values are all right, some of them in another form than the reference; None without one.

    If there are several, it is the one with the lowest mean string match, and of equals the first by its document's id.
    An answer with a failed judgement (CAS NaN) is never one.
    """
    right = []
    for answer in answers:
        if (answer["cas"] >= RIGHT).all() and (answer["string_match"] < UNLIKE).any():
            right.append(answer)

    def order(answer: pd.DataFrame) -> tuple[float, str]:
        return answer["string_match"].mean(), answer["document"].iloc[0]

    return min(right, key=order, default=None)


def with_wrong_values(answers: Sequence[pd.DataFrame]) -> pd.DataFrame | None:
    """Find the answer with a wrong value whose mean CAS is lowest, but above zero if possible; None without one.

    An attribute on which an answer states nothing, or says that it is unknown, has no wrong value. Ties go to the first
    by its document's id.
    """
    wrong = []
    for answer in answers:
        judged_wrong = answer["prediction"][answer["cas"] <= WRONG]
        if any(_states(text) for text in judged_wrong):
            wrong.append(answer)

    def order(answer: pd.DataFrame) -> tuple[bool, float, str]:
        cas = answer["cas"].mean()
        return cas <= 0, cas, answer["document"].iloc[0]

    return min(wrong, key=order, default=None)


def _states(prediction: str) -> bool:
    """Whether a prediction gives a value, and is neither empty nor a refusal."""
    # `claims` leaves out refusals and denials.
    claims = "".join(claim for claim, _ in statements.claims(prediction))
    return any(map(str.isalnum, claims))
