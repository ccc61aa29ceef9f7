"""Tables of strings as Markdown and LaTeX (booktabs), and numbers as strings."""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from utaca.reporting.registry import data

MISSING = "–"

_NUMBER = re.compile(r"[†<>≤≥]?\s?[-−+]?\d[\d.,]*(?:e[-+]?\d+)?\s?%?(?:\s(?:±|→)\s[-−]?\d[\d.,]*|\s?\[[^\]]*\])?|†?–")

_LONG = 60
"""Characters of a cell above which a column of a LaTeX table breaks its lines."""

_LATEX = str.maketrans(data("names.yaml")["latex"])


def number(value: object, digits: int) -> str:
    """A figure rounded to ``digits`` decimals, or a dash if it is missing."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return MISSING
    return f"{float(value):.{digits}f}"  # type: ignore[arg-type]


def text(value: object) -> str:
    """A text, count or number as it is, "yes" or "no" for a boolean, or a dash if it is missing."""
    if isinstance(value, bool | np.bool_):
        return "yes" if value else "no"
    if value is None or value is pd.NA or value == "" or (isinstance(value, float) and math.isnan(value)):
        return MISSING
    return f"{value:.10g}" if isinstance(value, float) else str(value)


def bracketed(value: object, low: object, high: object, digits: int) -> str:
    """A figure with its interval, as in ``12.3 [11.0, 13.9]``, or only the figure if it has no interval."""
    figure = number(value, digits)
    lower = number(low, digits)
    upper = number(high, digits)
    return figure if MISSING in (lower, upper) else f"{figure} [{lower}, {upper}]"


def with_interval(row: Mapping[str, Any], column: str, digits: int) -> str:
    """A column of a row with its interval, or else with its standard deviation over seeds, as in ``12.3 ± 0.4``."""
    cell = bracketed(row[column], row.get(f"{column}_low"), row.get(f"{column}_high"), digits)
    sd = number(row.get(f"{column}_sd"), digits)
    return cell if sd == MISSING or "[" in cell else f"{cell} ± {sd}"


def numeric(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[bool]:
    """Whether each column is numeric (aligned right): all cells are numbers, dashes or empty, and one is a number."""
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
) -> str:
    """A heading, ``lead``, the table and its caption as Markdown; numeric columns are aligned right.

    Each line of ``lead`` and ``caption`` becomes a paragraph. ``whole`` has header, rows and notes of the table with
    all columns, which is shown folded.
    """
    blocks = [f"## {title}", *lead.splitlines(), grid(header, rows), *caption.splitlines()]
    if whole is not None:
        summary = f"<details><summary>All {len(whole[0])} columns</summary>"
        blocks += [summary, grid(*whole[:2]), *whole[2].splitlines(), "</details>"]
    return "\n\n".join(blocks) + "\n"


def grid(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Rows of cells as a Markdown table."""
    rule = ["---:" if right else "---" for right in numeric(header, rows)]
    lines = []
    for cells in (header, rule, *rows):
        escaped = [cell.replace("|", "\\|").replace("\n", " ") for cell in cells]
        lines.append(f"| {' | '.join(escaped)} |")
    return "\n".join(lines)


def escape(text: str) -> str:
    """Escape a text for LaTeX."""
    return text.translate(_LATEX).replace(r"K\_max", r"$K_{\max}$")


def latex(name: str, caption: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A ``table*`` as wide as the text, with label ``tab:{name}``; needs the LaTeX packages booktabs and graphicx."""
    frame = pd.DataFrame(rows, columns=list(header)).map(escape).rename(columns=escape)
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
    wide = text.replace(r"\begin{tabular}", r"\resizebox{\textwidth}{!}{\begin{tabular}")
    return wide.replace(r"\end{tabular}", r"\end{tabular}}")
