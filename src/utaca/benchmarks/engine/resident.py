"""Peak memory of a process that does nothing but read one document and answer a question about it.

``python -m utaca.benchmarks.engine.resident SETTINGS TOKENS BUDGET NEW QUESTION`` is that process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor

from utaca.decoding.loop import generate
from utaca.generation.peak import PeakMemory
from utaca.memory import prefill
from utaca.readers.load import Reader, load, resolve_device
from utaca.settings import schema
from utaca.settings.checks import build

_SOURCE = Path(__file__).resolve().parents[3]


def measure(reader: Reader, tokens: Tensor, budget: int, new: int, question: str) -> tuple[int, int]:
    """Bytes at the peak, and once the reader was loaded, in a fresh process with a reader of the same settings.

    Of the device's memory on a GPU. A failing process raises :class:`subprocess.CalledProcessError`.
    """
    with TemporaryDirectory() as folder:
        path = Path(folder) / "tokens.pt"
        torch.save(tokens.cpu(), path)
        settings = json.dumps(asdict(reader.settings))
        command = [sys.executable, "-m", __name__, settings, str(path), str(budget), str(new), question]
        source = os.pathsep.join(filter(None, [str(_SOURCE), os.environ.get("PYTHONPATH", "")]))
        environment = {**os.environ, "PYTHONPATH": source, "OMP_NUM_THREADS": str(torch.get_num_threads())}
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    found = json.loads(done.stdout)
    return found["peak"], found["loaded"]


def _main(settings: str, path: str, budget: str, new: str, question: str) -> None:
    wanted = build(schema.Reader, json.loads(settings), "reader")
    # Not ru_maxrss: that of a child starts at its parent's.
    with PeakMemory(torch.device(resolve_device(wanted.device))) as peak:
        with PeakMemory(torch.device(resolve_device(wanted.device))) as loaded:
            reader = load(wanted)
        generate(prefill(reader, torch.load(path)), question, budget=int(budget), max_new_tokens=int(new))
    print(json.dumps({"peak": peak.bytes, "loaded": loaded.bytes}))


if __name__ == "__main__":
    _main(*sys.argv[1:])
