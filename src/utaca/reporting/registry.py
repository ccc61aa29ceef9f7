"""Every table and figure of a run, as declared in ``tables.yaml`` or in the module of a table."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any

import yaml

from utaca.errors import UserError
from utaca.reporting import paper
from utaca.settings import schema

Files = Mapping[str, Sequence[str]]
"""The files that a table is made from, by their names in the workflow (``made_from`` in ``workflow/reporting.py``)."""
TWO_WAY = "two_way"
"""The detector variant of two classes, which the paper compares with that of three."""
POINTS = "points.points"
"""The maker of a table that declares its points and names no maker: module and function, as in every ``maker``."""
THEMES: Mapping[str, str] = {
    "data": "Data set",
    "generation": "Generation",
    "detection": "Detection",
    "methods": "Other methods",
    "judging": "Labels, scores, endpoints",
    "resources": "Resources",
    "": "More",
}
"""Titles of the parts of a report, in their order, by the theme of a declaration; "" is that of other names."""
ENDINGS = {"table": ("csv", "md", "tex", "json"), "figure": ("csv", "png", "svg")}


def data(name: str) -> dict[str, Any]:
    """The content of a YAML file of this package."""
    return yaml.safe_load((files(__package__) / name).read_text(encoding="utf-8"))


@dataclass(frozen=True)
class When:
    """The condition on the config under which a run makes a table.

    ``holds`` tests it, ``needs`` says in words what the config must have, and ``add`` are command-line options that
    meet it, with the names of groups of points (files of ``config/points``) as fields in braces.
    """

    holds: Callable[[schema.Config], bool]
    needs: str = ""
    add: str = ""

    def option(self, base: str, groups: Collection[str]) -> str:
        """The command-line options to add so that the condition holds, for a reader whose group of points is ``base``.

        ``groups`` are the names of all groups of points. The result is "" if the options need one that is not there.
        """
        names = {"base": base, "full": f"{base}_full", "methods": f"methods_{base}"}
        # A reader may have a group of other methods for itself; without it, the group for any reader is taken.
        if names["methods"] not in groups:
            names["methods"] = "methods"
        needed = {name for field_name, name in names.items() if f"{{{field_name}}}" in self.add}
        options = self.add
        for field_name, name in names.items():
            # Not by str.format: the options may have other braces, as 'scale={replays: 8}' has.
            options = options.replace(f"{{{field_name}}}", name)
        return options if needed.issubset(groups) else ""


def _decodes(section: str, points: str) -> When:
    """The condition that the config decodes points in a ``section``, as the option ``points`` does."""
    return When(lambda config: bool(config.decode.get(section)), f"points in decode.{section}", f"points={points}")


def _methods(config: schema.Config) -> set[str]:
    """The methods of the points on the test split."""
    methods: set[str] = set()
    for section in config.sections(schema.TEST):
        methods.update(config.points[name].method for name in config.decode[section])
    return methods


def _has_bars(config: schema.Config) -> bool:
    """Whether the config decodes a set of questions that the reader's bars (limits of a score) name."""
    return any(config.decode.get(bar.set) for bar in config.reader.bars)


def _is_calibrated(config: schema.Config) -> bool:
    """Whether the run asks questions of benchmarks, and a detector learns from questions of some."""
    return bool(config.asked) and any(detector.sets for detector in config.detectors.values())


def _has_replays(config: schema.Config) -> bool:
    """Whether single decisions of the config's detector are turned and decoded again."""
    return config.main_point is not None and config.scale.replays > 0


def _has_two_way(config: schema.Config) -> bool:
    """Whether the config's detector has three classes, and its variant of two classes is trained as well."""
    return TWO_WAY in config.detectors and config.detectors[config.detector].classes == 3


WHEN = {
    "always": When(lambda config: True),
    "on_test": _decodes("test", "{base}"),
    "on_validation": _decodes("validation", "{base}"),
    "sweep": _decodes("sweep", "{full}"),
    "methods": _decodes("methods", "{methods}"),
    "fixed": When(lambda config: schema.FIXED in _methods(config), "fixed budgets on the test split", "points={base}"),
    "ood": When(lambda config: bool(config.asked), "benchmarks that are asked", "tasks=paper points=ood"),
    "bars": When(
        _has_bars,
        "a set that the reader's bars name (those of tiny are in config/runs/validation.yaml)",
        "tasks=biographies points=reading",
    ),
    "calibrated": When(
        _is_calibrated,
        "detectors that learn from benchmarks",
        "tasks=paper points=ood detectors=calibrated",
    ),
    "expanded": When(
        lambda config: config.main_point is not None,
        "points with the config's detector in decode.test",
        "points={base}",
    ),
    "replayed": When(
        _has_replays,
        "points with the config's detector in decode.test, and scale.replays above 0",
        "points={base} 'scale={replays: 8}'",
    ),
    "two_way": When(
        _has_two_way,
        "a detector of three classes and the variant two_way",
        "detectors=core",
    ),
    "study": When(
        lambda config: bool(config.tried(schema.TEST)),
        "a point of UT-ACA in decode.test whose trigger is a detector",
        "points={base}",
    ),
    "judged": When(lambda config: bool(_methods(config)), "points on the test split", "points={base}"),
}
"""Conditions, by their names in declarations."""


@dataclass(frozen=True)
class TableEntry:
    """A table or figure as declared; ``tables.yaml`` describes the fields."""

    name: str
    title: str
    theme: str
    files: list[str]
    caption: str
    maker: str = POINTS
    source: str = ""
    points: list[str] = field(default_factory=list)
    paper: str = ""
    kind: str = "table"
    when: str = "always"
    role: str = ""
    columns: list[str] = field(default_factory=list)
    columns_here: dict[str, dict[str, Any]] = field(default_factory=dict)
    best: list[str] = field(default_factory=list)
    notes: str = ""
    fill: str = ""

    @property
    def module(self) -> str:
        """The module of the function that makes the table, below :mod:`utaca.reporting`."""
        return f"tables.{self.maker.partition('.')[0]}"

    @property
    def modules(self) -> list[str]:
        """The modules, below :mod:`utaca.reporting`, of the functions that make and draw it."""
        makers = [self.maker, self.source] if self.source else [self.maker]
        return list(dict.fromkeys(f"tables.{maker.partition('.')[0]}" for maker in makers))

    @property
    def function(self) -> str:
        """The name in :attr:`module` of the function that makes the table."""
        return self.maker.partition(".")[2]

    @property
    def names(self) -> list[str]:
        """The columns, by their names in the CSV file."""
        return [column.removeprefix("+") for column in self.columns]

    @property
    def of_paper(self) -> list[str]:
        """The columns for which the table also shows the paper's figures."""
        return [name.removeprefix("paper_") for name in self.names if name.startswith("paper_")]

    def holds(self, config: schema.Config) -> bool:
        """Whether a run of the config makes the table or figure."""
        return WHEN[self.when].holds(config)


def _entries() -> dict[str, TableEntry]:
    """Read all declarations: those of ``tables.yaml`` and those of the modules in ``tables``, by name of the table.

    A module's declarations stand after the line ``---`` of its docstring. Modules are read and not imported, because
    planning the workflow must not load pandas. Raises :class:`UserError` for a declaration that is malformed, or that
    names a maker which its module does not have.
    """
    entries = declared(data("tables.yaml"), "tables.yaml")
    modules = [path for path in (files(__package__) / "tables").iterdir() if path.name.endswith(".py")]
    for module in sorted(modules, key=lambda path: path.name):
        try:
            text = module.read_text(encoding="utf-8")
            declarations = text.partition("\n---\n")[2].partition('"""')[0]
            of_module = declared(yaml.safe_load(declarations) or {}, module.name)
        except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
            reason = " ".join(str(error).split())
            raise UserError(f"{module} cannot be read ({reason}); correct it") from error
        for name, entry in of_module.items():
            if name in entries:
                raise UserError(
                    f"{module} declares the table {name}, which another file declares too; rename one of the two"
                )
            # The maker must be a function of the module that declares the table.
            if f"{entry.module}.py" != f"tables.{module.name}" or f"def {entry.function}(" not in text:
                maker = f"{module.name.removesuffix('.py')}.{entry.function}"
                raise UserError(f"{module} declares the table {name}, but has no function {maker}; correct its maker")
            entries[name] = entry
    return entries


def declared(declarations: Any, where: str) -> dict[str, TableEntry]:
    """Make the entries of a file of declarations, by name of the table.

    ``declarations`` is the file's content. Raises :class:`UserError`, which calls the file ``where``, if it is
    malformed.
    """
    if not isinstance(declarations, Mapping):
        raise UserError(f"{where} must be a mapping of names of tables to their entries; see docs/extending.md")
    result = {}
    for name, fields in declarations.items():
        try:
            # These fields are written as words with spaces between.
            lists = {key: fields[key].split() for key in ("files", "columns", "points", "best") if key in fields}
            entry = TableEntry(name=name, **fields | lists)
            wrong = _wrong(entry)
        except (AttributeError, TypeError) as error:
            raise UserError(
                f"{where}: the entry of table {name} is malformed ({error}); see docs/extending.md"
            ) from error
        if wrong:
            raise UserError(f"{where}: table {name} has {wrong}")
        result[name] = entry
    return result


def _wrong(entry: TableEntry) -> str:
    """What is wrong with a declaration, as the rest of the sentence "table NAME has …"; "" if nothing is."""
    # A field, its value, and the values that it may have.
    choices = [("kind", entry.kind, ENDINGS), ("when", entry.when, WHEN)]
    choices += [("points", section, schema.SECTIONS) for section in entry.points]
    if entry.paper:
        choices.append(("paper", entry.paper, paper.BY_POINT))
    for key, value, allowed in choices:
        if value not in allowed:
            return f"{key} {value!r}, which is not one of {', '.join(allowed)}"
    unknown = [column for column in entry.best if column.removeprefix("-") not in entry.names]
    if unknown:
        return f"best {unknown[0]}, which is not one of its columns"
    if entry.source and entry.kind != "figure":
        return "a source, which only a figure may have"
    if entry.maker == POINTS and not entry.points:
        return "neither a maker nor points"
    return ""


ENTRIES = _entries()
"""All tables and figures, by name."""
