"""What there is to run: ``python -m utaca`` lists commands and targets of the workflow."""

from __future__ import annotations

import argparse
import ast
import re
from collections.abc import Sequence
from pathlib import Path

TARGETS = {
    "results/tables": "the whole run: tables, figures and the report; the default",
    "biographies": "people, facts and their prose",
    "corpus": "the padding prose",
    "documents": "biographies padded to the scale's lengths",
    "trajectories": "answers under compact budgets, every token with its signals",
    "labels": "each of their tokens as correct, hallucinated or unknown",
    "detectors": "every variant of the detector, all seeds",
    "detections": "the detectors' verdicts on the test trajectories",
    "generations": "answers at the operating points",
    "scores": "the judge's scores of them",
    "tasks": "benchmarks of other domains, where points answer them",
    "traces": "answers token by token, as pages",
    "tables": "as results/tables",
    "readers": "the run's reader, fetched to this machine before jobs need it",
    "results/{run}/tables/{table}.csv": "one table, and what it needs",
}
"""What ``snakemake --cores all`` makes."""


def commands() -> dict[str, str]:
    """Modules of the package that have a command line, by name, each with the first sentence of its docstring."""
    folder = Path(__file__).parent
    found = {}
    for path in sorted(folder.rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        if path != Path(__file__) and 'if __name__ == "__main__":' in source and "ArgumentParser(" in source:
            name = ".".join(("utaca", *path.relative_to(folder).with_suffix("").parts)).removesuffix(".__main__")
            found[name] = _first_sentence(ast.get_docstring(ast.parse(source)) or "")
    return found


def _first_sentence(docstring: str) -> str:
    """Without the command itself, which many a docstring names after a colon."""
    line = re.sub(r":? ``python -m .*?``", "", " ".join(docstring.partition("\n\n")[0].split()))
    return line.partition(". ")[0].rstrip(".")


def main(arguments: Sequence[str] | None = None) -> None:
    argparse.ArgumentParser(prog="python -m utaca", description="List what there is to run.").parse_args(arguments)
    print("Commands; --help says more of each:\n")
    _print({f"python -m {name}": said for name, said in commands().items()})
    print("\nTargets, in a checkout: snakemake --cores all TARGET ... [--config KEY=VALUE ...]\n")
    _print(TARGETS)


def _print(rows: dict[str, str]) -> None:
    width = max(map(len, rows))
    for name, said in rows.items():
        print(f"  {name:<{width}}  {said}")


if __name__ == "__main__":
    main()
