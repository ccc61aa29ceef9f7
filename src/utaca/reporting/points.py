"""Operating points as tables see them: sums by document, from files of answers and scores that belong together."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import quote

import numpy as np
import pandas as pd

from utaca.errors import UserError
from utaca.records import check_source, read
from utaca.reporting import paper, render, statistics
from utaca.reporting.registry import Files
from utaca.reporting.statistics import Draws, Estimate, Row
from utaca.settings import schema
from utaca.settings.schema import BLOCK_METHODS, NOT_RUN

METHODS = {
    "infllm": "InfLLM",
    "utaca": "UT-ACA",
    "agreement": "Token agreement",
    "no_detector": "No detector",
    "full": "Full attention",
    "closed_book": "No document",
    "window": "Window only",
    "retrieval_attention": "RetrievalAttention",
    "llmlingua2": "LLMLingua-2",
    "snapkv": "SnapKV",
    "tokenselect": "TokenSelect",
    "omnikv": "OmniKV",
    "infllm_v2": "InfLLM-V2",
    "adakv": "Ada-KV",
    "fastkv": "FastKV",
    "freqkv": "FreqKV",
    "h2o": "H2O",
}
"""Methods as tables call them; another one goes by its own name."""
_MEANS = ("selected", "attended", "selected_with_tentative", "attended_with_tentative")
_TOTALS = (
    "n_context",
    "dropped",
    "n_generated",
    "rollbacks",
    "effective_rollbacks",
    "prefill_seconds",
    "decode_seconds",
    "peak_bytes",
)


RATIOS = {
    "mtokens": ("selected", "n_generated", 1),
    "mtokens_with_tentative": ("selected_with_tentative", "n_generated", 1),
    "attended": ("attended", "n_generated", 1),
    "attended_with_tentative": ("attended_with_tentative", "n_generated", 1),
    "rollbacks_pct": ("rollbacks", "n_generated", 100),
    "effective_rollbacks_pct": ("effective_rollbacks", "n_generated", 100),
    "answered": ("n_generated", "examples", 1),
    "cas_pct": ("cas", "judged", 100),
    "string_match_pct": ("string_match", "attributes", 100),
    "score": ("score", "examples", 1),
    "prefill_s": ("prefill_seconds", "documents", 1),
    "end_to_end_s": ("end_to_end_seconds", "documents", 1),
    "seconds_per_token": ("decode_seconds", "n_generated", 1),
    "read_pct": ("n_context", "n_document", 100),
}
"""Columns of tables that are ratios of two sums of a point: the sums, and a factor."""
CAS, MTOKENS, ROLLBACKS = (RATIOS[column][:2] for column in ("cas_pct", "mtokens", "rollbacks_pct"))


@dataclass(frozen=True)
class Point:
    """The answers of an operating point: per document, in the order of the ids, sums over its tokens or attributes.

    ``detector`` and ``seeds`` tell of its detector, "" and () where it has none; ``detector`` also of what stands in
    its place, as in "every 40". Under several seeds, ``sums`` hold the documents of one after those of the other,
    [seeds x documents]. ``lacks`` is what kept it from being run.
    """

    key: paper.Point
    detector: str
    seeds: tuple[int, ...]
    documents: tuple[str, ...]
    sums: dict[str, np.ndarray]
    lacks: str = ""

    @property
    def method(self) -> str:
        own = METHODS.get(self.retriever, self.retriever)
        return own if self.retriever == self.key[0] else f"{METHODS[self.key[0].partition('-')[0]]} on {own}"

    @property
    def retriever(self) -> str:
        """The method whose steps the budgets are given to: its own, or the one that a trigger was put on."""
        trigger, _, base = self.key[0].partition("-")
        return base if base and trigger in BLOCK_METHODS else self.key[0]

    @property
    def setting(self) -> str:
        method, budget, policy = self.key
        if policy:
            return f"K_max={budget}{'' if method in BLOCK_METHODS else ' tokens'}, {policy.capitalize()}"
        if method in BLOCK_METHODS:
            return f"K={budget}"
        return f"{budget} tokens" if budget else render.MISSING

    @property
    def imitates(self) -> bool:
        """Whether it is token agreement with K_max itself."""
        return self.key[0] == "agreement" and not self.detector

    @property
    def in_paper(self) -> bool:
        """Whether the paper has its detector, if it has any."""
        return self.detector in ("", paper.DETECTOR)

    def cells(self, draws: Draws) -> np.ndarray:
        """How often each entry of its sums was drawn [count, seeds x documents]."""
        return draws.cells(self.detector, max(1, len(self.seeds)))

    def ratio(self, above: str, below: str) -> float:
        """The sum of one over that of another, a mean over documents and seeds."""
        return float(statistics.ratio(self.sums[above], self.sums[below]))

    def drawn(self, above: str, below: str, draws: Draws) -> np.ndarray:
        """As :meth:`ratio` in every resample [count]."""
        return statistics.ratio(self.sums[above], self.sums[below], self.cells(draws))

    def estimate(self, above: str, below: str, draws: Draws) -> Estimate:
        """As :meth:`ratio`, with its interval."""
        return statistics.interval(self.ratio(above, below), self.drawn(above, below, draws))

    def put(self, row: Row, *columns: str, draws: Draws | None = None) -> None:
        """Put columns of :data:`RATIOS` into a row, under ``draws`` with their intervals."""
        for column in columns:
            above, below, factor = RATIOS[column]
            if draws is None:
                row[column] = factor * self.ratio(above, below)
            else:
                statistics.spread(row, column, self.estimate(above, below, draws), factor)

    @property
    def peak_gib(self) -> float:
        """The highest peak of memory of its answers; NaN where none was measured."""
        peak = self.sums["peak_bytes"]
        return float(np.nanmax(peak)) / 2**30 if not np.isnan(peak).all() else float("nan")

    @property
    def n_failed(self) -> int:
        """Judgements that failed."""
        return int((self.sums["attributes"] - self.sums["judged"]).sum())


def pooled(found: Iterable[Point]) -> list[Point]:
    """Points that differ in nothing but the seed of their detector as one, in the order of the first."""
    groups: dict[tuple[paper.Point, str], dict[tuple[int, ...], Point]] = {}
    for point in found:
        groups.setdefault((point.key, point.detector), {}).setdefault(point.seeds, point)
    whole = []
    for own in groups.values():
        each = [own[seeds] for seeds in sorted(own)]
        sums = {name: np.concatenate([point.sums[name] for point in each]) for name in each[0].sums}
        lacks = next((point.lacks for point in each if point.lacks), "")
        seeds = tuple(seed for point in each for seed in point.seeds)
        whole.append(replace(each[0], seeds=seeds, sums=sums, lacks=lacks))
    return whole


def difference(first: Point, second: Point, above: str, below: str, draws: Draws) -> tuple[float, np.ndarray]:
    """A ratio of ``first`` less that of ``second``, paired by document, and the same in every resample [count]."""
    value = first.ratio(above, below) - second.ratio(above, below)
    return value, first.drawn(above, below, draws) - second.drawn(above, below, draws)


def setting_in_words(point: Point, config: schema.Config) -> str:
    """A point's budget and policy, its detector where it is not the config's main one, and its seed if it is another.

    As in "K_max=64, Sub.16 (chained) seed 3"; a dash where a method has no budget of its own.
    """
    other = f" ({point.detector})" if point.detector not in ("", config.detector) else ""
    return point.setting + other + (f" seed {point.seeds[0]}" if len(point.seeds) == 1 and point.seeds[0] else "")


def name_in_words(point: Point, config: schema.Config) -> str:
    """What a point is called wherever people look, as in "UT-ACA K_max=64, Sub.16", "InfLLM K=8" or "SnapKV"."""
    return f"{point.method} {setting_in_words(point, config)}".removesuffix(f" {render.MISSING}")


def fragment(document: str, point: str = "", step: int | None = None) -> str:
    """The address in the trace viewer, from ``#`` on, of a token; of an answer or a document without what follows."""
    parts = [document, *([point] if point else []), *([str(step)] if point and step is not None else [])]
    return "#" + "/".join(quote(part, safe="") for part in parts)


def of_label(label: str, config: schema.Config) -> Point | None:
    """The point that files call ``label`` (:attr:`utaca.settings.schema.OperatingPoint.label`), without any answers.

    None where the config does not decode it.
    """
    point = config.operating.get(label)
    return point and of_config(point, config)


def of_name(name: str, config: schema.Config) -> Point | None:
    """The point that the config calls ``name``, under the first of its seeds, without any answers."""
    return next((of_config(point, config) for point in config.operating.values() if point.name == name), None)


def of_config(point: schema.OperatingPoint, config: schema.Config) -> Point:
    """An operating point of the config, without any answers."""
    detector = point.detector or (config.detector if point.detected else point.beside)
    return Point((point.decoder, point.budget, point.policy), detector, (point.seed,) if point.detected else (), (), {})


def label_in_words(label: str, config: schema.Config) -> str:
    """The name of the point that files call ``label``; the label where the config does not decode it."""
    point = of_label(label, config)
    return name_in_words(point, config) if point else label


def points_shown(files: Files, config: schema.Config, split: str, *sections: str) -> list[Point]:
    """The points of :func:`points` that a split's sections of ``decode`` show, its own where none is named."""
    return points(files[f"{split}_answers"], files[f"{split}_scores"], config.shown(split, *sections))


def is_default_point(point: Point, config: schema.Config) -> bool:
    """Whether a point has no detector or the config's main one: those of others are no part of a curve."""
    return point.detector in ("", config.detector)


def points(answers: Sequence[str | Path], scores: Sequence[str | Path], only: Collection[str] = ()) -> list[Point]:
    """Operating points in the order of the answer files, those of several seeds once; of labels ``only``.

    Raises :class:`UserError` where files of different settings, or scores of other answers, would be mixed, and where
    points lack a document that others have.
    """
    answered, scored = _frame(answers, "answers"), _frame(scores, "scores")
    if only:
        answered, scored = (frame[frame["point"].isin(list(only))] for frame in (answered, scored))
    if answered.empty:
        raise UserError(f"{answers[0]} holds no answers; make it again with at least one document")
    found: list[Point] = []
    documents: tuple[str, ...] = ()
    for (split, name), own in answered.groupby(["split", "point"], sort=False):
        judged = scored[(scored["split"] == split) & (scored["point"] == name)]
        for path in judged["path"].unique():
            check_source(path, list(own["path"].unique()))
        own = own.sort_values("document", kind="stable")
        answering = tuple(own["document"])
        if len(set(answering)) < len(answering) or set(judged["document"]) != set(answering):
            raise UserError(
                f"the scores of operating point {name} cover other documents than its answers; score it again"
            )
        documents = documents or answering
        if documents != answering:
            raise UserError(f"operating point {name} answers other documents than the first; decode them again")
        found.append(of_answers(own, documents, _sums(own, judged)))
    known = set(zip(answered["split"], answered["point"], strict=True))
    for split, name in zip(scored["split"], scored["point"], strict=True):
        if (split, name) not in known:
            raise UserError(f"operating point {name} has scores but no answers; decode them again")
    return pooled(found)


def of_answers(answered: pd.DataFrame, documents: tuple[str, ...], sums: dict[str, np.ndarray]) -> Point:
    """The point of rows of schema "answers", all of one point, with these sums by document."""
    first = answered.iloc[0]
    key = first["method"], int(first["budget"]), first["policy"] or ""
    lacks = next((end.removeprefix(NOT_RUN) for end in answered["finish"] if end.startswith(NOT_RUN)), "")
    seeds = () if pd.isna(first["seed"]) else (int(first["seed"]),)
    return Point(key, first["detector"] or "", seeds, documents, sums, lacks)


def _frame(paths: Sequence[str | Path], kind: str) -> pd.DataFrame:
    """Files as one frame, each row with the path it comes from."""
    read(paths, kind)
    return pd.concat([read(path, kind).to_pandas().assign(path=str(path)) for path in paths], ignore_index=True)


def totals(answered: pd.DataFrame) -> dict[str, np.ndarray]:
    """Sums over the tokens of each answer, a row of schema "answers" each, and whether it failed."""
    generated = answered["n_generated"].to_numpy(dtype=np.float64)
    sums = {c: answered[c].to_numpy(dtype=np.float64, na_value=np.nan) for c in _TOTALS}
    # A mean over no token is undefined but weighs nothing.
    sums |= {c: np.where(generated > 0, answered[c].to_numpy(dtype=np.float64) * generated, 0.0) for c in _MEANS}
    sums["n_document"] = sums["n_context"] + sums["dropped"]
    sums["end_to_end_seconds"] = sums["prefill_seconds"] + sums["decode_seconds"]
    return sums | {kind: (answered["finish"] == kind).to_numpy(dtype=np.float64) for kind in ("memory", "incoherent")}


def _sums(answered: pd.DataFrame, judged: pd.DataFrame) -> dict[str, np.ndarray]:
    by_document = judged.groupby("document", sort=True)
    return totals(answered) | {
        "documents": np.ones(len(answered)),
        "cas": by_document["cas"].sum().to_numpy(dtype=np.float64),
        "judged": by_document["cas"].count().to_numpy(dtype=np.float64),
        "string_match": by_document["string_match"].sum().to_numpy(dtype=np.float64),
        "attributes": by_document.size().to_numpy(dtype=np.float64),
    }


@dataclass(frozen=True)
class Curve:
    """CAS over log2 of selected tokens, linear between a method's points; [points] and, resampled, [points, count]."""

    tokens: np.ndarray
    cas: np.ndarray
    resampled_tokens: np.ndarray
    resampled_cas: np.ndarray

    @classmethod
    def of(cls, found: Sequence[Point], draws: Draws) -> Curve:
        """The curve through ``found``, at least one, in any order."""
        return cls(
            np.array([point.ratio(*MTOKENS) for point in found]),
            np.array([point.ratio(*CAS) for point in found]),
            np.stack([point.drawn(*MTOKENS, draws) for point in found]),
            np.stack([point.drawn(*CAS, draws) for point in found]),
        )

    def at(self, tokens: float) -> float:
        """CAS at ``tokens``; beyond the ends, that of the end."""
        return _interpolated(np.array([tokens]), self.tokens, self.cas).item()

    def resampled_at(self, tokens: np.ndarray) -> np.ndarray:
        """As :meth:`at` in every resample, ``tokens`` and result [count]."""
        columns = zip(tokens, self.resampled_tokens.T, self.resampled_cas.T, strict=True)
        return np.array([_interpolated(np.array([at]), x, cas).item() for at, x, cas in columns])


def _log(tokens: np.ndarray) -> np.ndarray:
    return np.log2(np.maximum(tokens, 1))


def _interpolated(at: np.ndarray, tokens: np.ndarray, cas: np.ndarray) -> np.ndarray:
    order = np.argsort(tokens, kind="stable")
    return np.interp(_log(at), _log(tokens[order]), cas[order])
