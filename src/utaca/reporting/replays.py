"""What single decisions of the detector did: tables of its replays (paper, appendix "Additional Results").

A replay turns one decision and lets everything else run on (:mod:`utaca.generation.replays`). What a decision did is
the answer as it was minus the answer with it turned.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from utaca.records import check_source, read, rows
from utaca.reporting import paper, render, statistics
from utaca.reporting.generation import seeds_in_words
from utaca.reporting.points import label_in_words
from utaca.reporting.statistics import Draws
from utaca.reporting.tables import Column, Row, Show, Table, caption_in_words, figure, plain, spread
from utaca.settings import schema

_EQUAL = 1e-6
_FIGURES = [f"{whose}_{what}" for what in ("cas", "selected", "all_passes", "rollbacks") for whose in ("own", "turned")]
KINDS = {"expanded": True, "kept": False}
CLASSES = ("all", "token differs", "token the same", "helpful", "neutral", "harmful")


@dataclass(frozen=True)
class Files:
    """Answers with their scores, replays with the scores of changed answers, and the label of the replayed point."""

    answers: Sequence[str | Path]
    scores: str | Path
    replays: Sequence[str | Path]
    replay_scores: str | Path
    point: str


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


def replayed(files: Files) -> Replayed:
    """Replays beside the answers that they were made from.

    Raises :class:`UserError` where files of different runs would be mixed.
    """
    check_source(files.scores, files.answers)
    check_source(files.replay_scores, [*files.replays, *files.answers])
    answers = {row["document"]: row for row in _of(files.point, rows(list(files.answers), "answers"))}
    own = _by_attribute(_of(files.point, rows(files.scores, "scores")), lambda row: row["document"])
    changed = _by_attribute(rows(files.replay_scores, "scores"), lambda row: (row["document"], row["point"]))
    frame = read(files.replays, "replays").to_pandas()
    found, turned = [], []
    for row in frame.to_dict("records"):
        answer, before = answers[row["document"]], own[row["document"]]
        after = before if row["text"] == answer["text"] else changed[row["document"], str(row["step"])]
        turned.append(after)
        found.append(
            {
                "own_cas": _quality(before),
                "turned_cas": _quality(after),
                "own_selected": answer["selected"],
                "turned_selected": row["selected"],
                "own_all_passes": answer["selected_with_tentative"],
                "turned_all_passes": row["selected_with_tentative"],
                "own_rollbacks": answer["rollbacks"],
                "turned_rollbacks": row["rollbacks"],
                "differs": row["compact_token"] != row["expanded_token"],
            }
        )
    both = frame.join(pd.DataFrame(found, columns=[*_FIGURES, "differs"]).astype({"differs": bool}))
    known = both[["own_cas", "turned_cas"]].notna().all(axis=1)
    kept = [after for after, good in zip(turned, known, strict=True) if good]
    both = both[known].reset_index(drop=True)
    both["weight"] = both["of"] / both.groupby(["document", "expanded"])["step"].transform("size")
    return Replayed(both, own, kept, tuple(sorted(answers)), int((~known).sum()))


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


def replay(files: Files, config: schema.Config) -> Table:
    """What decisions did on average, by kind (expanded, kept) and class.

    ``cas_change`` (points), ``mtokens_change`` and ``rollbacks_change`` are means over decisions of the answer as it
    was minus the answer with the decision turned; helpful decisions raised CAS, harmful ones lowered it. A replayed
    decision counts for all of its kind in its document that it was drawn from.
    """
    data = replayed(files)
    counts = statistics.resamples(len(data.documents), config.scale.bootstrap, config.seed, "test")
    table: list[Row] = []
    for kind, expanded in KINDS.items():
        own = data.frame[data.frame["expanded"] == expanded]
        for name in CLASSES:
            table.append({"decision": kind, "class": name, **_effect(own, _member(own, name), data.documents, counts)})
    columns = (
        Column("Decision", plain("decision")),
        Column("Class", plain("class")),
        Column("Replayed", plain("n_replayed")),
        Column("Share of its kind %", figure("share_pct", 1)),
        Column("CAS change", figure("cas_change", 2)),
        Column("mTokens change", figure("mtokens_change", 1)),
        Column("with all passes", figure("all_passes_change", 1), folded=True),
        Column("Rollbacks change", figure("rollbacks_change", 2)),
    )
    what = (
        f"Single-decision counterfactual replay of {label_in_words(config.replays_of, config)} on the test split: one "
        "decision of the detector is turned, everything else runs on. Changes are what the decision did to its "
        "answer: the answer as it was minus the answer with the decision turned, means over decisions (CAS in points "
        "of the answer). Token: whether compact and expanded pass give different tokens. Helpful decisions raised "
        f"CAS, harmful ones lowered it. Replayed are at most {config.scale.replays} decisions of each kind a document, "
        f"drawn by chance; each counts for all that it was drawn from. {data.n_failed} replays with failed judgements "
        "are left out."
    )
    told = caption_in_words(
        what, config, "judge", len(data.documents), seeds_in_words(config), paper.LLAMA, columns=False
    )
    return Table("replay", "What the detector's decisions did", told, pd.DataFrame(table), columns)


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
    place = {name: number for number, name in enumerate(documents)}
    at = np.array([place[name] for name in kind["document"]], dtype=np.int64)
    weight = kind["weight"].to_numpy(dtype=np.float64)

    def total(values: np.ndarray) -> np.ndarray:
        return np.bincount(at, weights=values, minlength=len(documents))

    every, own = total(weight), total(weight * member)
    spread(row, "share_pct", statistics.ratio_interval(own, every, counts), 100)
    for column, name, factor in (
        ("cas_change", "cas", 100),
        ("mtokens_change", "selected", 1),
        ("all_passes_change", "all_passes", 1),
        ("rollbacks_change", "rollbacks", 1),
    ):
        change = (kind[f"own_{name}"] - kind[f"turned_{name}"]).to_numpy(dtype=np.float64)
        spread(row, column, statistics.ratio_interval(total(weight * member * change), own, counts), factor)
    return row


# What the best of single decisions reaches


def bound(files: Files, config: schema.Config) -> Table:
    """The point as it is, and with the one decision of each document turned that is best with hindsight.

    Any of the replayed decisions may be turned, or none: towards the highest CAS, and towards the fewest selected
    tokens at no lower CAS. What a detector could reach with all decisions right lies beyond either.
    """
    data = replayed(files)
    documents = [name for name in data.documents if not np.isnan(_quality(data.own[name]))]
    draws = Draws.of(len(documents), config, "test")
    tokens = {row["document"]: row["selected"] for row in _of(files.point, rows(list(files.answers), "answers"))}
    options = {
        name: [(_quality(data.own[name]), tokens[name]), *zip(own["turned_cas"], own["turned_selected"], strict=True)]
        for name, own in ((name, data.frame[data.frame["document"] == name]) for name in documents)
    }
    chosen = {
        "as the detector decides": {name: own[0] for name, own in options.items()},
        "one decision turned, highest CAS": {
            name: max(own, key=lambda option: (round(option[0], 6), -option[1])) for name, own in options.items()
        },
        "one decision turned, fewest tokens at no lower CAS": {
            name: min((option for option in own if option[0] >= own[0][0] - _EQUAL), key=lambda option: option[1])
            for name, own in options.items()
        },
    }
    ones, table = np.ones(len(documents)), []
    first = np.array([chosen["as the detector decides"][name] for name in documents])
    for name, of in chosen.items():
        values = np.array([of[document] for document in documents])
        row: Row = {"decisions": name, "n_documents": len(values), "n_changed": int((values != first).any(1).sum())}
        spread(row, "cas_pct", statistics.ratio_interval(values[:, 0], ones, draws.documents), 100)
        spread(row, "mtokens", statistics.ratio_interval(values[:, 1], ones, draws.documents))
        gained = values - first
        spread(row, "cas_gain", statistics.ratio_interval(gained[:, 0], ones, draws.documents), 100)
        spread(row, "mtokens_gain", statistics.ratio_interval(gained[:, 1], ones, draws.documents))
        table.append(row)
    columns = (
        Column("Decisions", plain("decisions")),
        Column("CAS %", figure("cas_pct", 2)),
        Column("mTokens", figure("mtokens", 1)),
        Column("CAS, to the first row", figure("cas_gain", 2)),
        Column("mTokens, to the first row", figure("mtokens_gain", 1)),
        Column("Documents changed", plain("n_changed")),
        Column("Documents", plain("n_documents"), folded=True),
    )
    what = (
        f"What one better decision of {label_in_words(config.replays_of, config)} a document is worth, with hindsight: "
        f"of at most {config.scale.replays} replayed decisions of each kind, none is turned or the best one. This is "
        "reached, not imitated: perfect decisions would reach at least as much. Means over documents; an answer with "
        "a failed judgement is no option."
    )
    told = caption_in_words(what, config, "judge", len(documents), seeds_in_words(config), paper.LLAMA, columns=False)
    return Table("bound", "What one better decision is worth", told, pd.DataFrame(table), columns)


# Two false positives, two false negatives


def failures(files: Files, config: schema.Config) -> Table:
    """Two false positives and two false negatives, each with its one decision turned (paper, table of the same).

    False positives: expansions that left the token as it was, those first whose suppression saves most mTokens. False
    negatives: missed expansions that give another token, those first that raise CAS most when forced. One a document.
    """
    data = replayed(files)
    frame = data.frame
    gain, saved = frame["turned_cas"] - frame["own_cas"], frame["own_selected"] - frame["turned_selected"]
    wrong = frame.assign(gain=gain.round(6), saved=saved.round(6))
    found = {
        "FP": wrong[wrong["expanded"] & ~wrong["differs"]].sort_values(
            ["saved", "document", "step"], ascending=[False, True, True]
        ),
        "FN": wrong[~wrong["expanded"] & wrong["differs"] & (wrong["gain"] > _EQUAL)].sort_values(
            ["gain", "document", "step"], ascending=[False, True, True]
        ),
    }
    table = [
        _failure(f"{kind}-{number}", one)
        for kind, own in found.items()
        for number, one in enumerate(own.drop_duplicates("document").head(2).to_dict("records"), start=1)
    ]
    known = {row["case"]: row for row in table}
    table = [known.get(name) or _failure(name, None) for name in paper.tables().failures]

    def turned(column: str, digits: int) -> Show:
        def show(row: Mapping[str, Any]) -> str:
            before, after = (render.number(row[f"{column}_{when}"], digits) for when in ("before", "after"))
            return render.MISSING if not row["found"] else f"{before} → {after}"

        return show

    columns = (
        Column("Case", plain("case")),
        Column("Intervention", plain("intervention"), folded=True),
        Column("Document", lambda row: row["document"] or "none found"),
        Column("Step", lambda row: str(row["step"]) if row["found"] else render.MISSING, folded=True),
        Column("Token, compact", _quoted("compact_token")),
        Column("Token, expanded", _quoted("expanded_token")),
        Column("Quality %", turned("quality_pct", 1)),
        Column("mTokens", turned("mtokens", 1)),
        Column("Rollbacks", turned("rollbacks", 0)),
        Column("paper quality %", lambda row: row["paper_quality"]),
        Column("paper mTokens", lambda row: row["paper_mtokens"], folded=True),
        Column("paper rollbacks", lambda row: row["paper_rollbacks"], folded=True),
    )
    what = (
        f"False positives and false negatives of {label_in_words(config.replays_of, config)}, each replayed with the "
        "one decision turned, found among the replayed decisions: expansions that left the token as it was, of which "
        "those come first whose suppression saves most mTokens; missed expansions that give another token and raise "
        "CAS, of which those come "
        "first that raise it most; one a document. They are extremes: table replay tells of all decisions."
    )
    told = caption_in_words(what, config, "judge", len(data.documents), seeds_in_words(config), paper.LLAMA)
    return Table("failures", "False positives and false negatives", told, pd.DataFrame(table), columns)


def _quoted(column: str) -> Show:
    """Shows a token with its spaces."""
    return lambda row: f"“{row[column]}”" if row[column] else render.MISSING


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
    return row | {f"paper_{name}": value for name, value in paper.tables().failures[case]._asdict().items()}


# What an expansion does to a token


def cases(files: Files, fixed: str, config: schema.Config, count: int = 3) -> Table:
    """Expansions that changed a token and, by it, an attribute's score: the token before and after, and the answers.

    ``fixed`` is the label of a compact fixed budget, "" where there is none. Those expansions come first without which
    the attribute loses most CAS, of these the ones that raise their token's log-probability most; one a document.
    """
    data = replayed(files)
    compact = _by_attribute(_of(fixed, rows(files.scores, "scores")), lambda row: row["document"])
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
    table = pd.DataFrame(found)
    if found:
        lost = (table["adaptive_cas"] - table["suppressed_cas"]).round(6)
        raised = (table["logprob_after"] - table["logprob_before"].fillna(-np.inf)).round(6)
        table = table.assign(lost=lost, raised=raised).sort_values(
            ["lost", "raised", "document", "step"], ascending=[False, False, True, True]
        )
        table = table.drop_duplicates("document").head(count).drop(columns=["lost", "raised"])

    def answered(when: str) -> Show:
        def show(row: Mapping[str, Any]) -> str:
            scores = ", ".join(render.number(row[f"{when}_{column}"], 2) for column in ("cas", "string_match"))
            return f"{row[f'{when}_prediction']} ({scores})"

        return show

    columns = (
        Column("Document", plain("document")),
        Column("Attribute", plain("attribute")),
        Column("Reference", plain("reference")),
        Column("Rejected token", _quoted("rejected")),
        Column("Replacement", _quoted("replacement")),
        Column(
            "Its rank before",
            lambda row: "> 10" if pd.isna(row["rank_before"]) else f"{row['rank_before']:.0f}",
            folded=True,
        ),
        Column("log p before", figure("logprob_before", 2), folded=True),
        Column("log p after", figure("logprob_after", 2), folded=True),
        Column("UT-ACA (CAS, string match)", answered("adaptive")),
        Column("without this expansion", answered("suppressed")),
        Column("under the compact fixed budget", answered("compact")),
    )
    n_turned = int((data.frame["expanded"] & data.frame["differs"]).sum())
    what = (
        f"Expansions of {label_in_words(config.replays_of, config)} that replaced a token and by it changed the score "
        "of an attribute: "
        f"{len(found)} of the {n_turned} replayed expansions that replaced a token; those come first without which the "
        "attribute loses most CAS, one a document. Rank and log-probability are the replacement's under the compact "
        "and under the expanded budget (paper, one case: rank 3 and -5.13 before, rank 1 and -4.56 after). The compact "
        "fixed budget is InfLLM's smallest."
    )
    told = caption_in_words(
        what, config, "judge", len(data.documents), seeds_in_words(config), paper.LLAMA, columns=False
    )
    return Table("cases", "What an expansion does to a token", told, table, columns)
