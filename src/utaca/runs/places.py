"""Check the paths that a run uses, and say to its processes where they find the package."""

import os
import re
from collections.abc import Iterable
from pathlib import Path

from utaca.errors import UserError


def check_paths(paths: Iterable[str | Path]) -> None:
    """Raise :class:`UserError` if a path is not UTF-8 or has a brace, which marks a wildcard for Snakemake."""
    for path in map(str, paths):
        if re.search("[{}\ud800-\udfff]", path):
            raise UserError(f"{path!r} has a brace in it, or is not UTF-8, which Snakemake does not support; rename it")


def share_source(source: Path) -> None:
    """Let child processes import the package from the folder ``source``, before any installed version."""
    inherited = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, dict.fromkeys([str(source.resolve()), *inherited])))
