"""UT-ACA: a detector widens the budget of the tokens that it distrusts."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor

from utaca.decoding.policies import parse
from utaca.detection.detector import Detector
from utaca.methods.infllm import InfLLM
from utaca.methods.method import Method, Reading, State
from utaca.readers.load import Reader
from utaca.settings.schema import Point


@dataclass(frozen=True)
class UTACA(Method):
    """Each token is decoded under a compact budget, and again under K_max where the detector distrusts it.

    The paper's method (algorithm 1). ``budget`` is K_max and ``policy`` says how the budget shrinks after an accepted
    token, both in the units of ``base``: the method that retrieves, the paper's InfLLM or another one whose steps may
    have a budget each.
    """

    name: ClassVar[str] = "utaca"
    adjustable: ClassVar[bool] = True

    budget: int = 64
    policy: str = "sub.16"
    base: Method = InfLLM()

    def __post_init__(self) -> None:
        super().__post_init__()
        parse(self.policy)
        self.require(self.base.adjustable, f"{self.base.name} cannot give a step another budget than the last one")

    @property
    def prefill(self) -> str:
        return self.base.prefill

    @property
    def positions(self) -> str:
        return self.base.positions

    def check(self, reader: Reader) -> None:
        self.base.check(reader)

    def missing(self) -> str:
        return self.base.missing()

    def files(self) -> list[Path]:
        return self.base.files()

    @property
    def reading(self) -> Hashable:
        return self.base.reading

    def bind(self, reading: Reading) -> Reading:
        return self.base.bind(reading)

    def options(self, detector: Detector | None = None) -> dict[str, Any]:
        return {"budget": self.budget, "policy": parse(self.policy), "detector": detector}

    def read(self, reader: Reader, document: str | Tensor, room: int) -> Reading:
        return self.base.read(reader, document, room)

    def state(self, reading: Reading, repeated: int, room: int) -> State:
        return self.base.state(reading, repeated, room)


@dataclass(frozen=True)
class Oracle(UTACA):
    """As :class:`UTACA`, but what expands is the trigger that no detector can know: that the token would be another."""

    name: ClassVar[str] = "oracle"

    def options(self, detector: Detector | None = None) -> dict[str, Any]:
        return super().options() | {"oracle": True}


def of_blocks(point: Point) -> Method:
    """The method of an operating point that is decoded from block memory."""
    if point.method == InfLLM.name:
        return InfLLM(point.budget)
    return {UTACA.name: UTACA, Oracle.name: Oracle}[point.method](point.budget, point.policy)
