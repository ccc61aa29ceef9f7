"""The table of context-management methods under the settings of their sources."""

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
    """Quality and cost of context-management methods, and the differences of their CAS to that of UT-ACA."""
    from utaca.methods import METHODS as KINDS

    others, blocks = others_and_blocks(files, config)
    shown = [point for point in blocks if point.family == schema.FIXED or point.detector == config.detector]
    compared = [*others, *shown]
    draws = Draws.of(len([*others, *blocks][0].documents), config, "test")
    adaptive = [point for point in compared if point.decoder == schema.ADAPTIVE]
    reported = paper.tables()
    reader = paper.reference_reader(reported.test, config.reader.name)
    rows = []
    for point in compared:
        figures = None
        if point.in_paper:
            figures = reported.methods.get(reader, {}).get(point.decoder) or reported.test[reader].get(point.key)
        row = point_row(ENTRIES["methods"], point, config, draws, figures=figures)
        if not point.not_run:
            row["setting"] = _setting(point, KINDS, config)
        row["paper_excluded"] = bool((figures or {}).get("excluded"))
        row["prefill"] = getattr(KINDS.get(point.retriever), "prefill", "linear")
        nearest = None if point.not_run or point.decoder == schema.ADAPTIVE else _nearest(point, adaptive)
        row["nearest_utaca"] = ""
        difference = Resampled()
        if nearest:
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
    """The point among ``others`` whose mTokens are nearest in log2; None if there are no others."""
    tokens = max(1.0, point.ratio(MTOKENS))

    def distance(other: PointResult) -> float:
        other_tokens = max(1.0, other.ratio(MTOKENS))
        return abs(np.log2(other_tokens / tokens))

    return min(others, key=distance, default=None)


def others_and_blocks(files: Files, config: schema.Config) -> tuple[list[PointResult], list[PointResult]]:
    """Operating points on the test split: those of other methods, then those that are decoded from block memory.

    Raises :class:`UserError` if the two lists answer different documents.
    """
    in_blocks = {label for label, point in config.operating.items() if point.in_blocks}
    labels = set(config.shown("test", schema.METHODS)) - in_blocks
    others = points(files["method_answers"], files["method_scores"], labels) if labels else []
    # Drafts change no answer.
    sections = [section for section in schema.SECTIONS if section != schema.DRAFTS]
    labels = in_blocks.intersection(config.shown("test", *sections))
    blocks = points(files["test_answers"], files["test_scores"], labels) if labels else []
    if len({point.documents for point in [*others, *blocks]}) > 1:
        raise UserError(
            f"{files['test_answers'][0]} answers other documents than {files['method_answers'][0]}; remove the older "
            "of the two and make it again"
        )
    return others, blocks


def _setting(point: PointResult, kinds: Mapping[str, type[Method]], config: schema.Config) -> str:
    """Budget and policy, and the method's settings that differ from its source's (the defaults of its class)."""
    name = point.retriever
    defaults = {}
    if name in kinds:
        defaults = {field.name: field.default for field in fields(kinds[name])}
    others = []
    for key, value in config.settings_of(name).items():
        is_in_name = key == "budget" and point.budget
        if _plain(defaults[key]) != _plain(value) and not is_in_name:
            others.append(f"{key}={value}")
    setting = setting_in_words(point, config)
    if setting == render.MISSING and others:
        return ", ".join(others)
    return ", ".join([setting, *others])


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _classifier(config: schema.Config) -> Sequence[str]:
    """A list with a sentence on LLMLingua-2's classifier if this project trained the classifier; else an empty list."""
    if config.settings_of("llmlingua2").get("model") != schema.CLASSIFIER:
        return []
    return [
        f"The classifier of LLMLingua-2 ({schema.CLASSIFIER}) is a small one that this project trains on documents "
        "of its own, not the published one."
    ]
