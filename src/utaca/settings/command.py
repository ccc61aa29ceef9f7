"""What a command line of Snakemake asks for, read as Snakemake reads it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import redirect_stderr
from functools import cache
from io import StringIO
from typing import Any

from snakemake.cli import get_argument_parser


def targets(argv: Sequence[str]) -> list[str]:
    """Targets on a command line of Snakemake, ``sys.argv``; none where it is no such line."""
    return list(getattr(_parsed(argv), "targets", None) or [])


def is_dry_run(argv: Sequence[str]) -> bool:
    """Whether a command line of Snakemake, ``sys.argv``, asks for a dry run."""
    return bool(getattr(_parsed(argv), "dryrun", False))


def is_touch(argv: Sequence[str]) -> bool:
    """Whether a command line of Snakemake, ``sys.argv``, runs no job but marks its files as new."""
    return bool(getattr(_parsed(argv), "touch", False))


def runs_here(argv: Sequence[str]) -> bool:
    """Whether a command line of Snakemake, ``sys.argv``, leaves its jobs on this machine: by no executor or profile."""
    parsed = _parsed(argv)
    named = [getattr(parsed, name, None) for name in ("workflow_profile", "profile")]
    return getattr(parsed, "executor", None) in (None, "local") and all(name in (None, "default") for name in named)


def _parsed(argv: Sequence[str]) -> Any:
    return _read(tuple(argv[1:]))


@cache
def _read(arguments: tuple[str, ...]) -> Any:
    try:
        with redirect_stderr(StringIO()):
            return get_argument_parser().parse_known_args(arguments)[0]
    except SystemExit:
        # no line of Snakemake's: the workflow was loaded from Python
        return None
