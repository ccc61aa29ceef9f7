"""The pages as a site: ``make docs``. Sphinx reads them from the root of the checkout, so that their links hold."""

import shutil
from importlib import metadata
from pathlib import Path

from sphinx.application import Sphinx

project = "utaca"
release = metadata.version("utaca")
html_title = "utaca"

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx_copybutton"]
include_patterns = [
    *("*.md", "docs/*.md", "config/README.md", "training/README.md"),
    *("data/*/**/README.md", "data/*/README.md"),
]
exclude_patterns = [".*", "*/.*", "results", "logs", "site", "src", "tests", "data/benchmarks"]
root_doc = "README"
# A block without a language holds commands.
highlight_language = "bash"

# Headings have the anchors that GitHub gives them.
myst_heading_anchors = 4

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"

html_theme = "furo"
html_show_copyright = False
html_copy_source = False
html_show_sourcelink = False
html_static_path = ["style"]
html_css_files = ["wide.css"]

NAVIGATION = {
    "Get started": [
        "docs/install",
        "docs/tutorial",
        "docs/ask",
        "docs/serve",
        "docs/python",
    ],
    "How-to": [
        "docs/change_reader",
        "docs/transformers",
        "docs/endpoints",
        "docs/big_model",
        "docs/cluster",
        "docs/analyses",
        "docs/review",
        "docs/extending",
        "docs/troubleshooting",
    ],
    "Explanation": [
        "docs/how_it_works",
        "docs/pipeline",
        "docs/methods",
        "docs/benchmarks",
        "docs/ruler",
        "docs/paper",
        "docs/default_run",
    ],
    "Reference": [
        "config/README",
        "docs/api",
        "docs/reader",
        "docs/pages",
        "docs/limits",
        "docs/glossary",
        "data/readers/tiny/README",
        "data/detectors/tiny/README",
        "data/detectors/qwen25_coder_1_5b/README",
        "data/annotations/README",
        "data/tasks/README",
    ],
    "Results": [
        "docs/results",
        "docs/performance",
        "docs/plan",
        "docs/earlier",
    ],
    "Project": [
        "docs/README",
        "CONTRIBUTING",
        "training/README",
        "SECURITY",
        "CHANGELOG",
    ],
}
"""The pages of each section of the sidebar."""

BELOW = {
    "docs/extending": [
        "docs/add_attribute",
        "docs/add_names",
        "docs/add_method",
        "docs/add_policy",
        "docs/add_trigger",
        "docs/add_signal",
        "docs/add_table",
        "docs/add_task",
        "docs/add_model_family",
    ],
}
"""The pages that stand below another one in the sidebar."""


def add_navigation(app: Sphinx, page: str, source: list[str]) -> None:
    """Append the tables of contents to a page that has some. In the files, a forge would show them as they stand."""
    if page == root_doc:
        for caption, pages in NAVIGATION.items():
            source[0] += _toctree(pages, f":caption: {caption}\n")
    elif page in BELOW:
        source[0] += _toctree(BELOW[page])


def _toctree(pages: list[str], options: str = "") -> str:
    listed = "\n".join(f"/{name}" for name in pages)
    return f"\n\n```{{toctree}}\n:hidden:\n{options}\n{listed}\n```\n"


def add_index(app: Sphinx, exception: Exception | None) -> None:
    """Servers open ``index.html``."""
    if exception is None and app.builder.name == "html":
        shutil.copyfile(Path(app.outdir) / f"{root_doc}.html", Path(app.outdir) / "index.html")


def setup(app: Sphinx) -> None:
    app.connect("source-read", add_navigation)
    app.connect("build-finished", add_index)
