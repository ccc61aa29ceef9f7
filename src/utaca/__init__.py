"""UT-ACA: uncertainty-triggered adaptive context allocation.

The public API, imported on first use so that ``import utaca`` costs nothing::

    reader = utaca.load_reader("tiny")
    memory = utaca.prefill(reader, document)
    fixed = utaca.generate(memory, "Where was she born?", budget=32)
    trigger = utaca.Detected(utaca.load_detector(path))
    adaptive = utaca.generate(memory, "Where was she born?", budget=64, policy=utaca.Sub(16), trigger=trigger)
"""

from importlib import import_module
from typing import Any

_HOMES = {
    "decoding.hugging_face": ("CustomGenerate", "custom_generate"),
    "decoding.loop": ("Batch", "generate", "generate_together", "stream"),
    "decoding.options": ("Decoding", "Sampling"),
    "decoding.policies": ("Policy", "Set", "Sub"),
    "decoding.score": ("AnswerScores", "score"),
    "decoding.triggers": ("Agreement", "Detected", "Every", "Margin", "Replayed", "Trigger"),
    "detection.detector": ("Detector", "load_detector"),
    "errors": ("UserError",),
    "memory.prefill": ("prefill",),
    "readers.load": ("load_reader",),
    "settings.schema": ("MemorySettings",),
    "trace": ("Generation", "Token"),
}

__all__ = sorted(name for names in _HOMES.values() for name in names)


def __getattr__(name: str) -> Any:
    """Import a public name from its module on first use (PEP 562)."""
    for module, names in _HOMES.items():
        if name in names:
            # A public name is that of the object in its module, except load_detector, which is "load" there.
            return getattr(import_module(f"utaca.{module}"), "load" if name == "load_detector" else name)
    raise AttributeError(f"module 'utaca' has no attribute {name!r}")


def __dir__() -> list[str]:
    """The public names, those not imported yet included."""
    return __all__
