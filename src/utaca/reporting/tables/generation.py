"""The tables of generated answers: quality over selected tokens, against InfLLM and against the agreement oracle."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from utaca.reporting import statistics
from utaca.reporting.measures import ALL_PASSES, CAS, MTOKENS
from utaca.reporting.registry import Files
from utaca.reporting.results import Curve, PointResult
from utaca.reporting.statistics import NAN, Draws, Resampled, Row
from utaca.reporting.tables.points import PointTable
from utaca.settings import schema
from utaca.settings.triggers import TriggerSetting


def generation(files: Files, config: schema.Config, name: str) -> pd.DataFrame:
    """Quality and selected tokens of every operating point, compared with InfLLM and the agreement oracle.

    ``difference_pct`` compares CAS with the nearest InfLLM point, ``gain_pct`` with InfLLM at equal mTokens, and
    ``gain_all_pct`` with InfLLM at as many tokens as all passes select.
    """
    table = PointTable.of(name, files, config)
    compared = compare(table.points, table.draws)
    return table.framed([row | more for row, more in zip(table.rows(), compared, strict=True)])


def compare(points: Sequence[PointResult], draws: Draws) -> list[Row]:
    """Compare every point with the fixed budgets and the agreement oracle among the points.

    The columns of a comparison are empty if the points for it are missing.
    """
    curve = Curve.of(points, draws)
    gains: dict[int, Resampled] = {}  # by place among the points
    if curve:
        for place, point in enumerate(points):
            if point.family != schema.FIXED:
                gains[place] = curve.gain(point)
    rows = []
    for place, point in enumerate(points):
        row: Row = {"nearest_infllm": "", "note": "", "infllm_cas_pct": NAN, "gain_p": NAN}
        difference = above = above_all = closed = beyond = Resampled()
        without = ""
        if curve and place in gains:
            above = gains[place]
            above_all = curve.gain(point, ALL_PASSES)
            difference = _against_infllm(row, point, curve)
            row["gain_p"] = above.p
            oracle = _oracle_of(point, points)
            if oracle is not None:
                closed = above.share_of(gains[points.index(oracle)])
            control = point.control(points)
            if control:
                beyond = above - gains[points.index(control)]
                without = ", ".join(filter(None, [control.setting, control.trigger_in_words]))
        n_lacking = point.total("memory")
        if n_lacking:
            lacking = f"{n_lacking} answers ran out of memory, and count as 0"
            row["note"] = f"{row['note']}; {lacking}" if row["note"] else lacking
        difference.put(row, "difference_pct", 100)
        above.put(row, "gain_pct", 100)
        above_all.put(row, "gain_all_pct", 100)
        row["no_detector"] = without
        closed.put(row, "gap_closed_pct", 100)
        beyond.put(row, "beyond_pct", 100)
        rows.append(row)
    statistics.adjust(rows, "gain_p")
    return rows


def _oracle_of(point: PointResult, points: Sequence[PointResult]) -> PointResult | None:
    """The agreement oracle of another point: its budgets, expanded where the token differs from that under K_max."""
    for other in points:
        agrees = other.trigger == TriggerSetting("agreement", None)
        if agrees and other is not point and other.key[1:] == point.key[1:] and not other.base:
            return other
    return None


def _against_infllm(row: Row, point: PointResult, curve: Curve) -> Resampled:
    """Fill a row's columns on InfLLM; return CAS of the point minus CAS of the nearest fixed budget."""
    fixed = curve.points
    tokens = point.ratio(MTOKENS)
    of_fixed = curve.tokens[:, 0]
    nearest = fixed[int(np.abs(of_fixed - tokens).argmin())]
    row |= {"nearest_infllm": nearest.setting, "infllm_cas_pct": 100 * curve.at(point).value}
    if tokens < of_fixed.min():
        row["note"] = f"below InfLLM's range, clipped to {fixed[int(of_fixed.argmin())].setting}"
    elif tokens > of_fixed.max():
        row["note"] = f"above InfLLM's range, clipped to {fixed[int(of_fixed.argmax())].setting}"
    return point.resampled(CAS, curve.draws) - nearest.resampled(CAS, curve.draws)
