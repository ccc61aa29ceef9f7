"""What a run says of UT-ACA, in words and figures that are computed: against InfLLM at equal tokens.

A point is held against InfLLM's CAS at the tokens that it selects itself, read off InfLLM's curve, document by document
(:func:`utaca.reporting.generation.gain`). Where the config has a plan, its primary comparison decides, the p of its
secondary ones are adjusted by Holm, and all else is exploratory. A planned comparison may also hold one point's gain
against another's. Without a plan a detector's points are averaged, so that one interval decides.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from math import isnan
from pathlib import Path
from typing import Literal, NamedTuple, get_args

import numpy as np
import pandas as pd

from utaca.errors import UserError
from utaca.reporting import render, statistics
from utaca.reporting.generation import gain
from utaca.reporting.points import (
    CAS,
    METHODS,
    MTOKENS,
    ROLLBACKS,
    Curve,
    Point,
    difference,
    name_in_words,
    of_label,
    points,
    setting_in_words,
)
from utaca.reporting.statistics import Draws, Estimate
from utaca.reporting.tables import (
    NAN,
    Column,
    Row,
    Table,
    corpus_in_words,
    endpoint_in_words,
    figure,
    intervals_in_words,
    plain,
    run_in_words,
    spread,
)
from utaca.settings import schema

Outcome = Literal["gains", "loses", "is not told apart"]
Claim = Literal["primary", "secondary", "exploratory"]
FEW = 10
"""Documents below which an interval over them is not to be trusted."""
BEYOND = 1.1
"""How many times fewer or more tokens than any of InfLLM's a point selects to have none that is equal."""
_LIES: dict[Outcome, str] = {"gains": "above", "loses": "below", "is not told apart": "not told apart"}


class Group(NamedTuple):
    """Points of one method and detector: what each gains on InfLLM, and the mean of those within InfLLM's range.

    ``beyond`` has a note a point, "" within the range. Where no point is within it, the mean is of all. ``claims`` has
    what the config's plan calls each point, ``p`` that of its gain. Where there is an ``over``, the group has one
    point, and its gain is what it gains more than that one.
    """

    name: str
    points: list[Point]
    gains: list[Estimate]
    beyond: list[str]
    mean: Estimate
    claims: list[Claim]
    p: list[float]
    over: Point | None = None

    @property
    def meets(self) -> bool:
        """Whether any point selects as many tokens as InfLLM's."""
        return not all(self.beyond)

    @property
    def averaged(self) -> int:
        """Points that the mean is of."""
        return self.beyond.count("") or len(self.points)


def outcome(estimate: Estimate, n_documents: int) -> Outcome:
    """What an interval of a difference says; where no document differs from another, and so there is none, what the
    sign test of the documents does."""
    low, high = estimate.low, estimate.high
    if isnan(low) and 2 * 0.5**n_documents < 1 - statistics.LEVEL:
        low = high = estimate.value
    if low > 0:
        return "gains"
    return "loses" if high < 0 else "is not told apart"


def verdict(
    answers: Sequence[str | Path], scores: Sequence[str | Path], config: schema.Config, only: Collection[str] = ()
) -> Table:
    """The verdict on a test split: sentences, and every point's CAS less InfLLM's at equal tokens.

    ``answers`` and ``scores`` are as in :func:`utaca.reporting.points.points`, of labels ``only``, if any. The frame
    has a row a mean over a detector's points (``n_points`` > 1, ``name``) and a row a point, what was planned first;
    figures are CAS points.
    """
    found = points(answers, scores, only)
    draws = Draws.of(len(found[0].documents), config, "test")
    fixed = sorted((point for point in found if point.key[0] == "infllm"), key=lambda point: point.key[1])
    groups = _adjusted([*_groups(found, fixed, draws, config), *_pairs(found, fixed, draws, config)])
    rows = [row for group in groups for row in _rows(group, fixed, draws, config)]
    rows.sort(key=lambda row: get_args(Claim).index(row["claim"]))
    n = len(found[0].documents)
    columns = (
        Column("Point", plain("name")),
        Column("mTokens", lambda row: render.number(row["mtokens"], 1)),
        Column("CAS %", lambda row: render.number(row["cas_pct"], 2)),
        Column("InfLLM CAS % at equal mTokens", lambda row: render.number(row["infllm_cas_pct"], 2)),
        Column("CAS difference", figure("gain_pct", 2)),
        Column("The interval lies", lambda row: _LIES[outcome(_estimate(row), n)]),
        Column("Claim", plain("claim")),
        Column("p", lambda row: render.number(row["gain_p"], 3)),
        Column("Note", plain("note")),
    )
    caption = (
        "CAS less InfLLM's at the tokens that a point selects itself: InfLLM's is interpolated in log2 mTokens between "
        "its points and clipped to their range. One point over another: what it gains on InfLLM less what "
        "the other does. Documents are paired. "
        "Claim: what the plan calls the comparison; p, two-sided, of planned ones alone, by Holm of the secondary.\n"
        f"{run_in_words(config, 'judge')}; {n} documents; {intervals_in_words(config)}"
    )
    frame = pd.DataFrame(rows, columns=list(_COLUMNS))
    lead = "\n".join(sentences(groups, found, fixed, draws, config))
    return Table("verdict", "UT-ACA against InfLLM at equal tokens", caption, frame, columns, lead=lead)


_COLUMNS = (
    "name", "setting", "method", "decoder", "detector", "seeds", "n_points", "n_documents", "mtokens", "cas_pct",
    "infllm_cas_pct", "gain_pct", "gain_pct_low", "gain_pct_high", "claim",
    "gain_p", "note", "over",
)  # fmt: skip


def _groups(found: Sequence[Point], fixed: Sequence[Point], draws: Draws, config: schema.Config) -> list[Group]:
    """UT-ACA with the config's detector first, then with others, token agreement, no detector; none without InfLLM."""
    if not fixed:
        return []
    curve = Curve.of(fixed, draws)
    named: dict[tuple[str, str, tuple[int, ...]], list[Point]] = {}
    for point in found:
        if point.key[0] in schema.ADAPTIVE:
            named.setdefault((point.key[0], point.detector, point.seeds), []).append(point)
    order = sorted(named, key=lambda key: (schema.ADAPTIVE.index(key[0]), not _main(named[key][0], config)))
    groups = []
    for method, detector, seeds in order:
        own = named[method, detector, seeds]
        values, resampled = zip(*(gain(point, curve, draws) for point in own), strict=True)
        each = [statistics.interval(value, drawn) for value, drawn in zip(values, resampled, strict=True)]
        beyond = [_beyond(_tokens(point), curve, fixed) for point in own]
        within = [place for place, note in enumerate(beyond) if not note] or list(range(len(own)))
        mean = statistics.interval(
            float(np.mean([values[place] for place in within])), np.mean([resampled[place] for place in within], axis=0)
        )
        setting = setting_in_words(own[0], config).removeprefix(own[0].setting)
        claims = [claim(point, config) for point in own]
        p = [statistics.p_value(drawn) if about != "exploratory" else NAN
             for about, drawn in zip(claims, resampled, strict=True)]  # fmt: skip
        groups.append(Group(METHODS[method] + setting, own, each, beyond, mean, claims, p))
    return groups


def _pairs(found: Sequence[Point], fixed: Sequence[Point], draws: Draws, config: schema.Config) -> list[Group]:
    """The planned comparisons of two points' gains, a group each; none without InfLLM."""
    if not fixed:
        return []
    curve, groups = Curve.of(fixed, draws), []
    for one in (comparison for comparison in config.plan.comparisons if comparison.over):
        first, second = (_planned_point(label, found, config) for label in one)
        (value, resampled), (other, of_other) = (gain(point, curve, draws) for point in (first, second))
        more, p = statistics.interval(value - other, resampled - of_other), statistics.p_value(resampled - of_other)
        name = f"{name_in_words(first, config)} over {name_in_words(second, config)}"
        groups.append(Group(name, [first], [more], [""], more, [_claim(one, config)], [p], second))
    return groups


def claim(point: Point, config: schema.Config) -> Claim:
    """What the config's plan calls a point's comparison with InfLLM; exploratory where it does not name it."""
    planned = (one for one in config.plan.comparisons if not one.over and _is(point, one.label, config))
    return next((_claim(one, config) for one in planned), "exploratory")


def _claim(comparison: schema.Comparison, config: schema.Config) -> Claim:
    return "primary" if config.plan.primary and comparison == config.plan.comparisons[0] else "secondary"


def _planned_point(label: str, found: Sequence[Point], config: schema.Config) -> Point:
    try:
        return next(point for point in found if _is(point, label, config))
    except StopIteration:
        raise UserError(f"the plan compares {label}, of which there are no answers; decode the suite again") from None


def _is(point: Point, label: str, config: schema.Config) -> bool:
    planned = of_label(label, config)
    return planned is not None and (planned.key, planned.detector) == (point.key, point.detector)


def _adjusted(groups: list[Group]) -> list[Group]:
    """The groups with p adjusted by Holm over all secondary points of all of them."""
    places = [(g, i) for g, group in enumerate(groups) for i, what in enumerate(group.claims) if what == "secondary"]
    adjusted = statistics.holm([groups[g].p[i] for g, i in places])
    for (g, i), value in zip(places, adjusted, strict=True):
        groups[g].p[i] = value
    return groups


def _rows(group: Group, fixed: Sequence[Point], draws: Draws, config: schema.Config) -> list[Row]:
    curve = Curve.of(fixed, draws)
    first = group.points[0]
    about: Row = {"method": first.method, "decoder": first.key[0], "detector": first.detector}
    about["seeds"] = len(first.seeds)
    about["n_documents"] = len(first.documents)
    about["over"] = ""
    rows: list[Row] = []
    if group.averaged > 1:
        name = f"{group.name}, mean of {group.averaged}"
        note = "" if group.averaged == len(group.points) else "of the points within InfLLM's range"
        row = about | {"name": name, "setting": "mean", "n_points": group.averaged, "note": note}
        row |= {"claim": "exploratory", "gain_p": NAN}
        row |= {"mtokens": NAN, "cas_pct": NAN, "infllm_cas_pct": NAN}
        spread(row, "gain_pct", group.mean, 100)
        rows.append(row)
    for place, point in enumerate(group.points):
        tokens = _tokens(point)
        row = about | {"name": name_in_words(point, config), "setting": setting_in_words(point, config), "n_points": 1}
        row |= {"mtokens": tokens, "cas_pct": 100 * _cas(point), "infllm_cas_pct": 100 * curve.at(tokens)}
        row |= {"note": group.beyond[place], "claim": group.claims[place], "gain_p": group.p[place]}
        if group.over:
            row |= {"name": group.name, "over": name_in_words(group.over, config), "note": _rates(point, group.over)}
        spread(row, "gain_pct", group.gains[place], 100)
        rows.append(row)
    return rows


def _rates(first: Point, second: Point) -> str:
    """How often each of two points that are compared expands a token."""
    return "expands {:.1f} and {:.1f} % of the tokens".format(*(100 * one.ratio(*ROLLBACKS) for one in (first, second)))


def _beyond(tokens: float, curve: Curve, fixed: Sequence[Point]) -> str:
    """That a point lies beyond InfLLM's range, and what it is held against there."""
    low, high = int(curve.tokens.argmin()), int(curve.tokens.argmax())
    if tokens * BEYOND < curve.tokens[low]:
        return f"held against InfLLM {fixed[low].setting}, which selects more ({curve.tokens[low]:.0f})"
    if tokens > curve.tokens[high] * BEYOND:
        return f"held against InfLLM {fixed[high].setting}, which selects fewer ({curve.tokens[high]:.0f})"
    return ""


# In words


def sentences(
    groups: Sequence[Group],
    found: Sequence[Point],
    fixed: Sequence[Point],
    draws: Draws,
    config: schema.Config,
) -> list[str]:
    """Paragraphs, the verdict itself first."""
    n = len(found[0].documents)
    adaptive = [group for group in groups if group.points[0].key[0] == "utaca" and not group.over]
    main = next((group for group in adaptive if _main(group.points[0], config)), None)
    planned = [one for group in groups for one in _planned(group, config)]
    if primary := next((one for one in planned if one.claims == ["primary"]), None):
        said = [f"**{headline(primary, n)}** It is the primary comparison of the plan.", *secondary(planned, n)]
    elif main is None:
        lacking = "InfLLM" if not fixed else "UT-ACA with the config's detector"
        said = [f"**There is no verdict: the suites of this run hold no point of {lacking}.**"]
    else:
        said = [f"**{headline(main, n)}**", one_by_one(main, n)]
    if fixed:
        said.append(rise(fixed, draws))
    said += [bound(group, n) for group in groups if group.points[0].imitates and not group.over]
    others = [group for group in adaptive if group is not main] if primary is None else []
    if others:
        said.append(f"Other detectors, the same comparison: {'; '.join(_other(group, n) for group in others)}.")
    rest = "No comparison was planned" if primary is None else "Nothing else was planned"
    said += [f"{rest} before the documents were read: what else is told is exploratory.", made_of(found, config)]
    return said


def _planned(group: Group, config: schema.Config) -> list[Group]:
    """Each planned point of a group as a group of its own, by its full name."""
    if group.over:
        return [group]
    return [
        Group(name_in_words(point, config), [point], [gained], [beyond], gained, [what], [p])
        for point, gained, beyond, what, p in zip(
            group.points, group.gains, group.beyond, group.claims, group.p, strict=True
        )
        if what != "exploratory"
    ]


def secondary(planned: Sequence[Group], n_documents: int) -> list[str]:
    """What the secondary comparisons show, each with its p, adjusted over all of them; nothing where there is none."""
    each = [f"{_other(group, n_documents)}, p {render.number(group.p[0], 3)}"
            for group in planned if group.claims == ["secondary"]]  # fmt: skip
    by = " by Holm" if len(each) > 1 else ""
    return [f"Secondary comparisons, p{by}: {'; '.join(each)}."] if each else []


def headline(group: Group, n_documents: int) -> str:
    """Who wins, by how much, how sure, on how many documents."""
    what, where = outcome(group.mean, n_documents), _where(group)
    if group.over:
        return _headline_of_pair(group, what, n_documents)
    if n_documents == 1:
        return f"One document tells nothing: {where}, {group.name}'s CAS differs by {_signed(group.mean)} points there."
    few = f"on {n_documents} documents" + (", too few to tell more" if n_documents < FEW else "")
    if not group.meets:
        none = f"There is no verdict at equal tokens: no point of {group.name} selects as many as any of InfLLM's"
        return f"{none}; {where}, its CAS differs by {_signed(group.mean)} points{_limits(group.mean)} {few}."
    if what == "is not told apart":
        return (
            f"{group.name} is not told apart from InfLLM {few}: {where}, its CAS differs by {_signed(group.mean)} "
            f"points{_limits(group.mean)}{_holds_zero(group.mean)}."
        )
    start, side = ("gains on", "higher") if what == "gains" else ("loses to", "lower")
    by = f"{abs(100 * group.mean.value):.1f} points {side}{_limits(group.mean)}"
    return f"{group.name} {start} InfLLM {few}: {where}, its CAS is {by}."


def _headline_of_pair(group: Group, what: Outcome, n_documents: int) -> str:
    found = {
        "gains": "does better than",
        "loses": "does worse than",
        "is not told apart": "is not told apart from",
    }[what]
    told = f"{group.name.replace(' over ', f' {found} ', 1)} on {n_documents} documents"
    few = ", too few to tell more" if n_documents < FEW else ""
    zero = _holds_zero(group.mean) if what == "is not told apart" else ""
    more = f"{_signed(group.mean)} CAS points{_limits(group.mean)}{zero}"
    return f"{told}{few}: what they gain on InfLLM at equal tokens differs by {more}."


def one_by_one(group: Group, n_documents: int) -> str:
    """How many of a detector's points within InfLLM's range lie on which side, and which are beyond it."""
    pairs = list(zip(group.gains, group.beyond, strict=True))
    found = [outcome(estimate, n_documents) for estimate, note in pairs if not note]
    said = []
    if found:
        parts = [f"{found.count(what)} {lies}" for what, lies in _LIES.items() if what in found]
        total = f"Of {len(found)} points" if len(found) > 1 else "Of one point"
        said.append(f"{total} within InfLLM's range, by an interval each: {', '.join(parts)}.")
    notes: dict[str, list[str]] = {}
    for point, note in zip(group.points, group.beyond, strict=True):
        if note:
            notes.setdefault(note, []).append(point.setting)
    said += [f"Beyond InfLLM's range, {note}: {'; '.join(who)}." for note, who in notes.items()]
    return " ".join(said)


def rise(fixed: Sequence[Point], draws: Draws) -> str:
    """How much InfLLM gains from its smallest to its largest budget: the room that an allocation of budgets has."""
    first, last = fixed[0], fixed[-1]
    if first is last:
        return f"InfLLM has one budget here, {first.setting}: what a budget is worth is not known."
    more = statistics.interval(*difference(last, first, *CAS, draws))
    ends = f"from {first.setting} ({_tokens(first):.0f} tokens) to {last.setting} ({_tokens(last):.0f} tokens)"
    what = outcome(more, len(first.documents))
    if len(first.documents) == 1:
        return f"InfLLM itself differs by {_signed(more)} CAS points {ends}."
    if what == "is not told apart":
        return (
            f"InfLLM itself does not tell its budgets apart: {_signed(more)} CAS points{_limits(more)} "
            f"{ends}. Where the budget does not matter, no way to allocate it can gain much."
        )
    verb = "rises" if what == "gains" else "falls"
    return f"InfLLM itself {verb} by {abs(100 * more.value):.1f} CAS points{_limits(more)} {ends}."


def bound(group: Group, n_documents: int) -> str:
    """What token agreement gains, which imitates K_max at the policy's least cost."""
    told = {
        "gains": "So much a detector that knew K_max's tokens would gain; it is no bound.",
        "loses": "Even a detector that knew K_max's tokens would lose here.",
        "is not told apart": "A detector that knew K_max's tokens would gain nothing that is seen here.",
    }[outcome(group.mean, n_documents)]
    said = (
        "Token agreement, which expands exactly where that changes the token, differs from InfLLM by "
        f"{_signed(group.mean)} points{_limits(group.mean)}, {_where(group)}."
    )
    return f"{said} {told}" if group.meets else said


def made_of(found: Sequence[Point], config: schema.Config) -> str:
    """Detector, reader, corpus, judge, documents, and judgements that failed."""
    failed = sum(point.n_failed for point in found)
    n, number = len(found[0].documents), max((len(point.seeds) for point in found if _main(point, config)), default=1)
    seeds = f"{number} seeds" if number > 1 else f"seed {config.detector_seed}"
    said = (
        f"Made of {n} document{'' if n == 1 else 's'}: detector {config.detector} ({seeds}), "
        f"reader {config.reader.name}, padding {corpus_in_words(config)}, judge {endpoint_in_words(config.judge)}."
    )
    return f"{said} {failed} judgements failed and are left out." if failed else said


def _other(group: Group, n_documents: int) -> str:
    what = outcome(group.mean, n_documents) if group.meets else "selects other numbers of tokens than any of InfLLM's"
    return f"{group.name} {what}, {_signed(group.mean)}{_limits(group.mean)}"


def _main(point: Point, config: schema.Config) -> bool:
    return point.detector == config.detector and config.detector_seed in point.seeds


def _where(group: Group) -> str:
    against = "at equal tokens" if group.meets else "against the nearest of InfLLM's"
    return f"{against}, on average over {group.averaged} points" if group.averaged > 1 else against


def _signed(estimate: Estimate) -> str:
    return f"{100 * estimate.value:+.1f}".replace("-0.0", "+0.0")


def _limits(estimate: Estimate) -> str:
    return "" if isnan(estimate.low) else f" [{100 * estimate.low:.1f}, {100 * estimate.high:.1f}]"


def _holds_zero(estimate: Estimate) -> str:
    return ", without an interval" if isnan(estimate.low) else ", an interval that holds zero"


def _estimate(row: Row) -> Estimate:
    return Estimate(row["gain_pct"], row["gain_pct_low"], row["gain_pct_high"])


def _tokens(point: Point) -> float:
    return point.ratio(*MTOKENS)


def _cas(point: Point) -> float:
    return point.ratio(*CAS)
