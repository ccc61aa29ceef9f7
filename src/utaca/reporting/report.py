"""The report: one page with what a run is, its tables and its figures; no network, no script.

The template is ``report.html`` beside this module. Tables are read from their Markdown files, so that each is shown as
it stands in the results, whoever made it; figures are embedded.
"""

from __future__ import annotations

import base64
import os
import platform
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from importlib import metadata
from importlib.resources import files
from pathlib import Path

from markdown_it import MarkdownIt

from utaca.errors import UserError
from utaca.pages import style
from utaca.reporting.tables import corpus_in_words, endpoint_in_words, what_is_synthetic
from utaca.settings import schema
from utaca.settings.checks import digest, identity

# Where a table or a figure stands: by the section whose first word its name begins with, in this order.
SECTIONS: Mapping[str, Sequence[str]] = {
    "Generation": ("test", "pareto", "sweep", "seeds", "budget", "tradeoff", "valid", "replay", "failures", "cases"),
    "Methods": ("methods", "equal"),
    "Detection": (
        "detection",
        "detectors",
        "ablation",
        "triggers",
        "oracle",
        "reliability",
        "calibration",
        "margin",
        "trajectories",
    ),
    "Labels, scores, endpoints": ("labels", "scorers", "disagreements", "human", "endpoints"),
    "Resources": ("resources",),
}
OTHERS = "More"
# Titles and captions of figures that have no table.
FIGURES = {
    "pareto": (
        "Quality over selected tokens",
        "CAS over selected tokens, a line a method; bars are 95 % bootstrap intervals over documents.",
    ),
    "methods": (
        "Methods over attended keys and time",
        "CAS of every row of the table of methods over the keys that a token attends to, and over its time; bars are "
        "95 % bootstrap intervals over documents.",
    ),
    "budget": (
        "Budget over the steps",
        "Mean budget k of the accepted pass over the steps of an answer, for the adaptive operating points; bands are "
        "95 % bootstrap intervals over documents. Shown are the steps that at least half of the documents reach.",
    ),
    "detectors": (
        "Detectors side by side",
        "The table of detection as a figure. Circles: mean and standard deviation over seeds; squares: detectors of "
        "one run, with their 95 % bootstrap interval over documents.",
    ),
    "reliability": (
        "Reliability",
        "Share of uncertain tokens over the probability p_N that a detector gives them, in ten bins, seeds pooled; "
        "on the diagonal where the probabilities are what they say. Training weighs correct tokens less, which "
        "raises p_N.",
    ),
    "margins": (
        "Logit margins by class",
        "Distribution of the logit margin over the tokens of each class, on the fixed traces of the test split: where "
        "unknown tokens have the margins of correct ones, no threshold on the margin tells them apart.",
    ),
}
PACKAGES = ("torch", "transformers", "tokenizers", "numpy", "pandas", "pyarrow", "matplotlib", "openai", "snakemake")

_MARKDOWN = MarkdownIt("commonmark", {"html": False}).enable("table")


@dataclass
class Entry:
    """A table, a figure or both, under one name: its files by extension."""

    name: str
    files: dict[str, Path] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """The first heading of its Markdown, the title of its figure, or its name."""
        if "md" in self.files:
            for line in self.files["md"].read_text(encoding="utf-8").splitlines():
                if line.startswith("#"):
                    return line.lstrip("#").strip()
        return FIGURES.get(self.name, (self.name.replace("_", " ").capitalize(), ""))[0]


def page(
    results: Iterable[str | Path],
    links: Mapping[str, str | Path],
    command: str,
    config: schema.Config,
    directory: str | Path,
) -> str:
    """The report as HTML, to be put into ``directory``.

    ``results`` are the files of tables and figures; those of one name belong together. ``links`` are pages that
    stand by themselves, by what they are called; ``command`` is what makes the report. Raises :class:`UserError`
    where a file is missing.
    """
    entries = _entries(results)
    sections = _sections(entries)
    contents, body = [_item("run", "The run")], list(_run(config, command))
    if links:
        contents.append(_item("pages", "Pages beside this one"))
        body += _links(links, Path(directory))
    for title, own in sections.items():
        anchor = _anchor(title)
        inner = "".join(_item(f"{entry.name}", entry.title) for entry in own)
        contents.append(f'<li><a href="#{anchor}">{escape(title)}</a><ul>{inner}</ul></li>')
        body.append(f'<h2 id="{anchor}">{escape(title)}</h2>')
        body += (part for entry in own for part in _entry(entry, Path(directory)))
    template = (files(__package__) / "report.html").read_text(encoding="ascii").replace("@STYLE@", style(), 1)
    html = (
        template.replace("@TITLE@", escape(f"UT-ACA, reader {config.reader.name}"), 1)
        .replace("@CONTENTS@", f"<ul>{''.join(contents)}</ul>", 1)
        .replace("@BODY@", "\n".join(body), 1)
    )
    return html.encode("ascii", "xmlcharrefreplace").decode()


def _entries(results: Iterable[str | Path]) -> list[Entry]:
    entries: dict[str, Entry] = {}
    for path in map(Path, results):
        if not path.is_file():
            raise UserError(f"{path} does not exist; make it with its target: snakemake --cores all {path}")
        entries.setdefault(path.stem, Entry(path.stem)).files[path.suffix[1:]] = path
    return list(entries.values())


def _sections(entries: Sequence[Entry]) -> dict[str, list[Entry]]:
    """Entries by section: in the order of its words, those of one word by name; what fits nowhere last."""
    found: dict[str, list[tuple[int, str, Entry]]] = {title: [] for title in (*SECTIONS, OTHERS)}
    for entry in entries:
        title, place = next(
            (
                (title, place)
                for title, words in SECTIONS.items()
                for place, word in enumerate(words)
                if entry.name.startswith(word)
            ),
            (OTHERS, 0),
        )
        found[title].append((place, entry.name, entry))
    ordered = {title: sorted(own, key=lambda item: item[:2]) for title, own in found.items()}
    return {title: [entry for *_, entry in own] for title, own in ordered.items() if own}


def _anchor(title: str) -> str:
    return "section-" + "".join(c if c.isalnum() else "-" for c in title.lower())


def _item(anchor: str, title: str) -> str:
    return f'<li><a href="#{escape(anchor)}">{escape(title)}</a></li>'


def _facts(facts: Mapping[str, str]) -> str:
    rows = (f"<dt>{escape(name)}</dt><dd>{value}</dd>" for name, value in facts.items())
    return f"<dl>{''.join(rows)}</dl>"


def _run(config: schema.Config, command: str) -> Iterator[str]:
    """What the run is: how it was made, of what, how large, with which software."""
    scale = config.scale
    yield f'<h1 id="run">UT-ACA, reader {escape(config.reader.name)}</h1>'
    yield f'<p class="lead">{escape(what_is_synthetic(config))}</p>'
    sizes = {
        split: f"{size.biographies} documents of {size.tokens[0]}-{size.tokens[1]} tokens; compact budgets "
        f"{', '.join(map(str, size.budgets))} blocks"
        for split, size in (("train", scale.train), ("validation", scale.validation), ("test", scale.test))
    }
    yield _facts(
        {
            "command": f"<code>{escape(command)}</code>",
            "config": f"<code>{digest(identity(config))}</code>, seed {config.seed}",
            "reader": f"{escape(config.reader.name)}, <code>{escape(config.reader.path)}</code>, {config.reader.dtype}",
            "corpus": escape(corpus_in_words(config)),
            **{role: escape(endpoint_in_words(getattr(config, role))) for role in ("writer", "labeller", "judge")},
            **{split: escape(size) for split, size in sizes.items()},
            "detectors": f"{scale.detector_seeds} seeds, {scale.detector_steps} steps",
            "intervals": f"{scale.bootstrap} bootstrap resamples of documents",
            "memory": escape(
                f"blocks of {config.reader.memory.block_size} tokens, {config.reader.memory.n_init} initial tokens, "
                f"window of {config.reader.memory.n_local}"
            ),
            "software": escape(_software()),
        }
    )


def _software() -> str:
    return ", ".join(
        [f"Python {platform.python_version()}", *(f"{name} {metadata.version(name)}" for name in PACKAGES)]
    )


def _relative(path: str | Path, directory: Path) -> str:
    return escape(Path(os.path.relpath(path, directory)).as_posix())


def _links(links: Mapping[str, str | Path], directory: Path) -> Iterator[str]:
    yield '<h2 id="pages">Pages beside this one</h2>'
    rows = (f'<li><a href="{_relative(path, directory)}">{escape(name)}</a></li>' for name, path in links.items())
    yield f"<ul>{''.join(rows)}</ul>"


def _entry(entry: Entry, directory: Path) -> Iterator[str]:
    if "md" in entry.files:
        yield _table(entry.files["md"].read_text(encoding="utf-8"), entry.name)
    else:
        yield f'<h3 id="{escape(entry.name)}">{escape(entry.title)}</h3>'
    if "svg" in entry.files:
        # As an image a figure keeps its ids and styles to itself.
        data = base64.b64encode(entry.files["svg"].read_bytes()).decode()
        _, text = FIGURES.get(entry.name, ("", ""))
        yield (
            f'<figure><img src="data:image/svg+xml;base64,{data}" alt="{escape(entry.title)}. {escape(text)}">'
            f"<figcaption>{escape(text)}</figcaption></figure>"
        )
    named = (f'<a href="{_relative(path, directory)}">{extension}</a>' for extension, path in entry.files.items())
    yield f'<p class="files">Files: {", ".join(named)}</p>'


def _table(text: str, name: str) -> str:
    """A table's Markdown as HTML: its heading named ``name``, a level down; the rest is its caption."""
    tokens = _MARKDOWN.parse(text)
    named = False
    for token in tokens:
        if token.type in ("heading_open", "heading_close"):
            token.tag = "h3"
            if token.type == "heading_open" and not named:
                token.attrSet("id", name)
                named = True
        elif token.type == "paragraph_open":
            token.attrSet("class", "caption")
    html = _MARKDOWN.renderer.render(tokens, _MARKDOWN.options, {})
    # Wide tables scroll within the page; a keyboard reaches them.
    region = f'<div class="scroll" role="region" aria-label="{escape(name)}" tabindex="0"><table>'
    return html.replace("<table>", region).replace("</table>", "</table></div>")
