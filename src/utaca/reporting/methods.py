"""The tables of context-management methods: under their sources' settings, and under equal nominal budgets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from utaca.errors import UserError
from utaca.reporting import paper, render, statistics
from utaca.reporting.generation import usual
from utaca.reporting.points import CAS, METHODS, MTOKENS, Curve, Point, difference, points, setting_in_words
from utaca.reporting.statistics import Draws, Estimate
from utaca.reporting.tables import NAN, NOT_RUN, Row, Table, build_table, spread
from utaca.settings import schema

if TYPE_CHECKING:
    from utaca.methods.method import Method


def methods(
    own: Sequence[Point], blocks: Sequence[Point], kinds: Mapping[str, type[Method]], config: schema.Config
) -> Table:
    """Every method under the settings of its source (paper, table "long-context test set").

    ``own`` are the points of :mod:`utaca.methods`, ``blocks`` those decoded from block memory, of the same documents;
    ``kinds`` are the methods' classes, whose defaults are the settings of the sources.
    """
    found = [*own, *compared(blocks, config)]
    draws = Draws.of(len(found[0].documents), config, "test")
    adaptive = [point for point in found if point.key[0] == "utaca"]
    reported = paper.tables()
    reader = paper.reference_reader(reported.test, config.reader.name)
    rows = []
    for point in found:
        name, mtokens = point.key[0], point.ratio(*MTOKENS)
        known = reported.methods.get(reader, {}).get(name) or reported.test[reader].get(point.key)
        known = known if point.in_paper else None
        reference = paper.beside(known, mtokens="mtokens", cas="cas_pct")
        reference["paper_excluded"] = bool(getattr(known, "excluded", False))
        if point.lacks:
            # All figures stay empty.
            counted = {"n_documents": 0, "n_memory": 0, "n_incoherent": 0}
            about = {"setting": NOT_RUN, "prefill": _prefill(point, kinds), "nearest_utaca": ""}
            rows.append({"method": point.method, "lacks": point.lacks, **about, **counted, **reference})
            continue
        nearest = min(adaptive, key=lambda other: abs(np.log2(_tokens(other) / max(mtokens, 1))), default=None)
        row: Row = {
            "method": point.method,
            "setting": _setting(point, kinds, config),
            "n_documents": len(point.documents),
            "prefill": _prefill(point, kinds),
            "read_pct": _read_pct(point),
            "n_memory": int(point.sums["memory"].sum()),
            "n_incoherent": int(point.sums["incoherent"].sum()),
            "mtokens": mtokens,
            "attended": point.ratio("attended", "n_generated"),
        }
        spread(row, "cas_pct", point.estimate(*CAS, draws), 100)
        whole = 1 - point.sums["memory"] - point.sums["incoherent"]
        without = replace(point, sums={name: point.sums[name] * whole for name in CAS})
        spread(row, "cas_whole_pct", without.estimate(*CAS, draws), 100)
        row["nearest_utaca"] = ""
        to_nearest, row["difference_p"] = Estimate(NAN), NAN
        if nearest is not None and name != "utaca":
            row["nearest_utaca"] = setting_in_words(nearest, config)
            value, resampled = difference(point, nearest, *CAS, draws)
            to_nearest, row["difference_p"] = statistics.interval(value, resampled), statistics.p_value(resampled)
        spread(row, "difference_pct", to_nearest, 100)
        row |= {
            "prefill_s": point.ratio("prefill_seconds", "documents"),
            "seconds_per_token": point.ratio("decode_seconds", "n_generated"),
            "peak_gib": point.peak_gib,
        }
        rows.append(row | reference)
    for row, adjusted in zip(rows, statistics.holm([row.get("difference_p", NAN) for row in rows]), strict=True):
        row["difference_p_holm"] = adjusted
    absent = [f"{row['method']} was not run: {row['lacks']}." for row in rows if "lacks" in row]
    remarks, shows = " ".join([*_classifier(config), *absent]), {"paper_cas_pct": _paper_cas}
    return build_table("methods", rows, config, len(found[0].documents), shows=shows, reader=reader, remarks=remarks)


def equal_budgets(own: Sequence[Point], blocks: Sequence[Point], config: schema.Config) -> Table:
    """Every method at equal nominal budgets, the fairer table; UT-ACA's are interpolated.

    ``own`` and ``blocks`` are as in :func:`methods`; budgets are those of ``own``. InfLLM's points are those whose
    blocks hold as many tokens; UT-ACA, whose mean budget is an outcome, is read off its curve of CAS over log2 mTokens.
    """
    draws = Draws.of(len([*own, *blocks][0].documents), config, "test")
    budgets = sorted({point.key[1] for point in own if point.key[1]})
    size = config.reader.memory.block_size
    absent = [f"{point.method} was not run at {point.key[1]}: {point.lacks}." for point in own if point.lacks]
    own = [point for point in own if not point.lacks and not point.key[2]]
    adaptive = [point for point in blocks if point.key[0] == "utaca" and usual(point, config)]
    curve = Curve.of(adaptive, draws) if adaptive else None
    named: dict[str, dict[int, Point]] = {}
    for point in own:
        named.setdefault(point.key[0], {})[point.key[1]] = point
    named["infllm"] = {point.key[1] * size: point for point in blocks if point.key[0] == "infllm"}
    rows = []
    for name, at in named.items():
        row: Row = {"method": METHODS.get(name, name)}
        differences = []
        for budget in budgets:
            point = at.get(budget)
            estimate = point.estimate(*CAS, draws) if point else Estimate(NAN)
            spread(row, f"cas_{budget}_pct", estimate, 100)
            row[f"attended_{budget}"] = point.ratio("attended", "n_generated") if point else NAN
            if point and curve:
                at_equal = curve.resampled_at(np.full(len(draws), float(budget)))
                resampled = at_equal - point.drawn(*CAS, draws)
                differences.append((curve.at(budget) - estimate.value, resampled))
        above = Estimate(NAN)
        if differences:
            resampled = np.mean([each for _, each in differences], 0)
            above = statistics.interval(float(np.mean([value for value, _ in differences])), resampled)
        spread(row, "utaca_above_pct", above, 100)
        rows.append(row)
    if curve:
        row = {"method": f"{METHODS['utaca']}, interpolated"}
        for budget in budgets:
            resampled = curve.resampled_at(np.full(len(draws), float(budget)))
            spread(row, f"cas_{budget}_pct", statistics.interval(curve.at(budget), resampled), 100)
        rows.append(row)
    reach = f"{min(map(_tokens, adaptive)):.0f} to {max(map(_tokens, adaptive)):.0f}" if adaptive else "nothing"
    columns = {"Method": "method"} | {f"CAS % at {budget}": f"cas_{budget}_pct [2]" for budget in budgets}
    columns |= {"UT-ACA above it, mean": "utaca_above_pct [2]"}
    columns |= {f"+Attended at {budget}": f"attended_{budget} 0" for budget in budgets}
    remarks = " ".join([*_classifier(config), *absent])
    n_documents = draws.documents.shape[1]
    return build_table("equal_budgets", rows, config, n_documents, columns=columns, reach=reach, remarks=remarks)


def split(
    files: Mapping[str, Sequence[str | Path]], purposes: Sequence[str], config: schema.Config
) -> tuple[list[Point], list[Point]]:
    """Points of the test split's suites for these purposes that are not decoded from block memory, and all that are.

    ``files`` are ``method_answers``, ``method_scores``, ``test_answers`` and ``test_scores``. Raises
    :class:`UserError` where both are of other documents.
    """
    shown = config.shown("test", "generation", "sweep", "methods", "budgets")
    labels = {point.label for suite in config.suites.values() for point in config.ran(suite) if point.in_blocks}
    own = points(files["method_answers"], files["method_scores"], set(config.shown("test", *purposes)) - labels)
    only = [label for label in shown if label in labels]
    blocks = points(files["test_answers"], files["test_scores"], only) if only else []
    if blocks and blocks[0].documents != own[0].documents:
        raise UserError(
            f"{files['test_answers'][0]} answers other documents than {files['method_answers'][0]}; remove the older "
            "of the two and make it again"
        )
    return own, blocks


def compared(blocks: Sequence[Point], config: schema.Config) -> list[Point]:
    """The points from block memory that other methods are held against: InfLLM and UT-ACA with the main detector."""
    return [point for point in blocks if usual(point, config) and point.key[0] in ("infllm", "utaca")]


def _setting(point: Point, kinds: Mapping[str, type[Method]], config: schema.Config) -> str:
    """What a point is called, and its method's settings that are not its source's."""
    name, budget = point.retriever, point.key[1]
    source = {field.name: field.default for field in fields(kinds[name])} if name in kinds else {}
    others = {key: value for key, value in config.methods.get(name, {}).items() if _plain(source[key]) != _plain(value)}
    if budget:
        others.pop("budget", None)
    words = [setting_in_words(point, config), *(f"{key}={value}" for key, value in others.items())]
    return ", ".join(words[1:] if words[0] == render.MISSING and others else words)


def _prefill(point: Point, kinds: Mapping[str, type[Method]]) -> str:
    """How a method's prefill grows with the document; that of the method that it is given to, if any."""
    return getattr(kinds.get(point.retriever), "prefill", "linear")


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _classifier(config: schema.Config) -> list[str]:
    """That LLMLingua-2's classifier is this project's, where it is."""
    model = config.methods.get("llmlingua2", {}).get("model", "")
    if model != schema.CLASSIFIER:
        return []
    return [
        f"The classifier of LLMLingua-2 ({model}) is a small one that this project trains on documents of its own, not "
        "the published one."
    ]


def _tokens(point: Point) -> float:
    return max(1.0, point.ratio(*MTOKENS))


def _read_pct(point: Point) -> float:
    """Share of the documents' tokens before any cut; of one that did not fit into memory nothing was read."""
    read, dropped = point.sums["n_context"], point.sums["dropped"]
    return 100 * float(statistics.ratio(read, read + dropped))


def _paper_cas(row: Mapping[str, object]) -> str:
    return ("†" if row["paper_excluded"] else "") + render.number(row["paper_cas_pct"], 2)


def _methods(files: Mapping[str, Sequence[str]], config: schema.Config) -> Table:
    from utaca.methods import METHODS

    return methods(*split(files, ["methods"], config), METHODS, config)


MAKERS = {
    "methods": _methods,
    "equal_budgets": lambda files, config: equal_budgets(*split(files, ["budgets"], config), config),
}
