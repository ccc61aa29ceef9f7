"""The tables of generated answers: quality and selected tokens, compared with InfLLM and the agreement oracle."""

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
    """Make the table ``name`` of operating points, each compared with InfLLM and the agreement oracle.

    ``difference_pct`` compares CAS with the InfLLM point nearest in mTokens, ``gain_pct`` with InfLLM at equal mTokens,
    and ``gain_all_pct`` with InfLLM at as many tokens as all passes select.
    """
    table = PointTable.of(name, files, config)
    compared = compare(table.points, table.draws)
    return table.framed([row | more for row, more in zip(table.rows(), compared, strict=True)])


def compare(points: Sequence[PointResult], draws: Draws) -> list[Row]:
    """Compare every point with InfLLM, its agreement oracle and its control; return the columns, a row for each point.

    InfLLM, oracles and controls are among the ``points``. The columns of a comparison are empty if the point for it is
    missing. p-values are adjusted over all rows.
    """
    curve = Curve.of(points, draws)
    gains: dict[int, Resampled] = {}  # on InfLLM at equal mTokens, by place among the points
    if curve:
        for place, point in enumerate(points):
            if point.family != schema.FIXED:
                gains[place] = curve.gain(point)
    rows = []
    for place, point in enumerate(points):
        row: Row = {"nearest_infllm": "", "note": "", "infllm_cas_pct": NAN, "gain_p": NAN}
        difference = Resampled()
        gain = Resampled()
        gain_all_passes = Resampled()
        share_of_oracle = Resampled()
        gain_on_control = Resampled()
        control_name = ""
        if curve and place in gains:
            gain = gains[place]
            gain_all_passes = curve.gain(point, ALL_PASSES)
            difference = _against_infllm(row, point, curve)
            row["gain_p"] = gain.p
            oracle = _oracle_of(point, points)
            if oracle is not None:
                share_of_oracle = gain.share_of(gains[points.index(oracle)])
            control = point.control(points)
            if control:
                gain_on_control = gain - gains[points.index(control)]
                control_name = ", ".join(filter(None, [control.setting, control.trigger_in_words]))
        n_lacking = point.total("memory")
        if n_lacking:
            lacking = f"{n_lacking} answers ran out of memory, and count as 0"
            row["note"] = f"{row['note']}; {lacking}" if row["note"] else lacking
        difference.put(row, "difference_pct", 100)
        gain.put(row, "gain_pct", 100)
        gain_all_passes.put(row, "gain_all_pct", 100)
        row["no_detector"] = control_name
        share_of_oracle.put(row, "gap_closed_pct", 100)
        gain_on_control.put(row, "beyond_pct", 100)
        rows.append(row)
    statistics.adjust(rows, "gain_p")
    return rows


def _oracle_of(point: PointResult, points: Sequence[PointResult]) -> PointResult | None:
    """Find the agreement oracle of a ``point``: another point of the same K_max and policy, whose trigger is agreement.

    The oracle expands the tokens that differ from the token under K_max. None if there is none among ``points``. Only
    points on block memory have one, because the budget of another base method counts tokens.
    """
    if point.base:
        return None
    for other in points:
        is_oracle = other.trigger == TriggerSetting("agreement", None) and not other.base
        # Budget and policy; the first part of the key is the decoder.
        same_budgets = other.key[1:] == point.key[1:]
        if is_oracle and same_budgets and other is not point:
            return other
    return None


def _against_infllm(row: Row, point: PointResult, curve: Curve) -> Resampled:
    """Compare a point with InfLLM's ``curve``; return its CAS minus that of the fixed budget of nearest mTokens.

    Fills the row's columns on InfLLM: that budget, and CAS of the curve at the point's mTokens, which is clipped at the
    curve's ends. The note says if it was clipped.
    """
    fixed = curve.points
    tokens = point.ratio(MTOKENS)
    fixed_tokens = curve.tokens[:, 0]  # the figures themselves; the other columns are resamples
    nearest = fixed[int(np.abs(fixed_tokens - tokens).argmin())]
    row["nearest_infllm"] = nearest.setting
    row["infllm_cas_pct"] = 100 * curve.at(point).value
    if tokens < fixed_tokens.min():
        row["note"] = f"below InfLLM's range, clipped to {fixed[int(fixed_tokens.argmin())].setting}"
    elif tokens > fixed_tokens.max():
        row["note"] = f"above InfLLM's range, clipped to {fixed[int(fixed_tokens.argmax())].setting}"
    return point.resampled(CAS, curve.draws) - nearest.resampled(CAS, curve.draws)
