"""Every table and figure of a run, as the modules of the folder ``tables`` declare them.

A table is a function under :func:`table`, or a figure one under :func:`figure`. Its docstring is what people read: a
title, a caption, and paragraphs of notes that stand where all columns do; words in braces are filled in. Declarations
are read from the source, so that a plan of a run imports none of these modules.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any

from utaca.settings import schema

Files = Mapping[str, Sequence[str]]
"""The files that a table is made from, by the names that the workflow has for them (``made_from``)."""
ENDINGS = {"table": ("csv", "md", "tex"), "figure": ("csv", "png", "svg")}


@dataclass(frozen=True)
class When:
    """What a config must hold for a table: as a test, in words, and what to add to a command that lacks it."""

    holds: Callable[[schema.Config], bool]
    needs: str = ""
    add: str = ""

    def option(self, reader: str) -> str:
        """What to add, with the options of points that are the reader's."""
        plain = {"tiny": "tiny", "qwen2_7b": "qwen"}.get(reader, "llama")
        methods = "methods" if plain == "llama" else f"methods_{plain}"
        return self.add.replace("{plain}", plain).replace("{full}", f"{plain}_full").replace("{methods}", methods)


def _decodes(section: str) -> Callable[[schema.Config], bool]:
    """Whether a config decodes points of a section."""
    return lambda config: bool(config.decode.get(section))


def _fixed(config: schema.Config) -> bool:
    points = (point for section in config.sections(schema.TEST) for point in config.decoded(section))
    return any(point.method == schema.FIXED for point in points)


def _held(config: schema.Config) -> bool:
    return any(config.decode.get(bar.set) for bar in config.reader.bars)


def _calibrated(config: schema.Config) -> bool:
    return bool(config.asked) and any(detector.sets for detector in config.detectors.values())


_PLAIN = "points={plain}"
WHEN = {
    "always": When(lambda config: True),
    "on_test": When(_decodes("test"), "points in decode.test", _PLAIN),
    "on_validation": When(_decodes("validation"), "points in decode.validation", _PLAIN),
    "sweep": When(_decodes("sweep"), "points in decode.sweep", "points={full}"),
    "methods": When(_decodes("methods"), "points in decode.methods", "points={methods}"),
    "fixed": When(_fixed, "fixed budgets on the test split", _PLAIN),
    "ood": When(lambda c: bool(c.asked), "benchmarks that are asked", "tasks=paper points=ood"),
    "bars": When(_held, "a set that the reader's bars name", "tasks=biographies points=reading"),
    "calibrated": When(
        _calibrated, "detectors that learn from benchmarks", "tasks=paper points=ood detectors=calibrated"
    ),
    "judged": When(lambda c: bool(c.sections(schema.TEST)), "points on the test split", _PLAIN),
}  # fmt: skip
"""Conditions by the names that declarations have for them."""


def table(
    *,
    theme: str = "",
    files: str = "",
    columns: str = "",
    role: str = "",
    when: str = "always",
    name: str = "",
    title: str = "",
    other: Mapping[str, Mapping[str, Any]] | None = None,
) -> Callable[[Callable], Callable]:
    """Declare a table; its function gets the files by name and the config, and returns the frame (:func:`framed`).

    ``theme`` is a part of the report, ``files`` are names of the workflow's (``made_from``), ``when`` is one of
    :data:`WHEN`; the caption of a table with a ``role`` says what the run is, with the endpoint of that role.
    ``columns`` name columns of the frame in the order shown (``columns.yaml``); "+": folded away until all are shown.
    ``other`` are fields of a column that are different here, or a column of this table alone.

    A second declaration above the first one makes another table by the same function, which then gets its ``name``
    too; whatever it leaves out is the first one's.
    """
    return lambda function: function


def figure(*, theme: str, files: str, when: str = "always") -> Callable[[Callable], Callable]:
    """Declare a figure; its function gets a table's frame, read from its file, the folder to draw into and the config.

    The arguments are those of :func:`table`.
    """
    return lambda function: function


@dataclass(frozen=True)
class Entry:
    """A table or figure as declared."""

    name: str
    title: str
    module: str
    theme: str
    files: list[str]
    caption: str
    kind: str = "table"
    when: str = "always"
    role: str = ""
    columns: list[str] = field(default_factory=list)
    notes: str = ""
    other: dict[str, dict[str, Any]] = field(default_factory=dict)
    function: str = ""

    def holds(self, config: schema.Config) -> bool:
        """Whether a config makes it."""
        return WHEN[self.when].holds(config)


def declared(module: str, source: str) -> Iterator[Entry]:
    """The tables and figures of a module, from its ``source``."""
    for node in ast.parse(source).body:
        if not isinstance(node, ast.FunctionDef):
            continue
        calls = [call for call in reversed(node.decorator_list) if isinstance(call, ast.Call)]
        calls = [call for call in calls if isinstance(call.func, ast.Name) and call.func.id in ENDINGS]
        first: dict[str, Any] = {}
        for call in calls:
            options = {one.arg: ast.literal_eval(one.value) for one in call.keywords}
            first = first or options
            title, caption, *notes = inspect.cleandoc(ast.get_docstring(node) or "").split("\n\n")
            about = {"name": node.name, "title": title.removesuffix(".")} | first | options
            about |= {key: about[key].split() for key in ("files", "columns") if key in about}
            texts = {"caption": " ".join(caption.split()), "notes": "\n".join(" ".join(one.split()) for one in notes)}
            yield Entry(module=module, kind=call.func.id, function=node.name, **texts, **about)


def _entries() -> dict[str, Entry]:
    modules = sorted((files(__package__) / "tables").iterdir(), key=lambda path: path.name)
    sources = {path.name[:-3]: path.read_text("utf-8") for path in modules if path.name.endswith(".py")}
    entries = [entry for name, source in sources.items() for entry in declared(f"tables.{name}", source)]
    return {entry.name: entry for entry in entries}


ENTRIES = _entries()
"""By name; a figure's name is no table's."""
