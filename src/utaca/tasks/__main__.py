"""The official files of the tasks: ``python -m utaca.tasks [--folder FOLDER] [NAME ...]``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from utaca.errors import UserError
from utaca.tasks.fetch import FOLDER, OFFICIAL, fetch
from utaca.terminal import print_any_letter


def main(arguments: Sequence[str] | None = None) -> int:
    """Fetch the files that are not there and print a line each; returns the status to exit with."""
    print_any_letter()
    parser = argparse.ArgumentParser(prog="python -m utaca.tasks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"{', '.join(OFFICIAL)}; without any: all of them")
    parser.add_argument("--folder", type=Path, default=Path(FOLDER), help=f"tasks.path of the config ({FOLDER})")
    given = parser.parse_args(arguments)
    faults = 0
    try:
        for file in fetch(given.names or OFFICIAL, given.folder):
            if file.fault:
                faults += 1
                print(f"Error: {file.fault}.", file=sys.stderr, flush=True)
            else:
                done = "fetched and checked" if file.now else "is there already"
                print(f"{file.path}: {done}; {file.rows:,} rows, SHA-256 {file.sha256}", flush=True)
    except UserError as error:
        print(f"Error: {error}", file=sys.stderr)
        return 1
    return int(faults > 0)


if __name__ == "__main__":
    sys.exit(main())
