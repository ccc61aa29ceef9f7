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
    """Context manager; ``bytes`` holds the peak once the block has ended.

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
            with suppress(OSError):
                _CLEAR.write_text("5")
        return self

    def __exit__(self, *_: object) -> None:
        if self._cuda:
            torch.cuda.synchronize()
            self.bytes = torch.cuda.max_memory_allocated()
        elif line := re.search(r"VmHWM:\s*(\d+)", _STATUS.read_text() if _STATUS.is_file() else ""):
            self.bytes = int(line[1]) * 1024
        else:
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            self.bytes = peak if sys.platform == "darwin" else peak * 1024
