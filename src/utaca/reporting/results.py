"""Results of operating points: sums over each document, read from files of answers and files of their scores.

Also the names of points in tables, and InfLLM's curve of CAS over tokens, with which UT-ACA is compared.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from utaca.errors import UserError
from utaca.records import check_source, read
from utaca.reporting import paper, render, statistics
from utaca.reporting.measures import CAS, MTOKENS, ROLLBACKS, Measure
from utaca.reporting.registry import Files, data
from utaca.reporting.statistics import Draws, Resampled
from utaca.settings import schema
from utaca.settings.budgets import Budget, in_order
from utaca.settings.schema import BLOCK_METHODS, NO_DETECTOR, NOT_RUN
from utaca.settings.triggers import TriggerSetting, parse

NAMES = data("names.yaml")
"""Names of ``methods`` and ``detectors`` in tables; any other method or detector keeps its name in the config."""
_MEANS = ("selected", "attended", "selected_with_tentative", "attended_with_tentative")
"""Columns of schema "answers" that are means over an answer's tokens."""
_TOTALS = (
    "n_context",
    "dropped",
    "n_generated",
    "passes",
    "rollbacks",
    "effective_rollbacks",
    "prefill_seconds",
    "decode_seconds",
    "peak_bytes",
)
"""Columns of schema "answers" that are figures of the whole answer."""


PointKey = tuple[str, Budget, str]
"""Decoder, budget and policy of a point; the paper's figures are found under such keys."""


class Identity(NamedTuple):
    """What distinguishes operating points; results that differ only in the detector's seed have the same identity.

    The fields are as in :class:`PointResult`.
    """

    key: PointKey
    trigger: TriggerSetting | None
    detector: str
    drafts: int
    draft_budget: int


@dataclass(frozen=True)
class PointResult:
    """An operating point and its results: for each document, sums over the answer's tokens or attributes.

    ``method``, ``base``, ``budget``, ``policy``, ``drafts`` and ``draft_budget`` are as in the config; a budget may be
    a share of the document's blocks. ``trigger`` is what expands the budget, None if the budget is fixed; ``detector``
    is the variant of a trigger of kind detector, else "". ``seeds`` are the detector's seeds, () without a detector.
    ``documents`` are the ids of the documents, sorted. Each array in ``sums`` [seeds x documents] has all documents of
    the first seed, then all of the next. ``not_run`` is the reason why the point was not run, or "".
    """

    method: str
    base: str
    budget: Budget
    policy: str
    trigger: TriggerSetting | None
    detector: str
    drafts: int = 0
    draft_budget: int = 0
    seeds: tuple[int, ...] = ()
    documents: tuple[str, ...] = ()
    sums: dict[str, np.ndarray] = field(default_factory=dict)
    not_run: str = ""

    @property
    def family(self) -> str:
        """What decides the budget: a key of ``methods`` in :data:`NAMES`, as "infllm", "utaca" or "no_detector"."""
        return schema.FAMILIES[self.trigger.kind] if self.trigger else self.method

    @property
    def decoder(self) -> str:
        """The family, followed by the base method if the point has one, as in "utaca-snapkv"."""
        return f"{self.family}-{self.base}" if self.base else self.family

    @property
    def key(self) -> PointKey:
        """See :data:`PointKey`."""
        return self.decoder, self.budget, self.policy

    @property
    def identity(self) -> Identity:
        """All that the results under different seeds of one detector share."""
        return Identity(self.key, self.trigger, self.detector, self.drafts, self.draft_budget)

    @property
    def name(self) -> str:
        """The method's name in tables, as in "UT-ACA on SnapKV"."""
        retriever = NAMES["methods"].get(self.retriever, self.retriever)
        return f"{NAMES['methods'][self.family]} on {retriever}" if self.base else retriever

    @property
    def retriever(self) -> str:
        """The base method, which selects context within an adaptive budget; the family if the point has none."""
        return self.base or self.family

    @property
    def setting(self) -> str:
        """Budget and policy, as in "K_max=64, Sub.16"; a dash for a method without a budget."""
        if self.policy:
            # A base method's budget counts tokens, and not blocks.
            unit = " tokens" if self.base else ""
            return f"K_max={self.budget}{unit}, {policy_in_words(self.policy)}"
        if self.family in BLOCK_METHODS:
            return f"K={self.budget}"
        return f"{self.budget} tokens" if self.budget else render.MISSING

    @property
    def trigger_in_words(self) -> str:
        """The detector's variant, or a trigger with its number, as in "every 40"; "" for a trigger without a number."""
        if self.detector:
            return self.detector
        if self.trigger is None or self.trigger.value is None:
            return ""
        word = "witness" if self.trigger.kind == "agreement" else self.trigger.kind
        return f"{word} {self.trigger.value}"

    @property
    def in_paper(self) -> bool:
        """Whether the paper may report the point: its trigger is the paper's detector, or its budget is fixed."""
        return self.trigger is None or self.detector == paper.DETECTOR

    def control(self, points: Sequence[PointResult]) -> PointResult | None:
        """Find this point's control among ``points``: one of the same budget and policy that expands by a schedule.

        A control expands every N-th token, or none, whatever the tokens are. If there are several, it is the one whose
        rate of expansions is nearest to this point's. None if there is none, or if this point is a control itself.
        """
        if self.family == NO_DETECTOR:
            return None
        wanted = (NO_DETECTOR, self.base, self.budget, self.policy)
        controls = [point for point in points if (point.family, point.base, point.budget, point.policy) == wanted]
        rate = self.ratio(ROLLBACKS)
        return min(controls, key=lambda point: abs(point.ratio(ROLLBACKS) - rate), default=None)

    def ratio(self, measure: Measure) -> float:
        """A measure's ratio over all documents and seeds, not multiplied by its factor."""
        return float(statistics.ratio(self.sums[measure.above], self.sums[measure.below]))

    def resampled(self, measure: Measure, draws: Draws) -> Resampled:
        """A measure's ratio, not multiplied by its factor, resampled over documents and seeds."""
        counts = draws.cells(self.detector, max(1, len(self.seeds)))
        return statistics.resampled_ratio(self.sums[measure.above], self.sums[measure.below], counts)

    def total(self, name: str) -> int:
        """The total of ``sums[name]`` over all documents and seeds, as a count."""
        return int(self.sums[name].sum())

    @property
    def n_failed(self) -> int:
        """Number of failed judgements."""
        return int((self.sums["attributes"] - self.sums["judged"]).sum())


def pooled(points: Iterable[PointResult]) -> list[PointResult]:
    """Combine points that differ only in the seed of their detector; the seeds of a combined point ascend.

    Of several results under one seed, the first is taken.
    """
    groups: dict[Identity, dict[tuple[int, ...], PointResult]] = {}
    for point in points:
        groups.setdefault(point.identity, {}).setdefault(point.seeds, point)
    combined = []
    for by_seed in groups.values():
        ordered = [by_seed[seeds] for seeds in sorted(by_seed)]
        first = ordered[0]
        # The arrays of the seeds one after another, as in :attr:`PointResult.sums`.
        sums = {}
        for name in first.sums:
            sums[name] = np.concatenate([point.sums[name] for point in ordered])
        all_seeds: list[int] = []
        for point in ordered:
            all_seeds += point.seeds
        # A combined point counts as not run if it was not run under one of the seeds.
        reasons = [point.not_run for point in ordered if point.not_run]
        not_run = reasons[0] if reasons else ""
        combined.append(replace(first, seeds=tuple(all_seeds), sums=sums, not_run=not_run))
    return combined


# Names


def trigger_in_words(point: PointResult, config: schema.Config) -> str:
    """A remark on a trigger that is not the config's detector under seed 0, as in "(chained) seed 3" or "(every 40)".

    It names another detector's variant, a trigger's number, and the seed if the point has only one and that is not 0.
    "" if there is nothing to name.
    """
    words = point.trigger_in_words
    other = f"({words})" if words not in ("", config.detector) else ""
    seed = f"seed {point.seeds[0]}" if len(point.seeds) == 1 and point.seeds[0] else ""
    return " ".join(filter(None, [other, seed]))


def policy_in_words(policy: str) -> str:
    """An update policy as tables name it, as in "Sub.16", or "p=0.9" of method top_p; "" without a policy."""
    if policy.startswith("top_p."):
        return policy.replace("top_p.", "p=")
    return policy.capitalize()


def variant_in_words(point: PointResult, config: schema.Config) -> str:
    """Policy and trigger, as in "Sub.16 (chained)"; "" without a policy. Points of one curve in a figure share it."""
    return " ".join(filter(None, [policy_in_words(point.policy), trigger_in_words(point, config)]))


def setting_in_words(point: PointResult, config: schema.Config) -> str:
    """Budget, policy, trigger and drafts, as in "K_max=64, Sub.16 (chained) seed 3" or "K=8, 7 drafts under K=2".

    A dash for a method without a budget.
    """
    words = " ".join(filter(None, [point.setting, trigger_in_words(point, config)]))
    if point.drafts:
        words = f"{words}, {point.drafts} drafts"
    return f"{words} under K={point.draft_budget}" if point.draft_budget else words


def name_in_words(point: PointResult, config: schema.Config) -> str:
    """The point's name in tables, figures and pages, as in "UT-ACA K_max=64, Sub.16", "InfLLM K=8" or "SnapKV"."""
    return f"{point.name} {setting_in_words(point, config)}".removesuffix(f" {render.MISSING}")


def label_in_words(label: str, config: schema.Config) -> str:
    """The name of the point that files call ``label``; ``label`` itself if the config decodes no such point."""
    point = config.operating.get(label)
    return name_in_words(of_config(point, config), config) if point else label


def of_config(point: schema.OperatingPoint, config: schema.Config) -> PointResult:
    """An operating point of the config as a :class:`PointResult` without results."""
    trigger = _without_name(point.trigger) if point.adaptive else None
    detector = ""
    seeds: tuple[int, ...] = ()
    if point.detected:
        detector = point.detector or config.detector
        seeds = (point.seed,)
    return PointResult(
        point.method,
        point.base,
        point.budget,
        point.policy,
        trigger,
        detector,
        point.drafts,
        point.draft_budget,
        seeds,
    )


def of_answer(answer: Mapping[str, Any], **results: Any) -> PointResult:
    """The operating point of a row of schema "answers"; ``results`` are the result's other fields, as ``sums``."""
    trigger = _without_name(parse(answer["trigger"])) if answer["trigger"] else None
    # The seed is null without a detector.
    seeds = () if pd.isna(answer["seed"]) else (int(answer["seed"]),)
    return PointResult(
        answer["method"],
        answer["base"],
        answer["share"] or int(answer["budget"]),
        answer["policy"],
        trigger,
        answer["detector"] or "",
        int(answer["drafts"]),
        int(answer["draft_budget"]),
        seeds,
        **results,
    )


def _without_name(trigger: TriggerSetting) -> TriggerSetting:
    """A trigger without the name of its detector, which :attr:`PointResult.detector` has."""
    return TriggerSetting() if trigger.kind == "detector" else trigger


# Files


def points_shown(files: Files, config: schema.Config, split: str, *sections: str) -> list[PointResult]:
    """Read the results on a split of the points that the config lists in some ``sections`` of ``decode``.

    Without ``sections``, the section named like the split. ``files`` are a table's. Errors are those of :func:`points`.
    """
    return points(files[f"{split}_answers"], files[f"{split}_scores"], config.shown(split, *sections))


def points(
    answers: Sequence[str | Path], scores: Sequence[str | Path], labels: Collection[str] = ()
) -> list[PointResult]:
    """Read the results of operating points, in the order of the answer files; the seeds of a detector are pooled.

    ``answers`` and ``scores`` are files of these schemas. ``labels`` are the points to read; if empty, all are.

    Raises:
        UserError: files have different settings, scores belong to other answers, or points cover different documents.
    """
    answered = _frame(answers, "answers")
    scored = _frame(scores, "scores")
    if labels:
        answered = answered[answered["point"].isin(list(labels))]
        scored = scored[scored["point"].isin(list(labels))]
    if answered.empty:
        raise UserError(f"{answers[0]} has no answers; make it again with at least one document")
    results: list[PointResult] = []
    first_documents: tuple[str, ...] = ()
    for (split, label), rows in answered.groupby(["split", "point"], sort=False):
        judged = scored[(scored["split"] == split) & (scored["point"] == label)]
        for path in judged["path"].unique():
            check_source(path, list(rows["path"].unique()))
        rows = rows.sort_values("document", kind="stable")
        documents = tuple(rows["document"])
        if len(set(documents)) < len(documents) or set(judged["document"]) != set(documents):
            raise UserError(
                f"the scores and the answers of operating point {label} are about different documents; score it again"
            )
        first_documents = first_documents or documents
        if documents != first_documents:
            raise UserError(
                f"operating point {label} has answers about other documents than the first point; decode both again"
            )
        results.append(of_answers(rows, documents, _sums(rows, judged)))
    with_scores = set(zip(scored["split"], scored["point"], strict=True))
    with_answers = set(zip(answered["split"], answered["point"], strict=True))
    unanswered = sorted(with_scores - with_answers)
    if unanswered:
        _, label = unanswered[0]
        raise UserError(f"operating point {label} has scores but no answers; decode them again")
    return pooled(results)


def timed(answers: Sequence[str | Path]) -> dict[Identity, PointResult]:
    """Read the results of the answers that rule ``time_answers`` decoded one at a time; they have no scores.

    ``answers`` are the rule's files. Without files, the result is empty: all answers of the run were then decoded one
    at a time.
    """
    if not answers:
        return {}
    results = []
    for _, rows in _frame(answers, "answers").groupby("point", sort=False):
        rows = rows.sort_values("document", kind="stable")
        sums = totals(rows) | {"documents": np.ones(len(rows))}
        results.append(of_answers(rows, tuple(rows["document"]), sums))
    return {point.identity: point for point in pooled(results)}


def of_answers(answered: pd.DataFrame, documents: tuple[str, ...], sums: dict[str, np.ndarray]) -> PointResult:
    """The result of one operating point under one seed, whose rows of schema "answers" are ``answered``.

    ``documents`` and ``sums``, which has arrays in the order of the documents, are as in :class:`PointResult`.
    """
    reasons = [finish.removeprefix(NOT_RUN) for finish in answered["finish"] if finish.startswith(NOT_RUN)]
    not_run = reasons[0] if reasons else ""
    return of_answer(answered.iloc[0], documents=documents, sums=sums, not_run=not_run)


def _frame(paths: Sequence[str | Path], kind: str) -> pd.DataFrame:
    """Read files of schema ``kind`` into one frame, whose column ``path`` has each row's file."""
    # Checks that the files are of one run, before they are read one by one.
    read(paths, kind)
    frames = [read(path, kind).to_pandas().assign(path=str(path)) for path in paths]
    return pd.concat(frames, ignore_index=True)


def totals(answered: pd.DataFrame) -> dict[str, np.ndarray]:
    """Sums over the tokens of each answer: arrays [answers] by name, with each kind of failure as 0 or 1.

    ``answered`` are rows of schema "answers".
    """
    generated = answered["n_generated"].to_numpy(dtype=np.float64)
    sums = {column: answered[column].to_numpy(dtype=np.float64, na_value=np.nan) for column in _TOTALS}
    for column in _MEANS:
        means = answered[column].to_numpy(dtype=np.float64)
        # A mean over no tokens is undefined but has weight 0.
        sums[column] = np.where(generated > 0, means * generated, 0.0)
    # The document's whole length: the tokens that were read, and those that were cut.
    sums["n_document"] = sums["n_context"] + sums["dropped"]
    sums["end_to_end_seconds"] = sums["prefill_seconds"] + sums["decode_seconds"]
    for failure in ("memory", "incoherent"):
        sums[failure] = (answered["finish"] == failure).to_numpy(dtype=np.float64)
    return sums


def _sums(answered: pd.DataFrame, judged: pd.DataFrame) -> dict[str, np.ndarray]:
    """The sums of :class:`PointResult` of one point's answers: :func:`totals`, and sums over the judged attributes.

    ``answered`` are rows of schema "answers" sorted by document; ``judged`` are rows of schema "scores", one for each
    attribute, of the same documents.
    """
    # Sorted by document, so that each array has the order of the answers.
    by_document = judged.groupby("document", sort=True).agg(
        cas=("cas", "sum"), judged=("cas", "count"), string_match=("string_match", "sum"), attributes=("cas", "size")
    )
    sums = totals(answered)
    for name in by_document:
        sums[name] = by_document[name].to_numpy(dtype=np.float64)
    sums["documents"] = np.ones(len(answered))
    # 0 for an answer that ran out of memory or was incoherent, which CAS of whole answers leaves out; else 1.
    whole = 1 - sums["memory"] - sums["incoherent"]
    sums["cas_whole"] = sums["cas"] * whole
    sums["judged_whole"] = sums["judged"] * whole
    return sums


# CAS at equal tokens


@dataclass(frozen=True)
class Curve:
    """InfLLM's CAS as a function of mTokens, linear in log2 of mTokens between the fixed budgets ``points``.

    ``tokens`` and ``cas`` are arrays [points, 1 + count]: the first column has the points' figures, the others
    their values in the ``count`` resamples of ``draws``. So there is a curve of the figures and one of each resample.
    """

    points: Sequence[PointResult]
    tokens: np.ndarray
    cas: np.ndarray
    draws: Draws

    @classmethod
    def of(cls, points: Iterable[PointResult], draws: Draws) -> Curve | None:
        """Make the curve through those ``points`` of InfLLM that generated a token; None if there are none."""
        of_infllm = [point for point in points if point.decoder == schema.FIXED]
        fixed = [point for point in of_infllm if point.sums["n_generated"].any()]
        fixed.sort(key=lambda point: in_order(point.budget))
        if not fixed:
            return None
        return cls(fixed, _stacked(fixed, MTOKENS, draws), _stacked(fixed, CAS, draws), draws)

    def at(self, point: PointResult, tokens: Measure = MTOKENS) -> Resampled:
        """CAS of the curve at the mTokens of any ``point``; beyond an end of the curve, the CAS at that end.

        ``tokens`` is the measure of mTokens; :data:`ALL_PASSES` counts the passes that were rolled back, too.
        """
        of_point = point.resampled(tokens, self.draws)
        point_tokens = np.append(of_point.value, of_point.resamples)
        # For the figure and then for each resample: the point's tokens, and tokens and CAS of the curve's points.
        columns = zip(point_tokens, self.tokens.T, self.cas.T, strict=True)
        cas = np.array([_interpolated(at, curve_tokens, curve_cas) for at, curve_tokens, curve_cas in columns])
        return Resampled(float(cas[0]), cas[1:])

    def gain(self, point: PointResult, tokens: Measure = MTOKENS) -> Resampled:
        """CAS of the point minus CAS of the curve at the point's ``tokens`` (see :meth:`at`), paired by document."""
        return point.resampled(CAS, self.draws) - self.at(point, tokens)


def _stacked(points: Sequence[PointResult], measure: Measure, draws: Draws) -> np.ndarray:
    """A measure of each point: the figure, followed by its values in the resamples [points, 1 + count]."""
    figures = [point.resampled(measure, draws) for point in points]
    return np.stack([np.append(figure.value, figure.resamples) for figure in figures])


def _interpolated(at: float, tokens: np.ndarray, cas: np.ndarray) -> float:
    """CAS at ``at`` tokens on the curve through the points whose coordinates are ``tokens`` and ``cas`` [points]."""
    order = np.argsort(tokens, kind="stable")
    # At least 1, because a point may select no token.
    log_at = np.log2(np.maximum(at, 1))
    log_tokens = np.log2(np.maximum(tokens[order], 1))
    return np.interp(log_at, log_tokens, cas[order]).item()
