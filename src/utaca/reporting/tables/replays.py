"""What single decisions of the detector did: tables of its replays (paper, appendix "Additional Results").

A replay turns one decision and lets everything else run on (:mod:`utaca.generation.replays`). What a decision did is
the answer as it was minus the answer with it turned.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from utaca.records import check_source, read, rows
from utaca.reporting import paper, render, statistics
from utaca.reporting.points import label_in_words
from utaca.reporting.registry import Files, table
from utaca.reporting.statistics import ByDocument, Draws, Row
from utaca.reporting.table import framed
from utaca.settings import schema

_EQUAL = 1e-6
_SUMS = {"selected": "selected", "all_passes": "selected_with_tentative", "rollbacks": "rollbacks"}
"""What a decision may change of an answer beside its quality, and the columns of it."""
KINDS = {"expanded": True, "kept": False}
SHOWN = 3
"""Cases of an expansion that are shown."""
CLASSES = ("all", "token differs", "token the same", "helpful", "neutral", "harmful")


@dataclass(frozen=True)
class Replayed:
    """Every replayed decision: a row of ``frame`` each, beside the scores by attribute of its answer, own and turned.

    ``frame`` has the columns of schema "replays" and, of both answers, ``{own,turned}_{cas,selected,all_passes,
    rollbacks}``, CAS being the mean over attributes; ``weight`` is the number of decisions that a replayed one stands
    for; ``differs`` whether the two passes give different tokens. Replays with a failed judgement are only counted.
    """

    frame: pd.DataFrame
    own: Mapping[str, Mapping[str, Mapping[str, Any]]]
    turned: Sequence[Mapping[str, Mapping[str, Any]]]
    documents: tuple[str, ...]
    n_failed: int


def replayed(files: Files, point: str) -> Replayed:
    """Replays of a point beside the answers that they were made from.

    ``files`` are ``test_answers`` with ``test_scores``, and ``replays`` with the ``replay_scores`` of changed answers.
    Raises :class:`UserError` where files of different runs would be mixed.
    """
    (scores,), (replay_scores,) = files["test_scores"], files["replay_scores"]
    check_source(scores, files["test_answers"])
    check_source(replay_scores, [*files["replays"], *files["test_answers"]])
    answers = {row["document"]: row for row in _of(point, rows(files["test_answers"], "answers"))}
    own = _by_attribute(_of(point, rows(scores, "scores")), lambda row: row["document"])
    changed = _by_attribute(rows(replay_scores, "scores"), lambda row: (row["document"], row["point"]))
    frame = read(files["replays"], "replays").to_pandas()
    turned = [
        own[row["document"]] if row["text"] == answers[row["document"]]["text"]
        else changed[row["document"], str(row["step"])]
        for row in frame.to_dict("records")
    ]  # fmt: skip
    frame["own_cas"] = pd.Series([_quality(own[name]) for name in frame["document"]], dtype=float)
    frame["turned_cas"] = pd.Series(list(map(_quality, turned)), dtype=float)
    for name, column in _SUMS.items():
        frame[f"own_{name}"] = pd.Series([answers[document][column] for document in frame["document"]], dtype=float)
        frame[f"turned_{name}"] = frame[column]
    frame["differs"] = frame["compact_token"] != frame["expanded_token"]
    known = frame[["own_cas", "turned_cas"]].notna().all(axis=1)
    kept = [after for after, good in zip(turned, known, strict=True) if good]
    frame = frame[known].reset_index(drop=True)
    frame["weight"] = frame["of"] / frame.groupby(["document", "expanded"])["step"].transform("size")
    return Replayed(frame, own, kept, tuple(sorted(answers)), int((~known).sum()))


def _of(point: str, found: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [row for row in found if row["point"] == point]


def _quality(answer: Mapping[str, Mapping[str, Any]]) -> float:
    """CAS of an answer, NaN where a judgement failed: a mean over the others would tell of other attributes."""
    scores = [row["cas"] for row in answer.values()]
    return float("nan") if None in scores else float(np.mean(scores))


def _by_attribute(judged: Sequence[Mapping[str, Any]], key: Any) -> dict[Any, dict[str, Mapping[str, Any]]]:
    found: dict[Any, dict[str, Mapping[str, Any]]] = {}
    for row in judged:
        found.setdefault(key(row), {})[row["attribute"]] = row
    return found


# The aggregate that the paper does not have


@table(
    theme="decisions",
    files="test_answers test_scores replays replay_scores",
    when="replayed",
    role="judge",
    columns="decision class n_replayed share_pct cas_change mtokens_change +all_passes_change rollbacks_change",
)
def replay(files: Files, config: schema.Config) -> pd.DataFrame:
    """What the detector's decisions did.

    Single-decision counterfactual replay of {point} on the test split: one decision of the detector is turned,
    everything else runs on. Changes are what the decision did to its answer: the answer as it was minus the answer with
    the decision turned, means over decisions (CAS in points of the answer). Token: whether compact and expanded pass
    give different tokens. Helpful decisions raised CAS, harmful ones lowered it. Replayed are at most {replays}
    decisions of each kind a document, drawn by chance; each counts for all that it was drawn from. {failed} replays
    with failed judgements are left out.
    """
    data = replayed(files, config.replays_of)
    counts = statistics.resamples(len(data.documents), config.scale.bootstrap, config.seed, "test")
    rows: list[Row] = []
    for kind, expanded in KINDS.items():
        decisions = data.frame[data.frame["expanded"] == expanded]
        for name in CLASSES:
            effect = _effect(decisions, _member(decisions, name), data.documents, counts)
            rows.append({"decision": kind, "class": name, **effect})
    return _framed(rows, config, len(data.documents), failed=data.n_failed)


def _framed(rows: Sequence[Row] | pd.DataFrame, config: schema.Config, n: int, **words: Any) -> pd.DataFrame:
    point = label_in_words(config.replays_of, config)
    return framed(rows, n, point=point, replays=config.scale.replays, **words)


def _member(decisions: pd.DataFrame, name: str) -> np.ndarray:
    """Which decisions belong to a class, boolean."""
    change = (decisions["own_cas"] - decisions["turned_cas"]).to_numpy()
    differs = decisions["differs"].to_numpy(dtype=bool)
    return {
        "all": np.ones(len(decisions), dtype=bool),
        "token differs": differs,
        "token the same": ~differs,
        "helpful": change > _EQUAL,
        "neutral": np.abs(change) <= _EQUAL,
        "harmful": change < -_EQUAL,
    }[name]


def _effect(kind: pd.DataFrame, member: np.ndarray, documents: Sequence[str], counts: np.ndarray) -> Row:
    row: Row = {"n_replayed": int(member.sum())}
    by_document = ByDocument.of(kind["document"], documents, counts)
    weight = kind["weight"].to_numpy(dtype=np.float64)
    by_document.put(row, "share_pct", member, 100, weight)
    for name, column, factor in (
        ("cas", "cas", 100),
        ("selected", "mtokens", 1),
        ("all_passes", "all_passes", 1),
        ("rollbacks", "rollbacks", 1),
    ):
        change = (kind[f"own_{name}"] - kind[f"turned_{name}"]).to_numpy(dtype=np.float64)
        by_document.put(row, f"{column}_change", change, factor, weight * member)
    return row


# What the best of single decisions reaches


@table(
    theme="decisions",
    files="test_answers test_scores replays replay_scores",
    when="replayed",
    role="judge",
    columns="decisions cas_pct mtokens cas_gain mtokens_gain n_changed +n_documents",
    other={"n_changed": {"title": "Documents changed", "meaning": "Documents of which a decision is turned."}},
)
def bound(files: Files, config: schema.Config) -> pd.DataFrame:
    """What one better decision is worth.

    What one better decision of {point} a document is worth, with hindsight: of at most {replays} replayed decisions of
    each kind, none is turned or the best one. This is reached, not imitated: perfect decisions would reach at least as
    much. Means over documents; an answer with a failed judgement is no option.
    """
    data = replayed(files, config.replays_of)
    documents = [name for name in data.documents if not np.isnan(_quality(data.own[name]))]
    draws = Draws.of(len(documents), config, "test")
    tokens = {
        row["document"]: row["selected"] for row in _of(config.replays_of, rows(files["test_answers"], "answers"))
    }
    options = {
        name: [(_quality(data.own[name]), tokens[name]), *zip(of["turned_cas"], of["turned_selected"], strict=True)]
        for name, of in ((name, data.frame[data.frame["document"] == name]) for name in documents)
    }
    choices = {
        "as the detector decides": lambda of: of[0],
        "one decision turned, highest CAS": lambda of: max(of, key=lambda one: (round(one[0], 6), -one[1])),
        "one decision turned, fewest tokens at no lower CAS": lambda of: min(
            (one for one in of if one[0] >= of[0][0] - _EQUAL), key=lambda one: one[1]
        ),
    }
    effects, each = [], ByDocument.of(documents, documents, draws.documents)
    first = np.array([options[name][0] for name in documents])
    for name, choose in choices.items():
        values = np.array([choose(options[document]) for document in documents])
        row: Row = {"decisions": name, "n_documents": len(values), "n_changed": int((values != first).any(1).sum())}
        for of, cas, mtokens in ((values, "cas_pct", "mtokens"), (values - first, "cas_gain", "mtokens_gain")):
            each.put(row, cas, of[:, 0], 100)
            each.put(row, mtokens, of[:, 1])
        effects.append(row)
    return _framed(effects, config, len(documents))


# Two false positives, two false negatives


@table(
    theme="decisions",
    files="test_answers test_scores replays replay_scores",
    when="replayed",
    role="judge",
    columns="""case +intervention document +step compact_token expanded_token quality_pct mtokens rollbacks
        paper_quality +paper_mtokens +paper_rollbacks""",
    other={"mtokens": {"meaning": "mTokens of the answer before and after.", "cell": "change"}},
)
def failures(files: Files, config: schema.Config) -> pd.DataFrame:
    """False positives and false negatives.

    False positives and false negatives of {point}, each replayed with the one decision turned, found among the replayed
    decisions: expansions that left the token as it was, of which those come first whose suppression saves most mTokens;
    missed expansions that give another token and raise CAS, of which those come first that raise it most; one a
    document. They are extremes: table replay tells of all decisions.
    """
    data = replayed(files, config.replays_of)
    frame = data.frame
    gain, saved = frame["turned_cas"] - frame["own_cas"], frame["own_selected"] - frame["turned_selected"]
    wrong = frame.assign(gain=gain.round(6), saved=saved.round(6))
    kinds = {
        "FP": (wrong["expanded"] & ~wrong["differs"], "saved"),
        "FN": (~wrong["expanded"] & wrong["differs"] & (wrong["gain"] > _EQUAL), "gain"),
    }
    cases: dict[str, Mapping[str, Any]] = {}
    for kind, (chosen, by) in kinds.items():
        ordered = wrong[chosen].sort_values([by, "document", "step"], ascending=[False, True, True])
        first = ordered.drop_duplicates("document").head(2).to_dict("records")
        cases |= {f"{kind}-{number}": one for number, one in enumerate(first, start=1)}
    rows = [_failure(name, cases.get(name)) for name in paper.tables().failures]
    return _framed(rows, config, len(data.documents))


def _failure(case: str, decision: Mapping[str, Any] | None) -> Row:
    one = decision or {}
    nan = float("nan")
    row: Row = {
        "case": case,
        "intervention": "suppress expansion" if case.startswith("FP") else "force expansion",
        "found": decision is not None,
        "document": one.get("document", ""),
        "step": one.get("step", -1),
        "compact_token": one.get("compact_text", ""),
        "expanded_token": one.get("expanded_text", ""),
    }
    for column, name, factor in ("quality_pct", "cas", 100), ("mtokens", "selected", 1), ("rollbacks", "rollbacks", 1):
        row[f"{column}_before"] = factor * one.get(f"own_{name}", nan)
        row[f"{column}_after"] = factor * one.get(f"turned_{name}", nan)
    return row | paper.beside(paper.Failure, paper.tables().failures[case])


# What an expansion does to a token


@table(
    theme="decisions",
    files="test_answers test_scores replays replay_scores",
    when="replayed",
    role="judge",
    columns="""document attribute reference rejected replacement +rank_before +logprob_before +logprob_after adaptive
        suppressed compact""",
)
def cases(files: Files, config: schema.Config) -> pd.DataFrame:
    """What an expansion does to a token.

    Expansions of {point} that replaced a token and by it changed the score of an attribute: {found} of the {turned}
    replayed expansions that replaced a token; those come first without which the attribute loses most CAS, one a
    document. Rank and log-probability are the replacement's under the compact and under the expanded budget (paper, one
    case: rank 3 and -5.13 before, rank 1 and -4.56 after). The compact fixed budget is InfLLM's smallest.
    """
    data, fixed = replayed(files, config.replays_of), _smallest(config)
    compact = _by_attribute(_of(fixed, rows(files["test_scores"], "scores")), lambda row: row["document"])
    found: list[Row] = []
    for one, after in zip(data.frame.to_dict("records"), data.turned, strict=True):
        if not (one["expanded"] and one["differs"]):
            continue
        own = data.own[one["document"]]
        name = max(own, key=lambda attribute: own[attribute]["cas"] - after[attribute]["cas"])
        if own[name]["cas"] - after[name]["cas"] <= _EQUAL:
            continue
        row: Row = {
            "document": one["document"],
            "attribute": name,
            "reference": own[name]["reference"],
            "step": one["step"],
            "rejected": one["compact_text"],
            "replacement": one["expanded_text"],
            "rank_before": one["rank_before"],
            "logprob_before": one["logprob_before"],
            "logprob_after": one["logprob_after"],
        }
        for when, answers in (("adaptive", own), ("suppressed", after), ("compact", compact.get(one["document"], {}))):
            answer = answers.get(name, {"prediction": render.MISSING})
            row[f"{when}_prediction"] = answer["prediction"]
            for column in ("cas", "string_match"):
                value = answer.get(column)
                row[f"{when}_{column}"] = float("nan") if value is None else value
        found.append(row)
    frame = pd.DataFrame(found)
    if found:
        lost = (frame["adaptive_cas"] - frame["suppressed_cas"]).round(6)
        raised = (frame["logprob_after"] - frame["logprob_before"].fillna(-np.inf)).round(6)
        order = ["lost", "raised", "document", "step"]
        frame = frame.assign(lost=lost, raised=raised).sort_values(order, ascending=[False, False, True, True])
        frame = frame.drop_duplicates("document").head(SHOWN).drop(columns=["lost", "raised"])
    n_turned = int((data.frame["expanded"] & data.frame["differs"]).sum())
    return _framed(frame, config, len(data.documents), found=len(found), turned=n_turned)


def _smallest(config: schema.Config) -> str:
    """The label of the smallest fixed budget on the test split, "" where there is none."""
    points = [point for section in config.sections("test") for point in config.decoded(section)]
    fixed = [point for point in points if point.method == schema.FIXED]
    return min(fixed, key=lambda point: point.budget).label if fixed else ""
