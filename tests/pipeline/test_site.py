"""``make docs``: the pages as a site, without a warning, and so without a link that leads nowhere."""

import contextlib
import io
import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest
from conftest import ROOT

import utaca

for module in ("myst_parser", "furo", "sphinx_copybutton"):
    pytest.importorskip(module, reason="the site needs Sphinx, MyST and a theme: pip install '.[docs]'")
build_main = pytest.importorskip("sphinx.cmd.build", reason="the site needs Sphinx: pip install '.[docs]'").build_main


# MyST's own, about Sphinx.
pytestmark = pytest.mark.filterwarnings("ignore:.*deprecated. Check CHANGES for Sphinx API modifications")


def build(source: Path, site: Path) -> tuple[int, str]:
    """Build a site as the Makefile does, but elsewhere; returns the exit status and what is said."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    words = re.search(r"^\t\$\(BIN\)/python -m sphinx (.*) -d \.sphinx \. site$", makefile, re.MULTILINE)
    said = io.StringIO()
    with contextlib.chdir(source), contextlib.redirect_stderr(said):
        status = build_main([*words[1].split(), "-d", str(site.with_name("doctrees")), ".", str(site)])
    return status, said.getvalue()


class Page(HTMLParser):
    """The anchors of a page, and what it links and loads."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        about = dict(attrs)
        self.anchors |= {value for name in ("id", "name") if (value := about.get(name))}
        self.links += [value for name in ("href", "src") if (value := about.get(name))]


def dead_links(site: Path) -> list[str]:
    """The links of a site's pages to files and anchors of it that are not there."""
    pages = {path: Page(path) for path in site.rglob("*.html")}
    dead = []
    for path, page in pages.items():
        for link in page.links:
            name, _, anchor = unquote(link).partition("#")
            target = (path.parent / name.partition("?")[0]).resolve() if name else path
            if re.match(r"[a-z]+:", link):
                continue
            if not target.is_file() or (anchor and target in pages and anchor not in pages[target].anchors):
                dead.append(f"{path.relative_to(site)}: {link}")
    return dead


def test_the_site_has_every_page_and_the_whole_public_api_and_is_read_offline(tmp_path: Path) -> None:
    site = tmp_path / "site"
    assert build(ROOT, site) == (0, "")
    assert dead_links(site) == []
    for page in (ROOT / "docs").glob("*.md"):
        html = (site / "docs" / page.with_suffix(".html").name).read_text(encoding="utf-8")
        assert not re.findall(r"""<(?:img|script)[^>]*src="\w+:|<link[^>]*href="\w+:[^>]*stylesheet""", html)
    reference = set(re.findall(r'id="(utaca\.[\w.]+)"', (site / "docs" / "api.html").read_text(encoding="utf-8")))
    more = ("methods.bases.method.Method.state", "detection.signal.Signal", "tasks.task.Task")
    assert {f"utaca.{name}" for name in [*utaca.__all__, *more]} <= reference


def test_links_that_lead_nowhere_fail(tmp_path: Path) -> None:
    source, site = tmp_path / "checkout", tmp_path / "site"
    (source / "docs/style").mkdir(parents=True)
    (source / "docs/style/wide.css").touch()
    conf = (ROOT / "docs" / "conf.py").read_text(encoding="utf-8")
    navigation = re.compile(r"^NAVIGATION = \{.*?^\}", re.MULTILINE | re.DOTALL)
    (source / "docs/conf.py").write_text(navigation.sub('NAVIGATION = {"Pages": ["docs/page"]}', conf))
    (source / "docs/page.md").write_text("# Page\n\n## Found\n")
    (source / "README.md").write_text(
        "# Front\n\n[a](docs/absent.md)\n[b](docs/page.md#gone)\n[c](#nowhere)\n[d](docs/page.md#found)\n"
        "[e](config/lost.yaml)\n"
    )
    status, said = build(source, site)
    assert status != 0
    assert re.findall(r"'(?:\w+/)?(absent|gone|nowhere|found|lost)", said) == ["absent", "gone", "nowhere", "lost"], (
        said
    )
    (site / "docs" / "page.html").write_text('<h2 id="found">Found</h2><a href="../lost.html">a</a>')
    found = dead_links(site)
    assert "docs/page.html: ../lost.html" in found
    assert not [link for link in found if "found" in link]
