"""The signals by name: each file of this package is named like its signal and defines ``SIGNAL``.

Trajectories record all signals; a detector reads the signals that ``detectors.*.signals`` names.
"""

from importlib import import_module

from utaca.detection.signal import Signal
from utaca.settings import schema

SIGNALS: dict[str, Signal] = {name: import_module(f"{__name__}.{name}").SIGNAL for name in schema.SIGNALS}
