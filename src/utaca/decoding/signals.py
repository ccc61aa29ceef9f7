"""Signals of a token, one number each, that a detector may look at beside the embedding.

A signal of one's own is a function here and its name in :data:`utaca.settings.schema.SIGNALS`: trajectories then record
it, and a detector uses it that names it (``detectors.*.signals``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from utaca.decoding.generate import Token

SIGNALS: dict[str, Callable[[Token], float | None]] = {
    "margin": lambda token: token.margin,
    "retrieval": lambda token: token.retrieval,
}
"""By name: logit margin (paper, section 3.1); :attr:`utaca.memory.Step.retrieval`."""
