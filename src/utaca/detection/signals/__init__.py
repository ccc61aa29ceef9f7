"""The signals by name: each is a file here, named like the signal, that defines ``SIGNAL``.

Trajectories record all of them; a detector looks at those that ``detectors.*.signals`` names.
"""

from importlib import import_module

from utaca.detection.signal import Signal
from utaca.settings import schema

SIGNALS: dict[str, Signal] = {name: import_module(f"{__name__}.{name}").SIGNAL for name in schema.SIGNALS}
