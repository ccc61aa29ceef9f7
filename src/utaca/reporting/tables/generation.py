"""The tables of generated answers: quality over selected tokens, against InfLLM and against token agreement."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from utaca.reporting import paper, statistics
from utaca.reporting.points import (
    CAS,
    MTOKENS,
    ROLLBACKS,
    Curve,
    Point,
    difference,
    name_in_words,
    points_shown,
    setting_in_words,
)
from utaca.reporting.registry import Files
from utaca.reporting.statistics import Draws, Estimate, Row, spread
from utaca.reporting.table import NAN, framed
from utaca.settings import schema


def generation(files: Files, config: schema.Config, name: str = "test") -> pd.DataFrame:
    """Quality over selected tokens of every point, against InfLLM and token agreement."""
    # ``difference_pct`` is to the nearest InfLLM point, ``gain_pct`` to InfLLM at equal mTokens; all intervals come
    # from resampling documents, and detector seeds, for all points at once.
    split, more = "validation" if name == "validation" else "test", ["sweep"] if name == "sweep" else []
    points = points_shown(files, config, split, split, *more)
    reported = getattr(paper.tables(), split)
    reader = paper.reference_reader(reported, config.reader.name)
    draws = Draws.of(len(points[0].documents), config, split)
    rows = []
    for point, compared in zip(points, compare(points, draws), strict=True):
        printed = reported[reader].get(point.key) if point.in_paper else None
        row = _row(point, draws, config) | compared
        rows.append(row | paper.beside(paper.Generation, printed))
    shown = "validation" if split == "validation" else "long-context test"
    return framed(rows, len(points[0].documents), reader=reader, split=shown)


def _row(point: Point, draws: Draws, config: schema.Config) -> Row:
    row: Row = {"method": point.method, "setting": setting_in_words(point, config), "n_documents": len(point.documents)}
    row |= {"point": name_in_words(point, config), "decoder": point.key[0], "budget": point.key[1]}
    row |= {"policy": point.key[2], "detector": point.detector, "seeds": len(point.seeds)}
    point.put(row, "mtokens", draws=draws)
    point.put(row, "attended", "mtokens_with_tentative", "attended_with_tentative")
    point.put(row, "cas_pct", "string_match_pct", draws=draws)
    point.put(row, "rollbacks_pct", "effective_rollbacks_pct")
    row |= {"n_judgements": int(point.sums["attributes"].sum()), "n_failed_judgements": point.n_failed}
    point.put(row, "seconds_per_token")
    return row


# Against InfLLM and token agreement


def compare(points: Sequence[Point], draws: Draws) -> list[Row]:
    """Every point against the fixed budgets and token agreement among them; empty columns for what there is none of."""
    fixed = sorted((point for point in points if point.key[0] == "infllm"), key=lambda point: point.key[1])
    curve = Curve.of(fixed, draws) if fixed else None
    gains = {place: gain(p, curve, draws) for place, p in enumerate(points) if curve and p.key[0] != "infllm"}
    rows = []
    for place, point in enumerate(points):
        alike = [at for at, other in enumerate(points) if other is not point and other.key[1:] == point.key[1:]]
        agreement = next((at for at in alike if points[at].imitates), None)
        blind = [at for at in alike if points[at].key[0] == "no_detector" != point.key[0]]
        rate = point.ratio(*ROLLBACKS)
        nearest = min(blind, key=lambda at: abs(points[at].ratio(*ROLLBACKS) - rate), default=None)
        row = _against_infllm(point, fixed, curve, gains.get(place), draws) | {"no_detector": ""}
        closed, beyond = Estimate(NAN), Estimate(NAN)
        if place in gains and agreement is not None:
            closed = statistics.share(gains[place], gains[agreement])
        if place in gains and nearest is not None:
            (value, resampled), (without, resampled_without) = gains[place], gains[nearest]
            beyond = statistics.interval(value - without, resampled - resampled_without)
            row["no_detector"] = ", ".join(filter(None, [points[nearest].setting, points[nearest].detector]))
        spread(row, "gap_closed_pct", closed, 100)
        spread(row, "beyond_pct", beyond, 100)
        rows.append(row)
    statistics.adjust(rows, "gain_p")
    return rows


Gain = tuple[float, np.ndarray]
"""CAS above InfLLM's at equal tokens, and the same in every resample [count]."""


def gain(point: Point, curve: Curve, draws: Draws) -> Gain:
    """CAS above the curve at the point's tokens, and the same in every resample."""
    at_equal = curve.resampled_at(point.drawn(*MTOKENS, draws))
    return point.ratio(*CAS) - curve.at(point.ratio(*MTOKENS)), point.drawn(*CAS, draws) - at_equal


def _against_infllm(
    point: Point, fixed: Sequence[Point], curve: Curve | None, gained: Gain | None, draws: Draws
) -> Row:
    """Columns of a point, of gain ``gained``, against the fixed budgets; empty where it is one or there is none."""
    row: Row = {"nearest_infllm": "", "note": "", "infllm_cas_pct": NAN, "gain_p": NAN}
    to_nearest = above = Estimate(NAN)
    if curve is not None and gained is not None:
        tokens = point.ratio(*MTOKENS)
        nearest = fixed[int(np.abs(curve.tokens - tokens).argmin())]
        row["nearest_infllm"] = nearest.setting
        to_nearest = statistics.interval(*difference(point, nearest, *CAS, draws))
        row["infllm_cas_pct"] = 100 * curve.at(tokens)
        above, row["gain_p"] = statistics.interval(*gained), statistics.p_value(gained[1])
        if tokens < curve.tokens.min():
            row["note"] = f"below InfLLM's range, clipped to {fixed[int(curve.tokens.argmin())].setting}"
        elif tokens > curve.tokens.max():
            row["note"] = f"above InfLLM's range, clipped to {fixed[int(curve.tokens.argmax())].setting}"
    spread(row, "difference_pct", to_nearest, 100)
    spread(row, "gain_pct", above, 100)
    return row


# Quality, latency, memory


def tradeoff(files: Files, config: schema.Config) -> pd.DataFrame:
    """Quality, latency and memory of every point."""
    points = points_shown(files, config, "test")
    reported = paper.tables().tradeoff
    reader = paper.reference_reader(reported, config.reader.name)
    draws = Draws.of(len(points[0].documents), config, "test")
    rows: list[Row] = []
    for point in points:
        setting = setting_in_words(point, config)
        row: Row = {"method": point.method, "setting": setting, "n_documents": len(point.documents)}
        point.put(row, "cas_pct", draws=draws)
        row["n_failed_judgements"] = point.n_failed
        point.put(row, "mtokens")
        point.put(row, "end_to_end_s", "prefill_s", "seconds_per_token", draws=draws)
        row["peak_gib"] = point.peak_gib
        printed = reported[reader].get(point.key) if point.in_paper else None
        rows.append(row | paper.beside(paper.Tradeoff, printed))
    return framed(rows, len(points[0].documents), reader=reader)
