"""How many answers a second the answer store keeps and finds again: ``python -m utaca.benchmarks.store [PLACE ...]``.

A place is a new file, or the URL of an empty database, as the config key ``answers`` names them; the answers stay
there. Without any, a file in a temporary folder is measured.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from utaca.endpoints.store import Store, digest
from utaca.terminal import print_any_letter

ANSWERS = 2000
# As long as a judge's request and its answer.
_REQUEST, _ANSWER = 3000, 1000


def measure(place: str, answers: int = ANSWERS) -> tuple[float, float]:
    """Answers a second written and read, one after another, by one process."""
    requests = [f"{number} " + "x" * _REQUEST for number in range(answers)]
    answer = {"choices": [{"message": {"content": "y" * _ANSWER}}]}
    with Store(Path(place) if "://" not in place else place) as store:
        started = time.perf_counter()
        for request in requests:
            store.put(request, "benchmark", answer, (1, 1), 0.1)
        written = time.perf_counter()
        if any(store.get(digest(request)) != answer for request in requests):
            raise RuntimeError(f"{place} lost an answer")
        return answers / (written - started), answers / (time.perf_counter() - written)


def main(arguments: Sequence[str] | None = None) -> None:
    print_any_letter()
    parser = argparse.ArgumentParser(prog="python -m utaca.benchmarks.store", description=__doc__.partition("\n")[0])
    parser.add_argument("places", nargs="*", metavar="PLACE", help="a new file, or the URL of an empty database")
    given = parser.parse_args(arguments)
    with TemporaryDirectory() as folder:
        for place in given.places or [str(Path(folder) / "answers.sqlite")]:
            written, read = measure(place)
            print(f"{place}: {written:,.0f} answers a second written, {read:,.0f} read")


if __name__ == "__main__":
    main()
