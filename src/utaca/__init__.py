"""UT-ACA: uncertainty-triggered adaptive context allocation.

The public API, imported on first use so that ``import utaca`` costs nothing::

    reader = utaca.load_reader("tiny")
    memory = utaca.prefill(reader, document)
    fixed = utaca.generate(memory, "Where was she born?", budget=32)
    trigger = utaca.Detected(utaca.load_detector(path))
    adaptive = utaca.generate(memory, "Where was she born?", budget=64, policy=utaca.Sub(16), trigger=trigger)
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_HOMES = {
    "Agreement": "utaca.decoding.triggers",
    "Batch": "utaca.decoding.loop",
    "Decoding": "utaca.decoding.options",
    "Detected": "utaca.decoding.triggers",
    "Detector": "utaca.detection.detector",
    "Every": "utaca.decoding.triggers",
    "Generation": "utaca.trace",
    "Margin": "utaca.decoding.triggers",
    "MemorySettings": "utaca.settings.schema",
    "Policy": "utaca.decoding.policies",
    "Replayed": "utaca.decoding.triggers",
    "Sampling": "utaca.decoding.options",
    "Set": "utaca.decoding.policies",
    "Sub": "utaca.decoding.policies",
    "Token": "utaca.trace",
    "Trigger": "utaca.decoding.triggers",
    "UserError": "utaca.errors",
    "generate": "utaca.decoding.loop",
    "generate_together": "utaca.decoding.loop",
    "load_detector": ("utaca.detection.detector", "load"),
    "load_reader": "utaca.readers.load",
    "prefill": "utaca.memory.prefill",
    "stream": "utaca.decoding.loop",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'utaca' has no attribute {name!r}")
    home = _HOMES[name]
    module, attribute = home if isinstance(home, tuple) else (home, name)
    return getattr(import_module(module), attribute)


def __dir__() -> list[str]:
    return __all__
