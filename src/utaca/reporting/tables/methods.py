"""The table of context-management methods, each under the settings of its source (its paper or code)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from utaca.errors import UserError
from utaca.reporting import paper, render, statistics
from utaca.reporting.measures import CAS, MTOKENS
from utaca.reporting.point_rows import point_row
from utaca.reporting.registry import ENTRIES, Files
from utaca.reporting.results import PointResult, points, setting_in_words
from utaca.reporting.statistics import Draws, Resampled
from utaca.reporting.table import framed
from utaca.settings import schema

if TYPE_CHECKING:
    from utaca.methods.bases.method import Method


def methods(files: Files, config: schema.Config) -> pd.DataFrame:
    """Make the table of context-management methods: quality, cost, and CAS minus that of the nearest UT-ACA point.

    It shows the points of other methods, those of InfLLM and top-p, and those of the config's detector.
    """
    # The classes of methods, by name; imported here, because they load the packages that decode.
    from utaca.methods import METHODS as KINDS

    others, blocks = others_and_blocks(files, config)
    without_detector = (schema.FIXED, schema.TOP_P)
    shown_blocks = [point for point in blocks if point.family in without_detector or point.detector == config.detector]
    shown = [*others, *shown_blocks]
    draws = Draws.of(len([*others, *blocks][0].documents), config, "test")
    # The points among which the nearest UT-ACA point is sought.
    adaptive = [point for point in shown if point.decoder == schema.ADAPTIVE]
    reported = paper.tables()
    reader = paper.reference_reader(reported.test, config.reader.name)
    rows = []
    for point in shown:
        # The paper's table of methods lacks the points in block memory, which are in its table of the test split.
        figures = None
        if point.in_paper:
            figures = reported.methods.get(reader, {}).get(point.decoder) or reported.test[reader].get(point.key)
        row = point_row(ENTRIES["methods"], point, config, draws, figures=figures)
        if not point.not_run:
            row["setting"] = _setting(point, KINDS, config)
        row["paper_excluded"] = bool((figures or {}).get("excluded"))
        # How the time to read a document grows with it. Adaptive points without a base are in block memory: linear.
        row["prefill"] = getattr(KINDS.get(point.retriever), "prefill", "linear")
        row["nearest_utaca"] = ""
        difference = Resampled()
        is_compared = not point.not_run and point.decoder != schema.ADAPTIVE
        if is_compared and (nearest := _nearest(point, adaptive)):
            row["nearest_utaca"] = setting_in_words(nearest, config)
            difference = point.resampled(CAS, draws) - nearest.resampled(CAS, draws)
        row["difference_p"] = difference.p
        difference.put(row, "difference_pct", 100)
        rows.append(row)
    statistics.adjust(rows, "difference_p")
    absent = [f"{row['method']} was not run: {row['lacks']}." for row in rows if row["lacks"]]
    remarks = " ".join([*_classifier(config), *absent])
    return framed(rows, draws.documents.shape[1], reader=reader, remarks=remarks)


def _nearest(point: PointResult, others: Sequence[PointResult]) -> PointResult | None:
    """The point among ``others`` whose mTokens differ from the point's by the smallest factor; None without others."""
    tokens = max(1.0, point.ratio(MTOKENS))  # a point may select none, which has no logarithm

    def distance(other: PointResult) -> float:
        other_tokens = max(1.0, other.ratio(MTOKENS))
        return abs(np.log2(other_tokens / tokens))

    return min(others, key=distance, default=None)


def others_and_blocks(files: Files, config: schema.Config) -> tuple[list[PointResult], list[PointResult]]:
    """Read the results on the test split in two lists: points of other methods, and points in block memory.

    Raises :class:`UserError` if the two lists answer different documents.
    """
    in_blocks = {label for label, point in config.operating.items() if point.in_blocks}
    # Without labels, `points` would read all points of its files.
    other_labels = set(config.shown("test", schema.METHODS)) - in_blocks
    others = points(files["method_answers"], files["method_scores"], other_labels) if other_labels else []
    # Section drafts has points of other sections again, with drafts. Their answers are the same.
    sections = [section for section in schema.SECTIONS if section != schema.DRAFTS]
    block_labels = in_blocks.intersection(config.shown("test", *sections))
    blocks = points(files["test_answers"], files["test_scores"], block_labels) if block_labels else []
    if len({point.documents for point in [*others, *blocks]}) > 1:
        raise UserError(
            f"{files['test_answers'][0]} and {files['method_answers'][0]} have answers about different documents; "
            "remove the older file and make it again"
        )
    return others, blocks


def _setting(point: PointResult, kinds: Mapping[str, type[Method]], config: schema.Config) -> str:
    """A point's budget and policy, with those settings of its method that differ from the source's, in words.

    The source's settings are the defaults of the method's class; ``kinds`` are the classes, by name.
    """
    name = point.retriever
    defaults = {}
    if name in kinds:
        defaults = {field.name: field.default for field in fields(kinds[name])}
    changed = []
    for key, value in config.settings_of(name).items():
        is_in_setting = key == "budget" and point.budget
        if _plain(defaults[key]) != _plain(value) and not is_in_setting:
            changed.append(f"{key}={value}")
    setting = setting_in_words(point, config)
    # A method without a budget has a dash for its setting; changed settings replace it.
    if setting == render.MISSING and changed:
        return ", ".join(changed)
    return ", ".join([setting, *changed])


def _plain(value: Any) -> Any:
    """A tuple as a list, as the config has it; any other value as it is."""
    return list(value) if isinstance(value, tuple) else value


def _classifier(config: schema.Config) -> Sequence[str]:
    """A list with a sentence on LLMLingua-2's classifier if this project trained the classifier; else an empty list."""
    if config.settings_of("llmlingua2").get("model") != schema.CLASSIFIER:
        return []
    return [
        f"LLMLingua-2 has a small classifier that this project trains on its own documents ({schema.CLASSIFIER}), not "
        "the published one."
    ]
