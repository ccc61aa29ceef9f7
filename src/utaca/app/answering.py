"""How an answer is decoded, from what a user writes: the command line and the server's requests choose alike.

A *budget* is a number of blocks: K of a fixed budget, K_max of an adaptive one. A *policy* is written as in the config,
``sub.8`` or ``set.2``. A *trigger* is what expands the budget of a token:

* the name of a detector that ships for the reader (``data/detectors``), or the path of a detector's file;
* ``margin``, or ``margin.X``: the token's logit margin is below X logits (:data:`MARGIN`);
* ``agreement``, or ``agreement.N``: the token would be another one under K_max, or is another one under N blocks;
* ``every.N``: of N tokens one, whatever it is; ``never``: none, which without a policy is a fixed budget.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from utaca.data_files import root
from utaca.decoding.policies import parse
from utaca.detection.detector import load
from utaca.errors import UserError, whole
from utaca.readers.load import Reader
from utaca.settings.schema import TRIGGER

BUDGETS = {"tiny": 8}
"""Default K_max by reader: the largest of the default run (docs/default_run.md)."""
BUDGET = 32
"""Default K_max of other readers: that of the runs of the public readers (config/runs/evidence.yaml)."""
MARGIN = 1.0
"""Default threshold of the trigger ``margin``, in logits."""
PREFERRED = ("needed_chained", "utaca", "needed")
"""Shipped detectors in the order in which one is the default trigger of its reader."""
FIXED = "never"


@dataclass(frozen=True)
class Choice:
    """How an answer is decoded.

    ``options`` are fields of :class:`utaca.decoding.loop.Decoding`. ``trigger`` and ``policy`` are as a user writes
    them; a fixed budget has no policy. ``note`` is a sentence for the user about what was chosen in the user's place;
    empty: none.
    """

    options: Mapping[str, Any]
    trigger: str
    policy: str | None = None
    note: str = ""


def choose(
    reader: Reader,
    *,
    budget: object = None,
    policy: object = None,
    trigger: object = None,
    max_new_tokens: object = None,
) -> Choice:
    """The options for an answer of ``reader``; what is None is the reader's default.

    By default a shipped detector expands the budget; a reader without one answers under a fixed budget. The default
    policy is Sub.(K_max / 4), the proportion of the paper's K_max=64 and Sub.16. Raises :class:`UserError`, in one
    sentence that names the option, for a value that is none.
    """
    most = _at_least_one("budget", BUDGETS.get(reader.settings.name, BUDGET) if budget is None else budget)
    longest = reader.settings.max_new_tokens if max_new_tokens is None else max_new_tokens
    options: dict[str, Any] = {"budget": most, "max_new_tokens": _at_least_one("max_new_tokens", longest)}
    if not isinstance(policy, str | None):
        raise UserError(f"policy must be a text, as sub.8 or set.2, not {policy!r}")
    if policy is not None:
        parse(policy)
    note = ""
    if trigger is None:
        trigger = default_trigger(reader)
        if trigger is None and policy:
            raise UserError(
                f"no detector ships for reader {reader.settings.name}, so that policy needs a trigger too: the path of "
                "a detector, margin, agreement or every.N"
            )
        if trigger is None:
            trigger = FIXED
            note = (
                f"No detector ships for reader {reader.settings.name}: it answers under a fixed budget of {most} "
                "blocks; trigger margin adapts it without training."
            )
    expanding = triggered(reader, trigger, most)
    if trigger != FIXED or policy is not None:
        policy = policy or f"sub.{max(1, most // 4)}"
        options |= expanding | {"policy": parse(policy)}
    return Choice(options, str(trigger), policy, note)


def triggered(reader: Reader, trigger: object, most: int) -> dict[str, Any]:
    """The options that a trigger is, below K_max ``most``; raises :class:`UserError` for what is none."""
    if isinstance(trigger, str):
        if match := re.fullmatch(TRIGGER, trigger):
            if trigger == FIXED or match[2]:
                return {"every": int(match[2] or 0)}
            witness = int(match[1] or 0)
            if witness >= most:
                raise UserError(f"trigger {trigger} tries {witness} blocks, but must try fewer than the budget, {most}")
            return {"agreement": True, "witness": witness}
        if match := re.fullmatch(r"margin(?:\.(\d+(?:\.\d+)?))?", trigger):
            return {"detector": Margin(float(match[1] or MARGIN))}
        shipped = detectors(reader.identity)
        path = shipped.get(trigger) or (Path(trigger) if trigger.endswith(".safetensors") else None)
        if path:
            detector = _loaded(path)
            detector.check(reader)
            return {"detector": detector}
        names = ", ".join([*shipped, "margin", "agreement", "every.N", "never"])
        raise UserError(
            f"there is no trigger {trigger!r} for reader {reader.settings.name}; choose among {names}, or give the "
            "path of a detector's file, model.safetensors"
        )
    raise UserError(f"trigger must be a text, as margin, not {trigger!r}")


def default_trigger(reader: Reader) -> str | None:
    """The detector that expands the reader's budgets by default; None where none ships for the reader."""
    shipped = detectors(reader.identity)
    return next((name for name in PREFERRED if name in shipped), None)


@cache
def detectors(identity: str) -> dict[str, Path]:
    """The detectors that ship for the reader of an identity (:attr:`Reader.identity`), by name."""
    files = sorted((root() / "data" / "detectors").glob("*/*.safetensors"))
    return {path.stem: path for path in files if _identity(path) == identity}


def _identity(path: Path) -> str:
    """The identity of the reader that a detector's file was trained for, "" where the file does not say."""
    try:
        with safe_open(path, framework="pt") as file:
            about = json.loads((file.metadata() or {})["utaca.detector"])
        return about["reader"]["identity"]
    except (OSError, SafetensorError, ValueError, KeyError, TypeError):
        return ""


_loaded = cache(load)


def _at_least_one(name: str, value: object) -> int:
    number = whole(name, value)
    if number < 1:
        raise UserError(f"{name} must be at least 1, not {number}")
    return number


class Margin:
    """Stands where a detector does: distrusts a token whose logit margin is below a threshold, in logits.

    Its p are (0.5, 0.5, 0) at the threshold, and go over with the margin's distance from it as a logistic function.
    """

    settings = SimpleNamespace(signals=["margin"], site="residual")

    def __init__(self, threshold: float) -> None:
        self.threshold = threshold

    def check(self, reader: Reader) -> None:
        """A margin suits every reader."""

    def to(self, _device: torch.device) -> Margin:
        return self

    def initial_state(self, _batch: int) -> None:
        """There is none."""

    def step(self, signals: Tensor, _embedding: Tensor, _state: None) -> tuple[Tensor, None]:
        """``signals`` [B, 1] -> ``p`` [B, 3]."""
        correct = torch.sigmoid(signals[:, 0] - self.threshold)
        return torch.stack((1 - correct, correct, torch.zeros_like(correct)), -1), None

    def distrusts(self, p: Tensor) -> Tensor:
        """The decision for ``p`` [..., 3]; boolean [...]."""
        return p[..., 0] > p[..., 1]
