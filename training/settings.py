"""The settings of the trainings (``training/config.yaml``), typed."""

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

from utaca.errors import UserError
from utaca.settings import validation as models
from utaca.settings.schema import MemorySettings


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class Tiny:
    """The tiny reader: its sizes, and the block memory that it is trained for."""

    device: Literal["auto", "cpu", "cuda"] = Field(repr=False)
    hidden_size: int = Field(ge=8)
    layers: int = Field(ge=1)
    heads: int = Field(ge=1)
    kv_heads: int = Field(ge=1)
    intermediate_size: int = Field(ge=8)
    vocabulary: int = Field(ge=300)
    memory: MemorySettings = Field()

    def __post_init__(self) -> None:
        if self.heads % self.kv_heads:
            raise UserError(
                f"tiny.heads is {self.heads} but must be a multiple of tiny.kv_heads, which is {self.kv_heads}"
            )
        if self.hidden_size % (2 * self.heads):
            raise UserError(
                f"tiny.hidden_size is {self.hidden_size} but must be a multiple of twice tiny.heads, which is "
                f"{self.heads}, so that a head's width is even"
            )


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class Settings:
    """Settings of all trainings; ``share`` is that of the steps which are done."""

    seed: int
    corpus: str
    share: float = Field(ge=1e-4, le=1.0)
    tiny: Tiny = Field()

    def steps(self, whole: int) -> int:
        """The share of ``whole`` steps, one at least."""
        return max(1, round(whole * self.share))


def load(config: Mapping[str, Any]) -> Settings:
    """The settings from Snakemake's config, where nested values may be texts.

    Raises :class:`utaca.errors.UserError` that names every unknown, missing or faulty key.
    """
    models.refuse_misread(config)
    return models.build(Settings, config)
