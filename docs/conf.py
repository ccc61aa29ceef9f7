"""The pages as a site: ``make docs``. Sphinx reads them from the root of the checkout, so that their links hold."""

import shutil
from importlib import metadata
from pathlib import Path

from sphinx.application import Sphinx

project = "utaca"
release = metadata.version("utaca")
html_title = "utaca"

extensions = ["myst_parser", "sphinx.ext.autodoc"]
include_patterns = [
    *("*.md", "docs/*.md", "config/README.md", "training/README.md"),
    *("data/*/**/README.md", "data/*/README.md"),
]
exclude_patterns = [".*", "*/.*", "results", "logs", "site", "src", "tests", "data/benchmarks"]
root_doc = "README"
# Snakemake's commands are no language of Pygments, and JSON comes with comments.
highlight_language = "none"

# Headings have the anchors that GitHub gives them.
myst_heading_anchors = 4

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"

html_theme = "alabaster"
html_theme_options = {"page_width": "72rem", "sidebar_width": "16rem", "font_size": "16px", "show_powered_by": False}
html_show_copyright = False
html_copy_source = False
html_static_path = ["style"]
html_css_files = ["wide.css"]

NAVIGATION = {
    "Tutorial": ["docs/tutorial"],
    "How-to": [
        "docs/ask",
        "docs/serve",
        "docs/big_model",
        "docs/cluster",
        "docs/endpoints",
        "docs/extending",
        "docs/python",
        "docs/transformers",
        "docs/analyses",
        "docs/review",
        "docs/install",
        "docs/troubleshooting",
    ],
    "Reference": [
        "docs/README",
        "docs/pipeline",
        "config/README",
        "docs/api",
        "docs/reader",
        "docs/methods",
        "docs/benchmarks",
        "docs/pages",
        "docs/glossary",
        "data/readers/tiny/README",
        "data/detectors/tiny/README",
        "data/detectors/qwen25_coder_1_5b/README",
        "data/annotations/README",
        "data/tasks/README",
        "training/README",
        "CONTRIBUTING",
        "CHANGELOG",
    ],
    "Results": [
        "docs/results",
        "docs/plan",
        "docs/paper",
        "docs/earlier",
        "docs/default_run",
        "docs/performance",
    ],
}
"""Every page, once."""


def add_navigation(app: Sphinx, page: str, source: list[str]) -> None:
    """The tables of contents: behind the front page, since a forge would show them as they stand."""
    if page == root_doc:
        for caption, pages in NAVIGATION.items():
            listed = "\n".join(f"/{name}" for name in pages)
            source[0] += f"\n\n```{{toctree}}\n:hidden:\n:caption: {caption}\n\n{listed}\n```\n"


def add_index(app: Sphinx, exception: Exception | None) -> None:
    """Servers open ``index.html``."""
    if exception is None and app.builder.name == "html":
        shutil.copyfile(Path(app.outdir) / f"{root_doc}.html", Path(app.outdir) / "index.html")


def setup(app: Sphinx) -> None:
    app.connect("source-read", add_navigation)
    app.connect("build-finished", add_index)
