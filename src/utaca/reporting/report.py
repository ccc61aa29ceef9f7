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
from utaca.reporting.registry import TableEntry
from utaca.reporting.table import read_content, whole_text
from utaca.reporting.words import what_is_synthetic
from utaca.settings import schema

FIRST = ("differences", "curves")
"""Figures at the top, below the verdict."""
THEMES: Mapping[str, str] = {
    "data": "Data set",
    "generation": "Generation",
    "detection": "Detection",
    "methods": "Other methods",
    "judging": "Labels, scores, endpoints",
    "resources": "Resources",
    "": "More",
}
_MARKDOWN = MarkdownIt("commonmark", {"html": False})


class ReportItem:
    """What the report shows under one name: a table, a figure or both.

    ``files`` has the path of each file of that name by its extension. ``content`` is the table's, None if there is no
    table; ``image`` is the figure's SVG in base64, "" if there is no figure. ``title``, ``theme`` and ``caption`` are
    those of the declaration ``entry``, None for a name that is not declared.
    """

    def __init__(self, name: str, files: Mapping[str, Path], entry: TableEntry | None) -> None:
        self.name = name
        self.files = files
        self.content = read_content(files["json"]) if "json" in files else None
        usual_title = entry.title if entry else name.replace("_", " ").capitalize()
        self.title = self.content.title if self.content else usual_title
        self.theme = entry.theme if entry else ""
        self.caption = entry.caption if entry else ""
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
) -> str:
    """Make the report as HTML, for a file in ``directory``.

    ``results`` are files of tables and figures; files of one name belong together. ``links`` are other pages of the
    run, by title. ``registry`` has the declarations of tables and figures, whose order the report keeps; names that are
    not declared come last. ``about`` are files on how the run was made, by title; the file ``run`` is the run's config,
    and its folder has the run's name. Raises :class:`UserError` if a file is missing.
    """
    about_run = {title: Path(path) for title, path in (about or {}).items()}
    run = about_run["run"].parent.name if "run" in about_run else config.scale.name
    paths = [Path(path) for path in results]
    items = _items([path for path in paths if path not in about_run.values()], registry or {})
    # Tables that the paper has are shown; all others are folded, grouped by theme.
    in_paper = targets()
    others = [item for item in items.values() if item.name not in ("verdict", *FIRST, *in_paper)]
    first_figures = [items[name] for name in FIRST if name in items and items[name].image]

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
        block_size=config.reader.memory.block_size,
        paper=[items[name] for name in in_paper if name in items],
        themes=_by_theme(others),
        links=links,
        synthetic=what_is_synthetic(config),
        about=about_run,
        link=link,
    )
    # Other characters as references (&#8211;), so that the page reads the same in any encoding.
    return html.encode("ascii", "xmlcharrefreplace").decode()


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
