"""Every table and figure of a run, as ``tables.yaml`` beside this module lists them.

Each has a module with a dictionary ``MAKERS``. Its maker gets the files by name (:attr:`utaca.plan.Plan.named`) and the
config. A table's maker returns the table, which is saved as CSV, Markdown and LaTeX. A figure's returns the numbers,
saved as CSV; the function of its name in the module's ``DRAW`` draws them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files

import yaml

from utaca.settings import schema

Files = Mapping[str, Sequence[str]]

ENDINGS = {"table": ("csv", "md", "tex"), "figure": ("csv", "png", "svg")}


@dataclass(frozen=True)
class When:
    """What a config must hold for a table: as a test, in words, and what to add to a command that lacks it."""

    holds: Callable[[schema.Config], bool]
    needs: str = ""
    add: str = ""

    def option(self, reader: str) -> str:
        """What to add, with the options of suites that are the reader's."""
        own = {"tiny": "tiny", "qwen2_7b": "qwen"}.get(reader, "llama")
        methods = "methods" if own == "llama" else f"methods_{own}"
        return self.add.replace("{plain}", own).replace("{full}", f"{own}_full").replace("{methods}", methods)


def _suite(*purposes: str, split: str = "test") -> Callable[[schema.Config], bool]:
    """Whether a config has a suite for one of these purposes (:class:`schema.Suite`) on a split."""
    return lambda config: any(s.split == split and s.table in purposes for s in config.suites.values())


def _fixed(config: schema.Config) -> bool:
    suites = [suite for suite in config.suites.values() if suite.split == "test" and suite.table != "seeds"]
    return any(point.method == "infllm" and point.in_blocks for suite in suites for point in suite.points)


def _asked(config: schema.Config) -> bool:
    return any(map(config.asked_of, config.tasks.sets))


def _held(config: schema.Config) -> bool:
    return any(config.asked_of(bar.set) for bar in config.reader.bars)


def _calibrated(config: schema.Config) -> bool:
    return _asked(config) and any(detector.sets for detector in config.detectors.values())


_PLAIN = "suites={plain}"
WHEN = {
    "always": When(lambda config: True),
    "on_test": When(_suite("generation"), "a suite of the test split", _PLAIN),
    "on_validation": When(_suite("generation", split="validation"), "a suite of the validation split", _PLAIN),
    "sweep": When(_suite("sweep"), "a suite with table: sweep", "suites={full}"),
    "seeds": When(_suite("seeds"), "a suite with table: seeds", "suites={full}"),
    "methods": When(_suite("methods"), "a suite with table: methods", "suites={methods}"),
    "budgets": When(_suite("budgets"), "a suite with table: budgets", "suites={methods}"),
    "fixed": When(_fixed, "fixed budgets on the test split", _PLAIN),
    "own": When(lambda c: any(map(c.tried, ("validation", "test"))), "points of method utaca", _PLAIN),
    "tried_on_test": When(lambda c: bool(c.tried("test")), "points of method utaca on the test split", _PLAIN),
    "expanded": When(
        lambda c: c.trajectories.expanded > 0, "trajectories that try every token expanded", "detectors=paper"
    ),
    "ood": When(_asked, "benchmarks that suites ask", "tasks=paper suites=ood"),
    "bars": When(_held, "a set that the reader's bars name", "tasks=biographies suites=reading"),
    "calibrated": When(
        _calibrated, "detectors that learn from benchmarks", "tasks=paper suites=ood detectors=calibrated"
    ),
    "replayed": When(
        lambda c: c.scale.replays > 0 and bool(c.replays_of), "decisions that are replayed", "'scale={replays: 12}'"
    ),
    "judged": When(
        lambda c: any(s.split == "test" for s in c.suites.values()), "a suite of the test split", _PLAIN
    ),
}  # fmt: skip
"""The conditions by the names that ``tables.yaml`` has for them."""


@dataclass(frozen=True)
class Entry:
    """A table or figure: what makes it, from what, and what people see of it (``tables.yaml``)."""

    name: str
    title: str
    module: str
    theme: str
    files: list[str]
    caption: str
    kind: str = "table"
    when: str = "always"
    role: str = ""
    columns: dict[str, str] = field(default_factory=dict)
    notes: str = ""

    def holds(self, config: schema.Config) -> bool:
        """Whether a config makes it."""
        return WHEN[self.when].holds(config)


def _entries() -> dict[str, Entry]:
    text = (files(__package__) / "tables.yaml").read_text(encoding="utf-8")
    held = yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    texts = held.pop("texts")
    for about in held.values():
        for text in ("caption", "notes"):
            for name, shared in texts.items():
                about[text] = about.get(text, "").replace(f"{{{name}}}", shared)
    return {name: Entry(name, **about) for name, about in held.items()}


ENTRIES = _entries()
"""By name; a figure's name is no table's."""
