"""Processors, memory, GPUs and disk of the machine; without heavy imports."""

import ctypes
import fcntl
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path
from typing import IO

from utaca.errors import UserError

_GROUP = Path("/proc/self/cgroup")
_LIMITS = (
    ("^0::/(.*)$", "", "max", "current", "inactive_file"),
    (r"^\d+:(?:.*,)?memory(?:,.*)?:/(.*)$", "memory", "limit_in_bytes", "usage_in_bytes", "total_inactive_file"),
)
"""For cgroup v2 and v1: line of a process's group, folder, files of limit and use, and the name of the files' cache."""

CPUINFO = Path("/proc/cpuinfo")
"""What Linux says of the processor."""


def gpus(devices: Path = Path("/dev")) -> int:
    """Number of NVIDIA GPUs that this process may use, by their files or, under WSL2, which has none, by nvidia-smi."""
    present = list(devices.glob("nvidia[0-9]*")) or _gpus_have("name")
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return len(present)
    # CUDA shows the devices before the first that it does not know.
    allowed = list(takewhile(lambda device: device.strip() not in ("", "-1"), visible.split(",")))
    return min(len(present), len(allowed))


def visible_gpus(number: int) -> list[str]:
    """Names of the ``number`` GPUs that CUDA shows to this process, in CUDA's order, as in CUDA_VISIBLE_DEVICES."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return [str(index) for index in range(number)] if visible is None else visible.split(",")[:number]


def take_gpu(names: Sequence[str], folder: Path) -> tuple[int, IO[str]] | None:
    """Lock the first GPU that no other process has locked; return its index in ``names`` and the open lock file.

    The lock file is in ``folder``; closing the file or ending the process releases the lock. None if no GPU is free.
    """
    for place, name in enumerate(names):
        file = (folder / f"utaca-{os.getuid()}-gpu-{re.sub(r'[^A-Za-z0-9-]', '', name)}.lock").open("a")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
        else:
            return place, file
    return None


def promised_gpu() -> bool:
    """Whether this process runs in a Slurm job with a GPU."""
    return os.environ.get("SLURM_GPUS_ON_NODE", "0") != "0"


def free_memory(meminfo: Path = Path("/proc/meminfo"), groups: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Bytes of main memory that this process may still allocate within its container and its job; None if unknown."""
    about = meminfo.read_text() if meminfo.is_file() else ""
    found = re.search(r"^MemAvailable:\s+(\d+) kB", about, re.MULTILINE)
    free = [int(found[1]) * 1024] if found else []
    for line, folder, *names, cache in _LIMITS:
        # Slurm and systemd set a job's limit on a group within the container's.
        own = re.search(line, _GROUP.read_text(), re.MULTILINE) if _GROUP.is_file() else None
        innermost = groups / folder / (own[1] if own else "")
        for group in (innermost, *innermost.parents):
            limit, used, kinds = (group / f"memory.{name}" for name in (*names, "stat"))
            if all(file.is_file() for file in (limit, used, kinds)) and limit.read_text().strip().isdigit():
                # The cache of files counts as used, but the system frees it on demand.
                cached = re.search(rf"^{cache} (\d+)", kinds.read_text(), re.MULTILINE)
                free.append(int(limit.read_text()) - int(used.read_text()) + (int(cached[1]) if cached else 0))
    return max(0, min(free)) if free else None


def free_gpu_memory() -> int | None:
    """Largest free memory of any GPU, in bytes; None if unknown."""
    return max((int(size) * 2**20 for size in _gpus_have("memory.free") if size.isdigit()), default=None)


def gpu_names(driver: Path = Path("/proc/driver/nvidia/gpus")) -> list[str]:
    """Names of the NVIDIA GPUs of the machine, as their driver lists them."""
    about = "\n".join(path.read_text(encoding="utf-8") for path in sorted(driver.glob("*/information")))
    return [name.strip() for name in re.findall(r"^Model:(.*)$", about, re.MULTILINE)] or _gpus_have("name")


def _gpus_have(field: str) -> list[str]:
    """A field of each GPU, from nvidia-smi so that this process opens no GPU; empty if there is none."""
    query = ["nvidia-smi", f"--query-gpu={field}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [] if done.returncode else done.stdout.splitlines()


def keep_freed_memory() -> None:
    """Have glibc keep the memory that this process frees; do nothing with another C library.

    By default each large tensor is mapped and unmapped anew and its pages are cleared again; prefill and training on
    the CPU then take up to twice as long. Fragmentation makes the kept memory grow: see :func:`return_freed_memory`.
    """
    trim_threshold = -1
    mmap_threshold = -3
    largest = 2**31 - 1
    _glibc("mallopt", trim_threshold, largest)
    _glibc("mallopt", mmap_threshold, largest)


def return_freed_memory() -> None:
    """Return the memory that :func:`keep_freed_memory` has kept to the system; call this from time to time."""
    _glibc("malloc_trim", 0)


def gib(size: float) -> str:
    """A number of bytes as text, in GiB or MiB."""
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 / 10 else f"{size / 2**20:.0f} MiB"


def free_disk(folder: Path) -> int:
    """Free bytes on the disk of a folder, which need not exist yet."""
    there = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    return shutil.disk_usage(there).free


def check_room(folder: Path, size: float, what: str, mend: str) -> None:
    """Raise :class:`UserError` if a folder's disk lacks ``size`` free bytes; ``what`` and ``mend`` frame the error."""
    if size > free_disk(folder):
        raise UserError(f"{what} {gib(size)}, but {gib(free_disk(folder))} are free in {folder}; {mend}.")


def processor(cpuinfo: Path = CPUINFO) -> str:
    """Name of the processor; empty if unknown."""
    lines = cpuinfo.read_text(encoding="utf-8").splitlines() if cpuinfo.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def natural_dtype(device: str, cpuinfo: Path = CPUINFO) -> str:
    """The narrowest type that ``device``, cpu or cuda, multiplies natively: bfloat16 or float32.

    NVIDIA's GPUs multiply bfloat16, and have flash attention, from Ampere (8.0) on; of several the newest counts. A CPU
    without bfloat16 instructions reads a document in bfloat16 eight times as slowly as in float32. Instructions that
    the environment variable ONEDNN_MAX_CPU_ISA disables count as missing.
    """
    if device == "cuda":
        newest = max((float(known) for known in _gpus_have("compute_cap") if known[:1].isdigit()), default=8)
        return "bfloat16" if newest >= 8 else "float32"
    shown = os.environ.get("ONEDNN_MAX_CPU_ISA", "ALL").upper()
    hidden = shown not in ("ALL", "DEFAULT") and not re.search("BF16|FP16|AMX|AVX10", shown)
    text = cpuinfo.read_text(encoding="utf-8") if cpuinfo.is_file() else ""
    native = re.search(r"^(flags|Features)\s*:.*\b(avx512_bf16|amx_bf16|bf16)\b", text, re.MULTILINE)
    return "bfloat16" if native and not hidden else "float32"


def pads_single_rows(cpuinfo: Path = CPUINFO) -> bool:
    """Whether products of one bfloat16 row and a matrix take longer on this CPU than products of two rows.

    On AMD's processors with bfloat16 instructions one row through 1.5 billion weights took 262 ms and two took 200; on
    Intel's both take the same time.
    """
    return cpuinfo.is_file() and "AuthenticAMD" in cpuinfo.read_text(encoding="utf-8")


def chosen_dtype(dtype: str, device: str) -> str:
    """The compute type of a reader with these config values of ``dtype`` and ``device``; resolves ``auto``."""
    return natural_dtype(("cuda" if gpus() else "cpu") if device == "auto" else device) if dtype == "auto" else dtype


def _glibc(function: str, *arguments: int) -> None:
    """Call a function of glibc; do nothing if the C library lacks it."""
    if sys.platform.startswith("linux") and (called := getattr(ctypes.CDLL(None), function, None)):
        called(*arguments)
