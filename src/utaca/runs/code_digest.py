"""The files of the package that a script runs, found by following imports through the package.

Snakemake does not see edits in imported code, so every rule has a digest of these files among its parameters.
"""

from __future__ import annotations

import ast
import hashlib
import os
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

from utaca.errors import UserError

_DATA = ("*.txt", "*.json", "*.html", "*.css", "*.yaml")
_LISTS = ("tasks/rows.yaml", "readers/public.yaml")
"""Lists that users add entries to; a job has its own entry among its parameters instead."""


def code(script: Path, source: Path, *more: str) -> str:
    """First 16 hex digits of the SHA-256 of the names and contents of the files that :func:`closure` lists."""
    digest = hashlib.sha256()
    for path in closure(script, source, *more):
        digest.update(f"{os.path.relpath(path, source)}\n".encode() + _content(path))
    return digest.hexdigest()[:16]


def closure(script: Path, source: Path, *more: str) -> list[str]:
    """Sorted paths of the modules ``more``, and of the package's modules that ``script`` or these import, at any depth.

    ``more`` are modules that a package loads by name (methods, signals, tables) and that the job uses; other files of
    such a folder make no difference to it. ``source`` is the folder that holds the package. Text, JSON, HTML, CSS and
    YAML files beside listed modules are included; a file named like a module (its prompt) is included only with that
    module. YAML files under ``data/``, beside ``source``, are included if a listed module names them
    (:func:`utaca.data_files.read`). Lists of tasks and of public readers are left out.
    """
    files: set[Path] = set()
    waiting = {*_imports(script, source), *_files(more, source)}
    while waiting:
        files |= waiting
        waiting = {path for module in waiting for path in _imports(module, source)} - files
    data = {path: module for folder in {path.parent for path in files} for path, module in _data(folder)}
    wanted = [path for path, module in data.items() if module is None or module in files]
    found = map(str, files.union(wanted, *(_named(path, source) for path in files)))
    return sorted(path for path in found if not path.endswith(_LISTS))


@cache
def _data(folder: Path) -> list[tuple[Path, Path | None]]:
    """Data files of a folder, each with the module of the same name, or None."""
    paths = [path for kind in _DATA for path in folder.glob(kind)]
    return [(path, module if (module := path.with_suffix(".py")).is_file() else None) for path in paths]


@cache
def _named(module: Path, source: Path) -> list[Path]:
    """The YAML files under ``data/`` that a module names."""
    paths = [source.parent / "data" / name for name in re.findall(r'"([\w/]+\.yaml)"', _content(module).decode())]
    return [path for path in paths if path.is_file()]


@cache
def _imports(path: Path, source: Path) -> frozenset[Path]:
    """Files of the package that a module or script imports, also inside functions, but not under TYPE_CHECKING."""
    text = _content(path).decode()
    names = set()
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        raise UserError(f"{path}, line {error.lineno}: {error.msg}; correct it") from error
    for node in _statements(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return frozenset(_files(names, source))


def _statements(tree: ast.AST) -> Iterator[ast.AST]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.expr) or (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"):
            continue
        yield node
        yield from _statements(node)


def _files(names: Iterable[str], source: Path) -> Iterator[Path]:
    """The files of the modules with these dotted names, and the ``__init__.py`` of each package around a module."""
    for name in names:
        path = source
        for part in name.split(".") if name.startswith("utaca") else ():
            path = path / part
            yield from (file for file in (path / "__init__.py", path.with_suffix(".py")) if file.is_file())


@cache
def _content(path: str | Path) -> bytes:
    return Path(path).read_bytes()
