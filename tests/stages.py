"""Runs a script of the workflow without Snakemake: ``python tests/stages.py SCRIPT JOB``, in the working directory.

JOB is JSON of what the script finds as ``snakemake``.
"""

import json
import runpy
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from snakemake.iocontainers import Namedlist

_SCRIPTS = Path(__file__).resolve().parents[1] / "workflow" / "scripts"


def run(script: str, job: dict[str, Any]) -> None:
    """Run the script; names that ``job`` lacks are empty."""
    whole = {"input": {}, "params": {}, "wildcards": {}, "threads": 1, "log": ["log"], "rule": script} | job
    lists = ("input", "output", "params", "wildcards")
    names = {key: Namedlist(fromdict=value) if key in lists else value for key, value in whole.items()}
    runpy.run_path(str(_SCRIPTS / f"{script}.py"), init_globals={"snakemake": SimpleNamespace(**names)})


if __name__ == "__main__":
    run(sys.argv[1], json.loads(sys.argv[2]))
