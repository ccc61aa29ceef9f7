"""Tables on single decisions of the detector: wrong ones that were turned, and expansions that put a token right.

Paper, appendix "Additional Results and Analysis". A replay decodes an answer again with one decision turned (expand
instead of accept, or accept instead of expand); all that follows is decoded as usual
(:mod:`utaca.generation.replays`).
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from utaca.records import check_source, read, rows
from utaca.records.schemas import AS_DECIDED, CORRECT, FALSE_NEGATIVE, FALSE_POSITIVE, replay_name
from utaca.reporting import paper
from utaca.reporting.registry import ENTRIES, Files
from utaca.reporting.results import label_in_words
from utaca.reporting.statistics import NAN, Draws, Row
from utaca.reporting.table import framed
from utaca.settings import schema

INTERVENTIONS = {FALSE_POSITIVE: "suppress the expansion", FALSE_NEGATIVE: "force an expansion"}
"""What a replay does to a wrong decision, by its kind."""
SHOWN = 2
"""Cases of each kind that are shown, as in the paper."""
NONE = "none in this run"
"""What the column of documents says of a case that the run does not have."""
_FIGURES = ("quality_pct", "mtokens", "mtokens_all", "rollbacks")
"""Figures of an answer that a replay may change."""
_WHEN = ("before", "after", "change")
_CHANGES = [f"{name}_{when}" for name in _FIGURES for when in _WHEN]
"""Columns of :data:`_FIGURES`: as decided, with the decision turned, and the difference."""
_TRACE = [
    "document", "point", "step", "token", "text", "logprob", "top_tokens",
    "tentative_token", "tentative_logprob", "tentative_top_tokens", "tentative_top_logits",
]  # fmt: skip


def failures(files: Files, config: schema.Config) -> pd.DataFrame:
    """Make the table of false positives and false negatives: each answer as decided, and with that decision turned.

    For each kind there are :data:`SHOWN` cases, and a row of means over all decisions that were replayed.
    """
    (answers_path,) = files["replays"]
    (scores_path,) = files["replay_scores"]
    check_source(scores_path, files["replays"])
    replays = replayed(rows(answers_path, "replays"), rows(scores_path, "scores"))
    is_judged = replays["quality_pct_before"].notna() & replays["quality_pct_after"].notna()
    reported = paper.tables().failures
    table: list[Row] = []
    for kind, intervention in INTERVENTIONS.items():
        of_kind = replays[is_judged & (replays["kind"] == kind)]
        shown = _shown(of_kind, kind)
        for number in range(SHOWN):
            case = f"{kind}-{number + 1}"  # the paper's name of the case, as FP-1
            # A row without figures, filled in below if the run has so many cases.
            row: Row = {"case": case, "intervention": intervention, "n_replayed": 0, "document": NONE, "token": ""}
            row["step"] = NAN
            row |= dict.fromkeys(_CHANGES, NAN)
            if number < len(shown):
                row |= shown[number] | {"case": case, "n_replayed": 1}
            table.append(row | _paper(reported[case]))
        mean = _mean(of_kind, kind, config)
        mean["intervention"] = intervention
        table.append(mean | _paper(None))
    point = label_in_words(config.main_point.label, config)
    return framed(table, replays["document"].nunique(), point=point, failed=int((~is_judged).sum()))


def replayed(answers: Sequence[Mapping[str, Any]], scores: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Make a row for each replayed decision: ``document``, ``kind``, ``step``, ``token``, and the answer's figures.

    ``answers`` have rows of schema "replays", ``scores`` those of schema "scores" of the same answers. The figures are
    ``{name}_before`` of the answer as decided, ``{name}_after`` with the decision turned, and their difference,
    ``{name}_change``. Quality is the mean CAS over the answer's attributes, NaN if a judgement failed.
    """
    # CAS of each attribute, by document and name of the answer.
    scores_of: dict[tuple[str, str], list[float]] = {}
    for row in scores:
        cas = NAN if row["cas"] is None else row["cas"]
        scores_of.setdefault((row["document"], row["point"]), []).append(cas)

    def figures(answer: Mapping[str, Any]) -> dict[str, float]:
        """The figures of an answer, by the names of :data:`_FIGURES`."""
        return {
            "quality_pct": 100 * float(np.mean(scores_of[answer["document"], replay_name(answer)])),
            "mtokens": answer["selected"],
            "mtokens_all": answer["selected_with_tentative"],
            "rollbacks": answer["rollbacks"],
        }

    # Each document has one answer as decided, and one for each of its decisions that was turned.
    before = {answer["document"]: figures(answer) for answer in answers if answer["kind"] == AS_DECIDED}
    identity = ["document", "kind", "step", "token"]
    replays = []
    for answer in answers:
        if answer["kind"] == AS_DECIDED:
            continue
        row = {name: answer[name] for name in identity}
        for name, after in figures(answer).items():
            row[f"{name}_before"] = before[answer["document"]][name]
            row[f"{name}_after"] = after
            row[f"{name}_change"] = after - before[answer["document"]][name]
        replays.append(row)
    return pd.DataFrame(replays, columns=[*identity, *_CHANGES])


def _shown(of_kind: pd.DataFrame, kind: str) -> list[Row]:
    """Choose the replayed decisions of a kind that the table shows: at most :data:`SHOWN`, each of another document.

    Of false positives, those whose turning saves most mTokens and does not lower quality; of false negatives, those
    whose turning raises quality most. ``of_kind`` are rows of :func:`replayed`.
    """
    if kind == FALSE_POSITIVE:
        cases = of_kind[of_kind["quality_pct_change"] >= 0].sort_values(["mtokens_change", "document", "step"])
    else:
        cases = of_kind[of_kind["quality_pct_change"] > 0]
        cases = cases.sort_values(["quality_pct_change", "document", "step"], ascending=[False, True, True])
    return cases.drop_duplicates("document").head(SHOWN).to_dict("records")


def _mean(of_kind: pd.DataFrame, kind: str, config: schema.Config) -> Row:
    """The row of means over all replayed decisions of a kind; changes have an interval, resampled over documents.

    ``of_kind`` are rows of :func:`replayed`.
    """
    row: Row = {"case": f"{kind}, mean of all", "n_replayed": len(of_kind), "document": "", "token": "", "kind": kind}
    row["step"] = NAN
    document, documents = pd.factorize(of_kind["document"], sort=True)
    draws = Draws.of(len(documents), config, f"replays:{kind}")
    for name in _FIGURES:
        for when in ("before", "after"):
            row[f"{name}_{when}"] = float(of_kind[f"{name}_{when}"].mean()) if len(of_kind) else NAN
        changes = of_kind[f"{name}_change"].to_numpy(dtype=np.float64)
        draws.mean_of(changes, document).put(row, f"{name}_change")
    return row


def _paper(figures: Mapping[str, float] | None) -> Row:
    """The columns of the paper's figures of a case: before and after, of all figures but the tokens of all passes."""
    names: list[str] = []
    for name in ("quality_pct", "mtokens", "rollbacks"):
        names += [f"{name}_before", f"{name}_after"]
    return paper.reference(names, figures)


def probabilities(files: Files, config: schema.Config) -> pd.DataFrame:
    """Make the table of expansions that put a token right: its rank and log-probability before and after.

    It shows the largest, the median and the smallest rise of the log-probability, and a row of means.
    """
    point = config.main_point
    labels = [row for row in rows(files["trace_labels"], "trace_labels") if row["point"] == point.label]
    cases = corrections(labels, read(files["test_traces"], "traces", _TRACE).to_pylist())
    known = [case for case in cases if not np.isnan(case["logprob_change"])]
    known.sort(key=lambda case: (case["logprob_change"], case["document"], case["step"]))
    reported = paper.tables().probabilities
    columns = ENTRIES["probabilities"].of_paper
    # Each a list of one case, or empty if there is none; `known` is sorted by the rise.
    chosen = {"largest rise": known[-1:], "median rise": known[len(known) // 2 :][:1], "smallest rise": known[:1]}
    table: list[Row] = []
    no_figures = dict.fromkeys(
        ("step", "rank_before", "rank_after", "logprob_before", "logprob_after", "logprob_change"), NAN
    )
    for name, chosen_case in chosen.items():
        row: Row = {"case": name, "n_cases": len(chosen_case), "document": NONE, "right_token": "", "top_before": ""}
        row |= no_figures
        if chosen_case:
            row |= chosen_case[0]
        # The paper reports a single case, with a large rise.
        figures = reported if name == "largest rise" else None
        table.append(row | paper.reference(columns, figures))
    table.append(_mean_correction(known, config) | paper.reference(columns, None))
    # Right tokens beyond the ten best of the compact pass, for the caption.
    n_beyond = len(cases) - len(known)
    n_documents = len({row["document"] for row in labels})
    return framed(table, n_documents, point=label_in_words(point.label, config), beyond=n_beyond)


def corrections(labels: Sequence[Mapping[str, Any]], traces: Sequence[Mapping[str, Any]]) -> list[Row]:
    """Find the expansions that put a right token in the place of a wrong one; return a row for each.

    A row has the right token's rank and log-probability in the compact pass ("before") and in the accepted pass
    ("after"). ``labels`` are rows of schema "trace_labels" of one operating point, ``traces`` rows of schema "traces".
    A token that is not among the ten best of the compact pass has no rank and no log-probability there (NaN).
    """
    steps = {(row["document"], row["point"], row["step"]): row for row in traces}
    cases = []
    for label in labels:
        was_wrong = label["label"] is not None and label["label"] != CORRECT
        is_right = label["accepted_label"] == CORRECT
        if not (label["uncertain"] and label["replaced"] and was_wrong and is_right):
            continue
        step = steps[label["document"], label["point"], label["step"]]
        tokens = list(step["tentative_top_tokens"])  # the ten best, the best first
        logits = step["tentative_top_logits"]
        rank = NAN
        before = NAN
        if step["token"] in tokens:
            place = tokens.index(step["token"])
            rank = place + 1
            # Two tokens' log-probabilities in one pass differ by the difference of their logits.
            before = step["tentative_logprob"] + logits[place] - logits[tokens.index(step["tentative_token"])]
        cases.append(
            {
                "document": label["document"],
                "step": label["step"],
                "right_token": step["text"],
                "top_before": label["text"],
                "rank_before": rank,
                "rank_after": list(step["top_tokens"]).index(step["token"]) + 1,
                "logprob_before": before,
                "logprob_after": step["logprob"],
                "logprob_change": step["logprob"] - before,
            }
        )
    return cases


def _mean_correction(known: Sequence[Row], config: schema.Config) -> Row:
    """The row of means over the cases of :func:`corrections` whose rank and log-probability before are ``known``."""
    # The columns are named for a run without cases, whose means are NaN.
    frame = pd.DataFrame(known, columns=["document", "rank_before", "rank_after", "logprob_before", "logprob_after"])
    document, documents = pd.factorize(frame["document"], sort=True)
    draws = Draws.of(len(documents), config, "probabilities")
    row: Row = {"case": "mean of all", "n_cases": len(known), "document": "", "right_token": "", "top_before": ""}
    row["step"] = NAN
    for name in ("rank_before", "rank_after", "logprob_before", "logprob_after"):
        draws.mean_of(frame[name].to_numpy(dtype=np.float64), document).put(row, name)
    change = (frame["logprob_after"] - frame["logprob_before"]).to_numpy(dtype=np.float64)
    draws.mean_of(change, document).put(row, "logprob_change")
    return row
