"""Commands that tests run in a checkout, Snakemake above all."""

import atexit
import json
import os
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

from conftest import ROOT
from typer.testing import CliRunner, Result

from utaca.app.main import app

BIN = Path(sys.executable).parent
_CHILD = ROOT / "tests" / "child"
ENVIRONMENT = {
    **os.environ,
    "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
    "PYTHONPATH": os.pathsep.join(filter(None, [str(_CHILD), os.environ.get("PYTHONPATH")])),
    "PYTHONDONTWRITEBYTECODE": "",
    "OMP_NUM_THREADS": "1",
}
"""One thread a process, and the start in ``child/sitecustomize.py``.

Bytecode is kept in a copy of the checkout, so that not each process of a run compiles the package again.
"""


def call(folder: Path, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a command in ``folder``, with ``variables`` in its environment; errors are in its output."""
    return subprocess.run(
        command, cwd=folder, env=ENVIRONMENT | variables, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )


def typed(*arguments: str, stdin: bytes | str = "") -> Result:
    """Run the command ``utaca`` in this process: its ``exit_code``, ``stdout`` and ``stderr``."""
    return CliRunner().invoke(app, arguments, input=stdin, prog_name="utaca", catch_exceptions=False)


def snakemake(folder: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run Snakemake in ``folder``; errors are in its output.

    Dry runs, of which there are many, are forked from a process that has imported Snakemake (``dry_runs.py``), which
    halves the time that they take.
    """
    if "-n" in arguments and not variables:
        return _dry_run(folder, *arguments)
    return call(folder, sys.executable, "-m", "snakemake", *arguments, **variables)


@cache
def _dry_runs() -> subprocess.Popen[str]:
    """The process that dry runs are forked from. It ends when its input does, as this process ends."""
    command = [sys.executable, str(ROOT / "tests" / "dry_runs.py")]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    server = subprocess.Popen(command, env=ENVIRONMENT, text=True, **pipes)
    atexit.register(server.communicate)
    return server


def _dry_run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    server = _dry_runs()
    assert server.stdin is not None
    assert server.stdout is not None
    with tempfile.NamedTemporaryFile("r", encoding="utf-8") as output:
        request = {"folder": str(folder), "arguments": arguments, "output": output.name}
        print(json.dumps(request), file=server.stdin, flush=True)
        status = int(server.stdout.readline())
        return subprocess.CompletedProcess(arguments, status, output.read())
