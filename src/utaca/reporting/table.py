"""Make tables and write their files: CSV (all figures, to six digits), Markdown, LaTeX, and JSON for pages.

In the CSV files ``*_pct`` are percentages, ``*_low`` and ``*_high`` the limits of the 95 % interval, ``*_sd`` the
standard deviation over detector seeds, ``paper_*`` the paper's figures; tokens, seconds and GiB as named. Each column
that is shown has its title, decimals and meaning in ``columns.yaml``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from importlib import import_module
from io import StringIO
from pathlib import Path
from typing import Any

import pandas as pd

from utaca.records import atomic_path
from utaca.records.tables import reading
from utaca.reporting import paper, render
from utaca.reporting.registry import ENTRIES, Files, TableEntry, data
from utaca.reporting.results import label_in_words
from utaca.reporting.statistics import Row
from utaca.reporting.words import endpoint_in_words, intervals_in_words, run_in_words, seeds_in_words
from utaca.settings import schema

NOT_RUN = "not run"
_NOT_ZERO = re.compile(r"[1-9]")
"""A digit of a figure other than 0."""


def framed(rows: Sequence[Row] | pd.DataFrame, n_documents: int = 0, seeds: str = "", **words: object) -> pd.DataFrame:
    """Make the frame of a table from its ``rows``, with what :meth:`Table.of` needs for its texts.

    The caption says that the table is over ``n_documents`` documents and which ``seeds`` ("": the config's). ``words``
    fill the fields in braces of caption and notes. Two of them have a meaning of their own: ``reader`` is the paper's
    reader whose figures the table shows, and ``lead`` a text above the table.
    """
    frame = pd.DataFrame(rows)
    frame.attrs = {"n_documents": n_documents, "seeds": seeds, **words}
    return frame


@dataclass(frozen=True)
class Column:
    """A column of a table, as ``columns.yaml`` declares it.

    ``digits`` are a figure's decimals; None for texts and counts. ``interval``: a figure is shown with its interval.
    ``cell`` names a special form in :data:`CELLS`; "" means a text or a number. ``folded``: the column is shown only
    with all columns.
    """

    title: str
    meaning: str = ""
    digits: int | None = None
    interval: bool = True
    cell: str = ""
    folded: bool = False

    def show(self, row: Mapping[str, Any], name: str, config: schema.Config) -> str:
        """Write a row's cell of this column, which is called ``name`` in the row."""
        if self.cell:
            return CELLS[self.cell](row, name, config)
        if self.digits is None:
            return render.text(row[name])
        if self.interval:
            return render.with_interval(row, name, self.digits)
        return render.number(row[name], self.digits)


@cache
def columns() -> dict[str, Column]:
    """All columns of ``columns.yaml``, by their names in the CSV files."""
    return {name: Column(**fields) for name, fields in data("columns.yaml").items()}


def columns_of(entry: TableEntry) -> dict[str, Column]:
    """The columns of a declared table, by name, with the changes that the table makes to ``columns.yaml``.

    A column that is not in ``columns.yaml`` has its name as its title.
    """
    result = {}
    for declared, name in zip(entry.columns, entry.names, strict=True):
        changes = entry.columns_here.get(name, {})
        is_folded = declared != name  # declared as "+name"
        result[name] = replace(columns().get(name, Column(name)), folded=is_folded, **changes)
    return result


def _before_and_after(row: Mapping[str, Any], name: str) -> str:
    """The figures ``{name}_before`` and ``{name}_after`` of a row, as in ``379.4 → 367.8``.

    A dash if both are missing.
    """
    before = render.number(row[f"{name}_before"], 1)
    after = render.number(row[f"{name}_after"], 1)
    return render.MISSING if before == after == render.MISSING else f"{before} → {after}"


def _token(row: Mapping[str, Any], name: str) -> str:
    """A token in quotes, without the spaces around it; a dash if there is none."""
    return f"“{row[name].strip()}”" if row[name] else render.MISSING


def _with_dagger(row: Mapping[str, Any], name: str) -> str:
    """A figure of the paper, after a dagger if the paper leaves out samples on which the method fails."""
    dagger = "†" if row["paper_excluded"] else ""
    return dagger + render.number(row[name], 2)


def _out_of(number: float, whole: float) -> str:
    """A number and the whole that it is a part of, as in "5/6" or "4.5/6"; a dash if the number is missing."""
    if pd.isna(number):
        return render.MISSING
    part = f"{number:.1f}".removesuffix(".0")
    total = f"{whole:.1f}".removesuffix(".0")
    return f"{part}/{total}"


def _with_not_run(row: Mapping[str, Any], name: str) -> str:
    """The detector's name in a row, with a remark if the detector was not run."""
    return row[name] if row["run"] else f"{row[name]} ({NOT_RUN})"


CELLS: dict[str, Callable[[Mapping[str, Any], str, schema.Config], str]] = {
    "change": lambda row, name, _: _before_and_after(row, name),
    "token": lambda row, name, _: _token(row, name),
    "dagger": lambda row, name, _: _with_dagger(row, name),
    "endpoint": lambda row, _, config: endpoint_in_words(getattr(config, row["role"])),
    "of_scored": lambda row, name, _: _out_of(row[name], row["n_scored"]),
    "point": lambda row, name, config: label_in_words(row[name], config),
    "ran": lambda row, name, _: _with_not_run(row, name),
}
"""Cells of a special form, by the name that ``columns.yaml`` gives the form: each makes the text from the row, the
column's name and the config. ``endpoint`` is the endpoint of the row's role, ``of_scored`` a number of the attributes
that a person scored, ``point`` the name of the operating point that files call by this label."""


@dataclass(frozen=True)
class Table:
    """A table and its texts, from which its files are written.

    ``frame`` has all figures, ``columns`` the columns that are shown, by name. ``lead`` stands above the table,
    ``caption`` and then ``run`` (on what was run) below it; ``notes`` stand below the table with all columns. Each line
    of these texts is a paragraph. ``best`` has the rows with the best value of a column, by the column's name.
    """

    name: str
    title: str
    caption: str
    frame: pd.DataFrame
    columns: Mapping[str, Column]
    config: schema.Config
    lead: str = ""
    run: str = ""
    notes: str = ""
    best: Mapping[str, Collection[int]] = field(default_factory=dict)

    @classmethod
    def of(cls, name: str, frame: pd.DataFrame, config: schema.Config) -> Table:
        """Make the table ``name`` from ``frame``, which the table's function made by :func:`framed`.

        Columns that are empty in every row are left out.
        """
        entry = ENTRIES[name]
        words = {"reader": paper.LLAMA, "run": config.run, **frame.attrs}
        rows = frame.to_dict("records")
        shown = {}
        for column_name, column in columns_of(entry).items():
            cells = {column.show(row, column_name, config) for row in rows}
            # A table without rows keeps its columns, as a header.
            if not rows or cells - {"", render.MISSING}:
                shown[column_name] = _with_digits(column, column_name, frame)
        best = _best(entry, shown, frame)
        caption = _filled(entry.caption, words)
        if best:
            oracle = ", without the agreement oracle" if "agreement" in set(frame.get("family", ())) else ""
            caption += f" Bold: the best value of a column{oracle}."
        if any(column_name.startswith("paper_") for column_name in shown):
            reader = words["reader"]
            model = "the same model" if reader == config.reader.name else "a different model"
            caption += f" Columns 'paper' have the paper's figures with {paper.NAMES[reader]}: {model}, other data."
        run = ""
        if entry.role:
            seeds = words["seeds"] or seeds_in_words(config)
            parts = [run_in_words(config, entry.role), f"{words['n_documents']} documents", seeds]
            run = "; ".join([*parts, intervals_in_words(config)])
        notes = "\n".join(_filled(line, words) for line in entry.notes.splitlines())
        return cls(name, entry.title, caption, frame, shown, config, words.get("lead", ""), run, notes, best)

    def cells(self, *, folded: bool = True) -> tuple[list[str], list[list[str]]]:
        """The titles of the columns, and the rows of cells as texts; ``folded=False`` leaves out folded columns."""
        shown = {name: column for name, column in self.columns.items() if folded or not column.folded}
        titles = [column.title for column in shown.values()]
        rows = []
        for row in self.frame.to_dict("records"):
            rows.append([column.show(row, name, self.config) for name, column in shown.items()])
        return titles, rows

    def best_cells(self, *, folded: bool = True) -> list[render.Cell]:
        """The cells, by row and column of :meth:`cells`, that have the best value of their column."""
        shown = [name for name, column in self.columns.items() if folded or not column.folded]
        return [(row, place) for place, name in enumerate(shown) for row in self.best.get(name, ())]

    def content(self) -> Content:
        """The table as pages show it."""
        titles, rows = self.cells()
        numeric = render.numeric(titles, rows)
        columns = []
        for place, (name, column) in enumerate(self.columns.items()):
            is_paper = name.startswith("paper_")
            best = sorted(self.best.get(name, ()))
            columns.append(ShownColumn(column.title, column.meaning, numeric[place], column.folded, is_paper, best))
        texts = (self.lead.splitlines(), self.caption.splitlines(), self.run, self.notes.splitlines())
        return Content(self.title, columns, rows, *texts)


@dataclass(frozen=True)
class ShownColumn:
    """A column as pages show it.

    A ``numeric`` column is aligned right, a ``folded`` one is shown only among all columns, and a ``paper`` one has
    figures of the paper. The rows ``best`` have the column's best value.
    """

    title: str
    meaning: str = ""
    numeric: bool = False
    folded: bool = False
    paper: bool = False
    best: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Content:
    """A table as pages show it: all its columns, the rows of cells as texts, and the paragraphs of its texts.

    The texts are those of :class:`Table`, as lists of paragraphs.
    """

    title: str
    columns: list[ShownColumn]
    rows: list[list[str]]
    lead: list[str] = field(default_factory=list)
    caption: list[str] = field(default_factory=list)
    run: str = ""
    notes: list[str] = field(default_factory=list)

    @property
    def empty(self) -> bool:
        """Whether the run has no figure but 0 in the table; the first column and the paper's columns do not count."""
        return not any(self._has_figure(row, paper=False) for row in self.rows)

    @property
    def of_paper(self) -> list[int]:
        """The numbers (from 0) of the rows that have figures of the paper and none of the run."""
        numbers = []
        for number, row in enumerate(self.rows):
            if self._has_figure(row, paper=True) and not self._has_figure(row, paper=False):
                numbers.append(number)
        return numbers

    def _has_figure(self, row: Sequence[str], *, paper: bool) -> bool:
        """Whether a row has a figure but 0 in the paper's columns, or in the others but the first."""
        cells = [row[place] for place, column in enumerate(self.columns) if place and column.paper == paper]
        return any(_NOT_ZERO.search(cell) for cell in cells)

    def places(self, *, folded: bool) -> list[int]:
        """The numbers (from 0) of the columns that are shown, with or without the folded ones."""
        return [place for place, column in enumerate(self.columns) if folded or not column.folded]

    def json(self) -> str:
        """The text of the JSON file that pages read."""
        return json.dumps(asdict(self), ensure_ascii=False, indent=1) + "\n"


def read_content(path: str | Path) -> Content:
    """Read a table's JSON file; raises :class:`UserError` if it is missing or cut off."""
    text = whole_text(path, "}\n")
    with reading(path, "table or figure"):
        fields = json.loads(text)
        try:
            columns = [ShownColumn(**column) for column in fields["columns"]]
            return Content(**fields | {"columns": columns})
        except TypeError as error:  # a key too few or too many
            raise ValueError(error) from error


def _with_digits(column: Column, name: str, frame: pd.DataFrame) -> Column:
    """A column with as many decimals as its intervals, or else its standard deviations, justify.

    It has no more decimals than declared.
    """
    if column.digits is None or column.cell or not column.interval:
        return column
    widths = pd.Series(dtype=float)
    if f"{name}_low" in frame:
        widths = (frame[f"{name}_high"] - frame[f"{name}_low"]) / 2
    elif f"{name}_sd" in frame:
        widths = frame[f"{name}_sd"]
    return replace(column, digits=render.digits_of(widths.astype(float), column.digits))


def _best(entry: TableEntry, shown: Mapping[str, Column], frame: pd.DataFrame) -> dict[str, list[int]]:
    """The rows with the best value of each column that the table declares so, by the column's name.

    Values that look alike are equally good. Rows of the agreement oracle do not count, because it needs both passes for
    every token. A column with fewer than two values has no best one.
    """
    frame = frame.reset_index(drop=True)
    competes = frame["family"] != "agreement" if "family" in frame else pd.Series(True, index=frame.index)
    rows = frame.to_dict("records")
    result = {}
    for declared in entry.best:
        name = declared.removeprefix("-")
        if name not in shown:
            continue
        values = frame[name].astype(float)[competes].dropna()
        if len(values) < 2:
            continue
        best = values.idxmin() if declared != name else values.idxmax()
        digits = shown[name].digits
        assert digits is not None, f"{name} is declared as best, but has no decimals"
        looks = render.number(values[best], digits)
        result[name] = [place for place in values.index if render.number(rows[place][name], digits) == looks]
    return result


def _filled(text: str, words: Mapping[str, Any]) -> str:
    """Fill the fields in braces of a text with ``words``, and make a single line of it."""
    return " ".join(text.format(**words).split())


def make(name: str, inputs: Files, config: schema.Config, folder: str | Path) -> None:
    """Make a table or figure from ``inputs`` and write its files into ``folder``.

    A figure is drawn from the frame of its ``source``, or without one from a table's CSV file, its only input.
    """
    entry = ENTRIES[name]
    function = _function(entry.maker)
    if entry.kind == "table":
        # A function that makes several tables is given the name of the table to make.
        names = [] if name == entry.function else [name]
        frame = function(inputs, config, *names)
        save(Table.of(name, frame, config), folder)
    else:
        if entry.source:
            frame = _function(entry.source)(inputs, config)
        else:
            ((path,),) = inputs.values()
            frame = read_frame(path)
        _write(Path(folder) / f"{name}.csv", _csv(frame))
        function(frame, folder, config)


def _function(maker: str) -> Callable[..., Any]:
    """The function that a declaration names as "module.function", of a module of ``tables``."""
    module, _, function = maker.partition(".")
    return getattr(import_module(f"{__package__}.tables.{module}"), function)


def save(table: Table, folder: str | Path) -> list[Path]:
    """Write ``{name}.csv``, ``.md``, ``.tex`` and, for pages, ``.json`` into a folder; return their paths."""
    header, rows = table.cells(folded=False)
    has_folded = any(column.folded for column in table.columns.values())
    # Markdown also shows all columns, folded away; LaTeX has no such form, and the CSV file always has all columns.
    whole = (*table.cells(), table.notes) if has_folded else None
    caption = "\n".join(filter(None, [table.caption, table.run]))
    texts = {
        "csv": _csv(table.frame),
        "md": render.markdown(
            table.title,
            caption,
            header,
            rows,
            lead=table.lead,
            whole=whole,
            best=table.best_cells(folded=False),
            whole_best=table.best_cells(),
        ),
        "tex": render.latex(table.name, caption, header, rows, table.best_cells(folded=False)),
        "json": table.content().json(),
    }
    return [_write(Path(folder) / f"{table.name}.{extension}", text) for extension, text in texts.items()]


def read_frame(path: str | Path) -> pd.DataFrame:
    """Read a table's CSV file; empty cells of text columns become "". Raises :class:`UserError` if it is cut off."""
    # pandas reads a column that is empty in every row as numbers; these may be, and hold texts.
    texts = dict.fromkeys(("note", "over", "policy", "variant"), object)
    frame = pd.read_csv(StringIO(whole_text(path)), dtype=texts)
    return frame.fillna({column: "" for column in frame.select_dtypes(exclude=["number", "bool"])})


def whole_text(path: str | Path, end: str = "\n") -> str:
    """Read the text of a file of a table or figure, which a whole file closes with ``end``.

    Raises :class:`UserError` if the file is missing or cut off.
    """
    with reading(path, "table or figure"):
        text = Path(path).read_text(encoding="utf-8")
        # White space after the end is not an error; but `end` itself may be white space, which rstrip takes off.
        if not text.endswith(end) and not text.rstrip().endswith(end):
            raise ValueError(f"it does not end in {end!r}")
    return text


def _csv(frame: pd.DataFrame) -> str:
    """The text of a table's CSV file."""
    return frame.to_csv(index=False, float_format="%.6g", lineterminator="\n")


def _write(path: Path, text: str) -> Path:
    """Write a file, which appears only when it is whole; return its path."""
    with atomic_path(path) as scratch:
        scratch.write_text(text, encoding="utf-8")
    return path
