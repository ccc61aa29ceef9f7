"""A command of Snakemake: its options, parsed by Snakemake's parser, and its end if there is nothing to do."""

import logging
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stderr
from io import StringIO

from snakemake.cli import get_argument_parser, parse_config
from snakemake.logging import logger

from utaca.errors import UserError


def read(argv: Sequence[str]) -> Namespace:
    """Parse a command line of Snakemake, as in ``sys.argv``, into its options.

    They have the names of Snakemake's parser (``targets``, ``dryrun``, ``touch``, ``config``). Another program may have
    loaded the workflow from Python. If the parser refuses the arguments of that program, the options have their
    defaults.
    """
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


def when_nothing_is_to_do(act: Callable[[], None]) -> None:
    """Call ``act`` if Snakemake finds nothing to do: it then calls none of the workflow's hooks, and only logs it."""

    def watch(record: logging.LogRecord) -> bool:
        """A filter of log records that keeps all of them."""
        if record.getMessage().startswith("Nothing to be done"):
            act()
        return True

    logger.addFilter(watch)


def check_config(entries: Sequence[str]) -> None:
    """Raise :class:`UserError` if Snakemake, which parses ``--config`` entries as YAML, would change a text.

    ``entries`` are as the user wrote them, KEY=VALUE. Numbers, null, and values in braces or brackets are meant to be
    parsed.
    """
    for entry in entries:
        key, _, text = entry.partition("=")
        text = text.strip("'\" ")
        parsed = parse_config([entry])[key]
        if text[:1] not in "{[" and parsed != text and isinstance(parsed, str | Mapping | list):
            raise UserError(
                f"--config {entry}: YAML reads the value as {parsed!r}; to keep it as text, write it in quotes in a "
                "config file"
            )
