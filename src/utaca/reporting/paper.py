"""The figures that the paper reports, for the reference columns of the tables; percentages, tokens, seconds, GiB."""

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, TypeVar

from pydantic import BeforeValidator, StrictInt

from utaca.data_files import DataFile, read

LLAMA = "llama31_8b"
QWEN = "qwen2_7b"
NAMES = {LLAMA: "Llama-3.1-8B", QWEN: "Qwen2-7B"}

PointKey = tuple[str, int, str]  # method, budget (K or K_max), policy

DETECTOR = "utaca"
"""The detector variant of the paper, which has no figures for operating points with another variant."""

T = TypeVar("T")


def _count(value: Any) -> Any:
    """A text of decimal digits as an integer; any other value as it is."""
    return int(value) if isinstance(value, str) and value.isdecimal() else value


# A count stays an integer, so that a column of counts is printed as such.
Figures = dict[str, Annotated[float | StrictInt | bool, BeforeValidator(_count)]]
"""Figures of one row of a table in the paper, by the name of our column."""


def _columns(names: str) -> BeforeValidator:
    """Read a list of figures as a mapping from the names of our columns to the figures."""
    return BeforeValidator(lambda values: dict(zip(names.split(), values, strict=True)))


def _point(key: str) -> list[str]:
    """Read a key "method budget policy", whose policy may be missing, as the fields of a :data:`PointKey`."""
    method, budget, *policy = key.split()
    return [method, budget, *(policy or [""])]


def _components(key: str) -> tuple[bool, ...]:
    """Read a key that names a detector's components as three flags: margin, embedding and LSTM."""
    return tuple(name in key.split() for name in ("margin", "embedding", "lstm"))


ByPoint = dict[Annotated[PointKey, BeforeValidator(_point)], T]
Components = Annotated[tuple[bool, bool, bool], BeforeValidator(_components)]
_BEFORE_AND_AFTER = "quality_pct_before quality_pct_after mtokens_before mtokens_after rollbacks_before rollbacks_after"
ScoreFigures = Annotated[Figures, _columns("mtokens score")]


class Split(DataFile):
    """A split of the paper's data set: its numbers of documents and facts, and what the paper says of it.

    ``tokens`` are the least, the mean and the most tokens of a document.
    """

    documents: int
    facts: int
    tokens: tuple[int, int, int] | None = None
    text: str
    padding: str = ""


class Example(DataFile):
    """What the paper shows of one person."""

    summary: str
    biography: str


class Hyperparameters(DataFile):
    """The paper's settings of the detector and its training; ``embedding_width`` is by reader."""

    embedding_width: dict[str, int]
    signals: int
    width: int
    embedding_dropout: float
    signal_width: int
    blocks: int
    expansion: int
    dropout: float
    classes: int
    learning_rate: float
    steps: int
    batch: int
    class_weights: tuple[float, ...]
    evaluate_every: int
    seeds: int


class Tables(DataFile):
    """The paper's tables; keys are detectors, components (margin, embedding, LSTM), readers, tasks, methods, points, or
    splits and attributes of its data set."""

    detection: dict[str, Annotated[Figures, _columns("macc_pct recall_n_pct recall_p_pct")]]
    ablation: dict[Components, Annotated[Figures, _columns("macc_pct cas_pct")]]
    two_way: dict[str, Annotated[Figures, _columns("macc_pct recall_n_pct recall_p_pct mtokens cas_pct")]]
    validation: dict[str, ByPoint[Annotated[Figures, _columns("mtokens cas_pct")]]]
    test: dict[str, ByPoint[Annotated[Figures, _columns("mtokens seconds_per_token cas_pct")]]]
    tradeoff: dict[str, ByPoint[Annotated[Figures, _columns("cas_pct mtokens end_to_end_s peak_gib")]]]
    failures: dict[str, Annotated[Figures, _columns(_BEFORE_AND_AFTER)]]
    probabilities: Figures
    methods: dict[str, dict[str, Annotated[Figures, _columns("mtokens seconds_per_token cas_pct excluded")]]]
    tasks: dict[str, ByPoint[ScoreFigures]]
    calibration: dict[str, ByPoint[tuple[ScoreFigures, ScoreFigures]]]
    human: ByPoint[Annotated[Figures, _columns("string_match_pct cas_pct human_pct n_right")]]
    cas_cases: dict[str, Annotated[Figures, _columns("string_match_pct cas_pct human_pct")]]
    dataset: dict[str, Split]
    attributes: dict[str, str]
    examples: dict[str, Example]
    hyperparameters: Hyperparameters


BY_POINT = ("validation", "test", "tradeoff")
"""The tables that have figures by reader and operating point."""


def tables() -> Tables:
    """The tables of ``data/paper.yaml``; raises :class:`utaca.errors.UserError` if a figure is malformed."""
    return read("paper.yaml", Tables)


def reference(columns: Iterable[str], figures: Mapping[str, float] | None) -> dict[str, float]:
    """A row's columns ``paper_*``: for each of the ``columns``, the paper's figure, or NaN if the paper has none.

    ``figures`` are the paper's of that row, by column; None if the paper lacks the row.
    """
    return {f"paper_{column}": (figures or {}).get(column, float("nan")) for column in columns}


def reference_reader(table: Mapping[str, object], reader: str) -> str:
    """The paper's reader whose figures are shown for reference: ``reader`` if the table has it, else Llama-3.1-8B."""
    return reader if reader in table else LLAMA
