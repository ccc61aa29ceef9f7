"""Markdown and LaTeX (booktabs) of a table of strings, and numbers as strings."""

from __future__ import annotations

import math
from collections.abc import Sequence

MISSING = "–"

_LATEX = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "±": r"$\pm$",
    "–": "--",
    "−": "$-$",
    "→": r"$\rightarrow$",
    "\n": " ",
}


def number(value: object, digits: int) -> str:
    """A figure rounded to ``digits`` decimals; a dash where it is missing."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return MISSING
    return f"{float(value):.{digits}f}"  # type: ignore[arg-type]


def bracketed(value: object, low: object, high: object, digits: int) -> str:
    """A figure with its interval, ``12.3 [11.0, 13.9]``; the figure alone where it has no interval."""
    limits = number(low, digits), number(high, digits)
    return number(value, digits) if MISSING in limits else f"{number(value, digits)} [{limits[0]}, {limits[1]}]"


def spread(value: object, sd: object, digits: int) -> str:
    """A mean with its standard deviation, ``12.3 ± 0.4``."""
    return number(value, digits) if number(sd, digits) == MISSING else f"{number(value, digits)} ± {number(sd, digits)}"


def markdown(title: str, caption: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A heading, the table and its caption as Markdown; first column left, others right."""

    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"

    rule = "| " + " | ".join(["---", *["---:"] * (len(header) - 1)]) + " |"
    return "\n".join([f"## {title}", "", line(header), rule, *map(line, rows), "", caption, ""])


def escape(text: str) -> str:
    """``text`` such that LaTeX prints it."""
    return "".join(_LATEX.get(character, character) for character in text)


def latex(name: str, caption: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A ``table*`` as wide as the text, with booktabs rules, labelled ``tab:name``; needs booktabs and graphicx."""

    def line(cells: Sequence[str]) -> str:
        return "    " + " & ".join(map(escape, cells)) + r" \\"

    return "\n".join(
        [
            r"\begin{table*}",
            r"  \centering",
            r"  \resizebox{\textwidth}{!}{%",
            rf"  \begin{{tabular}}{{l{'r' * (len(header) - 1)}}}",
            r"    \toprule",
            line(header),
            r"    \midrule",
            *map(line, rows),
            r"    \bottomrule",
            r"  \end{tabular}}",
            rf"  \caption{{{escape(caption)}}}",
            rf"  \label{{tab:{name}}}",
            r"\end{table*}",
            "",
        ]
    )
