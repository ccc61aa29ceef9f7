"""The options of a Snakemake command line, parsed by Snakemake's parser."""

from argparse import Namespace
from collections.abc import Mapping, Sequence
from contextlib import redirect_stderr
from io import StringIO

from snakemake.cli import get_argument_parser, parse_config

from utaca.errors import UserError


def read(argv: Sequence[str]) -> Namespace:
    """The options of a command line of Snakemake, ``sys.argv``, as its parser names them (``targets``, ``dryrun``,
    ``touch``, ``config``); the defaults if ``argv`` is of another program, which loaded the workflow from Python."""
    parser = get_argument_parser()
    try:
        with redirect_stderr(StringIO()):
            return parser.parse_known_args(argv[1:])[0]
    except SystemExit:
        return parser.parse_known_args([])[0]


def runs_here(command: Namespace) -> bool:
    """Whether a command runs its jobs on this machine: it names no other executor, and no profile but the default."""
    # Snakemake 9.27 has a list here, earlier releases one name.
    named = command.profile or []
    profiles = {command.workflow_profile, *([named] if isinstance(named, str) else named)}
    return command.executor in (None, "local") and profiles <= {None, "default"}


def check_config(entries: Sequence[str]) -> None:
    """Raise :class:`UserError` if Snakemake, which parses ``--config`` entries as YAML, would change a text."""
    for entry in entries:
        key, _, text = entry.partition("=")
        text = text.strip("'\" ")
        found = parse_config([entry])[key]
        if text[:1] not in "{[" and found != text and isinstance(found, str | Mapping | list):
            raise UserError(f"--config {entry} is YAML for {found!r}; write it in a config file, in quotes")
