"""Make the report of a run: one page with the verdict, tables and figures, without scripts or network access.

The template is ``report.html``. Tables are read from their JSON files, which hold the cells as text; figures are
embedded.
"""

import base64
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined
from markdown_it import MarkdownIt

from utaca.errors import UserError
from utaca.pages import style
from utaca.reporting import palette
from utaca.reporting.paper_tables import targets
from utaca.reporting.registry import THEMES, TableEntry
from utaca.reporting.render import MISSING
from utaca.reporting.table import Content, columns, read_content, whole_text
from utaca.reporting.words import what_is_synthetic
from utaca.settings import schema

FIRST = ("differences", "curves")
"""Figures at the top, below the verdict."""
EXAMPLE = "example"
"""The table of an answer's tokens, which is shown as text below the first figures."""
_MARKDOWN = MarkdownIt("commonmark", {"html": False})


class ReportItem:
    """What the report shows under one name: a table, a figure or both.

    ``files`` has the path of each file of that name by its extension. ``content`` is the table's, None if there is no
    table; ``image`` is the figure's SVG in base64, "" if there is no figure. ``title``, ``theme``, ``caption`` and
    ``fill`` are those of the declaration ``entry``, None for a name that is not declared. ``number`` is the table's or
    figure's in the order of the page, 0 for one that has none.
    """

    def __init__(self, name: str, files: Mapping[str, Path], entry: TableEntry | None) -> None:
        self.number = 0
        self.name = name
        self.files = files
        self.content = read_content(files["json"]) if "json" in files else None
        usual_title = entry.title if entry else name.replace("_", " ").capitalize()
        self.title = self.content.title if self.content else usual_title
        self.theme = entry.theme if entry else ""
        self.caption = entry.caption if entry else ""
        self.fill = entry.fill if entry else ""
        # Embedded as an image, a figure cannot clash with the ids and styles of the page.
        drawn = whole_text(files["svg"], "</svg>") if "svg" in files else ""
        self.image = base64.b64encode(drawn.encode()).decode()
        self.is_empty = bool(self.content and self.content.empty)


def page(
    results: Iterable[str | Path],
    links: Mapping[str, str | Path],
    config: schema.Config,
    directory: str | Path,
    *,
    registry: Mapping[str, TableEntry] | None = None,
    about: Mapping[str, str | Path] | None = None,
    left_out: Mapping[str, str] | None = None,
) -> str:
    """Make the report as HTML, for a file in ``directory``.

    ``results`` are files of tables and figures; files of one name belong together. ``links`` are other pages of the
    run, by title. ``registry`` has the declarations of tables and figures, whose order the report keeps; names that are
    not declared come last. ``about`` are files on how the run was made, by title; the file ``run`` is the run's config,
    and its folder has the run's name. ``left_out`` says in Markdown how to make each table that the run does not make,
    by title. Raises :class:`UserError` if a file is missing.
    """
    about_run = {title: Path(path) for title, path in (about or {}).items()}
    run = about_run["run"].parent.name if "run" in about_run else config.scale.name
    paths = [Path(path) for path in results]
    items = _items([path for path in paths if path not in about_run.values()], registry or {})
    # Tables that the paper has are shown; all others are folded, grouped by theme.
    in_paper = targets()
    others = [item for item in items.values() if item.name not in ("verdict", EXAMPLE, *FIRST, *in_paper)]
    first_figures = [items[name] for name in FIRST if name in items and items[name].image]
    of_paper = [items[name] for name in in_paper if name in items]
    themes = _by_theme(others)
    verdict = [items["verdict"]] if "verdict" in items else []
    _count([*first_figures, *verdict, *of_paper, *(item for theme in themes for item in theme["parts"])])
    again = f"snakemake --cores all results/tables --configfile {about_run['run']}" if "run" in about_run else ""

    def link(path: str | Path) -> str:
        return Path(os.path.relpath(path, directory)).as_posix()

    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined)
    environment.filters["inline"] = _MARKDOWN.renderInline
    template = environment.from_string((files(__package__) / "report.html").read_text(encoding="ascii"))
    html = template.render(
        run=run,
        style=f"{style()}\n:root {{ --utaca: {palette.MARKS['utaca'].color}; }}",
        first=FIRST,
        verdict=items.get("verdict"),
        drawn=first_figures,
        example=items.get(EXAMPLE),
        tokens=_tokens(items[EXAMPLE].content) if EXAMPLE in items else [],
        again=again,
        left_out=left_out or {},
        block_size=config.reader.memory.block_size,
        paper=of_paper,
        themes=themes,
        links=links,
        synthetic=what_is_synthetic(config),
        about=about_run,
        link=link,
    )
    # Other characters as references (&#8211;), so that the page reads the same in any encoding.
    return html.encode("ascii", "xmlcharrefreplace").decode()


def _tokens(content: Content | None) -> list[dict[str, Any]]:
    """The tokens of the table :data:`EXAMPLE` for the template: the cells by column, and ``share``, the budget of 1.

    A token without text, as at the end of an answer, is left out. A column that the table lacks has dashes.
    """
    places = {column.title: place for place, column in enumerate(content.columns)} if content else {}
    names = ("piece", "k", "expanded", "first_token", "label")
    tokens: list[dict[str, Any]] = []
    for row in content.rows if content else ():
        cells = {}
        for name in names:
            place = places.get(columns()[name].title)
            cells[name] = MISSING if place is None else row[place]
        if cells["piece"] != MISSING:
            tokens.append(cells)
    most = max((int(cells["k"]) for cells in tokens), default=1)
    for cells in tokens:
        cells["share"] = int(cells["k"]) / most
    return tokens


def _count(items: Iterable[ReportItem]) -> None:
    """Number the figures and the tables that show something, each in the order of ``items`` and from 1.

    An item is a table if it has one, and then its figure has no number.
    """
    n_tables = 0
    n_figures = 0
    for item in items:
        if item.content and not item.is_empty:
            n_tables += 1
            item.number = n_tables
        elif item.image and not item.content:
            n_figures += 1
            item.number = n_figures


def _by_theme(items: Sequence[ReportItem]) -> list[dict[str, Any]]:
    """The themes of :data:`THEMES` that have items: the title, anchor and items (``parts``) of each."""
    themes = []
    for theme, title in THEMES.items():
        of_theme = [item for item in items if item.theme == theme]
        if of_theme:
            anchor = "theme-" + re.sub(r"[^a-z]", "-", title.lower())
            themes.append({"title": title, "anchor": anchor, "parts": of_theme})
    return themes


def _items(results: Iterable[Path], registry: Mapping[str, TableEntry]) -> dict[str, ReportItem]:
    """Make an item of the files of each name: first those of ``registry`` in its order, then the others in their order.

    Raises :class:`UserError` if a file is missing.
    """
    # The files of a name, by extension.
    by_name: dict[str, dict[str, Path]] = {}
    for path in results:
        if not path.is_file():
            raise UserError(f"{path} does not exist; make it with its target: snakemake --cores all {path}")
        by_name.setdefault(path.stem, {})[path.suffix[1:]] = path
    order = [name for name in {**registry, **by_name} if name in by_name]
    return {name: ReportItem(name, by_name[name], registry.get(name)) for name in order}
