"""Write numbers as texts, and tables of texts as Markdown and LaTeX (booktabs)."""

import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from utaca.reporting.registry import data

MISSING = "–"
"""The dash of a cell without a value."""

_NUMBER = re.compile(r"[†<>≤≥]?\s?[-−+]?\d[\d.,]*(?:e[-+]?\d+)?\s?%?(?:\s(?:±|→)\s[-−]?\d[\d.,]*|\s?\[[^\]]*\])?|†?–")
"""A cell of a number: as in "12.3", "† 45 %", "12.3 ± 0.4", "379.4 → 367.8", "12.3 [11.0, 13.9]", or a dash."""

_LONG = 60
"""A column of a LaTeX table breaks its lines if a cell has more characters than this."""

Cell = tuple[int, int]
"""A cell of a table: the numbers of its row and of its column, from 0."""

_LATEX = str.maketrans(data("names.yaml")["latex"])


def number(value: object, digits: int) -> str:
    """A figure rounded to ``digits`` decimals, or a dash if it is missing."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return MISSING
    return f"{float(value):.{digits}f}"  # type: ignore[arg-type]


def text(value: object) -> str:
    """Any value as a cell: a boolean as "yes" or "no", a float to ten digits, a missing value as a dash."""
    if isinstance(value, bool | np.bool_):
        return "yes" if value else "no"
    if value is None or value is pd.NA or value == "" or (isinstance(value, float) and math.isnan(value)):
        return MISSING
    return f"{value:.10g}" if isinstance(value, float) else str(value)


def bracketed(value: object, low: object, high: object, digits: int) -> str:
    """A figure with its interval, as in ``12.3 [11.0, 13.9]``, or only the figure if it has no interval."""
    # NaN limits, which `number` shows as dashes: there is no interval.
    figure = number(value, digits)
    lower = number(low, digits)
    upper = number(high, digits)
    return figure if MISSING in (lower, upper) else f"{figure} [{lower}, {upper}]"


def with_interval(row: Mapping[str, Any], column: str, digits: int) -> str:
    """A figure of a row with its interval or, if it has none, with its standard deviation, as in ``12.3 ± 0.4``.

    Interval and deviation are the columns ``{column}_low``, ``{column}_high`` and ``{column}_sd`` of the row, which it
    may lack.
    """
    cell = bracketed(row[column], row.get(f"{column}_low"), row.get(f"{column}_high"), digits)
    sd = number(row.get(f"{column}_sd"), digits)
    has_interval = "[" in cell
    return cell if has_interval or sd == MISSING else f"{cell} ± {sd}"


def digits_of(widths: Iterable[float], most: int) -> int:
    """Decimals that the intervals of a column justify: two significant digits of their median half width.

    ``widths`` are the half widths of the intervals, NaN if there is none. ``most`` is the largest result, and the
    result if no interval has a width.
    """
    known = [width for width in widths if width > 0]
    if not known:
        return most
    return min(most, max(0, 1 - math.floor(math.log10(np.median(known)))))


def numeric(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[bool]:
    """Whether each column of a table of cells is numeric, and so aligned right.

    In a numeric column, all cells are numbers, dashes or empty, and at least one is a number.
    """
    result = []
    for place in range(len(header)):
        cells = [row[place] for row in rows if row[place]]
        are_numbers = all(_NUMBER.fullmatch(cell) for cell in cells)
        result.append(are_numbers and any(cell != MISSING for cell in cells))
    return result


def markdown(
    title: str,
    caption: str,
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    lead: str = "",
    whole: tuple[Sequence[str], Sequence[Sequence[str]], str] | None = None,
    best: Collection[Cell] = (),
    whole_best: Collection[Cell] = (),
) -> str:
    """Write a heading, ``lead``, a table and its caption as Markdown.

    Each line of ``lead`` and ``caption`` becomes a paragraph. ``whole`` has header, rows and notes of the same table
    with all columns, which is shown folded; None if the table shows all columns. The cells ``best`` of the table and
    ``whole_best`` of the folded one are bold.
    """
    blocks = [f"## {title}", *lead.splitlines(), grid(header, rows, best), *caption.splitlines()]
    if whole is not None:
        whole_header, whole_rows, notes = whole
        summary = f"<details><summary>All {len(whole_header)} columns</summary>"
        blocks += [summary, grid(whole_header, whole_rows, whole_best), *notes.splitlines(), "</details>"]
    return "\n\n".join(blocks) + "\n"


def grid(header: Sequence[str], rows: Sequence[Sequence[str]], best: Collection[Cell] = ()) -> str:
    """Write a header and rows of cells as a Markdown table; numeric columns are aligned right, ``best`` cells bold."""
    rule = ["---:" if right else "---" for right in numeric(header, rows)]
    lines = []
    for cells in (header, rule, *_marked(rows, best, "**{}**")):
        escaped = [cell.replace("|", "\\|").replace("\n", " ") for cell in cells]
        lines.append(f"| {' | '.join(escaped)} |")
    return "\n".join(lines)


def _marked(rows: Sequence[Sequence[str]], best: Collection[Cell], mark: str) -> list[list[str]]:
    """Rows of cells in which the ``best`` ones are put into ``mark``, a format with one field."""
    marked = [list(row) for row in rows]
    for row, place in best:
        marked[row][place] = mark.format(marked[row][place])
    return marked


def escape(text: str) -> str:
    """Escape a text for LaTeX."""
    return text.translate(_LATEX).replace(r"K\_max", r"$K_{\max}$")


def latex(
    name: str,
    caption: str,
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    best: Collection[Cell] = (),
) -> str:
    """Write a table as LaTeX's ``table*``, as wide as the text, with the label ``tab:{name}``; ``best`` cells are bold.

    It needs the LaTeX packages booktabs and graphicx.
    """
    escaped = [[escape(cell) for cell in row] for row in rows]
    # The braces of the mark are doubled, because it is a format.
    cells = _marked(escaped, best, r"\textbf{{{}}}")
    frame = pd.DataFrame(cells, columns=[escape(title) for title in header])
    formats = []
    for place, is_numeric in enumerate(numeric(header, rows)):
        is_long = any(len(row[place]) > _LONG for row in rows)
        if is_long:
            formats.append(r"p{0.4\textwidth}")
        else:
            formats.append("r" if is_numeric else "l")
    text = frame.style.hide(axis="index").to_latex(
        column_format="".join(formats),
        hrules=True,
        caption=escape(caption),
        label=f"tab:{name}",
        environment="table*",
        position_float="centering",
    )
    # `table*` is as wide as two columns of text; the table inside is scaled to that width.
    wide = text.replace(r"\begin{tabular}", r"\resizebox{\textwidth}{!}{\begin{tabular}")
    return wide.replace(r"\end{tabular}", r"\end{tabular}}")
