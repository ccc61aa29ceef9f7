"""The engines of two checkouts side by side: ``python bench/compare.py OTHER_CHECKOUT``.

Each checkout's ``bench/engine.py`` measures its package, in processes that take turns, so that what else the machine
does meets both alike. A ratio is of two neighbouring processes: the median over the rounds [least, most]. The other
package must have the reader, and run in this environment. Leave the machine to it meanwhile.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

from report import Row, markdown, shown, spread

OURS = Path(__file__).resolve().parents[1]


def measured(checkout: Path, options: list[str]) -> list[Row]:
    """Rows of one round of a checkout's ``engine.py`` under ``options``."""
    engine = checkout / "bench/engine.py"
    source = (checkout / "src").resolve()
    if not (engine.is_file() and (source / "utaca").is_dir()):
        sys.exit(f"Error: {checkout} has no bench/engine.py or no src/utaca; give the folder of a checkout")
    command = [sys.executable, str(engine), *options, "--rounds", "1", "--json"]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": str(source)}, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"Error: the engine of {checkout} cannot be measured: {done.stderr.strip()[-300:]}")
    return [Row(*row) for row in json.loads(done.stdout.splitlines()[-1])[0]]


def named(checkout: Path) -> str:
    """A checkout's commit, or its folder where it has none."""
    command = ["git", "-C", str(checkout), "describe", "--always", "--dirty", "--exclude=*"]
    done = subprocess.run(command, capture_output=True, text=True)
    return done.stdout.strip() or checkout.resolve().name


def compare(ours: Path, other: Path, rounds: int, options: list[str]) -> str:
    """The table: what, ours, the other's, and ours / the other's."""
    pairs = []
    for number in range(rounds):
        print(f"round {number + 1} of {rounds}", file=sys.stderr, flush=True)
        pairs.append((measured(ours, options), measured(other, options)))
    first_ours, first_other = pairs[0]
    if [row.what for row in first_ours] != [row.what for row in first_other]:
        sys.exit(f"Error: engine.py of {other} prints other rows than this one; name questions both answer alike")
    rows = []
    for place, first in enumerate(first_ours):
        sides = [[pair[side][place].amount for pair in pairs] for side in (0, 1)]
        medians = [shown(statistics.median(side), first.unit) for side in sides]
        rows.append((first.what, *medians, spread([a / b for a, b in zip(*sides, strict=True)])))
    return markdown(("What", f"this ({named(ours)})", f"other ({named(other)})", "this / other"), rows)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python bench/compare.py",
        description="Measure the engines of this checkout and of another in turns. Further options are engine.py's.",
    )
    parser.add_argument("other", type=Path, help="folder of the other checkout")
    parser.add_argument("--rounds", type=int, default=5, help="processes of each (default: 5)")
    options, rest = parser.parse_known_args(arguments)
    print(compare(OURS, options.other, options.rounds, rest or ["points", "growth", "detector"]))


if __name__ == "__main__":
    main()
