"""``make docs``: the pages as a site, without a warning and without a link that leads nowhere."""

from __future__ import annotations

import contextlib
import io
import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from conftest import ROOT

import utaca

pytest.importorskip("myst_parser", reason="the site needs Sphinx and MyST: pip install '.[docs]'")
build_main = pytest.importorskip("sphinx.cmd.build", reason="the site needs Sphinx: pip install '.[docs]'").build_main

# MyST's own, about Sphinx.
pytestmark = pytest.mark.filterwarnings("ignore:.*deprecated. Check CHANGES for Sphinx API modifications")


def build(source: Path, site: Path) -> tuple[int, str]:
    """As the Makefile does, but with the doctrees beside the site: the status, and what was said of faults."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    words = re.search(r"^\t\$\(BIN\)/python -m sphinx (.*) -d \.sphinx \. site$", makefile, re.MULTILINE)
    assert words
    said = io.StringIO()
    with contextlib.chdir(source), contextlib.redirect_stderr(said):
        status = build_main([*words[1].split(), "-d", str(site.parent / "doctrees"), ".", str(site)])
    return status, said.getvalue()


class Page(HTMLParser):
    """Links, loaded files and anchors of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.ids: set[str] = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.ids |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        if tag in {"img", "script"} and "src" in given:
            self.loaded.append(given["src"])
        if tag == "link" and given.get("rel") == "stylesheet":
            self.loaded.append(given["href"])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("docs") / "site"
    status, said = build(ROOT, folder)
    assert (status, said) == (0, "")
    return folder


def test_every_link_of_the_site_leads_somewhere(site: Path) -> None:
    pages = {path: Page(path) for path in site.rglob("*.html")}
    assert {path.relative_to(ROOT).with_suffix("") for path in (ROOT / "docs").glob("*.md")} <= {
        path.relative_to(site).with_suffix("") for path in pages
    }
    for path, page in pages.items():
        assert not [file for file in page.loaded if urlsplit(file).scheme], "the site is read offline"
        for link in [*page.links, *page.loaded]:
            parts = urlsplit(link)
            if parts.scheme:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            assert target.is_file(), f"{path.name}: {link}"
            if parts.fragment and target in pages:
                assert unquote(parts.fragment) in pages[target].ids, f"{path.name}: {link}"


def test_the_reference_has_the_whole_public_api(site: Path) -> None:
    reference = Page(site / "docs" / "api.html").ids
    assert {f"utaca.{name}" for name in utaca.__all__} <= reference
    assert {
        "utaca.methods.bases.method.Method.state",
        "utaca.detection.signal.Signal",
        "utaca.tasks.task.Task",
    } <= reference


def test_links_that_lead_nowhere_fail(tmp_path: Path) -> None:
    source = tmp_path / "checkout"
    (source / "docs/style").mkdir(parents=True)
    (source / "docs/style/wide.css").touch()
    conf = (ROOT / "docs" / "conf.py").read_text(encoding="utf-8")
    navigation = re.compile(r"^NAVIGATION = \{.*?^\}", re.MULTILINE | re.DOTALL)
    (source / "docs/conf.py").write_text(navigation.sub('NAVIGATION = {"Pages": ["docs/page"]}', conf))
    (source / "docs/page.md").write_text("# Page\n\n## Found\n")
    (source / "README.md").write_text(
        "# Front\n\n[a](docs/absent.md)\n[b](docs/page.md#gone)\n[c](#nowhere)\n[d](docs/page.md#found)\n"
    )
    status, said = build(source, tmp_path / "site")
    assert status != 0
    assert re.findall("'(?:docs/)?(absent|gone|nowhere|found)", said) == ["absent", "gone", "nowhere"], said
