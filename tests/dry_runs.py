"""Runs Snakemake's dry runs, each in a fork of this process, which has imported Snakemake and what it needs.

A request is a line of JSON on standard input: the folder to run in, the arguments, the file for the output. The answer
is the exit status on a line. A fork imports the package that is tested from the folder, as ``python -m snakemake``
does: nothing of it is loaded here.
"""

import atexit
import gc
import json
import os
import sys
from pathlib import Path
from typing import NoReturn

# What the Snakefile and Snakemake import later on is imported here too, once.
import aiohttp  # noqa: F401
import httpx2  # noqa: F401
import hydra.utils  # noqa: F401
import nbformat  # noqa: F401
import openai.types  # noqa: F401
import pandas  # noqa: F401
import pydantic  # noqa: F401
import rapidfuzz  # noqa: F401
import requests  # noqa: F401
import snakemake.cli
import snakemake.report
import snowballstemmer  # noqa: F401
import sqlalchemy  # noqa: F401


def main() -> None:
    assert "utaca" not in sys.modules
    gc.freeze()
    for line in sys.stdin:
        request = json.loads(line)
        child = os.fork()
        if not child:
            _run(**request)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def _run(folder: str, arguments: list[str], output: str) -> NoReturn:
    os.chdir(folder)
    file = os.open(output, os.O_WRONLY | os.O_TRUNC)
    for stream in (sys.stdout, sys.stderr):
        os.dup2(file, stream.fileno())
    # As ``python -m snakemake`` has them.
    sys.path[0] = folder
    sys.argv = [str(Path(snakemake.__file__).with_name("__main__.py")), *arguments]
    try:
        snakemake.cli.main()
        status = 0
    except SystemExit as end:
        # As the interpreter does it.
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    # What is registered for the end runs. Then the process is left: to take it apart would take as long as the dry run.
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    main()
