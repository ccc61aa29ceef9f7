"""The signals by name: each file of this package is named like its signal and defines ``SIGNAL``.

Trajectories record all signals; a detector reads the signals that ``detectors.*.signals`` names.
"""

from importlib import import_module

from utaca.detection.signal import Signal
from utaca.errors import in_a_sentence
from utaca.settings import schema


def _load(name: str) -> Signal:
    """Import the module ``name`` of this package and return its SIGNAL; raises UserError if it is at fault."""
    with in_a_sentence(f"the signal {name} cannot be loaded", f"correct detection/signals/{name}.py, or remove it"):
        signal = import_module(f"{__name__}.{name}").SIGNAL
        if not isinstance(signal, Signal):
            raise TypeError(f"its SIGNAL is {signal!r} and no Signal")
        return signal


SIGNALS: dict[str, Signal] = {name: _load(name) for name in schema.SIGNALS}
