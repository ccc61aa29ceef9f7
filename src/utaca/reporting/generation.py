"""The tables of generated answers: quality over selected tokens, against InfLLM and against token agreement."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from utaca.reporting import paper, statistics
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
from utaca.reporting.registry import Files
from utaca.reporting.statistics import Draws, Estimate
from utaca.reporting.tables import NAN, Row, Table, build_table, spread
from utaca.settings import schema

_BEYOND = (
    "Beyond no detector: the CAS gain less that of the point which has the same K_max and policy, no detector, and the "
    "nearest number of rollbacks: what the choice of tokens is worth, beyond their number and a question read under "
    "K_max."
)


def generation(
    answers: Sequence[str | Path],
    scores: Sequence[str | Path],
    config: schema.Config,
    only: Collection[str] = (),
    name: str = "test",
) -> Table:
    """Generation on a split (paper, tables "validation set" and "long-context test set"), held against InfLLM.

    ``name`` is the table's: "test", "validation" or "sweep".
    ``difference_pct`` is a point's CAS minus that of the InfLLM point nearest in mTokens; ``gain_pct`` its CAS minus
    InfLLM's at the same mTokens, interpolated linearly in log2 mTokens and clipped to the measured range;
    ``gap_closed_pct`` its gain over that of token agreement of its K_max and policy; ``beyond_pct`` its gain less that
    of the point without detector of its K_max and policy whose rollbacks are nearest in number. All intervals come from
    resampling documents, and detector seeds, for all points at once; ``gain_p_holm`` is the gain's p after Holm over
    the table.
    """
    found, split = points(answers, scores, only), "validation" if name == "validation" else "test"
    reported = getattr(paper.tables(), split)
    reference = paper.reference_reader(reported, config.reader.name)
    draws = Draws.of(len(found[0].documents), config, split)
    rows = []
    for point, compared in zip(found, compare(found, draws), strict=True):
        known = reported[reference].get(point.key) if point.in_paper else None
        row = _row(point, draws, config) | compared
        rows.append(row | paper.beside(known, mtokens="mtokens", cas="cas_pct"))
    clipped, held = any(row["note"] for row in rows), any(row["no_detector"] for row in rows)
    return build_table(
        name,
        rows,
        config,
        len(found[0].documents),
        reader=reference,
        folded={"CAS gain": not clipped, "Note": not clipped},
        without=() if held else ("Beyond no detector", "which"),
        split="validation" if split == "validation" else "long-context test",
        beyond=_BEYOND if held else "",
    )


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
            rows += [about | {"seed": str(one.seeds[0])} | _of_seeds([row]) for one, row in zip(own, each, strict=True)]
            rows.append(about | {"seed": f"mean ± sd of {len(own)}"} | _of_seeds(each))
    return build_table(
        "seeds",
        rows,
        config,
        len(found[0].documents),
        f"config seed {config.seed}",
        folded={"Note": not any(row["note"] for row in rows)},
    )


_SEED_FIGURES = (
    "cas_pct", "mtokens", "mtokens_with_tentative", "rollbacks_pct", "effective_rollbacks_pct", "difference_pct",
    "gain_pct", "gap_closed_pct",
)  # fmt: skip


def _of_seeds(rows: Sequence[Row]) -> Row:
    """The figures of one seed with their intervals, or mean and standard deviation over several."""
    one = rows[0] if len(rows) == 1 else {}
    found: Row = {name: one.get(name, "") for name in ("nearest_infllm", "note")}
    for column in _SEED_FIGURES:
        mean, sd = statistics.mean_sd([row[column] for row in rows])
        found |= {column: mean, **{f"{column}{end}": one.get(f"{column}{end}", NAN) for end in ("_low", "_high")}}
        found[f"{column}_sd"] = sd
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
    shows = {"method": lambda row: f"{row['method']} − InfLLM"}
    return build_table("pareto", rows, config, len(found[0].documents), shows=shows)


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
        reference_row = paper.beside(
            known, cas="cas_pct", mtokens="mtokens", end_to_end="end_to_end_s", memory="peak_gib"
        )
        rows.append(row | reference_row)
    return build_table("tradeoff", rows, config, len(found[0].documents), reader=reference)


def of_suites(
    make: Callable[..., Table], *purposes: str, split: str = "test", **options: str
) -> Callable[[Files, schema.Config], Table]:
    """What makes a table of the points of a split's suites for these purposes."""
    return lambda files, config: make(
        files[f"{split}_answers"], files[f"{split}_scores"], config, config.shown(split, *purposes), **options
    )


MAKERS = {
    "test": of_suites(generation, "generation"),
    "validation": of_suites(generation, "generation", split="validation", name="validation"),
    "sweep": of_suites(generation, "generation", "sweep", name="sweep"),
    "seeds": of_suites(seeds, "generation", "seeds"),
    "tradeoff": of_suites(tradeoff, "generation"),
    "pareto": of_suites(pareto, "generation", "sweep"),
}
