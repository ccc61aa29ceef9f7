"""Find the files of the package that a script runs, by following imports through the package, and digest them.

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
"""Files in a package's folder that its modules read."""
_LISTS = ("tasks/rows.yaml", "readers/public.yaml", "readers/questions.yaml")
"""Lists that users add entries to; a job has its own entry among its parameters instead."""


def code(script: Path, source: Path, *more: str) -> str:
    """The digest of the code that a job runs: of the names and contents of the files that :func:`closure` lists.

    It is the first 16 hexadecimal digits of a SHA-256.
    """
    digest = hashlib.sha256()
    for path in closure(script, source, *more):
        digest.update(f"{os.path.relpath(path, source)}\n".encode() + _content(path))
    return digest.hexdigest()[:16]


def closure(script: Path, source: Path, *more: str) -> list[str]:
    """List the files that decide what a job does, as sorted paths.

    They are the modules ``more``, the package's modules that ``script`` or these import, at any depth, and the data
    files that these modules read. ``more`` are dotted names of modules that a package loads by name (methods, signals,
    tables) and that the job uses; other files of such a folder make no difference to it. ``source`` is the folder that
    holds the package.

    Of the data files, text, JSON, HTML, CSS and YAML files in the folder of a listed module are included; a file named
    like a module (its prompt) is included only with that module. YAML files under ``data/``, in the folder that holds
    ``source``, are included if a listed module names them (:func:`utaca.data_files.read`). Lists of tasks, of public
    readers and of wordings are left out.
    """
    modules: set[Path] = set()
    waiting = {*_imports(script, source), *_files(more, source)}
    while waiting:
        modules |= waiting
        imported: set[Path] = set()
        for module in waiting:
            imported |= _imports(module, source)
        waiting = imported - modules
    data: set[Path] = set()
    for folder in {module.parent for module in modules}:
        data.update(path for path, owner in _data(folder) if owner is None or owner in modules)
    for module in modules:
        data.update(_named(module, source))
    return sorted(str(path) for path in modules | data if not str(path).endswith(_LISTS))


@cache
def _data(folder: Path) -> list[tuple[Path, Path | None]]:
    """The data files of a folder, each with the module of the same name, or with None if there is no such module."""
    files = []
    for kind in _DATA:
        for path in folder.glob(kind):
            module = path.with_suffix(".py")
            files.append((path, module if module.is_file() else None))
    return files


@cache
def _named(module: Path, source: Path) -> list[Path]:
    """The YAML files under ``data/`` whose names, relative to that folder, occur in double quotes in a module."""
    paths = [source.parent / "data" / name for name in re.findall(r'"([\w/]+\.yaml)"', _content(module).decode())]
    return [path for path in paths if path.is_file()]


@cache
def _imports(path: Path, source: Path) -> frozenset[Path]:
    """Files of the package that a module or script imports, also inside functions, but not under TYPE_CHECKING.

    Imports under TYPE_CHECKING are for type checkers and are not run.
    """
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
    """Yield the statements of a module at any depth, except those under ``if TYPE_CHECKING``.

    Expressions are passed over: they hold no imports.
    """
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.expr) or (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"):
            continue
        yield node
        yield from _statements(node)


def _files(names: Iterable[str], source: Path) -> Iterator[Path]:
    """Yield the files of the package's modules among these dotted names, and the ``__init__.py`` of all packages above.

    A name may also be that of something in a module, as imports have it.
    """
    for name in names:
        if not name.startswith("utaca"):
            continue
        path = source
        for part in name.split("."):
            path = path / part
            for file in (path / "__init__.py", path.with_suffix(".py")):
                if file.is_file():
                    yield file


@cache
def _content(path: str | Path) -> bytes:
    """The bytes of a file, which is read once."""
    return Path(path).read_bytes()
