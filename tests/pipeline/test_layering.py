"""What imports what: the packages of utaca stand in layers."""

from __future__ import annotations

import ast
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src" / "utaca"


def imported(path: Path) -> set[str]:
    """The packages and single modules of utaca that a file imports, inside functions too, types alone aside."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            node.body = []
    names = [name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names]
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            names += [node.module] if "." in node.module else [f"{node.module}.{name.name}" for name in node.names]
    return {name.split(".")[1] for name in names if name.startswith("utaca.")}


def test_no_package_is_in_a_cycle() -> None:
    graph: dict[str, set[str]] = {}
    # What stands in utaca/__init__.py offers all of the package.
    for path in SOURCE.rglob("*.py"):
        if path != SOURCE / "__init__.py":
            name = path.relative_to(SOURCE).parts[0].removesuffix(".py")
            graph[name] = graph.get(name, set()) | imported(path) - {name}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        raise AssertionError(f"these import each other: {' -> '.join(error.args[1])}") from None
