"""What a detector's file says beside its weights; without PyTorch."""

import json
from pathlib import Path
from typing import Any

from safetensors import safe_open

KEY = "utaca.detector"
"""The one entry of the file's metadata."""


def about(path: str | Path) -> dict[str, Any]:
    """Settings, input width, reader, thresholds and facts of the detector in a file.

    Raises ``KeyError``, ``ValueError`` or ``SafetensorError`` if the file is not a detector's.
    """
    with safe_open(path, framework="numpy") as file:
        return json.loads((file.metadata() or {})[KEY])
