"""Read what a detector's file says about the detector, without its weights and without PyTorch."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from utaca.errors import UserError
from utaca.settings import schema
from utaca.settings.checks import build

KEY = "utaca.detector"
"""The only entry of the file's metadata."""
UNREADABLE = (OSError, SafetensorError, LookupError, AttributeError, TypeError, ValueError)
"""The errors that reading raises if a file is not a detector's, is cut off or is of another version."""


def about(path: str | Path) -> dict[str, Any]:
    """What the file says about its detector, by key: settings, input_width, reader, thresholds, facts.

    These are as :meth:`utaca.detection.detector.Detector.save` writes them. Raises one of :data:`UNREADABLE` if the
    file is not a detector's.
    """
    with safe_open(path, framework="numpy") as file:
        return json.loads((file.metadata() or {})[KEY])


def settings_of(path: str | Path) -> schema.DetectorSettings:
    """The settings of the detector in a file; raises :class:`UserError` if it is not a detector's file."""
    try:
        return built(about(path))
    except (UserError, *UNREADABLE) as error:
        raise no_detector(path, error) from error


def built(facts: Mapping[str, Any]) -> schema.DetectorSettings:
    """The settings of a detector, from all that its file says (:func:`about`).

    Raises :class:`UserError` if another version of utaca wrote them.
    """
    return build(schema.DetectorSettings, facts["settings"])


def no_detector(path: str | Path, error: Exception) -> UserError:
    """Make the error to raise for a file that is not a detector's; ``error`` is what reading it raised."""
    why = " ".join(str(error).split())
    return UserError(f"{path} is not a detector of this version of utaca; remove it and train it again ({why})")


def check_alike(path: str | Path, has: schema.DetectorSettings, wanted: schema.DetectorSettings) -> None:
    """Raise :class:`UserError` if the settings ``has`` of a file's detector differ from the config's ``wanted``."""
    key = has.differing(wanted)
    if key:
        of_file = getattr(has, key)
        raise UserError(
            f"{path} has {key}={of_file}, but the config has {key}={getattr(wanted, key)}; set detectors.*.{key} to "
            f"{of_file}"
        )
