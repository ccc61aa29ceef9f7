"""The verdict of a run: UT-ACA against InfLLM at equal tokens, as rows and one sentence.

The gain of a point is its CAS minus the CAS of InfLLM's curve at the point's mTokens, paired by document
(:meth:`utaca.reporting.results.Curve.gain`). If the config has a plan, its primary comparison decides, the p-values of
its secondary comparisons are adjusted by Holm, and all other rows are exploratory. A planned comparison may also be one
point's gain minus another's. Without a plan the points of a detector are averaged, so that one interval decides.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from math import isnan
from statistics import fmean
from typing import Literal, get_args

import pandas as pd

from utaca.errors import UserError
from utaca.reporting import statistics
from utaca.reporting.measures import ALL_PASSES, MEASURES, MTOKENS, ROLLBACKS
from utaca.reporting.point_rows import identified
from utaca.reporting.registry import Files
from utaca.reporting.results import (
    NAMES,
    Curve,
    Identity,
    PointResult,
    name_in_words,
    of_config,
    points_shown,
    trigger_in_words,
)
from utaca.reporting.statistics import NAN, Draws, Resampled, Row
from utaca.reporting.table import framed
from utaca.settings import schema

Outcome = Literal["does better than", "does worse than", "is not told apart from"]
Claim = Literal["primary", "secondary", "exploratory"]
FEW = 10
"""Number of documents below which an interval is unreliable."""
CONTROL = "a control that expands about as often at fixed intervals"
"""What UT-ACA's control is called: points without a detector."""
ALIKE = 1.5
"""Factor within which rates of expansion count as alike."""
BEYOND = 1.1
"""Factor by which a point's mTokens must lie outside InfLLM's range to be noted as without an equal."""
_COLUMNS = (
    "name", "setting", "method", "decoder", "family", "trigger", "detector", "seeds", "n_points", "n_documents",
    "mtokens", "mtokens_with_tentative", "cas_pct", "infllm_cas_pct", "gain_pct", "gain_pct_low", "gain_pct_high",
    "gain_all_pct", "gain_all_pct_low", "gain_all_pct_high", "claim", "gain_p", "note", "over",
)  # fmt: skip
_NO_FIGURES = dict.fromkeys(("mtokens", "mtokens_with_tentative", "cas_pct", "infllm_cas_pct", "gain_p"), NAN)
"""Columns that have no figure in the row of a mean over points."""


def outcome(value: float, low: float, high: float, n_documents: int) -> Outcome:
    """The outcome of a difference by its interval or, without an interval (NaN), by the sign test over documents.

    There is no interval if the difference is the same in all documents.
    """
    if isnan(low) and 2 * 0.5**n_documents < 1 - statistics.LEVEL:
        low = high = value
    if low > 0:
        return "does better than"
    return "does worse than" if high < 0 else "is not told apart from"


def verdict(files: Files, config: schema.Config) -> pd.DataFrame:
    """Gains of UT-ACA's points on InfLLM at equal tokens, with a sentence on the deciding comparison."""
    points = points_shown(files, config, "test")
    n = len(points[0].documents)
    groups: list[list[Row]] = []
    pairs: list[Row] = []
    controlled: list[Row] = []
    rows: list[Row] = []
    if curve := Curve.of(points, Draws.of(n, config, "test")):
        comparison = _Comparison(curve, config)
        groups = comparison.groups(points)
        pairs = comparison.pairs(points)
        # A plan names the comparisons that it wants, controls among them.
        controlled = [] if config.plan.primary else comparison.controlled(points)
        pairs += controlled
    for group in [*groups, pairs]:
        rows += group
    secondary = [row for row in rows if row["claim"] == "secondary"]
    statistics.adjust(secondary, "gain_p")
    for row in secondary:
        row["gain_p"] = row["gain_p_holm"]
    primary = [row for row in rows if row["claim"] == "primary"]
    main = [group for group in groups if group[0]["decoder"] == "utaca" and group[0]["is_default"]]
    if primary:
        lead = f"**{_sentence(primary[0], primary[0]['name'], n)}** It is the primary comparison of the plan."
    elif not main:
        missing = "UT-ACA with the config's detector" if curve else "InfLLM"
        lead = f"**There is no verdict: this run decodes no point of {missing}.**"
    else:
        deciding = max(main[0], key=lambda row: (row["n_points"], row["meets"]))
        lead = f"**{_sentence(deciding, deciding['group'], n)}**"
        if controlled:
            lead += f" {_sentence(controlled[0], controlled[0]['name'], n)}"
    rows.sort(key=lambda row: get_args(Claim).index(row["claim"]))
    frame = pd.DataFrame(rows, columns=list(_COLUMNS))
    return framed(frame, n, lead=lead, failed=sum(point.n_failed for point in points))


@dataclass(frozen=True)
class _Gain:
    """A gain on InfLLM at equal tokens: of the ``accepted`` passes, which the paper counts, and of all passes."""

    accepted: Resampled
    all_passes: Resampled

    def __sub__(self, other: _Gain) -> _Gain:
        return _Gain(self.accepted - other.accepted, self.all_passes - other.all_passes)

    @staticmethod
    def mean(gains: Sequence[_Gain]) -> _Gain:
        accepted = statistics.mean([gain.accepted for gain in gains])
        return _Gain(accepted, statistics.mean([gain.all_passes for gain in gains]))

    def put(self, row: Row) -> None:
        """Write both, in points, into a row."""
        self.accepted.put(row, "gain_pct", 100)
        self.all_passes.put(row, "gain_all_pct", 100)


@dataclass(frozen=True)
class _Comparison:
    """Comparison with the ``curve`` through InfLLM's points."""

    curve: Curve
    config: schema.Config

    def groups(self, points: Sequence[PointResult]) -> list[list[Row]]:
        """Rows by method, detector and seeds: UT-ACA with the config's detector, other detectors, other triggers."""
        named: dict[Hashable, list[PointResult]] = {}
        for point in points:
            if point.trigger and not point.base:
                named.setdefault((point.trigger, point.detector, point.seeds), []).append(point)

        def order(group: Sequence[PointResult]) -> tuple[int, bool]:
            return schema.EXPANDED.index(group[0].family), not self._is_default(group[0])

        return [self._group(group) for group in sorted(named.values(), key=order)]

    def _group(self, group: Sequence[PointResult]) -> list[Row]:
        """Rows of a group: the mean of the points within InfLLM's range, if there are several, then each point."""
        name = " ".join(filter(None, [group[0].name, trigger_in_words(group[0], self.config)]))
        gains = [self._gain(point) for point in group]
        rows = []
        for point, gain in zip(group, gains, strict=True):
            rows.append(self._row(point, gain, self._claim_of(point.identity)))
        # The mean is over the points within the range; over all points if none is.
        within = [place for place, row in enumerate(rows) if row["meets"]] or list(range(len(rows)))
        if len(within) > 1:
            mean = rows[0] | _NO_FIGURES
            mean["name"] = f"{name}, mean of {len(within)}"
            mean["setting"] = "mean"
            mean["n_points"] = len(within)
            mean["claim"] = "exploratory"
            mean["note"] = "" if len(within) == len(group) else "of the points within InfLLM's range"
            mean["meets"] = rows[within[0]]["meets"]
            _Gain.mean([gains[place] for place in within]).put(mean)
            rows.insert(0, mean)
        return [row | {"group": name} for row in rows]

    def pairs(self, points: Sequence[PointResult]) -> list[Row]:
        """Rows of the planned comparisons of two points' gains."""
        rows = []
        by_identity = {point.identity: point for point in points}
        for planned in self.config.plan.comparisons:
            if not planned.over:
                continue
            first = by_identity.get(self._identity(planned.label))
            second = by_identity.get(self._identity(planned.over))
            if first is None or second is None:
                label = planned.label if first is None else planned.over
                raise UserError(f"the plan compares {label}, of which there are no answers; decode them again")
            over = name_in_words(second, self.config)
            row = self._row(first, self._gain(first) - self._gain(second), self._claim(planned))
            row["name"] = f"{row['name']} over {over}"
            row["over"] = over
            row["note"] = _expansions(100 * first.ratio(ROLLBACKS), 100 * second.ratio(ROLLBACKS))
            row["meets"] = True
            rows.append(row)
        return rows

    def controlled(self, points: Sequence[PointResult]) -> list[Row]:
        """UT-ACA's gain less that of its controls, as one row: the mean of its points within InfLLM's range."""
        ours = [point for point in points if point.decoder == schema.ADAPTIVE and self._is_default(point)]
        pairs = []
        for point in ours:
            control = point.control(points)
            if control and self._comparable(point, control):
                pairs.append((point, control))
        if not pairs:
            return []
        first, _ = pairs[0]
        row = self._row(first, self._gain(first), "exploratory") | _NO_FIGURES
        own_rate = fmean([point.ratio(ROLLBACKS) for point, _ in pairs])
        control_rate = fmean([control.ratio(ROLLBACKS) for _, control in pairs])
        row["name"] = f"{NAMES['methods']['utaca']} over {CONTROL}"
        row["setting"] = "mean"
        row["over"] = CONTROL
        row["n_points"] = len(pairs)
        row["note"] = _expansions(100 * own_rate, 100 * control_rate)
        _Gain.mean([self._gain(point) - self._gain(control) for point, control in pairs]).put(row)
        return [row]

    def _comparable(self, point: PointResult, control: PointResult) -> bool:
        """Whether a control expands about as often as the point, and InfLLM has points at the tokens of both."""
        rate = point.ratio(ROLLBACKS)
        control_rate = control.ratio(ROLLBACKS)
        alike = max(rate, control_rate) <= ALIKE * min(rate, control_rate)
        return alike and not self._beyond(point.ratio(MTOKENS)) and not self._beyond(control.ratio(MTOKENS))

    def _gain(self, point: PointResult) -> _Gain:
        return _Gain(self.curve.gain(point), self.curve.gain(point, ALL_PASSES))

    def _row(self, point: PointResult, gain: _Gain, claim: Claim) -> Row:
        """The row of a point, with its ``gain``; ``meets`` says whether InfLLM has points at its number of tokens."""
        note = self._beyond(point.ratio(MTOKENS))
        row = identified(point, self.config)
        row["name"] = name_in_words(point, self.config)
        row["n_points"] = 1
        row["n_documents"] = len(point.documents)
        row["claim"] = claim
        row["note"] = note
        row["over"] = ""
        row["is_default"] = self._is_default(point)
        row["meets"] = not (note or isnan(gain.accepted.value))
        for column in ("mtokens", "mtokens_with_tentative", "cas_pct"):
            row[column] = MEASURES[column].factor * point.ratio(MEASURES[column])
        row["infllm_cas_pct"] = 100 * self.curve.at(point).value
        row["gain_p"] = gain.accepted.p if claim != "exploratory" else NAN
        gain.put(row)
        return row

    def _identity(self, name: str) -> Identity | None:
        """The identity of the point that the config decodes under this name; None if there is no such point."""
        for point in self.config.operating.values():
            if point.name == name:
                return of_config(point, self.config).identity
        return None

    def _claim_of(self, identity: Identity) -> Claim:
        """The plan's claim on a point's comparison with InfLLM."""
        for planned in self.config.plan.comparisons:
            if not planned.over and self._identity(planned.label) == identity:
                return self._claim(planned)
        return "exploratory"

    def _claim(self, comparison: schema.Comparison) -> Claim:
        """The claim on a comparison of the plan: its first one is primary, if it has a primary one."""
        plan = self.config.plan
        return "primary" if plan.primary and comparison == plan.comparisons[0] else "secondary"

    def _is_default(self, point: PointResult) -> bool:
        return point.detector == self.config.detector and 0 in point.seeds

    def _beyond(self, tokens: float) -> str:
        """A note on the nearest InfLLM point if ``tokens`` lie outside InfLLM's range, else ""."""
        of_fixed = self.curve.tokens[:, 0]
        low = int(of_fixed.argmin())
        high = int(of_fixed.argmax())
        if tokens * BEYOND < of_fixed[low]:
            return f"held against InfLLM {self.curve.points[low].setting}, which selects more ({of_fixed[low]:.0f})"
        if tokens > of_fixed[high] * BEYOND:
            return f"held against InfLLM {self.curve.points[high].setting}, which selects fewer ({of_fixed[high]:.0f})"
        return ""


def _expansions(first: float, second: float) -> str:
    """A note on how many of the tokens two sides of a comparison expand, in percent."""
    return f"expands {first:.1f} and {second:.1f} % of the tokens"


def _sentence(row: Row, name: str, n_documents: int) -> str:
    """The result of a comparison: the outcome, the number of documents, and the gain under both counts of tokens.

    The outcome holds for both counts, or the sentence says that it is one of accepted passes only.
    """
    what = _outcome(row, "gain_pct", n_documents)
    if row["over"]:
        result = name.replace(" over ", f" {what} ", 1)
        measure = "its gain on InfLLM"
    else:
        result = f"{name} {what} InfLLM"
        measure = "its CAS"
    if _outcome(row, "gain_all_pct", n_documents) != what:
        result += " by its accepted passes only"
    documents = f"{n_documents} documents" if n_documents > 1 else f"{n_documents} document"
    if n_documents < FEW:
        documents += ", too few to tell more"
    where = "at equal tokens" if row["meets"] else "at the nearest of InfLLM's tokens, for none are equal"
    if row["n_points"] > 1:
        where += f", on average over {row['n_points']} points"
    gained = _in_points(row, "gain_pct")
    of_all = _in_points(row, "gain_all_pct")
    return f"{result} on {documents}: {where}, {measure} differs by {gained}; with all passes counted, by {of_all}."


def _outcome(row: Row, column: str, n_documents: int) -> Outcome:
    return outcome(row[column], row[f"{column}_low"], row[f"{column}_high"], n_documents)


def _in_points(row: Row, column: str) -> str:
    """A difference with its interval, in words."""
    low = row[f"{column}_low"]
    high = row[f"{column}_high"]
    difference = f"{row[column]:+.1f}".replace("-0.0", "+0.0")
    limits = ", without an interval" if isnan(low) else f" [{low:.1f}, {high:.1f}]"
    return f"{difference} points{limits}"
