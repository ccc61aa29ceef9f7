"""What the shell completes after Tab: names of readers, triggers and targets (``utaca --install-completion``).

Typer leaves out the names that do not begin with what was typed. If no name fits, the shell completes files.
"""

from pathlib import Path

import typer

from utaca.app import words
from utaca.data_files import root
from utaca.stages import STAGES

Completions = list[tuple[str, str]]
"""Names, each with what it means; shells that show help show it."""

DEFAULT_RUN = "quick"
"""The run whose tables are completed if no other run has been made."""


def readers() -> list[str]:
    """The readers that the config lists."""
    return sorted(path.stem for path in (root() / "config" / "reader").glob("*.yaml"))


def triggers(context: typer.Context) -> Completions:
    """The triggers of the reader that was typed before, or the detectors of every reader if none was."""
    reader = str(context.params.get("reader") or "*")
    shipped = {path.name for path in (root() / "data" / "detectors").glob(f"{reader}/*/") if path.is_dir()}
    known = [*map(words.detector, sorted(shipped)), *words.TRIGGERS]
    return [(trigger.example, trigger.does) for trigger in known]


def targets() -> Completions:
    """What ``utaca tables`` makes: stages, and the tables and figures of each run in this folder."""
    from utaca.reporting.registry import ENDINGS, ENTRIES

    names = [("results/tables", "the whole run"), ("readers", "the run's reader")]
    names += [(stage.name, stage.makes) for stage in STAGES]
    runs = sorted(path.parent.name for path in Path("results").glob("*/run.yaml")) or [DEFAULT_RUN]
    for run in runs:
        for name, entry in ENTRIES.items():
            names += [(f"results/{run}/{entry.kind}s/{name}.{ending}", entry.title) for ending in ENDINGS[entry.kind]]
    return names
