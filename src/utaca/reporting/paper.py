"""The figures that the paper reports, for the reference columns of the tables; percentages, tokens, seconds, GiB."""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple, TypeVar

from pydantic import BeforeValidator, StrictInt

from utaca.data_files import DataFile, read

LLAMA, QWEN = "llama31_8b", "qwen2_7b"
NAMES = {LLAMA: "Llama-3.1-8B", QWEN: "Qwen2-7B"}

Point = tuple[str, int, str]  # method, budget (K or K_max), policy

DETECTOR = "utaca"
"""The variant that is the paper's detector: points with another one have no figure of the paper beside them."""

T = TypeVar("T")


def _count(held: Any) -> Any:
    return int(held) if isinstance(held, str) and held.isdecimal() else held


Number = Annotated[float | StrictInt, BeforeValidator(_count)]
"""A count stays one, so that a column of counts is printed as such."""


class Detection(NamedTuple):
    """Token-level detection; fields are columns of the tables, here as below."""

    macc_pct: Number
    recall_n_pct: Number
    recall_p_pct: Number


class Ablation(NamedTuple):
    """A detector with some components: accuracy, and CAS of generation at K_max=64, Sub.16."""

    macc_pct: Number
    cas_pct: Number


class Generation(NamedTuple):
    """An operating point."""

    mtokens: Number
    cas_pct: Number


class Score(NamedTuple):
    """An operating point on a benchmark."""

    mtokens: Number
    score: Number


class Tradeoff(NamedTuple):
    """An operating point with its time and memory."""

    cas_pct: Number
    mtokens: Number
    end_to_end_s: Number
    peak_gib: Number


class Method(NamedTuple):
    """A context-management method on the long-context test set.

    ``excluded`` says that the paper leaves samples out that ran out of memory or gave incoherent output.
    """

    mtokens: Number
    seconds_per_token: Number
    cas_pct: Number
    excluded: bool = False


def _point(key: str) -> list[str]:
    method, budget, *policy = key.split()
    return [method, budget, *(policy or [""])]


def _components(key: str) -> tuple[bool, ...]:
    return tuple(name in key.split() for name in ("margin", "embedding", "lstm"))


ByPoint = dict[Annotated[Point, BeforeValidator(_point)], T]
Components = Annotated[tuple[bool, bool, bool], BeforeValidator(_components)]


class Tables(DataFile):
    """The paper's tables, by detector, components (logit margin, embedding, LSTM), reader, task, method or point."""

    detection: dict[str, Detection]
    ablation: dict[Components, Ablation]
    validation: dict[str, ByPoint[Generation]]
    test: dict[str, ByPoint[Generation]]
    tradeoff: dict[str, ByPoint[Tradeoff]]
    methods: dict[str, dict[str, Method]]
    tasks: dict[str, ByPoint[Score]]
    calibration: dict[str, ByPoint[tuple[Score, Score]]]


def tables() -> Tables:
    """The tables as ``data/paper.yaml`` has them; raises :class:`utaca.errors.UserError` where it is wrong."""
    return read("paper.yaml", Tables)


def beside(kind: type[NamedTuple], printed: object) -> dict[str, float]:
    """Columns ``paper_*`` of a row of the paper's tables, with the fields of ``kind``; NaN where it has no such row."""
    return {f"paper_{column}": getattr(printed, column, float("nan")) for column in kind._fields}


def reference_reader(table: dict[str, dict], reader: str) -> str:
    """The paper's reader whose figures stand beside ours: the same one where the table has it, else Llama-3.1-8B."""
    return reader if reader in table else LLAMA
