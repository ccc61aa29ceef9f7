"""The report: one page that says what came out, then shows the tables and figures; no network, no script.

The template is ``report.html`` beside this module. Tables are read from their Markdown files, so that each is shown as
it stands in the results, whoever made it; figures are embedded.
"""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from importlib.resources import files
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

from utaca.errors import UserError
from utaca.pages import style
from utaca.reporting import palette
from utaca.reporting.registry import Entry
from utaca.reporting.render import DETAILS, RUN
from utaca.reporting.tables import VIEWER, what_is_synthetic
from utaca.settings import schema

FIRST = ("differences", "curves")
"""Figures of the first screen, below the verdict."""
VERDICT = "verdict"
PAPER = ("test", "methods", "tradeoff", "validation", "detection", "ablation")
"""Tables that the paper has, in the order shown; the other ones are folded by theme."""
THEMES: Mapping[str, str] = {
    "generation": "Generation",
    "detection": "Detection",
    "methods": "Other methods",
    "decisions": "Single decisions",
    "judging": "Labels, scores, endpoints",
    "resources": "Resources",
}
OTHERS = "More"
_MARKDOWN = MarkdownIt("commonmark", {"html": False}).enable("table")
_FIGURE = re.compile(r"[1-9]")


@dataclass
class Part:
    """A table, a figure or both, under one name: its files by extension, and what the registry says of it, if any."""

    name: str
    about: Entry | None = None
    files: dict[str, Path] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """Its Markdown, if it is a table."""
        return self.files["md"].read_text(encoding="utf-8") if "md" in self.files else ""

    @property
    def title(self) -> str:
        """The first heading of its Markdown, else the registry's title, or its name."""
        heading = next((line for line in self.text.splitlines() if line.startswith("#")), "")
        named = self.about.title if self.about else self.name.replace("_", " ").capitalize()
        return heading.lstrip("#").strip() or named


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
    folder, about, registry = Path(directory), dict(about or {}), dict(registry or {})
    entries = _entries([*results, *about.values()], registry)
    known = {str(Path(path)) for path in about.values()}
    entries = {name: one for name, one in entries.items() if not known & {str(path) for path in one.files.values()}}
    run = Path(about["run"]).parent.name if "run" in about else config.scale.name
    contents, body = [_item("verdict", "What came out")], list(_first(entries, links, config, run, folder))
    tables = [entries[name] for name in PAPER if name in entries]
    if tables:
        inner = "".join(_item(one.name, one.title) for one in tables)
        contents.append(f'<li><a href="#paper">The paper\'s tables</a><ul>{inner}</ul></li>')
        body.append('<h2 id="paper">The paper\'s tables</h2>')
        body += (part for one in tables for part in _entry(one, folder))
    shown = {VERDICT, *FIRST, *PAPER}
    for title, own in _themes([one for one in entries.values() if one.name not in shown]).items():
        anchor = "theme-" + "".join(c if c.isalnum() else "-" for c in title.lower())
        contents.append(_item(anchor, title))
        names = "; ".join(one.title for one in own)
        body.append(f'<details class="theme" id="{anchor}"><summary><h2>{escape(title)}</h2> {escape(names)}</summary>')
        body += (part for one in own for part in _entry(one, folder))
        body.append("</details>")
    contents.append(_item("made", "How it was made"))
    body += _made(config, about, folder)
    template = (files(__package__) / "report.html").read_text(encoding="ascii")
    html = (
        template.replace("@STYLE@", f"{style()}\n{palette.css()}", 1)
        .replace("@TITLE@", escape(f"UT-ACA, run {run}"), 1)
        .replace("@CONTENTS@", f"<ul>{''.join(contents)}</ul>", 1)
        .replace("@BODY@", "\n".join(body).replace(f'href="{VIEWER}/', f'href="../{run}/traces/'), 1)
    )
    return html.encode("ascii", "xmlcharrefreplace").decode()


def _entries(results: Iterable[str | Path], registry: Mapping[str, Entry]) -> dict[str, Part]:
    """Entries by name, those of the registry in its order, then the others as they come."""
    entries: dict[str, Part] = {}
    for path in map(Path, results):
        if not path.is_file():
            raise UserError(f"{path} does not exist; make it with its target: snakemake --cores all {path}")
        entries.setdefault(path.stem, Part(path.stem, registry.get(path.stem))).files[path.suffix[1:]] = path
    order = {name: place for place, name in enumerate(registry)}
    return dict(sorted(entries.items(), key=lambda item: order.get(item[0], len(order))))


def _themes(entries: Sequence[Part]) -> dict[str, list[Part]]:
    """Entries by the titles of their themes, those without one last."""
    found: dict[str, list[Part]] = {title: [] for title in (*THEMES.values(), OTHERS)}
    for entry in entries:
        found[THEMES[entry.about.theme] if entry.about else OTHERS].append(entry)
    return {title: own for title, own in found.items() if own}


def _item(anchor: str, title: str) -> str:
    return f'<li><a href="#{escape(anchor)}">{escape(title)}</a></li>'


# The first screen


def _first(
    entries: Mapping[str, Part], links: Mapping[str, str | Path], config: schema.Config, run: str, folder: Path
) -> Iterator[str]:
    """The verdict, what it is read from, three terms, and the pages beside this one."""
    yield f"<h1>UT-ACA, run {escape(run)}</h1>"
    if VERDICT in entries:
        lead, table, _ = _parts(entries[VERDICT].text)
        yield f'<section class="verdict" id="{VERDICT}">{"".join(lead)}</section>'
    else:
        yield f'<p id="{VERDICT}">This run has no suite on the test split, and so no verdict.</p>'
        table = []
    drawn = [entries[name] for name in FIRST if "svg" in entries.get(name, Part(name)).files]
    if drawn:
        yield f'<div class="pair">{"".join(map(_figure, drawn))}</div>'
    yield _facts(_glossary(config))
    if links:
        rows = (f'<li><a href="{_relative(path, folder)}">{escape(name)}</a></li>' for name, path in links.items())
        yield f'<ul class="links">{"".join(rows)}</ul>'
    if table:
        kept = "".join(_files(entries[name], folder) for name in (VERDICT, *FIRST) if name in entries)
        yield f"<details><summary>The figures behind the verdict, and files</summary>{''.join(table)}{kept}</details>"


def _glossary(config: schema.Config) -> dict[str, str]:
    size = config.reader.memory.block_size
    return {
        "CAS": "Conceptual accuracy: whether an answer states an attribute's value, whatever its words, as the judge "
        "scores it from 0 to 1; in percent, mean over the attributes asked for.",
        "Block, K": f"{size} tokens of the document; a generated token attends to the K blocks that fit it best. "
        "InfLLM keeps K fixed; UT-ACA raises it to K_max where its detector distrusts a token, then lowers it by a "
        "policy (Sub.16: by 16 blocks a token, Set.1: to 1 at once).",
        "mTokens": "Tokens in the selected blocks, mean over generated tokens: what an answer costs.",
    }


def _facts(facts: Mapping[str, str]) -> str:
    rows = (f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in facts.items())
    return f"<dl>{''.join(rows)}</dl>"


def _made(config: schema.Config, about: Mapping[str, str | Path], folder: Path) -> Iterator[str]:
    """How the run was made: what is made up in it, how to repeat it, its files."""
    yield '<h2 id="made">How it was made</h2>'
    yield f"<p>{escape(what_is_synthetic(config))}</p>"
    if "run" in about:
        command = f"snakemake --cores all results/tables --configfile {about['run']}"
        yield f"<p>The same run again: <code>{escape(command)}</code></p>"
    for name, path in about.items():
        text = Path(path).read_text(encoding="utf-8")
        title = f'{escape(name.capitalize())}: <a href="{_relative(path, folder)}">{escape(Path(path).name)}</a>'
        yield f"<details><summary>{title}</summary><pre>{escape(text)}</pre></details>"


# Tables and figures


def _relative(path: str | Path, directory: Path) -> str:
    return escape(Path(os.path.relpath(path, directory)).as_posix())


def _entry(entry: Part, folder: Path) -> Iterator[str]:
    """Its heading, its table with what is folded of it, its figure, its files; folded where it holds no figure."""
    title = entry.title
    lead, table, whole = _parts(entry.text)
    empty = bool(table) and _says_nothing(entry.text)
    if empty:
        yield f'<details class="empty"><summary>{escape(title)}: nothing in this run</summary>'
    yield f'<h3 id="{escape(entry.name)}">{escape(title)}</h3>'
    yield from (*lead, *table)
    if whole:
        summary, *rest = whole
        yield f'<details class="whole"><summary>{escape(summary)}</summary>{"".join(rest)}</details>'
    if "svg" in entry.files:
        yield _figure(entry)
    yield _files(entry, folder)
    if empty:
        yield "</details>"


def _files(entry: Part, folder: Path) -> str:
    named = (f'<a href="{_relative(path, folder)}">{extension}</a>' for extension, path in entry.files.items())
    return f'<p class="files">{escape(entry.name)}: {", ".join(named)}</p>'


def _figure(entry: Part) -> str:
    # As an image a figure keeps its ids and styles to itself.
    data = base64.b64encode(entry.files["svg"].read_bytes()).decode()
    caption = escape(entry.about.caption if entry.about else "")
    image = f'<img src="data:image/svg+xml;base64,{data}" alt="{caption or escape(entry.title)}">'
    # One of the first screen has no heading that could carry its name.
    name = f' id="{escape(entry.name)}"' if entry.name in FIRST else ""
    return f"<figure{name}>{image}<figcaption>{caption}</figcaption></figure>"


def _parts(text: str) -> tuple[list[str], list[str], list[str]]:
    """A table's Markdown as HTML: what stands before it; it and its caption; the summary of what is folded, and that.

    The heading is left out, and so is the paragraph that says what the run is: a report says it once.
    """
    brief, _, folded = text.partition(f"\n{DETAILS}")
    blocks = list(_blocks(brief))
    place = next((number for number, block in enumerate(blocks) if block.startswith("<div")), len(blocks))
    lead, table = blocks[:place], blocks[place:]
    if not folded:
        return lead, table, []
    head, _, rest = folded.partition("\n")
    summary = head.removeprefix("<summary>").removesuffix("</summary>")
    return lead, table, [summary, *_blocks(rest.replace("\n</details>", ""))]


def _blocks(text: str) -> Iterator[str]:
    """Paragraphs and tables of Markdown as HTML; without headings and the paragraph on the run."""
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
    """Whether no cell of a table's first form holds a figure, but for its first column and the paper's."""
    header: list[str] = []
    column, cell = -1, ""
    for token in _MARKDOWN.parse(text.partition(f"\n{DETAILS}")[0]):
        if token.type == "tr_open":
            column = -1
        elif token.type in ("th_open", "td_open"):
            column, cell = column + 1, token.type
        elif token.type == "inline" and cell == "th_open" and column == len(header):
            header.append(token.content)
        elif token.type == "inline" and cell == "td_open" and column and _FIGURE.search(token.content):
            if not header[column].startswith("paper"):
                return False
        elif token.type == "table_close":
            cell = ""
    return True
