"""The table of a run's verdict: whether UT-ACA does better than InfLLM at equal tokens, as rows and one sentence.

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

Outcome = Literal["does better than", "does worse than", "shows no clear difference from"]
Claim = Literal["primary", "secondary", "exploratory"]
"""What the plan claims of a comparison; rows are in this order."""
FEW = 10
"""Number of documents below which an interval is unreliable."""
CONTROL = "a control that expands about as often at fixed intervals"
"""What the table calls UT-ACA's controls (:meth:`utaca.reporting.results.PointResult.control`)."""
ALIKE = 1.5
"""Factor within which rates of expansion count as alike."""
BEYOND = 1.1
"""A point is beyond InfLLM's range of mTokens if it lies outside by more than this factor."""
_COLUMNS = (
    "name", "setting", "method", "decoder", "family", "trigger", "detector", "seeds", "n_points", "n_documents",
    "mtokens", "mtokens_with_tentative", "cas_pct", "infllm_cas_pct", "gain_pct", "gain_pct_low", "gain_pct_high",
    "gain_all_pct", "gain_all_pct_low", "gain_all_pct_high", "claim", "gain_p", "note", "over",
)  # fmt: skip
_NO_FIGURES = dict.fromkeys(("mtokens", "mtokens_with_tentative", "cas_pct", "infllm_cas_pct", "gain_p"), NAN)
"""Columns that have no figure in the row of a mean over points."""


def outcome(value: float, low: float, high: float, n_documents: int) -> Outcome:
    """The outcome of a difference ``value`` by its interval, or if that is NaN, by a sign test over documents.

    There is no interval if the difference is the same in all documents, so that all have its sign.
    """
    # The p-value of the sign test: the probability that n_documents signs all agree by chance, on either side.
    if isnan(low) and 2 * 0.5**n_documents < 1 - statistics.LEVEL:
        low = high = value
    if low > 0:
        return "does better than"
    return "does worse than" if high < 0 else "shows no clear difference from"


def verdict(files: Files, config: schema.Config) -> pd.DataFrame:
    """Make the table of the gains of UT-ACA's points on InfLLM, with a sentence on the deciding comparison above it."""
    points = points_shown(files, config, "test")
    n_documents = len(points[0].documents)
    groups: list[list[Row]] = []
    pairs: list[Row] = []
    controlled: list[Row] = []
    curve = Curve.of(points, Draws.of(n_documents, config, "test"))
    if curve:
        comparison = _Comparison(curve, config)
        groups = comparison.groups(points)
        pairs = comparison.pairs(points)
        # A plan names its comparisons, controls among them.
        controlled = [] if config.plan.primary else comparison.controlled(points)
    rows: list[Row] = []
    for group in [*groups, pairs, controlled]:
        rows += group
    # Secondary comparisons are shown with their adjusted p-values; the primary one needs no adjustment.
    secondary = [row for row in rows if row["claim"] == "secondary"]
    statistics.adjust(secondary, "gain_p")
    for row in secondary:
        row["gain_p"] = row["gain_p_holm"]
    # Before the rows are sorted: the sentence takes the first of each kind.
    lead = _lead(rows, groups, controlled, n_documents) if curve else _no_verdict("InfLLM")
    rows.sort(key=lambda row: get_args(Claim).index(row["claim"]))
    # Rows have further keys for the sentence (group, is_default, meets), which are not columns of the table.
    frame = pd.DataFrame(rows, columns=list(_COLUMNS))
    return framed(frame, n_documents, lead=lead, failed=sum(point.n_failed for point in points))


def _lead(rows: Sequence[Row], groups: Sequence[Sequence[Row]], controlled: Sequence[Row], n_documents: int) -> str:
    """The sentence above the table, on the comparison that decides; without a plan, also on UT-ACA's control.

    ``groups`` are the rows on InfLLM, by group of points, and ``controlled`` the row on the control, if there is one.
    """
    primary = [row for row in rows if row["claim"] == "primary"]
    if primary:
        sentence = _sentence(primary[0], primary[0]["name"], n_documents)
        return f"**{sentence}** It is the primary comparison of the plan."
    main = [group for group in groups if group[0]["decoder"] == "utaca" and group[0]["is_default"]]
    if not main:
        return _no_verdict("UT-ACA with the config's detector")
    # The mean over several points, if there is one; else a point within InfLLM's range, if there is one.
    deciding = max(main[0], key=lambda row: (row["n_points"], row["meets"]))
    lead = f"**{_sentence(deciding, deciding['group'], n_documents)}**"
    if controlled:
        lead += f" {_sentence(controlled[0], controlled[0]['name'], n_documents)}"
    return lead


def _no_verdict(missing: str) -> str:
    """The sentence above the table of a run that lacks points; ``missing`` says which."""
    return f"**There is no verdict: this run decodes no point of {missing}.**"


@dataclass(frozen=True)
class _Gain:
    """A gain over InfLLM at equal tokens: of the ``accepted`` passes, which the paper counts, and of all passes."""

    accepted: Resampled
    all_passes: Resampled

    def __sub__(self, other: _Gain) -> _Gain:
        return _Gain(self.accepted - other.accepted, self.all_passes - other.all_passes)

    @staticmethod
    def mean(gains: Sequence[_Gain]) -> _Gain:
        """The mean of several gains under the same resamples."""
        accepted = statistics.mean([gain.accepted for gain in gains])
        return _Gain(accepted, statistics.mean([gain.all_passes for gain in gains]))

    def put(self, row: Row) -> None:
        """Set the row's columns of both gains and their intervals, in CAS points (percent)."""
        self.accepted.put(row, "gain_pct", 100)
        self.all_passes.put(row, "gain_all_pct", 100)


@dataclass(frozen=True)
class _Comparison:
    """Compares points with the ``curve`` through InfLLM's points, and makes the rows of the table."""

    curve: Curve
    config: schema.Config

    def groups(self, points: Sequence[PointResult]) -> list[list[Row]]:
        """The rows on adaptive points, in groups of one trigger, detector and seeds.

        UT-ACA with the config's detector comes first, then other detectors, then other triggers.
        """
        alike: dict[Hashable, list[PointResult]] = {}
        for point in points:
            if point.trigger and not point.base:
                alike.setdefault((point.trigger, point.detector, point.seeds), []).append(point)

        def order(group: Sequence[PointResult]) -> tuple[int, bool]:
            return schema.EXPANDED.index(group[0].family), not self._is_default(group[0])

        return [self._group(group) for group in sorted(alike.values(), key=order)]

    def _group(self, group: Sequence[PointResult]) -> list[Row]:
        """The rows of a group of points: their mean, if it is over several, then each point.

        The mean is over the points within InfLLM's range of mTokens, or over all points if none is.
        """
        name = " ".join(filter(None, [group[0].name, trigger_in_words(group[0], self.config)]))
        gains = [self._gain(point) for point in group]
        rows = []
        for point, gain in zip(group, gains, strict=True):
            rows.append(self._row(point, gain, self._claim_of(point.identity)))
        # Places in the group of the points that the mean is over.
        within = [place for place, row in enumerate(rows) if row["meets"]] or list(range(len(rows)))
        if len(within) > 1:
            # All points of the group have the same method, trigger, detector and seeds, which the mean takes over.
            mean = rows[0] | _NO_FIGURES
            mean["name"] = f"{name}, mean of {len(within)}"
            mean["setting"] = "mean"
            mean["n_points"] = len(within)
            mean["claim"] = "exploratory"
            mean["note"] = "" if len(within) == len(group) else "of the points within InfLLM's range"
            mean["meets"] = rows[within[0]]["meets"]  # either all of these points meet it or none does
            _Gain.mean([gains[place] for place in within]).put(mean)
            rows.insert(0, mean)
        return [row | {"group": name} for row in rows]

    def pairs(self, points: Sequence[PointResult]) -> list[Row]:
        """The rows of the plan's comparisons of one point's gain with another's.

        Raises :class:`UserError` if a point of such a comparison has no answers.
        """
        rows = []
        by_identity = {point.identity: point for point in points}
        for planned in self.config.plan.comparisons:
            if not planned.over:
                continue
            first = by_identity.get(self._identity(planned.label))
            second = by_identity.get(self._identity(planned.over))
            if first is None or second is None:
                label = planned.label if first is None else planned.over
                raise UserError(f"the plan compares {label}, which has no answers; decode that point first")
            over = name_in_words(second, self.config)
            row = self._row(first, self._gain(first) - self._gain(second), self._claim(planned))
            row["name"] = f"{row['name']} over {over}"
            row["over"] = over
            row["note"] = _expansions(100 * first.ratio(ROLLBACKS), 100 * second.ratio(ROLLBACKS))
            # The sentence on it then says "at equal tokens": both gains are.
            row["meets"] = True
            rows.append(row)
        return rows

    def controlled(self, points: Sequence[PointResult]) -> list[Row]:
        """The row of UT-ACA's gain minus the gain of its controls: a list of one row, or empty without a control.

        It is a mean over those points of UT-ACA, with the config's detector, that can be compared with their controls.
        """
        ours = [point for point in points if point.decoder == schema.ADAPTIVE and self._is_default(point)]
        pairs = []
        for point in ours:
            control = point.control(points)
            if control and self._comparable(point, control):
                pairs.append((point, control))
        if not pairs:
            return []
        first, _ = pairs[0]
        # The columns that all of these points share are taken from the first; the others are set or emptied below.
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
        """The point's gain over InfLLM at equal tokens."""
        return _Gain(self.curve.gain(point), self.curve.gain(point, ALL_PASSES))

    def _row(self, point: PointResult, gain: _Gain, claim: Claim) -> Row:
        """The row of a ``point``.

        ``gain`` is the point's gain over InfLLM or, if two points are compared, the difference of their gains.
        The column ``meets`` says whether the point is within InfLLM's range of mTokens, so that the gain is at equal
        tokens. Only a planned comparison has a p-value.
        """
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
        """The plan's claim on the comparison of a point with InfLLM; "exploratory" if the plan does not have it."""
        for planned in self.config.plan.comparisons:
            if not planned.over and self._identity(planned.label) == identity:
                return self._claim(planned)
        return "exploratory"

    def _claim(self, comparison: schema.Comparison) -> Claim:
        """The claim on a comparison of the plan: secondary, except the first one of a plan that has a primary."""
        plan = self.config.plan
        return "primary" if plan.primary and comparison == plan.comparisons[0] else "secondary"

    def _is_default(self, point: PointResult) -> bool:
        """Whether the point's trigger is the config's detector, its seed 0 among others."""
        return point.detector == self.config.detector and 0 in point.seeds

    def _beyond(self, tokens: float) -> str:
        """A note on the nearest InfLLM point if ``tokens`` lie beyond InfLLM's range (:data:`BEYOND`), else ""."""
        fixed_tokens = self.curve.tokens[:, 0]  # the figures themselves; the other columns are resamples
        low = int(fixed_tokens.argmin())
        high = int(fixed_tokens.argmax())
        if tokens * BEYOND < fixed_tokens[low]:
            setting = self.curve.points[low].setting
            return f"compared with InfLLM {setting}, which selects more ({fixed_tokens[low]:.0f})"
        if tokens > fixed_tokens[high] * BEYOND:
            setting = self.curve.points[high].setting
            return f"compared with InfLLM {setting}, which selects fewer ({fixed_tokens[high]:.0f})"
        return ""


def _expansions(first: float, second: float) -> str:
    """A note on the shares of tokens, in percent, that the two sides of a comparison expand."""
    return f"expands {first:.1f} and {second:.1f} % of the tokens"


def _sentence(row: Row, name: str, n_documents: int) -> str:
    """The sentence on a comparison: the outcome, the number of documents, and the gain under both counts of tokens.

    ``row`` is the comparison's, ``name`` what the sentence calls it. The counts are those of accepted passes and of all
    passes; if the outcome does not hold for both, the sentence says that it is one of accepted passes only.
    """
    what = _outcome(row, "gain_pct", n_documents)
    if row["over"]:
        # A comparison of two points is called "A over B", which becomes "A does better than B", say.
        result = name.replace(" over ", f" {what} ", 1)
        measure = "the difference in gain over InfLLM"
    else:
        result = f"{name} {what} InfLLM"
        measure = "the difference in CAS"
    if _outcome(row, "gain_all_pct", n_documents) != what:
        result += ", if only accepted passes count,"
    documents = f"{n_documents} documents" if n_documents > 1 else f"{n_documents} document"
    if n_documents < FEW:
        documents += ", too few for a firm result"
    where = "at equal tokens" if row["meets"] else "at InfLLM's nearest number of tokens, as it has no equal one"
    if row["n_points"] > 1:
        where += f", on average over {row['n_points']} settings"
    gained = _in_points(row, "gain_pct")
    of_all = _in_points(row, "gain_all_pct")
    return f"{result} on {documents}: {where}, {measure} is {gained}; with all passes counted, it is {of_all}."


def _outcome(row: Row, column: str, n_documents: int) -> Outcome:
    """The outcome of the difference in a row's ``column``, by the interval in the columns with it."""
    return outcome(row[column], row[f"{column}_low"], row[f"{column}_high"], n_documents)


def _in_points(row: Row, column: str) -> str:
    """The difference in a row's ``column`` with its interval, in words, as in "+1.2 percentage points [0.3, 2.1]"."""
    low = row[f"{column}_low"]
    high = row[f"{column}_high"]
    # A small negative difference rounds to "-0.0".
    difference = f"{row[column]:+.1f}".replace("-0.0", "+0.0")
    limits = ", without an interval" if isnan(low) else f" [{low:.1f}, {high:.1f}]"
    return f"{difference} percentage points{limits}"
