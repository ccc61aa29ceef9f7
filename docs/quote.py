"""Numbers that the docs quote from runs: copies of the run's tables are kept with the docs and fill in the pages.

``python docs/quote.py --save RUN`` copies what the pages quote of a run from ``results/{run}`` into
``docs/snapshots/{run}``, with the run's config and manifest, and refills the pages. Without ``--save`` it refills them
from what was saved.

A quotation is text between two comments. The first one holds a YAML mapping that says what the text is made of:

A table of rows and columns of a CSV file, cells as Python format strings over its columns::

    <!-- quote
    table: quick/test.csv
    where: method == "infllm"
    columns:
      Setting: "{setting}"
      CAS %: "{cas_pct:.1f} [{cas_pct_low:.1f}, {cas_pct_high:.1f}]"
    -->
    <!-- /quote -->

One figure within a sentence, of the one row that is meant::

    <!-- quote {table: quick/test.csv, where: 'setting == "K=8"', text: "{cas_pct:.1f}"} -->58.8<!-- /quote -->

The first paragraph of a Markdown file behind its heading::

    <!-- quote {paragraph: quick/verdict.md} -->
    <!-- /quote -->

What is known of GPUs: a sentence on which have run ``bench/gpu.py``, or a table of what they were held to, from the
files that were saved as ``docs/snapshots/gpu/*.json``::

    <!-- quote {gpu: sentence} -->**No GPU has run this code yet.**<!-- /quote -->

The list of the paper's tables, ``data/paper_tables.yaml``::

    <!-- quote {paper: tables} -->
    <!-- /quote -->

``only: {column: [value, ...]}`` keeps the rows with one of these values. Each value must occur. ``where`` is an
expression of :meth:`pandas.DataFrame.query`, and ``derive`` a mapping of new columns to expressions of
:meth:`pandas.DataFrame.eval`. With ``across: set``, rows of equal ``row`` (a list of columns) are one row, whose other
columns are named after the row's set: ``{score QA-4k}``. What a run has no figure for is a dash.
"""

import argparse
import io
import json
import re
import shutil
import string
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from utaca.errors import UserError
from utaca.records import atomic_path
from utaca.reporting.paper_tables import listed
from utaca.reporting.render import MISSING

SNAPSHOTS = Path("docs") / "snapshots"
# Where in a run's results a quoted file may lie.
FOLDERS = ("tables", "figures", "reader", "")
# Runs of bench/gpu.py, a file each.
GPUS = "gpu"
# What tells of a saved run how it was made.
ABOUT = ("run.yaml", "manifest.json")

_QUOTE = re.compile(r"(<!-- quote\b(.*?)-->)(.*?)(<!-- /quote -->)", re.DOTALL)
_LINK = re.compile(r"\]\([^)\s]*?\bsnapshots/([^)\s#]+)\)")


def pages(root: Path) -> list[Path]:
    """The Markdown pages that may quote: those of the project's front and of ``docs``."""
    return sorted([*root.glob("*.md"), *(root / "docs").glob("*.md")])


def quoted(text: str) -> set[str]:
    """Files of snapshots that a page is made of, ``{run}/{file}``: tables, texts, and figures that it links."""
    settings = [_settings(match) for match in _QUOTE.finditer(text)]
    return {_source(each) for each in settings if not each.keys() & {"gpu", "paper"}} | set(_LINK.findall(text))


def refill(text: str, snapshots: Path) -> str:
    """A page with every quotation filled in from ``snapshots``.

    Raises :class:`UserError` if a quotation is malformed, or a file, column or row of it is missing.
    """
    return _QUOTE.sub(lambda match: match[1] + _render(_settings(match), snapshots) + match[4], text)


def save(run: str, root: Path) -> list[Path]:
    """Copy what the pages quote of a run from its results to the snapshots, and what says how it was made.

    Returns the copies. Raises :class:`UserError` if the run has no such file, or no page quotes it.
    """
    every: dict[str, set[str]] = {}
    for page in pages(root):
        for name in quoted(page.read_text(encoding="utf-8")):
            every.setdefault(name.partition("/")[0], set()).add(name.partition("/")[2])
    if run not in every:
        raise UserError(f"no page quotes the run {run}; name one of {', '.join(sorted(every))}.")
    names = sorted(every[run])
    source, copies = root / "results" / run, []
    for name in [*names, *ABOUT]:
        found = next((path for folder in FOLDERS if (path := source / folder / name).is_file()), None)
        if found is not None:
            copies.append(root / SNAPSHOTS / run / name)
            with atomic_path(copies[-1]) as scratch:
                shutil.copyfile(found, scratch)
        elif name in names:
            raise UserError(f"{source} has no {name}, which the docs quote; make the run first.")
    return copies


def _settings(match: re.Match[str]) -> dict[str, Any]:
    try:
        settings = yaml.safe_load(match[2])
    except yaml.YAMLError as error:
        raise UserError(f"a quotation is not YAML: {match[1]!r}: {error}") from error
    if not isinstance(settings, dict) or not settings.keys() & {"table", "paragraph", "gpu", "paper"}:
        raise UserError(f"a quotation names no table and no paragraph, and is not of gpu or paper: {match[1]!r}")
    if settings.get("gpu", "table") not in ("table", "sentence"):
        raise UserError(f"of gpu, table or sentence can be quoted: {match[1]!r}")
    if settings.get("paper", "tables") != "tables":
        raise UserError(f"of paper, tables can be quoted: {match[1]!r}")
    return settings


def _source(settings: Mapping[str, Any]) -> str:
    return str(settings.get("table") or settings["paragraph"])


def _render(settings: Mapping[str, Any], snapshots: Path) -> str:
    if "gpu" in settings:
        runs = [_gpu_run(path) for path in sorted((snapshots / GPUS).glob("*.json"))]
        return _gpus(runs) if settings["gpu"] == "sentence" else _bars(runs)
    if "paper" in settings:
        return _paper_tables()
    name = _source(settings)
    path = snapshots / name
    if not path.is_file():
        raise UserError(f"{path} does not exist; save it by: make snapshot RUN={path.parent.name}")
    if "paragraph" in settings:
        paragraphs = path.read_text(encoding="utf-8").split("\n\n")
        return "\n\n" + next(each.strip() for each in paragraphs if not each.startswith("#")) + "\n\n"
    rows = _rows(path, settings)
    if "text" in settings:
        if len(rows) != 1:
            raise UserError(f"{name}: {settings.get('where')!r} is true of {len(rows)} rows, not of one.")
        return _cell(settings["text"], rows[0], name)
    cells = settings["columns"]
    numeric = ["{" in cell and ":" in cell for cell in cells.values()]
    lines = [list(cells), ["---:" if right else "---" for right in numeric]]
    lines += [[_cell(cell, row, name) for cell in cells.values()] for row in rows]
    return "\n\n" + "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n\n"


def _gpu_run(path: Path) -> dict[str, Any]:
    """A report of ``bench/gpu.py``; raises :class:`UserError` if it is not one, or if the run measured no GPU."""
    try:
        run = json.loads(path.read_text(encoding="utf-8"))
        card, bars = run["machine"]["card"], run["bars"]
        measured = any(part["status"] == "done" for part in run["parts"].values())
        cells = [bar[name] for bar in bars for name in ("bar", "wanted", "measured", "met")]
        started = run["started"][:10]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"{path} is not a report of bench/gpu.py ({error!r}); run it again, or remove the file."
        ) from error
    if run.get("small") or not card or not measured:
        raise UserError(f"{path} is a report of a run that measured no GPU; remove the file.")
    return {"card": card.replace("|", "/"), "started": started, "cells": [cell.replace("|", "/") for cell in cells]}


def _gpus(runs: Sequence[Mapping[str, Any]]) -> str:
    """A sentence on the GPUs that have run ``bench/gpu.py``."""
    if not runs:
        return "**No GPU has run this code yet.**"
    cards = [f"one {run['card']} ({run['started']})" for run in runs]
    return f"`bench/gpu.py` has run on {' and on '.join(cards)}."


def _bars(runs: Sequence[Mapping[str, Any]]) -> str:
    """What each GPU was held to and what it reached, as a table."""
    if not runs:
        return "\n\nNo GPU has run it yet, so there are no figures.\n\n"
    lines = ["| GPU | bar | wanted | measured | met |", "| --- | --- | ---: | ---: | --- |"]
    for run in runs:
        for first in range(0, len(run["cells"]), 4):
            lines.append(f"| {' | '.join([run['card'], *run['cells'][first : first + 4]])} |")
    return "\n\n" + "\n".join(lines) + "\n\n"


def _paper_tables() -> str:
    """The paper's tables, what shows them here, what was run and whether they agree, as a table."""
    lines = ["| paper | here | run so far | agrees? |", "| --- | --- | --- | --- |"]
    for table in listed():
        here = ", ".join(f"`{target}`" for target in table.targets)
        lines.append(f"| {' | '.join([table.title, here, table.run, table.agrees or MISSING])} |")
    return "\n\n" + "\n".join(lines) + "\n\n"


def _rows(path: Path, settings: Mapping[str, Any]) -> list[dict[str, Any]]:
    frame, where, derive = pd.read_csv(path), settings.get("where"), settings.get("derive", {})
    for column, values in settings.get("only", {}).items():
        if column not in frame:
            raise UserError(f"{path} has no column {column}; its columns are {', '.join(frame)}.")
        if absent := set(values) - set(frame[column]):
            raise UserError(f"{path}: column {column} has no {', '.join(sorted(absent))}.")
        frame = frame[frame[column].isin(values)]
    try:
        for column, expression in derive.items():
            derived = frame.eval(expression, engine="python")
            frame = pd.concat([frame, derived.rename(column)], axis=1)
        if where:
            frame = frame.query(where, engine="python")
        if "across" in settings:
            frame = frame.set_index([*settings["row"], settings["across"]]).unstack(sort=False)
            frame.columns = [" ".join(pair) for pair in frame.columns]
            frame = frame.reset_index()
    except Exception as error:  # whatever the expression raises
        raise UserError(f"{path}: {where or derive!r} cannot be looked up: {error}") from error
    if frame.empty:
        raise UserError(f"{path} has no row where {where!r}.")
    return frame.to_dict("records")


class _Formatter(string.Formatter):
    """Format strings in which a missing figure is a dash, whatever its format."""

    def format_field(self, value: Any, format_spec: str) -> str:
        return MISSING if pd.isna(value) else super().format_field(value, format_spec)


def _cell(text: str, row: Mapping[str, Any], name: str) -> str:
    try:
        cell = _Formatter().vformat(str(text), (), row)
    except (KeyError, ValueError) as error:
        columns = ", ".join(map(str, row))
        raise UserError(f"{name}: {text!r} cannot be filled in: {error}; its columns are {columns}.") from error
    # An interval of nothing is nothing.
    return cell.replace(f" [{MISSING}, {MISSING}]", "").replace("|", "\\|")


def main(arguments: Sequence[str] | None = None, root: Path | None = None) -> None:
    """Entry point."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    parser = argparse.ArgumentParser(prog="python docs/quote.py", description=__doc__.partition("\n")[0])
    parser.add_argument("--save", metavar="RUN", help="first copy what the pages quote of a run from results/RUN")
    asked = parser.parse_args(arguments)
    root = root or Path.cwd()
    if asked.save:
        for path in save(asked.save, root):
            print(f"saved {path.relative_to(root)}")
    for page in pages(root):
        text = page.read_text(encoding="utf-8")
        filled = refill(text, root / SNAPSHOTS)
        if filled != text:
            page.write_text(filled, encoding="utf-8")
            print(f"refilled {page.relative_to(root)}")


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        sys.exit(f"Error: {error}")
