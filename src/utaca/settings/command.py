"""What a command line of Snakemake asks for, read as Snakemake reads it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import redirect_stderr
from functools import cache
from io import StringIO
from typing import Any

from snakemake.cli import get_argument_parser, parse_config

from utaca.errors import UserError


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


def check_config(entries: Sequence[str]) -> None:
    """Raise :class:`UserError` for a text among what ``--config`` gives that Snakemake reads otherwise, as YAML."""
    for entry in entries:
        key, _, text = entry.partition("=")
        text, read = text.strip("'\" "), parse_config([entry])[key]
        if text[:1] not in "{[" and read != text and isinstance(read, str | Mapping | list):
            raise UserError(f"--config {entry} is YAML for {read!r}; write it in a config file, in quotes")


def config_entries(argv: Sequence[str]) -> list[str]:
    """What a command line of Snakemake, ``sys.argv``, gives by ``--config``."""
    return list(getattr(_parsed(argv), "config", None) or [])


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
