"""The answer store from the command line: ``python -m utaca.endpoints list | export | prune``."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pandas as pd

from utaca.endpoints.store import Store
from utaca.errors import UserError
from utaca.settings.database import database
from utaca.terminal import print_any_letter

_SUMS = ["prompt_tokens", "completion_tokens", "seconds"]


def _list(store: Store, _: argparse.Namespace) -> None:
    kept = ({**row, "prompt": row["version"], "shape": row["schema"].get("title", "unknown")} for row in store.export())
    rows = pd.DataFrame(kept, columns=["model", "prompt", "shape", "answered", *_SUMS])
    if rows.empty:
        print(f"no answers in {store.place}")
        return
    groups = rows.groupby(["model", "prompt", "shape"])
    answered = groups["answered"].agg(answers="count", first="min", last="max")
    shown = groups[_SUMS].sum().round({"seconds": 1}).join(answered).reset_index()
    shown = shown[["model", "prompt", "shape", "answers", *_SUMS, "first", "last"]]
    print(shown.rename(columns=lambda name: name.replace("_", " ")).to_string(index=False))


def _export(store: Store, arguments: argparse.Namespace) -> None:
    # The escapes of other encodings would not be JSON's.
    plain = "utf" not in str(sys.stdout.encoding).lower()
    for row in store.export():
        if arguments.model in (None, row["model"]):
            print(json.dumps(row, ensure_ascii=plain))


def _prune(store: Store, arguments: argparse.Namespace) -> None:
    if arguments.model is None and arguments.before is None:
        raise UserError("say what to prune: --model NAME, --before DATE, or both")
    number = store.prune(model=arguments.model, before=arguments.before, dry_run=arguments.dry_run)
    print(f"{number} answers {'would be ' if arguments.dry_run else ''}removed from {store.place}")


def _time(text: str) -> str:
    """A point in time as the store writes it, from a date, a date with time, or an age such as 30d."""
    try:
        if age := re.fullmatch(r"(\d+)d", text):
            moment = datetime.now(UTC) - timedelta(days=int(age[1]))
        else:
            moment = datetime.fromisoformat(text)
        moment = moment.replace(tzinfo=moment.tzinfo or UTC).astimezone(UTC)
    except (ValueError, OverflowError):
        raise argparse.ArgumentTypeError(f"{text!r} is no date as in 2026-01-31, and no age as in 30d") from None
    return moment.replace(tzinfo=None).isoformat(timespec="seconds") + "Z"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m utaca.endpoints", description=__doc__)
    parser.add_argument(
        "--store",
        default="results/answers.sqlite",
        metavar="PLACE",
        help="the file, or postgresql://USER@HOST/DATABASE (default: %(default)s)",
    )
    commands = parser.add_subparsers(dest="command", required=True)
    listed = commands.add_parser("list", help="what is kept, by model, version of the prompt and shape of the answer")
    listed.set_defaults(run=_list)
    export = commands.add_parser("export", help="the answers with their requests, as JSON lines on standard output")
    export.add_argument("--model", help="those of one model (default: all)")
    export.set_defaults(run=_export)
    prune = commands.add_parser("prune", help="remove answers, which are then asked for anew when needed")
    prune.add_argument("--model", help="those of one model")
    prune.add_argument("--before", type=_time, metavar="DATE", help="those older: 2026-01-31, or an age in days: 30d")
    prune.add_argument("--dry-run", action="store_true", help="count them, and remove nothing")
    prune.set_defaults(run=_prune)
    return parser


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command; a mistake ends it with one sentence and status 1."""
    print_any_letter()
    given = _parser().parse_args(arguments)
    try:
        if not database(given.store) and not Path(given.store).is_file():
            raise UserError(f"{given.store} does not exist; name the answer store: --store results/answers.sqlite")
        with Store(given.store) as store:
            given.run(store, given)
    except UserError as fault:
        sys.exit(f"Error: {fault}")
    except BrokenPipeError:
        # the reader of the output has seen enough
        sys.stdout = None  # type: ignore[assignment]


if __name__ == "__main__":
    main()
