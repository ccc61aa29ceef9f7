"""What a run says of UT-ACA, in a sentence and figures: against InfLLM at equal tokens.

A point is held against InfLLM's CAS at the tokens that it selects itself, read off InfLLM's curve, document by document
(:func:`utaca.reporting.tables.generation.gain`). Where the config has a plan, its primary comparison decides, the p of
its secondary ones are adjusted by Holm, and all else is exploratory. A planned comparison may also hold one point's
gain against another's. Without a plan a detector's points are averaged, so that one interval decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isnan
from typing import Literal, get_args

import numpy as np
import pandas as pd

from utaca.errors import UserError
from utaca.reporting import paper, statistics
from utaca.reporting.points import (
    CAS,
    METHODS,
    MTOKENS,
    ROLLBACKS,
    Curve,
    Point,
    name_in_words,
    of_name,
    points_shown,
    setting_in_words,
)
from utaca.reporting.registry import Files
from utaca.reporting.statistics import Draws, Estimate, Row, spread
from utaca.reporting.table import NAN, framed
from utaca.reporting.tables.generation import Gain, gain
from utaca.settings import schema

Outcome = Literal["does better than", "does worse than", "is not told apart from"]
Claim = Literal["primary", "secondary", "exploratory"]
FEW = 10
"""Documents below which an interval over them is not to be trusted."""
BEYOND = 1.1
"""How many times fewer or more tokens than any of InfLLM's a point selects to have none that is equal."""
_COLUMNS = (
    "name", "setting", "method", "decoder", "detector", "seeds", "n_points", "n_documents", "mtokens", "cas_pct",
    "infllm_cas_pct", "gain_pct", "gain_pct_low", "gain_pct_high", "claim", "gain_p", "note", "over",
)  # fmt: skip


def outcome(estimate: Estimate, n_documents: int) -> Outcome:
    """What an interval of a difference says; where no document differs from another, and so there is none, what the
    sign test of the documents does."""
    low, high = estimate.low, estimate.high
    if isnan(low) and 2 * 0.5**n_documents < 1 - statistics.LEVEL:
        low = high = estimate.value
    if low > 0:
        return "does better than"
    return "does worse than" if high < 0 else "is not told apart from"


def verdict(files: Files, config: schema.Config) -> pd.DataFrame:
    """Gains of UT-ACA's points on InfLLM at equal tokens, with a sentence on the deciding one."""
    points = points_shown(files, config, "test")
    n, fixed = len(points[0].documents), sorted((p for p in points if p.key[0] == "infllm"), key=lambda p: p.key[1])
    groups: list[list[Row]] = []
    pairs: list[Row] = []
    if fixed:
        draws = Draws.of(n, config, "test")
        against = _Against(fixed, Curve.of(fixed, draws), draws, config)
        groups, pairs = against.groups(points), against.pairs(points)
    rows = [row for group in [*groups, pairs] for row in group]
    secondary = [row for row in rows if row["claim"] == "secondary"]
    statistics.adjust(secondary, "gain_p")
    for row in secondary:
        row["gain_p"] = row["gain_p_holm"]
    main = next((group for group in groups if group[0]["decoder"] == "utaca" and group[0]["is_default"]), None)
    if primary := next((row for row in rows if row["claim"] == "primary"), None):
        lead = f"**{_sentence(primary, primary['name'], n)}** It is the primary comparison of the plan."
    elif main is None:
        lacking = "UT-ACA with the config's detector" if fixed else "InfLLM"
        lead = f"**There is no verdict: this run decodes no point of {lacking}.**"
    else:
        one = max(main, key=lambda row: (row["n_points"], row["meets"]))
        lead = f"**{_sentence(one, one['group'], n)}**"
    rows.sort(key=lambda row: get_args(Claim).index(row["claim"]))
    frame = pd.DataFrame(rows, columns=list(_COLUMNS))
    return framed(frame, n, lead=lead, failed=sum(point.n_failed for point in points))


@dataclass(frozen=True)
class _Against:
    """InfLLM's points, ``fixed`` and in ``curve``, and what others gain on them under ``draws``."""

    fixed: Sequence[Point]
    curve: Curve
    draws: Draws
    config: schema.Config

    def groups(self, points: Sequence[Point]) -> list[list[Row]]:
        """UT-ACA with the config's detector first, then with others, token agreement, no detector; means first."""
        named: dict[tuple[str, str, tuple[int, ...]], list[Point]] = {}
        for point in points:
            if point.key[0] in schema.EXPANDED:
                named.setdefault((point.key[0], point.detector, point.seeds), []).append(point)
        order = sorted(named, key=lambda key: (schema.EXPANDED.index(key[0]), not self._is_default(named[key][0])))
        return [self._group(named[key]) for key in order]

    def _group(self, group: Sequence[Point]) -> list[Row]:
        """The points of one method and detector, the mean of those within InfLLM's range before them."""
        gains = [gain(point, self.curve, self.draws) for point in group]
        name = METHODS[group[0].key[0]] + setting_in_words(group[0], self.config).removeprefix(group[0].setting)
        rows = [self._row(point, of, self._planned(point)) for point, of in zip(group, gains, strict=True)]
        within = [place for place, row in enumerate(rows) if not row["note"]] or list(range(len(rows)))
        if len(within) > 1:
            values, drawn = zip(*(gains[place] for place in within), strict=True)
            note = "" if len(within) == len(group) else "of the points within InfLLM's range"
            mean = rows[0] | {"name": f"{name}, mean of {len(within)}", "setting": "mean", "n_points": len(within)}
            mean |= dict.fromkeys(("mtokens", "cas_pct", "infllm_cas_pct", "gain_p"), NAN)
            mean |= {"claim": "exploratory", "note": note, "meets": rows[within[0]]["meets"]}
            spread(mean, "gain_pct", statistics.interval(float(np.mean(values)), np.mean(drawn, axis=0)), 100)
            rows.insert(0, mean)
        return [row | {"group": name} for row in rows]

    def pairs(self, points: Sequence[Point]) -> list[Row]:
        """The planned comparisons of two points' gains."""
        rows, by_identity = [], {_identity(point): point for point in points}
        for one in (comparison for comparison in self.config.plan.comparisons if comparison.over):
            first, second = (by_identity.get(_identity(of_name(label, self.config))) for label in one)
            if first is None or second is None:
                label = one.label if first is None else one.over
                raise UserError(f"the plan compares {label}, of which there are no answers; decode them again")
            (value, drawn), (other, others_drawn) = (gain(point, self.curve, self.draws) for point in (first, second))
            over = name_in_words(second, self.config)
            rates = (100 * point.ratio(*ROLLBACKS) for point in (first, second))
            row = self._row(first, (value - other, drawn - others_drawn), _claim(one, self.config))
            row |= {"note": "expands {:.1f} and {:.1f} % of the tokens".format(*rates), "meets": True}
            rows.append(row | {"name": f"{row['name']} over {over}", "over": over})
        return rows

    def _row(self, point: Point, gained: Gain, what: Claim) -> Row:
        tokens = point.ratio(*MTOKENS)
        note = self._beyond(tokens)
        row: Row = {"name": name_in_words(point, self.config), "setting": setting_in_words(point, self.config)}
        row |= {"method": point.method, "decoder": point.key[0], "detector": point.detector, "seeds": len(point.seeds)}
        row |= {"n_points": 1, "n_documents": len(point.documents), "mtokens": tokens}
        row |= {"cas_pct": 100 * point.ratio(*CAS), "infllm_cas_pct": 100 * self.curve.at(tokens)}
        row |= {
            "claim": what,
            "note": note,
            "over": "",
            "is_default": self._is_default(point),
            "meets": not note,
        }
        row |= {"gain_p": statistics.p_value(gained[1]) if what != "exploratory" else NAN}
        spread(row, "gain_pct", statistics.interval(*gained), 100)
        return row

    def _planned(self, point: Point) -> Claim:
        """What the config's plan calls a point's comparison with InfLLM; exploratory where it does not name it."""
        alone = [one for one in self.config.plan.comparisons if not one.over]
        named = (one for one in alone if _identity(of_name(one.label, self.config)) == _identity(point))
        return next((_claim(one, self.config) for one in named), "exploratory")

    def _is_default(self, point: Point) -> bool:
        return point.detector == self.config.detector and 0 in point.seeds

    def _beyond(self, tokens: float) -> str:
        """That a point lies beyond InfLLM's range, and what it is held against there."""
        of = self.curve.tokens
        low, high = int(of.argmin()), int(of.argmax())
        if tokens * BEYOND < of[low]:
            return f"held against InfLLM {self.fixed[low].setting}, which selects more ({of[low]:.0f})"
        if tokens > of[high] * BEYOND:
            return f"held against InfLLM {self.fixed[high].setting}, which selects fewer ({of[high]:.0f})"
        return ""


def _identity(point: Point | None) -> tuple[paper.Point, str] | None:
    return point and (point.key, point.detector)


def _claim(comparison: schema.Comparison, config: schema.Config) -> Claim:
    return "primary" if config.plan.primary and comparison == config.plan.comparisons[0] else "secondary"


def _sentence(row: Row, name: str, n_documents: int) -> str:
    """Who wins, by how much, how sure, on how many documents."""
    estimate = Estimate(row["gain_pct"], row["gain_pct_low"], row["gain_pct_high"])
    what = outcome(estimate, n_documents)
    who = name.replace(" over ", f" {what} ", 1) if row["over"] else f"{name} {what} InfLLM"
    few = f"{n_documents} document{'s' if n_documents > 1 else ''}" + (", too few to tell more" * (n_documents < FEW))
    where = "at equal tokens" if row["meets"] else "at the nearest of InfLLM's tokens, for none are equal"
    where += f", on average over {row['n_points']} points" if row["n_points"] > 1 else ""
    of = "its gain on InfLLM" if row["over"] else "its CAS"
    gained = f"{row['gain_pct']:+.1f}".replace("-0.0", "+0.0")
    limits = ", without an interval" if isnan(estimate.low) else f" [{estimate.low:.1f}, {estimate.high:.1f}]"
    return f"{who} on {few}: {where}, {of} differs by {gained} points{limits}."
