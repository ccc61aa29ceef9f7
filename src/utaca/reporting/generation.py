"""The tables of generated answers: quality over selected tokens, against InfLLM and against token agreement."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd

from utaca.reporting import paper, render, statistics
from utaca.reporting.points import (
    CAS,
    METHODS,
    MTOKENS,
    ROLLBACKS,
    Curve,
    Point,
    difference,
    name_in_words,
    points,
    setting_in_words,
)
from utaca.reporting.statistics import Draws, Estimate
from utaca.reporting.tables import NAN, Column, Row, Show, Table, caption_in_words, figure, plain, spread
from utaca.settings import schema

_UNITS = (
    "mTokens is the mean of tokens selected by retrieval a generated token, in the accepted pass; CAS is the judge's "
    "conceptual accuracy over attributes, failed judgements left out."
)
_PASSES = (
    "Attended: all keys attended in the accepted pass. With all passes: those counted too whose token was not "
    "accepted. String match is token F1. A rollback is effective where the expanded pass had other blocks than the "
    "compact one."
)
_COMPARED = (
    "CAS gain: to InfLLM's CAS at equal mTokens, interpolated in log2 mTokens and clipped to the measured range; CAS "
    "difference: to the InfLLM point nearest in mTokens; both paired by document. Gap closed: CAS gain as a share of "
    "token agreement's at the same K_max and policy; undefined where that gains nothing, without interval where it "
    "gains nothing in more than 5% of the resamples. Token agreement expands exactly where the token would be another, "
    "which it learns from both passes of every token; it imitates K_max and bounds neither CAS nor tokens."
)
_BEYOND = (
    "Beyond no detector: the CAS gain less that of the point which has the same K_max and policy, no detector, and the "
    "nearest number of rollbacks: what the choice of tokens is worth, beyond their number and a question read under "
    "K_max."
)


@dataclass(frozen=True)
class _Split:
    title: str
    what: str


_SPLITS = {
    "validation": _Split("Generation, validation set", "Generation on the validation split."),
    "test": _Split("Generation, long-context test set", "Generation on the long-context test split."),
}


def seeds_in_words(config: schema.Config) -> str:
    """The seeds that the operating points of a config use where they name none."""
    number = config.generation.seeds or config.scale.detector_seeds
    detector = f"{number} detector seeds" if number > 1 else f"detector seed {config.detector_seed}"
    return f"config seed {config.seed}, {detector}"


def generation(
    split: str,
    answers: Sequence[str | Path],
    scores: Sequence[str | Path],
    config: schema.Config,
    only: Collection[str] = (),
) -> Table:
    """Generation on a split (paper, tables "validation set" and "long-context test set"), held against InfLLM.

    ``difference_pct`` is a point's CAS minus that of the InfLLM point nearest in mTokens; ``gain_pct`` its CAS minus
    InfLLM's at the same mTokens, interpolated linearly in log2 mTokens and clipped to the measured range;
    ``gap_closed_pct`` its gain over that of token agreement of its K_max and policy; ``beyond_pct`` its gain less that
    of the point without detector of its K_max and policy whose rollbacks are nearest in number. All intervals come from
    resampling documents, and detector seeds, for all points at once; ``gain_p_holm`` is the gain's p after Holm over
    the table.
    """
    found, about = points(answers, scores, only), _SPLITS[split]
    reported = getattr(paper.tables(), split)
    reference = paper.reference_reader(reported, config.reader.name)
    draws = Draws.of(len(found[0].documents), config, split)
    rows = []
    for point, compared in zip(found, compare(found, draws), strict=True):
        row = _row(point, draws, config) | compared
        known = reported[reference].get(point.key) if point.in_paper else None
        row |= {"paper_mtokens": known.mtokens if known else NAN, "paper_cas_pct": known.cas if known else NAN}
        rows.append(row)
    columns = (
        Column("Method", plain("method")),
        Column("Setting", plain("setting")),
        Column("mTokens", _rounded("mtokens", 1)),
        Column("Attended", _rounded("attended", 1)),
        Column("Seconds a token", _rounded("seconds_per_token", 4)),
        Column("CAS %", figure("cas_pct", 2)),
        Column(f"paper mTokens ({paper.NAMES[reference]})", _rounded("paper_mtokens", 0)),
        Column(f"paper CAS % ({paper.NAMES[reference]})", _rounded("paper_cas_pct", 2)),
        *_compared_columns(rows),
        Column("Documents", plain("n_documents"), folded=True),
        Column("Seeds", lambda row: str(row["seeds"] or render.MISSING), folded=True),
        Column("mTokens with all passes", _rounded("mtokens_with_tentative", 1), folded=True),
        Column("String match %", _rounded("string_match_pct", 2), folded=True),
        Column("Rollbacks a token %", _rounded("rollbacks_pct", 1), folded=True),
        Column("effective %", _rounded("effective_rollbacks_pct", 1), folded=True),
        Column("Failed judgements", plain("n_failed_judgements"), folded=True),
    )
    what = f"{about.what} {_UNITS}"
    notes = [_COMPARED, *([_BEYOND] if any(row["no_detector"] for row in rows) else []), _PASSES]
    told = caption_in_words(what, config, "judge", len(found[0].documents), seeds_in_words(config), reference)
    return Table(split, about.title, told, pd.DataFrame(rows), columns, notes=" ".join(notes))


def _rounded(column: str, digits: int) -> Show:
    return lambda row: render.number(row[column], digits)


def _row(point: Point, draws: Draws, config: schema.Config) -> Row:
    row: Row = {"method": point.method, "setting": setting_in_words(point, config), "n_documents": len(point.documents)}
    row |= {"point": name_in_words(point, config), "decoder": point.key[0], "budget": point.key[1]}
    row |= {"policy": point.key[2], "detector": point.detector, "seeds": len(point.seeds)}
    spread(row, "mtokens", point.estimate(*MTOKENS, draws))
    row |= {
        "attended": point.ratio("attended", "n_generated"),
        "mtokens_with_tentative": point.ratio("selected_with_tentative", "n_generated"),
        "attended_with_tentative": point.ratio("attended_with_tentative", "n_generated"),
    }
    spread(row, "cas_pct", point.estimate(*CAS, draws), 100)
    spread(row, "string_match_pct", point.estimate("string_match", "attributes", draws), 100)
    return row | {
        "rollbacks_pct": 100 * point.ratio("rollbacks", "n_generated"),
        "effective_rollbacks_pct": 100 * point.ratio("effective_rollbacks", "n_generated"),
        "n_judgements": int(point.sums["attributes"].sum()),
        "n_failed_judgements": point.n_failed,
        "seconds_per_token": point.ratio("decode_seconds", "n_generated"),
    }


# Against InfLLM and token agreement


def compare(found: Sequence[Point], draws: Draws) -> list[Row]:
    """Every point against the fixed budgets and token agreement among them; empty columns for what there is none of."""
    fixed = sorted((point for point in found if point.key[0] == "infllm"), key=lambda point: point.key[1])
    curve = Curve.of(fixed, draws) if fixed else None
    gains = {place: gain(p, curve, draws) for place, p in enumerate(found) if curve and p.key[0] != "infllm"}
    rows = []
    for at, point in enumerate(found):
        own = gains.get(at)
        alike = [place for place, other in enumerate(found) if other is not point and other.key[1:] == point.key[1:]]
        agreement = next((place for place in alike if found[place].imitates), None)
        blind = [place for place in alike if found[place].key[0] == "no_detector" != point.key[0]]
        rate = point.ratio(*ROLLBACKS)
        nearest = min(blind, key=lambda place: abs(found[place].ratio(*ROLLBACKS) - rate), default=None)
        row = _against_infllm(point, fixed, curve, own, draws) | {"no_detector": ""}
        closed, beyond = Estimate(NAN), Estimate(NAN)
        if own and agreement is not None:
            closed = statistics.share(own, gains[agreement])
        if own and nearest is not None:
            (value, resampled), (without, resampled_without) = own, gains[nearest]
            beyond = statistics.interval(value - without, resampled - resampled_without)
            row["no_detector"] = ", ".join(filter(None, [found[nearest].setting, found[nearest].detector]))
        spread(row, "gap_closed_pct", closed, 100)
        spread(row, "beyond_pct", beyond, 100)
        rows.append(row)
    for row, adjusted in zip(rows, statistics.holm([row["gain_p"] for row in rows]), strict=True):
        row["gain_p_holm"] = adjusted
    return rows


Gain = tuple[float, np.ndarray]
"""CAS above InfLLM's at equal tokens, and the same in every resample [count]."""


def gain(point: Point, curve: Curve, draws: Draws) -> Gain:
    """CAS above the curve at the point's tokens, and the same in every resample."""
    at_equal = curve.resampled_at(point.drawn(*MTOKENS, draws))
    return point.ratio(*CAS) - curve.at(point.ratio(*MTOKENS)), point.drawn(*CAS, draws) - at_equal


def _against_infllm(point: Point, fixed: Sequence[Point], curve: Curve | None, own: Gain | None, draws: Draws) -> Row:
    """Columns of a point, of gain ``own``, against the fixed budgets; empty where it is one or there is none."""
    row: Row = {"nearest_infllm": "", "note": "", "infllm_cas_pct": NAN, "gain_p": NAN}
    to_nearest = above = Estimate(NAN)
    if curve is not None and own is not None:
        tokens = point.ratio(*MTOKENS)
        nearest = fixed[int(np.abs(curve.tokens - tokens).argmin())]
        row["nearest_infllm"] = nearest.setting
        to_nearest = statistics.interval(*difference(point, nearest, *CAS, draws))
        row["infllm_cas_pct"] = 100 * curve.at(tokens)
        above, row["gain_p"] = statistics.interval(*own), statistics.p_value(own[1])
        if tokens < curve.tokens.min():
            row["note"] = f"below InfLLM's range, clipped to {fixed[int(curve.tokens.argmin())].setting}"
        elif tokens > curve.tokens.max():
            row["note"] = f"above InfLLM's range, clipped to {fixed[int(curve.tokens.argmax())].setting}"
    spread(row, "difference_pct", to_nearest, 100)
    spread(row, "gain_pct", above, 100)
    return row


def _compared_columns(rows: Sequence[Row]) -> tuple[Column, ...]:
    clipped, held = any(row["note"] for row in rows), any(row["no_detector"] for row in rows)
    return (
        Column("CAS gain", figure("gain_pct", 2), folded=not clipped),
        Column("Note", plain("note"), folded=not clipped),
        Column("Holm's p of the gain", _rounded("gain_p_holm", 4), folded=True),
        Column("InfLLM CAS % at equal mTokens", _rounded("infllm_cas_pct", 2), folded=True),
        Column("Gap closed %", figure("gap_closed_pct", 0), folded=True),
        *(
            [Column("Beyond no detector", figure("beyond_pct", 2)), Column("which", plain("no_detector"))]
            if held
            else []
        ),
        Column("Nearest InfLLM", lambda row: row["nearest_infllm"] or render.MISSING, folded=True),
        Column("CAS difference", figure("difference_pct", 2), folded=True),
    )


# The spread over detector seeds


def seeds(
    answers: Sequence[str | Path], scores: Sequence[str | Path], config: schema.Config, only: Collection[str] = ()
) -> Table:
    """Every point of several detector seeds, seed by seed, then its mean and standard deviation over them.

    Points without a detector are what they are compared with and have no row.
    """
    found = points(answers, scores, only)
    draws = Draws.of(len(found[0].documents), config, "test")
    beside = [point for point in found if not point.seeds]
    rows: list[Row] = []
    for point in found:
        own = point.apart()
        if len(own) > 1:
            about = {"detector": point.detector, "setting": point.setting}
            compared = compare([*beside, *own], draws)[len(beside) :]
            each = [_row(one, draws, config) | row for one, row in zip(own, compared, strict=True)]
            rows += [about | {"seed": str(p.seeds[0])} | _seed_figures(row) for p, row in zip(own, each, strict=True)]
            rows.append(about | {"seed": f"mean ± sd of {len(own)}"} | _over_seeds(rows[-len(own) :]))

    def shown(column: str, digits: int) -> Show:
        def show(row: Row) -> str:
            if not np.isnan(row[f"{column}_sd"]):
                return render.spread(row[column], row[f"{column}_sd"], digits)
            return figure(column, digits)(row)

        return show

    columns = (
        Column("Detector", plain("detector")),
        Column("Setting", plain("setting")),
        Column("Seed", plain("seed")),
        Column("CAS %", shown("cas_pct", 2)),
        Column("mTokens", shown("mtokens", 1)),
        Column("mTokens with all passes", shown("mtokens_with_tentative", 1), folded=True),
        Column("Rollbacks a token %", shown("rollbacks_pct", 1), folded=True),
        Column("effective %", shown("effective_rollbacks_pct", 1), folded=True),
        Column("Nearest InfLLM", lambda row: row["nearest_infllm"] or render.MISSING, folded=True),
        Column("CAS difference", shown("difference_pct", 2), folded=True),
        Column("CAS gain", shown("gain_pct", 2)),
        Column("Note", plain("note"), folded=not any(row["note"] for row in rows)),
        Column("Gap closed %", shown("gap_closed_pct", 0)),
    )
    what = f"The same operating point with detectors of different seeds. {_UNITS} {_COMPARED}"
    told = caption_in_words(
        what, config, "judge", len(found[0].documents), f"config seed {config.seed}", paper.LLAMA, columns=False
    )
    return Table("seeds", "Generation, spread over detector seeds", told, pd.DataFrame(rows), columns, notes=_PASSES)


_SEED_FIGURES = (
    "cas_pct", "mtokens", "mtokens_with_tentative", "rollbacks_pct", "effective_rollbacks_pct", "difference_pct",
    "gain_pct", "gap_closed_pct",
)  # fmt: skip


def _seed_figures(row: Row) -> Row:
    found: Row = {"nearest_infllm": row["nearest_infllm"], "note": row["note"]}
    for column in _SEED_FIGURES:
        found |= {f"{column}{end}": row.get(f"{column}{end}", NAN) for end in ("", "_low", "_high")}
        found[f"{column}_sd"] = NAN
    return found


def _over_seeds(rows: Sequence[Row]) -> Row:
    found: Row = {"nearest_infllm": "", "note": ""}
    for column in _SEED_FIGURES:
        mean, sd = statistics.mean_sd([row[column] for row in rows])
        found |= {column: mean, f"{column}_low": NAN, f"{column}_high": NAN, f"{column}_sd": sd}
    return found


# The curves of CAS over selected tokens


def pareto(
    answers: Sequence[str | Path], scores: Sequence[str | Path], config: schema.Config, only: Collection[str] = ()
) -> Table:
    """The area between a method's curve of CAS over selected tokens and InfLLM's.

    Curves are linear between points in log2 mTokens; the area covers the range of mTokens that both reach and is in
    CAS points times doublings of mTokens; divided by the range's doublings it is the mean difference in CAS. The range
    moves with every resample, which keeps documents paired.
    """
    found = points(answers, scores, only)
    draws = Draws.of(len(found[0].documents), config, "test")
    main = [point for point in found if usual(point, config)]
    fixed = [point for point in main if point.key[0] == "infllm"]
    rows: list[Row] = []
    for name in ("utaca", "agreement"):
        own = [point for point in main if point.key[0] == name]
        row: Row = {"method": METHODS[name], "n_points": len(own), "n_infllm_points": len(fixed)}
        area, mean, low, high = Estimate(NAN), Estimate(NAN), NAN, NAN
        if own and fixed:
            curve, other = Curve.of(own, draws), Curve.of(fixed, draws)
            value, low, high = curve.above(other)
            resampled = curve.resampled_above(other)
            area = statistics.interval(value, resampled[:, 0])
            doublings = np.log2(resampled[:, 2] / resampled[:, 1])
            mean = statistics.interval(value / np.log2(high / low), resampled[:, 0] / doublings)
        spread(row, "area", area, 100)
        spread(row, "mean_difference_pct", mean, 100)
        rows.append(row | {"mtokens_from": low, "mtokens_to": high})
    columns = (
        Column("Method", lambda row: f"{row['method']} − InfLLM"),
        Column("Points", plain("n_points")),
        Column("InfLLM points", plain("n_infllm_points")),
        Column("from mTokens", _rounded("mtokens_from", 1)),
        Column("to mTokens", _rounded("mtokens_to", 1)),
        Column("Area (CAS points x doublings)", figure("area", 2)),
        Column("Mean CAS difference", figure("mean_difference_pct", 2)),
    )
    what = (
        "Area between the curves of CAS over mTokens, over the range that both cover: curves are linear between points "
        "in log2 mTokens; positive: above InfLLM; documents are paired. The mean difference is the area by its width."
    )
    told = caption_in_words(
        what, config, "judge", len(found[0].documents), seeds_in_words(config), paper.LLAMA, columns=False
    )
    return Table("pareto", "Area between the curves", told, pd.DataFrame(rows), columns)


def usual(point: Point, config: schema.Config) -> bool:
    """Whether a point has no detector or the config's main one: those of others are no part of the curve."""
    return point.detector in ("", config.detector)


# Quality, latency, memory


def tradeoff(
    answers: Sequence[str | Path], scores: Sequence[str | Path], config: schema.Config, only: Collection[str] = ()
) -> Table:
    """Quality, latency and memory on the test split (paper, section "Quality-Latency-Memory Trade-off").

    End-to-end time is prefill and decoding of a document, its mean over documents; memory the highest peak.
    """
    found = points(answers, scores, only)
    reported = paper.tables().tradeoff
    reference = paper.reference_reader(reported, config.reader.name)
    draws = Draws.of(len(found[0].documents), config, "test")
    rows: list[Row] = []
    for point in found:
        sums = point.sums
        point = replace(point, sums=sums | {"end_to_end": sums["prefill_seconds"] + sums["decode_seconds"]})
        known = reported[reference].get(point.key) if point.in_paper else None
        setting = setting_in_words(point, config)
        row: Row = {"method": point.method, "setting": setting, "n_documents": len(point.documents)}
        spread(row, "cas_pct", point.estimate(*CAS, draws), 100)
        row["n_failed_judgements"] = point.n_failed
        row["mtokens"] = point.ratio(*MTOKENS)
        spread(row, "end_to_end_s", point.estimate("end_to_end", "documents", draws))
        spread(row, "prefill_s", point.estimate("prefill_seconds", "documents", draws))
        spread(row, "seconds_per_token", point.estimate("decode_seconds", "n_generated", draws))
        row["peak_gib"] = point.peak_gib
        row |= {
            "paper_cas_pct": known.cas if known else NAN,
            "paper_mtokens": known.mtokens if known else NAN,
            "paper_end_to_end_s": known.end_to_end if known else NAN,
            "paper_peak_gib": known.memory if known else NAN,
        }
        rows.append(row)

    columns = (
        Column("Method", plain("method")),
        Column("Setting", plain("setting")),
        Column("Documents", plain("n_documents"), folded=True),
        Column("CAS %", figure("cas_pct", 2)),
        Column("Failed judgements", plain("n_failed_judgements"), folded=True),
        Column("mTok.", figure("mtokens", 1)),
        Column("E2E s", figure("end_to_end_s", 3)),
        Column("Prefill s", figure("prefill_s", 3), folded=True),
        Column("Decoding s/token", figure("seconds_per_token", 4), folded=True),
        Column("Peak memory GiB", figure("peak_gib", 2)),
        Column(f"paper CAS % ({paper.NAMES[reference]})", figure("paper_cas_pct", 2), folded=True),
        Column("paper mTok.", figure("paper_mtokens", 0), folded=True),
        Column(f"paper E2E s ({paper.NAMES[reference]})", figure("paper_end_to_end_s", 2)),
        Column("paper GPU GiB", figure("paper_peak_gib", 2)),
    )
    what = (
        "Quality, latency and memory on the long-context test split. E2E is prefill and decoding of a document; the "
        "operating points share one prefill a document; times depend on the machine."
    )
    told = caption_in_words(what, config, "judge", len(found[0].documents), seeds_in_words(config), reference)
    return Table("tradeoff", "Quality, latency, memory", told, pd.DataFrame(rows), columns)
