"""Which files of the package a script runs: its imports, followed through the package.

Snakemake does not see edits in imported code, so every rule has a digest of these files among its parameters.
"""

from __future__ import annotations

import ast
import hashlib
import os
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

PACKAGE = "utaca"
_DATA = ("*.txt", "*.json", "*.html", "*.css", "*.yaml")


def code(script: Path, source: Path, *more: str) -> str:
    """16 hex digits of the SHA-256 of what :func:`closure` lists, names and contents."""
    digest = hashlib.sha256()
    for path in closure(script, source, *more):
        digest.update(f"{os.path.relpath(path, source)}\n".encode() + _content(path))
    return digest.hexdigest()[:16]


def closure(script: Path, source: Path, *more: str) -> list[str]:
    """Source files of the package that ``script`` and ``more`` modules import, directly or not, now or later; sorted.

    ``source`` is the folder that holds the package. A package that is reached only because a module inside it
    is imported counts with what its ``__init__`` imports at once, not with what it offers lazily. Text, JSON, HTML,
    CSS and YAML files of reached packages are included; one named like a module (its prompt) with that module alone. So
    are the YAML files under ``data/``, beside ``source``, that a reached module names.
    """
    full: set[str] = set()
    eager: set[str] = set()
    _follow(_imports(script, "", source, lazy=True).union(more), full, eager, source)
    files = {path for name in full | eager if (path := _file(name, source)).is_file()}
    files.update(*(_texts(path, source) for path in files))
    for folder in {path.parent for path in files if path.suffix == ".py"}:
        files.update(path for pattern in _DATA for path in folder.glob(pattern) if _wanted(path, files))
    return sorted(str(path) for path in files)


@cache
def _content(path: str) -> bytes:
    return Path(path).read_bytes()


@cache
def _texts(module: Path, source: Path) -> list[Path]:
    """The files under ``data/`` that a module names (:func:`utaca.data_files.read`)."""
    names = re.findall(r'"([\w/]+\.yaml)"', module.read_text(encoding="utf-8"))
    return [path for name in names if (path := source.parent / "data" / name).is_file()]


def _wanted(data: Path, files: set[Path]) -> bool:
    module = data.with_suffix(".py")
    return module in files or not module.is_file()


def _follow(names: frozenset[str], full: set[str], eager: set[str], source: Path) -> None:
    for name in sorted(names):
        if name not in full:
            full.add(name)
            _follow(_imports(_file(name, source), name, source, lazy=True), full, eager, source)
        parts = name.split(".")
        for depth in range(1, len(parts)):
            parent = ".".join(parts[:depth])
            if parent not in eager and parent not in full:
                eager.add(parent)
                _follow(_imports(_file(parent, source), parent, source, lazy=False), full, eager, source)


@cache
def _file(name: str, source: Path) -> Path:
    path = source.joinpath(*name.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def _exists(name: str, source: Path) -> bool:
    return name.split(".")[0] == PACKAGE and _file(name, source).is_file()


@cache
def _imports(path: Path, module: str, source: Path, *, lazy: bool) -> frozenset[str]:
    if not path.is_file():
        # a folder without __init__
        return frozenset()
    tree, named = _parsed(path)
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    found: set[str] = set()
    for node in _statements(tree, lazy, named):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names if _exists(alias.name, source))
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*parents, base] if base else parents)
            members = [f"{base}.{alias.name}" for alias in node.names]
            submodules = [name for name in members if _exists(name, source)]
            found.update(submodules)
            if len(submodules) < len(members) and _exists(base, source):
                found.add(base)
        elif (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and "." in node.value
            and _exists(node.value, source)
        ):
            # the name of a module that is loaded by importlib
            found.add(node.value)
        elif isinstance(node, ast.JoinedStr) and ast.unparse(node).startswith("f'{__name__}."):
            # a package that loads every module in its folder
            found.update(f"{module}.{file.stem}" for file in path.parent.glob("[!_]*.py"))
    return frozenset(found - {module})


def _parsed(path: Path) -> tuple[ast.AST, bool]:
    """A module, and whether its expressions may name others: texts that begin so, or f-strings on its own name."""
    text = path.read_text(encoding="utf-8")
    return ast.parse(text), any(mark in text for mark in (f'"{PACKAGE}.', f"'{PACKAGE}.", "{__name__}."))


def _statements(tree: ast.AST, lazy: bool, named: bool) -> Iterator[ast.AST]:
    """Nodes below ``tree``; expressions only where they may name modules (``named``)."""
    for node in ast.iter_child_nodes(tree):
        if not named and isinstance(node, ast.expr):
            continue
        if not lazy and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Constant):
            continue
        if isinstance(node, ast.If) and _type_checking(node):
            continue
        yield node
        yield from _statements(node, lazy, named)


def _type_checking(node: ast.If) -> bool:
    return isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
