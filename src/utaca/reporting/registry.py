"""Every table and figure of a run, as ``tables.yaml`` beside this module, or a table's module, declares it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any

import yaml

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
        base = {"tiny": "tiny", "qwen2_7b": "qwen"}.get(reader, "llama")
        methods = "methods" if base == "llama" else f"methods_{base}"
        return self.add.replace("{base}", base).replace("{full}", f"{base}_full").replace("{methods}", methods)


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


_POINTS = "points={base}"
WHEN = {
    "always": When(lambda config: True),
    "on_test": When(_decodes("test"), "points in decode.test", _POINTS),
    "on_validation": When(_decodes("validation"), "points in decode.validation", _POINTS),
    "sweep": When(_decodes("sweep"), "points in decode.sweep", "points={full}"),
    "methods": When(_decodes("methods"), "points in decode.methods", "points={methods}"),
    "fixed": When(_fixed, "fixed budgets on the test split", _POINTS),
    "ood": When(lambda c: bool(c.asked), "benchmarks that are asked", "tasks=paper points=ood"),
    "bars": When(_held, "a set that the reader's bars name", "tasks=biographies points=reading"),
    "calibrated": When(
        _calibrated, "detectors that learn from benchmarks", "tasks=paper points=ood detectors=calibrated"
    ),
    "judged": When(lambda c: bool(c.sections(schema.TEST)), "points on the test split", _POINTS),
}  # fmt: skip
"""Conditions by the names that declarations have for them."""


@dataclass(frozen=True)
class Entry:
    """A table or figure as declared; its fields are described in ``tables.yaml``."""

    name: str
    title: str
    maker: str
    theme: str
    files: list[str]
    caption: str
    kind: str = "table"
    when: str = "always"
    role: str = ""
    columns: list[str] = field(default_factory=list)
    columns_here: dict[str, dict[str, Any]] = field(default_factory=dict)
    notes: str = ""

    @property
    def module(self) -> str:
        """The module that makes it, below :mod:`utaca.reporting`."""
        return f"tables.{self.maker.partition('.')[0]}"

    @property
    def function(self) -> str:
        return self.maker.partition(".")[2]

    def holds(self, config: schema.Config) -> bool:
        """Whether a config makes it."""
        return WHEN[self.when].holds(config)


def _declared() -> dict[str, Any]:
    """The declarations of ``tables.yaml``, and those behind the line ``---`` of a table module's docstring.

    Modules are read and not imported, because planning must not load pandas.
    """
    package = files(__package__)
    declared = yaml.safe_load((package / "tables.yaml").read_text(encoding="utf-8"))
    for module in sorted((package / "tables").iterdir(), key=lambda path: path.name):
        if module.name.endswith(".py"):
            _, _, entries = module.read_text(encoding="utf-8").partition("\n---\n")
            declared |= yaml.safe_load(entries.partition('"""')[0]) or {}
    return declared


def _entries() -> dict[str, Entry]:
    entries = {}
    for name, about in _declared().items():
        lists = {key: about[key].split() for key in ("files", "columns") if key in about}
        entries[name] = Entry(name=name, **about | lists)
    return entries


ENTRIES = _entries()
"""By name; a figure's name is no table's."""
