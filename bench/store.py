"""How many answers a second the answer store keeps and finds again: ``python bench/store.py [PLACE ...]``.

A place is a new file, or the URL of an empty database, as the config key ``answers`` names them; the answers stay
there. Without any, a file in a temporary folder is measured.
"""

import argparse
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from report import markdown

from utaca.endpoints.store import AnswerStore, digest

REQUEST, ANSWER = 3000, 1000
"""Letters of a request and its answer, about those of a judge's."""


def measure(place: str, answers: int) -> tuple[float, float]:
    """Answers a second written and read, one after another, by one process."""
    requests = [f"{number} " + "x" * REQUEST for number in range(answers)]
    answer = {"choices": [{"message": {"content": "y" * ANSWER}}]}
    with AnswerStore(place if "://" in place else Path(place)) as store:
        started = time.perf_counter()
        for request in requests:
            store.put(request, "bench", answer, (1, 1), 0.1)
        written = time.perf_counter()
        if any(store.get(digest(request)) != answer for request in requests):
            raise RuntimeError(f"{place} lost an answer")
        return answers / (written - started), answers / (time.perf_counter() - written)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python bench/store.py", description="Time the answer store.")
    parser.add_argument("places", nargs="*", metavar="PLACE", help="a new file, or the URL of an empty database")
    parser.add_argument("--answers", type=int, default=2000, help="answers written and read (%(default)s)")
    options = parser.parse_args(arguments)
    rows = []
    with TemporaryDirectory() as folder:
        for place in options.places or [str(Path(folder) / "answers.sqlite")]:
            written, read = measure(place, options.answers)
            rows.append((place if options.places else "a temporary file", f"{written:,.0f}", f"{read:,.0f}"))
    print(markdown(("AnswerStore", "Written a second", "Read a second"), rows))


if __name__ == "__main__":
    main()
