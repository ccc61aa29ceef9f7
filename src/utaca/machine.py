"""What this machine has and has free: processors, memory, GPUs and disk; without heavy imports."""

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
"""For cgroup v2 and v1: the line of :data:`_GROUP` that names this process's group; the folder of memory's groups; in a
group's folder, the files ``memory.NAME`` of limit and use; and the row of ``memory.stat`` that counts cached files."""

CPUINFO = Path("/proc/cpuinfo")
"""What Linux says of the processor."""


def gpus(devices: Path = Path("/dev")) -> int:
    """Number of NVIDIA GPUs that this process may use: those of the machine that CUDA_VISIBLE_DEVICES does not hide."""
    # A file for each GPU, nvidia0, nvidia1, ... WSL2 has no such files, so nvidia-smi lists its GPUs.
    present = list(devices.glob("nvidia[0-9]*")) or _gpus_have("name")
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return len(present)
    # CUDA shows the devices before the first that it does not know.
    allowed = list(takewhile(lambda device: device.strip() not in ("", "-1"), visible.split(",")))
    return min(len(present), len(allowed))


def visible_gpus(number: int) -> list[str]:
    """Names of the ``number`` GPUs that CUDA shows to this process, in CUDA's order, as in CUDA_VISIBLE_DEVICES.

    Without this variable, the names are the GPUs' indices: "0", "1", ...
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return [str(index) for index in range(number)]
    return visible.split(",")[:number]


def take_gpu(names: Sequence[str], folder: Path) -> tuple[int, IO[str]] | None:
    """Lock the first GPU that no other process has locked; return its index in ``names`` and the open lock file.

    The lock file is in ``folder``; closing the file or ending the process releases the lock. None if no GPU is free.
    """
    for place, name in enumerate(names):
        plain_name = re.sub(r"[^A-Za-z0-9-]", "", name)
        file = (folder / f"utaca-{os.getuid()}-gpu-{plain_name}.lock").open("a")
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
    """Bytes of main memory that this process may still allocate; None if unknown.

    That is the least of what the machine has free and of what the control groups leave that limit this process: its
    job's and its container's.
    """
    about = meminfo.read_text() if meminfo.is_file() else ""
    available = re.search(r"^MemAvailable:\s+(\d+) kB", about, re.MULTILINE)
    # Free bytes of the machine, then those that each group leaves; the least counts.
    free = [int(available[1]) * 1024] if available else []
    group_lines = _GROUP.read_text() if _GROUP.is_file() else ""
    for line, folder, limit_name, used_name, cache in _LIMITS:
        # A limit holds for all groups within its group: Slurm and systemd set a job's limit on a group within the
        # container's. So the innermost group and all around it are looked at.
        own = re.search(line, group_lines, re.MULTILINE)
        innermost = groups / folder / (own[1] if own else "")
        for group in (innermost, *innermost.parents):
            limit = group / f"memory.{limit_name}"
            used = group / f"memory.{used_name}"
            kinds = group / "memory.stat"
            # A group without a limit has no file of it, or one that says "max".
            if all(file.is_file() for file in (limit, used, kinds)) and limit.read_text().strip().isdigit():
                # The cache of files counts as used, but the system frees it on demand.
                found = re.search(rf"^{cache} (\d+)", kinds.read_text(), re.MULTILINE)
                cached = int(found[1]) if found else 0
                free.append(int(limit.read_text()) - int(used.read_text()) + cached)
    return max(0, min(free)) if free else None


def free_gpu_memory() -> int | None:
    """Bytes that are free on the GPU with most free memory; None if unknown."""
    mebibytes = [int(size) for size in _gpus_have("memory.free") if size.isdigit()]
    return max(mebibytes) * 2**20 if mebibytes else None


def gpu_names(driver: Path = Path("/proc/driver/nvidia/gpus")) -> list[str]:
    """Names of the NVIDIA GPUs of the machine, as their driver lists them."""
    about = "\n".join(path.read_text(encoding="utf-8") for path in sorted(driver.glob("*/information")))
    return [name.strip() for name in re.findall(r"^Model:(.*)$", about, re.MULTILINE)] or _gpus_have("name")


def _gpus_have(field: str) -> list[str]:
    """The values of a ``field`` of nvidia-smi, one for each GPU; empty if there is no GPU or no nvidia-smi.

    nvidia-smi is asked, and not PyTorch, so that this process opens no GPU.
    """
    query = ["nvidia-smi", f"--query-gpu={field}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [] if done.returncode else done.stdout.splitlines()


def keep_freed_memory() -> None:
    """Have glibc keep the memory that this process frees; do nothing with another C library.

    By default glibc maps memory for each large tensor and unmaps it afterwards, so that the system clears the pages
    each time; prefill and training on the CPU then take up to twice as long. Fragmentation makes the kept memory grow:
    see :func:`return_freed_memory`.
    """
    # Numbers of mallopt's parameters in glibc's malloc.h, M_TRIM_THRESHOLD and M_MMAP_THRESHOLD; both are in bytes.
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
    existing = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    return shutil.disk_usage(existing).free


def check_room(folder: Path, size: float, what: str, advice: str) -> None:
    """Raise :class:`UserError` if a folder's disk lacks ``size`` free bytes.

    The error is "``what`` SIZE, but SIZE are free in FOLDER; ``advice``."; ``what`` ends in a verb ("it takes").
    """
    if size > free_disk(folder):
        raise UserError(f"{what} {gib(size)}, but only {gib(free_disk(folder))} are free in {folder}; {advice}.")


def processor(cpuinfo: Path = CPUINFO) -> str:
    """Name of the processor, or of its architecture if Linux gives no name; "" if unknown."""
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
        capabilities = [float(known) for known in _gpus_have("compute_cap") if known[:1].isdigit()]
        # If the driver does not say, the GPU is assumed to be Ampere or newer.
        return "bfloat16" if max(capabilities, default=8) >= 8 else "float32"
    allowed = os.environ.get("ONEDNN_MAX_CPU_ISA", "ALL").upper()
    is_disabled = allowed not in ("ALL", "DEFAULT") and not re.search("BF16|FP16|AMX|AVX10", allowed)
    text = cpuinfo.read_text(encoding="utf-8") if cpuinfo.is_file() else ""
    has_instructions = re.search(r"^(flags|Features)\s*:.*\b(avx512_bf16|amx_bf16|bf16)\b", text, re.MULTILINE)
    return "bfloat16" if has_instructions and not is_disabled else "float32"


def pads_single_rows(cpuinfo: Path = CPUINFO) -> bool:
    """Whether products of one bfloat16 row and a matrix take longer on this CPU than products of two rows.

    On AMD's processors with bfloat16 instructions one row through 1.5 billion weights took 262 ms and two took 200; on
    Intel's both take the same time.
    """
    return cpuinfo.is_file() and "AuthenticAMD" in cpuinfo.read_text(encoding="utf-8")


def multiplies_float32_faster(cpuinfo: Path = CPUINFO) -> bool:
    """Whether this CPU multiplies matrices of many rows faster in float32 than in bfloat16.

    Intel's processors without matrix units (AMX) do, even those with bfloat16 instructions: one core of such a one took
    172 ms for 512 rows by a matrix of 1,536 x 8,960 in bfloat16, and 99 ms in float32.
    """
    text = cpuinfo.read_text(encoding="utf-8") if cpuinfo.is_file() else ""
    return "GenuineIntel" in text and not re.search(r"\bamx_bf16\b", text)


def chosen_dtype(dtype: str, device: str) -> str:
    """The compute type of a reader with these config values of ``dtype`` and ``device``; either may be "auto"."""
    if dtype != "auto":
        return dtype
    if device == "auto":
        device = "cuda" if gpus() else "cpu"
    return natural_dtype(device)


def _glibc(function: str, *arguments: int) -> None:
    """Call a function of glibc; do nothing if the C library lacks it."""
    if sys.platform.startswith("linux") and (called := getattr(ctypes.CDLL(None), function, None)):
        called(*arguments)
