"""Links between the pages, and to pages from what the program says: each leads to a file and heading that are there."""

import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from conftest import ROOT
from markdown_it import MarkdownIt
from markdown_it.token import Token
from test_docs import IDS, PAGES

_FOLDERS = ("src", "workflow", "config", "bench", "training", "profiles", ".github", ".ci")
_SUFFIXES = {".py", ".smk", ".yaml", ".yml", ".json", ".html", ".txt", ".toml", ""}
_HTML_ID = re.compile(r"""<\w+[^>]*\b(?:id|name)=["']([^"']+)["']""")
_HTML_LINK = re.compile(r"""<\w+[^>]*\b(?:href|src)=["']([^"']+)["']""")


def tokens(page: Path) -> list[Token]:
    return MarkdownIt("commonmark").enable("table").parse(page.read_text(encoding="utf-8"))


def links(page: Path) -> Iterator[str]:
    """Targets of the links and images of a page, in HTML too."""
    for token in tokens(page):
        if token.type == "html_block":
            yield from _HTML_LINK.findall(token.content)
        for child in token.children or []:
            if child.type == "html_inline":
                yield from _HTML_LINK.findall(child.content)
            elif target := child.attrGet("href") or child.attrGet("src"):
                yield str(target)


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub gives the headings of a page, and those of its HTML."""
    found: list[str] = []
    for token, inline in pairwise(tokens(page)):
        if token.type == "heading_open":
            words = "".join(child.content for child in inline.children or [])
            found.append(re.sub(r"[^\w\- ]", "", words.lower()).replace(" ", "-"))
    again = {f"{slug}-{n}" for slug in found for n in range(1, found.count(slug))}
    return {*found, *again, *_HTML_ID.findall(page.read_text(encoding="utf-8"))}


def fault(page: Path, link: str, root: Path) -> str | None:
    """What is wrong with a link of a page within the folder ``root``; None for a good one, and for those elsewhere."""
    if re.match(r"[a-z][a-z+.-]*:", link):
        return None
    path, _, anchor = link.partition("#")
    target = (page.parent / path).resolve() if path else page
    if not target.is_relative_to(root):
        return f"{link} leaves the project"
    if not target.exists():
        return f"{link} does not exist"
    if anchor and target.suffix == ".md" and anchor not in anchors(target):
        return f"{target.name} has no heading #{anchor}"
    return None


@pytest.mark.parametrize("page", PAGES, **IDS)
def test_links_lead_somewhere(page: Path) -> None:
    assert [said for link in links(page) if (said := fault(page, link, ROOT))] == []


def test_pages_that_the_program_names_are_there() -> None:
    """In messages, comments, the help of commands and the config's meanings."""
    files = [ROOT / name for name in ("Snakefile", "Makefile", "pyproject.toml")]
    files += [path for folder in _FOLDERS for path in (ROOT / folder).rglob("*") if path.suffix in _SUFFIXES]
    named = [
        (path.relative_to(ROOT), link)
        for path in files
        if path.is_file() and "__pycache__" not in path.parts
        for link in re.findall(r"\b(?:docs|data|config|training)/[\w/-]+\.md(?:#[\w-]+)?", path.read_text("utf-8"))
    ]
    assert len(named) >= 20
    assert [(path, said) for path, link in named if (said := fault(ROOT / "README.md", link, ROOT))] == []


def test_a_link_that_leads_nowhere_is_seen(tmp_path: Path) -> None:
    page = tmp_path / "README.md"
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "page.md").write_text("# Page\n\n## `Found` here, twice\n\n## Found here twice\n")
    page.write_text(
        '# Front\n\n<a id="set"></a>\n[a](docs/absent.md) [b](docs/page.md#gone) [c](#nowhere) [d](../elsewhere.md)\n\n'
        "[e](docs/page.md#found-here-twice) [f](docs/page.md#found-here-twice-1) [g](#set) [h](#front) "
        "[i](https://example.org/#x) ![j](docs/lost.png) [k][ref]\n\n"
        '<img src="docs/gone.svg">\n\n| a |\n| --- |\n| [l](docs/cell.md) |\n\n`[code](docs/code.md)`\n\n'
        "[ref]: docs/reference.md\n"
    )
    said = [words for link in links(page) if (words := fault(page, link, tmp_path))]
    assert said == [
        "docs/absent.md does not exist",
        "page.md has no heading #gone",
        "README.md has no heading #nowhere",
        "../elsewhere.md leaves the project",
        "docs/lost.png does not exist",
        "docs/reference.md does not exist",
        "docs/gone.svg does not exist",
        "docs/cell.md does not exist",
    ]
