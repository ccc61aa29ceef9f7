"""``make docs``: the pages as a site, without a warning, and so without a link that leads nowhere."""

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
@pytest.mark.filterwarnings("ignore:.*deprecated. Check CHANGES for Sphinx API modifications")
def test_the_site_has_every_page_and_the_whole_public_api_and_is_read_offline(tmp_path: Path) -> None:
    """As the Makefile makes it, but elsewhere."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    words = re.search(r"^\t\$\(BIN\)/python -m sphinx (.*) -d \.sphinx \. site$", makefile, re.MULTILINE)
    said, site = io.StringIO(), tmp_path / "site"
    with contextlib.chdir(ROOT), contextlib.redirect_stderr(said):
        status = build_main([*words[1].split(), "-d", str(tmp_path / "doctrees"), ".", str(site)])
    assert (status, said.getvalue()) == (0, "")
    for page in (ROOT / "docs").glob("*.md"):
        html = (site / "docs" / page.with_suffix(".html").name).read_text(encoding="utf-8")
        assert not re.findall(r"""<(?:img|script)[^>]*src="\w+:|<link[^>]*href="\w+:[^>]*stylesheet""", html)
    reference = set(re.findall(r'id="(utaca\.[\w.]+)"', (site / "docs" / "api.html").read_text(encoding="utf-8")))
    more = ("methods.bases.method.Method.state", "detection.signal.Signal", "tasks.task.Task")
    assert {f"utaca.{name}" for name in [*utaca.__all__, *more]} <= reference
