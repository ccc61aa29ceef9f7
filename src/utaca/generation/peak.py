"""Peak memory of a stretch of work, in bytes: of the GPU if the reader is on one, else of the process."""

from __future__ import annotations

import re
import resource
import sys
from contextlib import suppress
from pathlib import Path

import torch

_CLEAR = Path("/proc/self/clear_refs")
_STATUS = Path("/proc/self/status")


class PeakMemory:
    """Context manager that measures the peak memory of its block; afterwards, ``bytes`` holds it.

    On a CPU this is the peak resident size of the process: since the block began if the system allows a reset (Linux),
    else since the process began.
    """

    bytes: int = 0

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"

    def __enter__(self) -> PeakMemory:
        if self._cuda:
            torch.cuda.reset_peak_memory_stats()
        else:
            # Linux: "5" resets the process's peak resident size (VmHWM).
            with suppress(OSError):
                _CLEAR.write_text("5")
        return self

    def __exit__(self, *_: object) -> None:
        if self._cuda:
            # Work of the block may still be under way on the GPU.
            torch.cuda.synchronize()
            self.bytes = torch.cuda.max_memory_allocated()
        else:
            self.bytes = _peak_resident_bytes()


def _peak_resident_bytes() -> int:
    """Peak resident size of the process: on Linux since the last reset, else since the process began."""
    status = _STATUS.read_text() if _STATUS.is_file() else ""
    if line := re.search(r"VmHWM:\s*(\d+)", status):
        return int(line[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # In bytes on macOS, in KiB elsewhere.
    return peak if sys.platform == "darwin" else peak * 1024
