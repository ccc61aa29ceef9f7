"""What settings each method of :mod:`utaca.methods` has, read from its source: importing it would import torch."""

from __future__ import annotations

import ast
from dataclasses import field, make_dataclass
from functools import cache
from pathlib import Path
from typing import Any

_FOLDER = Path(__file__).parents[1] / "methods"
_TYPES: dict[str, Any] = {
    "int": int,
    "float": float,
    "str": str,
    "bool": bool,
    "tuple[int, ...]": tuple[int, ...],
    "tuple[float, ...]": tuple[float, ...],
    "tuple[str, ...]": tuple[str, ...],
}


@cache
def settings_of(method: str, folder: Path = _FOLDER) -> type | None:
    """A dataclass with the method's settings and their types, all optional; None for a method that is not in the
    package, whose settings its class checks once it is there.

    Which values go together, and with which reader, is told by the method itself, before the first job.
    """
    classes = _classes(folder)
    owner = next((name for name, (_, _, called) in classes.items() if called == method), None)
    if owner is None:
        return None
    declared: dict[str, Any] = {}
    waiting = [owner]
    while waiting:
        bases, own, _ = classes.get(waiting.pop(), ([], {}, ""))
        declared = own | declared
        waiting += bases
    return make_dataclass(method, [(name, kind, field(default=None)) for name, kind in declared.items()])


@cache
def _classes(folder: Path) -> dict[str, tuple[list[str], dict[str, Any], str]]:
    """Of every class in the files of ``folder``: its bases, its fields with their types, and what it is called."""
    found = {}
    for path in sorted(folder.glob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if not isinstance(node, ast.ClassDef):
                continue
            bases = [base.id for base in node.bases if isinstance(base, ast.Name)]
            own: dict[str, Any] = {}
            called = ""
            for line in node.body:
                if not isinstance(line, ast.AnnAssign) or not isinstance(line.target, ast.Name):
                    continue
                kind = ast.unparse(line.annotation)
                if not kind.startswith("ClassVar"):
                    own[line.target.id] = _TYPES.get(kind, Any)
                elif line.target.id == "name" and isinstance(line.value, ast.Constant):
                    called = line.value.value
            found[node.name] = (bases, own, called)
    return found
