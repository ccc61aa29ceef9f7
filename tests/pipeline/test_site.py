"""``make docs``: the pages as a site, without a warning and without a link that leads nowhere."""

import contextlib
import io
import re
from pathlib import Path

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


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("docs") / "site"
    assert build(ROOT, folder) == (0, "")
    return folder


def test_the_site_has_every_page_and_is_read_offline(site: Path) -> None:
    for page in (ROOT / "docs").glob("*.md"):
        html = (site / "docs" / page.with_suffix(".html").name).read_text(encoding="utf-8")
        assert not re.findall(r"""<(?:img|script)[^>]*src="\w+:|<link[^>]*href="\w+:[^>]*stylesheet""", html)


def test_the_reference_has_the_whole_public_api(site: Path) -> None:
    reference = set(re.findall(r'id="(utaca\.[\w.]+)"', (site / "docs" / "api.html").read_text(encoding="utf-8")))
    more = ("methods.bases.method.Method.state", "detection.signal.Signal", "tasks.task.Task")
    assert {f"utaca.{name}" for name in [*utaca.__all__, *more]} <= reference


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
        "[e](config/lost.yaml)\n"
    )
    status, said = build(source, tmp_path / "site")
    assert status != 0
    found = re.findall(r"'(?:\w+/)?(absent|gone|nowhere|found|lost)", said)
    assert found == ["absent", "gone", "nowhere", "lost"], said
