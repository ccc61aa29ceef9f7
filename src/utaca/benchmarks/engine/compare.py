"""The engines of two checkouts side by side: ``python -m utaca.benchmarks.engine.compare OTHER_CHECKOUT``.

Each measures itself (``quick.py``) in processes of its own that take turns, so that what else the machine does meets
both alike. A ratio is of two neighbouring processes, shown as the median over the rounds [least, most]. Both checkouts
must have the tiny reader and run in this environment. Leave the machine to it meanwhile.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from utaca.errors import UserError
from utaca.records.progress import progress
from utaca.terminal import print_any_letter

_SCRIPT, _OURS = Path(__file__).with_name("quick.py"), Path(__file__).resolve().parents[4]
SIZES = (8192, 32768, 131072, 55)  # of the contexts and an answer, in tokens


def compare(ours: Path, other: Path, rounds: int, sizes: Sequence[int] = SIZES) -> list[tuple[str, str, str, str]]:
    """Rows of the table: what, ours, the other's, and ours / the other's. Raises :class:`UserError` where one fails."""
    laps = progress(range(rounds), total=rounds, unit="round", description="both engines")
    pairs = [(figures(ours, sizes), figures(other, sizes)) for _ in laps]
    rows = []
    for what in pairs[0][0]:
        sides = [[pair[side][what] for pair in pairs] for side in (0, 1)]
        ratios = [a / b for a, b in zip(*sides, strict=True)]
        spread = f"{statistics.median(ratios):.3f} [{min(ratios):.3f}, {max(ratios):.3f}]"
        rows.append((what, *(_shown(what, statistics.median(side)) for side in sides), spread))
    return rows


def figures(checkout: Path, sizes: Sequence[int]) -> dict[str, float]:
    """What the engine of a checkout measures of itself."""
    source = (checkout / "src").resolve()
    if not (source / "utaca").is_dir():
        raise UserError(f"{checkout} has no package utaca under src; give the folder of a checkout")
    command = [sys.executable, "-P", str(_SCRIPT), *map(str, sizes)]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": str(source)}, capture_output=True, text=True)
    if done.returncode:
        raise UserError(f"the engine of {checkout} cannot be measured: {done.stderr.strip()[-300:]}")
    return json.loads(done.stdout.splitlines()[-1])


def name(checkout: Path) -> str:
    """A checkout's commit, or its folder where it has none."""
    command = ["git", "-C", str(checkout), "describe", "--always", "--dirty", "--exclude=*"]
    done = subprocess.run(command, capture_output=True, text=True)
    return done.stdout.strip() or checkout.resolve().name


def _shown(what: str, value: float) -> str:
    if "against" in what:
        return f"{value:.3f}"
    size, unit = next((pair for pair in ((1, "s"), (1e-3, "ms")) if value >= pair[0]), (1e-6, "µs"))
    return f"{value / size:.3g} {unit}"


def main() -> None:
    print_any_letter()
    parser = argparse.ArgumentParser(
        prog="python -m utaca.benchmarks.engine.compare",
        description="Measure the engines of this checkout and of another in turns.",
    )
    parser.add_argument("other", type=Path, help="folder of the other checkout")
    parser.add_argument("--rounds", type=int, default=5, help="processes of each (default: 5)")
    arguments = parser.parse_args()
    try:
        rows = compare(_OURS, arguments.other, arguments.rounds)
    except UserError as error:
        sys.exit(str(error))
    header = ("What", f"this ({name(_OURS)})", f"other ({name(arguments.other)})", "this / other")
    print("\n".join(f"| {' | '.join(row)} |" for row in (header, ("---", *["---:"] * 3), *rows)))


if __name__ == "__main__":
    main()
