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
from utaca.reporting.registry import Files
from utaca.reporting.statistics import Draws
from utaca.reporting.tables import Row, Show, Table, build_table, plain_if, spread
from utaca.settings import schema

_EQUAL = 1e-6
_SUMS = {"selected": "selected", "all_passes": "selected_with_tentative", "rollbacks": "rollbacks"}
"""What a decision may change of an answer beside its quality, and the columns of it."""
KINDS = {"expanded": True, "kept": False}
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


def replay(files: Files, config: schema.Config) -> Table:
    """What decisions did on average, by kind (expanded, kept) and class.

    ``cas_change`` (points), ``mtokens_change`` and ``rollbacks_change`` are means over decisions of the answer as it
    was minus the answer with the decision turned; helpful decisions raised CAS, harmful ones lowered it. A replayed
    decision counts for all of its kind in its document that it was drawn from.
    """
    data = replayed(files, config.replays_of)
    counts = statistics.resamples(len(data.documents), config.scale.bootstrap, config.seed, "test")
    table: list[Row] = []
    for kind, expanded in KINDS.items():
        own = data.frame[data.frame["expanded"] == expanded]
        for name in CLASSES:
            table.append({"decision": kind, "class": name, **_effect(own, _member(own, name), data.documents, counts)})
    return _made("replay", table, config, len(data.documents), failed=data.n_failed)


def _made(
    name: str, rows: Sequence[Row] | pd.DataFrame, config: schema.Config, n_documents: int, **words: Any
) -> Table:
    point = label_in_words(config.replays_of, config)
    return build_table(name, rows, config, n_documents, point=point, replays=config.scale.replays, **words)


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
    spread(row, "share_pct", statistics.mean_interval(member.astype(np.float64), at, counts, weight), 100)
    for column, name, factor in (
        ("cas_change", "cas", 100),
        ("mtokens_change", "selected", 1),
        ("all_passes_change", "all_passes", 1),
        ("rollbacks_change", "rollbacks", 1),
    ):
        change = (kind[f"own_{name}"] - kind[f"turned_{name}"]).to_numpy(dtype=np.float64)
        spread(row, column, statistics.mean_interval(change, at, counts, weight * member), factor)
    return row


# What the best of single decisions reaches


def bound(files: Files, config: schema.Config) -> Table:
    """The point as it is, and with the one decision of each document turned that is best with hindsight.

    Any of the replayed decisions may be turned, or none: towards the highest CAS, and towards the fewest selected
    tokens at no lower CAS. What a detector could reach with all decisions right lies beyond either.
    """
    data = replayed(files, config.replays_of)
    documents = [name for name in data.documents if not np.isnan(_quality(data.own[name]))]
    draws = Draws.of(len(documents), config, "test")
    tokens = {
        row["document"]: row["selected"] for row in _of(config.replays_of, rows(files["test_answers"], "answers"))
    }
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
    return _made("bound", table, config, len(documents))


# Two false positives, two false negatives


def failures(files: Files, config: schema.Config) -> Table:
    """Two false positives and two false negatives, each with its one decision turned (paper, table of the same).

    False positives: expansions that left the token as it was, those first whose suppression saves most mTokens. False
    negatives: missed expansions that give another token, those first that raise CAS most when forced. One a document.
    """
    data = replayed(files, config.replays_of)
    frame = data.frame
    gain, saved = frame["turned_cas"] - frame["own_cas"], frame["own_selected"] - frame["turned_selected"]
    wrong = frame.assign(gain=gain.round(6), saved=saved.round(6))
    kinds = {
        "FP": (wrong["expanded"] & ~wrong["differs"], "saved"),
        "FN": (~wrong["expanded"] & wrong["differs"] & (wrong["gain"] > _EQUAL), "gain"),
    }
    found: dict[str, Mapping[str, Any]] = {}
    for kind, (chosen, by) in kinds.items():
        own = wrong[chosen].sort_values([by, "document", "step"], ascending=[False, True, True])
        first = own.drop_duplicates("document").head(2).to_dict("records")
        found |= {f"{kind}-{number}": one for number, one in enumerate(first, start=1)}
    table = [_failure(name, found.get(name)) for name in paper.tables().failures]
    shows = {
        "document": lambda row: row["document"] or "none found",
        "step": plain_if("found", "step"),
        **{column: _quoted(column) for column in ("compact_token", "expanded_token")},
        **{
            column: _turned(column, digits) for column, digits in (("quality_pct", 1), ("mtokens", 1), ("rollbacks", 0))
        },
    }
    return _made("failures", table, config, len(data.documents), shows=shows)


def _turned(column: str, digits: int) -> Show:
    """Shows a figure before and after."""

    def show(row: Mapping[str, Any]) -> str:
        before, after = (render.number(row[f"{column}_{when}"], digits) for when in ("before", "after"))
        return render.MISSING if not row["found"] else f"{before} → {after}"

    return show


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
    data = replayed(files, config.replays_of)
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
    table = pd.DataFrame(found)
    if found:
        lost = (table["adaptive_cas"] - table["suppressed_cas"]).round(6)
        raised = (table["logprob_after"] - table["logprob_before"].fillna(-np.inf)).round(6)
        table = table.assign(lost=lost, raised=raised).sort_values(
            ["lost", "raised", "document", "step"], ascending=[False, False, True, True]
        )
        table = table.drop_duplicates("document").head(count).drop(columns=["lost", "raised"])

    shows = {
        "rank_before": lambda row: "> 10" if pd.isna(row["rank_before"]) else f"{row['rank_before']:.0f}",
        **{column: _quoted(column) for column in ("rejected", "replacement")},
        **{when: _answered(when) for when in ("adaptive", "suppressed", "compact")},
    }
    n_turned = int((data.frame["expanded"] & data.frame["differs"]).sum())
    return _made("cases", table, config, len(data.documents), shows=shows, found=len(found), turned=n_turned)


def _answered(when: str) -> Show:
    """Shows an answer with its scores."""

    def show(row: Mapping[str, Any]) -> str:
        scores = ", ".join(render.number(row[f"{when}_{column}"], 2) for column in ("cas", "string_match"))
        return f"{row[f'{when}_prediction']} ({scores})"

    return show


def _smallest(config: schema.Config) -> str:
    """The label of the smallest fixed budget on the test split, "" where there is none."""
    tested = [point for suite in config.suites.values() if suite.split == "test" for point in suite.points]
    fixed = [point for point in tested if point.method == "infllm"]
    return min(fixed, key=lambda point: point.budget).label if fixed else ""


MAKERS = {
    "replay": replay,
    "bound": bound,
    "failures": failures,
    "cases": lambda files, config: cases(files, _smallest(config), config),
}
