"""Commands that tests run in a checkout, Snakemake above all."""

import os
import subprocess
import sys
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

Bytecode is kept in a copy of the checkout, lest each of a run's many processes compile the package anew.
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
    """Run Snakemake in ``folder``; errors are in its output."""
    return call(folder, sys.executable, "-m", "snakemake", *arguments, **variables)
