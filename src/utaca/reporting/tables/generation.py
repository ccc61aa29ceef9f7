"""The tables of generated answers: quality over selected tokens, against InfLLM and against the agreement oracle."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from utaca.reporting import paper, statistics
from utaca.reporting.registry import Files
from utaca.reporting.results import (
    ALL_PASSES,
    CAS,
    Curve,
    PointResult,
    name_in_words,
    points_shown,
    setting_in_words,
    timed,
    variant_in_words,
)
from utaca.reporting.statistics import NAN, Draws, Resampled, Row
from utaca.reporting.table import framed
from utaca.settings import schema
from utaca.settings.triggers import TriggerSetting


def generation(files: Files, config: schema.Config, name: str = "test") -> pd.DataFrame:
    """Quality and selected tokens of every operating point, compared with InfLLM and the agreement oracle.

    ``difference_pct`` compares CAS with the nearest InfLLM point, ``gain_pct`` with InfLLM at equal mTokens, and
    ``gain_all_pct`` with InfLLM at as many tokens as all passes select. All points are resampled by the same draws.
    """
    alone = timed(files.get("timed_answers", ()))
    split = "validation" if name == "validation" else "test"
    more = ["sweep"] if name == "sweep" else []
    points = points_shown(files, config, split, split, *more)
    reported = getattr(paper.tables(), split)
    reader = paper.reference_reader(reported, config.reader.name)
    draws = Draws.of(len(points[0].documents), config, split)
    rows = []
    for point, compared in zip(points, compare(points, draws), strict=True):
        figures = reported[reader].get(point.key) if point.in_paper else None
        row = _row(point, draws, config)
        alone.get(point.identity, point).put(row, "seconds_per_token")
        rows.append(row | compared | paper.reference("mtokens seconds_per_token cas_pct", figures))
    return framed(rows, len(points[0].documents), reader=reader, split=split.replace("test", "long-context test"))


def _row(point: PointResult, draws: Draws, config: schema.Config) -> Row:
    row: Row = {"method": point.name, "setting": setting_in_words(point, config), "n_documents": len(point.documents)}
    row |= {"point": name_in_words(point, config), "decoder": point.decoder}
    row |= {"family": point.family, "budget": point.budget}
    row |= {"policy": point.policy, "variant": variant_in_words(point, config)}
    row |= {"trigger": str(point.trigger or ""), "detector": point.detector, "seeds": len(point.seeds)}
    point.put(row, "mtokens", draws=draws)
    point.put(row, "attended", "mtokens_with_tentative", "attended_with_tentative")
    point.put(row, "cas_pct", "string_match_pct", draws=draws)
    point.put(row, "rollbacks_pct", "effective_rollbacks_pct")
    row |= {"n_judgements": int(point.sums["attributes"].sum()), "n_failed_judgements": point.n_failed}
    return row


def compare(points: Sequence[PointResult], draws: Draws) -> list[Row]:
    """Compare every point with the fixed budgets and the agreement oracle among the points.

    The columns of a comparison are empty if the points for it are missing.
    """
    curve = Curve.of(points, draws)
    gains = {place: curve.gain(p) for place, p in enumerate(points) if curve and p.family != schema.FIXED}
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
            if control := point.control(points):
                beyond = above - gains[points.index(control)]
                without = ", ".join(filter(None, [control.setting, control.trigger_in_words]))
        if lacking := int(point.sums["memory"].sum()):
            row["note"] = "; ".join(filter(None, [row["note"], f"{lacking} answers ran out of memory, and count as 0"]))
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
    tokens = point.ratio("selected", "n_generated")
    of_fixed = curve.tokens[:, 0]
    nearest = fixed[int(np.abs(of_fixed - tokens).argmin())]
    row |= {"nearest_infllm": nearest.setting, "infllm_cas_pct": 100 * curve.at(point).value}
    if tokens < of_fixed.min():
        row["note"] = f"below InfLLM's range, clipped to {fixed[int(of_fixed.argmin())].setting}"
    elif tokens > of_fixed.max():
        row["note"] = f"above InfLLM's range, clipped to {fixed[int(of_fixed.argmax())].setting}"
    return point.resampled(*CAS, curve.draws) - nearest.resampled(*CAS, curve.draws)


def tradeoff(files: Files, config: schema.Config) -> pd.DataFrame:
    """Quality, latency and memory of every point.

    Where answers share passes, seconds and memory are those of the answers that were decoded by themselves.
    """
    alone = timed(files.get("timed_answers", ()))
    points = points_shown(files, config, "test")
    reported = paper.tables().tradeoff
    reader = paper.reference_reader(reported, config.reader.name)
    draws = Draws.of(len(points[0].documents), config, "test")
    rows: list[Row] = []
    for point in points:
        setting = setting_in_words(point, config)
        row: Row = {"method": point.name, "setting": setting, "n_documents": len(point.documents)}
        point.put(row, "cas_pct", draws=draws)
        row["n_failed_judgements"] = point.n_failed
        point.put(row, "mtokens", "mtokens_with_tentative")
        measured = alone.get(point.identity, point)
        row["n_timed"] = len(measured.documents)
        draws_of_time = Draws.of(len(measured.documents), config, "time")
        measured.put(row, "end_to_end_s", "prefill_s", "seconds_per_token", draws=draws_of_time)
        row["peak_gib"] = measured.peak_gib
        figures = reported[reader].get(point.key) if point.in_paper else None
        rows.append(row | paper.reference("cas_pct mtokens end_to_end_s peak_gib", figures))
    by_itself = ", decoded each by itself" if alone else ""
    n_timed = min(row["n_timed"] for row in rows)
    documents = f"{n_timed} document{'s' * (n_timed != 1)}"
    return framed(rows, len(points[0].documents), reader=reader, timed=f"{documents}{by_itself}")
