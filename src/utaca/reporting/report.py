"""The report: one page that says what came out, then shows the tables and figures; no network, no script.

The template is ``report.html`` beside this module. Tables are read from their Markdown files, so that each is shown as
it stands in the results, whoever made it; figures are embedded.
"""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from importlib.resources import files
from itertools import pairwise
from pathlib import Path

from jinja2 import Environment, StrictUndefined
from markdown_it import MarkdownIt
from markdown_it.token import Token

from utaca.errors import UserError
from utaca.pages import style
from utaca.reporting import palette
from utaca.reporting.registry import Entry
from utaca.reporting.render import DETAILS, RUN
from utaca.reporting.table import VIEWER, columns_of
from utaca.reporting.words import what_is_synthetic
from utaca.settings import schema

FIRST = ("differences", "curves")
"""Figures of the first screen, below the verdict."""
PAPER = ("test", "methods", "tradeoff", "validation", "detection", "ablation")
"""Tables that the paper has, in the order shown; the other ones are folded by theme."""
THEMES: Mapping[str, str] = {
    "generation": "Generation",
    "detection": "Detection",
    "methods": "Other methods",
    "judging": "Labels, scores, endpoints",
    "resources": "Resources",
    "": "More",
}
_MARKDOWN = MarkdownIt("commonmark", {"html": False}).enable("table")
_FIGURE = re.compile(r"[1-9]")
_CELLS = re.compile(r"(?<!\\) \| ")


class Part:
    """A table, a figure or both, under one name: its files by extension, and what the template shows of them.

    ``lead``, ``table``, ``summary`` and ``whole`` are HTML: what stands before a table, it and its caption, the summary
    of what is folded of it, and that.
    """

    def __init__(self, name: str, files: Mapping[str, Path], about: Entry | None) -> None:
        self.name, self.files = name, files
        text = files["md"].read_text(encoding="utf-8") if "md" in files else ""
        heading = next((line for line in text.splitlines() if line.startswith("#")), "").lstrip("#").strip()
        self.title = heading or (about.title if about else name.replace("_", " ").capitalize())
        self.theme = about.theme if about else ""
        self.caption = about.caption if about else ""
        # As an image a figure keeps its ids and styles to itself.
        self.image = base64.b64encode(files["svg"].read_bytes()).decode() if "svg" in files else ""
        brief, _, folded = text.partition(f"\n{DETAILS}")
        meanings = {column.title: column.meaning for column in columns_of(about).values()} if about else {}
        blocks = list(_blocks(brief, meanings))
        place = next((number for number, block in enumerate(blocks) if block.startswith("<div")), len(blocks))
        self.lead, self.table = ("".join(part) for part in (blocks[:place], blocks[place:]))
        summary, _, rest = folded.partition("\n")
        self.summary = summary.removeprefix("<summary>").removesuffix("</summary>")
        self.whole = "".join(_blocks(rest.replace("\n</details>", ""), meanings))
        self.is_empty = bool(self.table) and _says_nothing(brief)


def page(
    results: Iterable[str | Path],
    links: Mapping[str, str | Path],
    config: schema.Config,
    directory: str | Path,
    *,
    registry: Mapping[str, Entry] | None = None,
    about: Mapping[str, str | Path] | None = None,
) -> str:
    """The report as HTML, to be put into ``directory``.

    ``results`` are the files of tables and figures; those of one name belong together. ``links`` are pages that
    stand by themselves, by what they are called. ``registry`` gives titles of figures, themes and the order within
    them; what it lacks comes last. ``about`` are files that say how the run was made, by what they are called; ``run``
    is its config and names the folder. Raises :class:`UserError` where a file is missing.
    """
    made = {name: Path(path) for name, path in (about or {}).items()}
    run = made["run"].parent.name if "run" in made else config.scale.name
    parts = _parts([path for path in map(Path, results) if path not in made.values()], registry or {})
    others = [part for part in parts.values() if part.name not in ("verdict", *FIRST, *PAPER)]
    themes = []
    for theme, title in THEMES.items():
        if of_theme := [part for part in others if part.theme == theme]:
            anchor = "theme-" + "".join(c if c.isalnum() else "-" for c in title.lower())
            themes.append({"title": title, "anchor": anchor, "parts": of_theme})
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined)
    template = environment.from_string((files(__package__) / "report.html").read_text(encoding="ascii"))
    html = template.render(
        run=run,
        style=f"{style()}\n:root {{ --utaca: {palette.MARKS['utaca'].color}; }}",
        first=FIRST,
        verdict=parts.get("verdict"),
        drawn=[parts[name] for name in FIRST if name in parts and parts[name].image],
        block_size=config.reader.memory.block_size,
        paper=[parts[name] for name in PAPER if name in parts],
        themes=themes,
        links=links,
        synthetic=what_is_synthetic(config),
        about=made,
        link=lambda path: Path(os.path.relpath(path, directory)).as_posix(),
    )
    html = html.replace(f'href="{VIEWER}/', f'href="../{run}/traces/')
    return html.encode("ascii", "xmlcharrefreplace").decode()


def _parts(results: Iterable[Path], registry: Mapping[str, Entry]) -> dict[str, Part]:
    """Parts by name, those of the registry in its order, then the others as they come."""
    named: dict[str, dict[str, Path]] = {}
    for path in results:
        if not path.is_file():
            raise UserError(f"{path} does not exist; make it with its target: snakemake --cores all {path}")
        named.setdefault(path.stem, {})[path.suffix[1:]] = path
    order = [*(name for name in registry if name in named), *(name for name in named if name not in registry)]
    return {name: Part(name, named[name], registry.get(name)) for name in order}


def _blocks(text: str, meanings: Mapping[str, str]) -> Iterator[str]:
    """Paragraphs and tables of Markdown as HTML; without headings and the paragraph on the run.

    A column of the tables whose title has one of ``meanings`` shows it as its tooltip.
    """
    tokens = _MARKDOWN.parse(text)
    start = 0
    for place, token in enumerate(tokens):
        if token.level or token.nesting == 1:
            continue
        own, start = tokens[start : place + 1], place + 1
        if own[0].type == "heading_open" or (own[0].type == "paragraph_open" and own[1].content.startswith(RUN)):
            continue
        if own[0].type == "paragraph_open":
            own[0].attrSet("class", "caption")
        for head, cell in pairwise(own):
            if head.type == "th_open" and (meaning := meanings.get(cell.content)):
                head.attrSet("title", meaning)
        html = _MARKDOWN.renderer.render(own, _MARKDOWN.options, {})
        yield _scrolled(html, own) if own[0].type == "table_open" else html


def _scrolled(html: str, tokens: Sequence[Token]) -> str:
    """A table that scrolls within the page; a keyboard reaches it. Method and setting stay in sight."""
    cells = [token.content for token in tokens if token.type == "inline"]
    kind = ' class="two"' if cells[1:2] == ["Setting"] else ""
    return f'<div class="scroll" role="region" aria-label="{escape(cells[0])}" tabindex="0">{html}</div>'.replace(
        "<table>", f"<table{kind}>", 1
    )


def _says_nothing(text: str) -> bool:
    """Whether no cell of a Markdown table holds a figure, but for its first column and the paper's."""
    header, _, *rows = (_CELLS.split(line) for line in text.splitlines() if line.startswith("|"))
    of_run = [place for place, title in enumerate(header) if place and not title.startswith("paper")]
    return not any(_FIGURE.search(row[place]) for row in rows for place in of_run)
