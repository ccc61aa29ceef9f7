"""The package: what it declares, what imports what in it, and what lies inside it outside of a checkout."""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from graphlib import CycleError, TopologicalSorter
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
EXTRAS = PROJECT["project"]["optional-dependencies"]


def requirements(*extras: str) -> list[Requirement]:
    """What is declared for the core and for some extras."""
    declared = [*PROJECT["project"]["dependencies"], *(line for extra in extras for line in EXTRAS[extra])]
    return [Requirement(line) for line in declared]


def names(declared: Iterable[Requirement]) -> set[str]:
    return {canonicalize_name(requirement.name) for requirement in declared}


def modules(path: Path) -> set[str]:
    """What a file imports, inside functions too, types alone aside."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            node.body = []
    nodes = list(ast.walk(tree))
    plain = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    others = [node for node in nodes if isinstance(node, ast.ImportFrom) and not node.level]
    return plain | {f"{node.module}.{alias.name}" for node in others for alias in node.names}


def distributions(files: Iterable[Path]) -> set[str]:
    """Those that files import from, beside pydantic's part in Rust."""
    found = {name.split(".")[0] for path in files for name in modules(path)} - {"utaca", "pydantic_core"}
    installed = packages_distributions()
    return {canonicalize_name(installed.get(name, [name])[0]) for name in found - set(sys.stdlib_module_names)}


def test_every_import_is_declared() -> None:
    declared = names(requirements("pipeline", "serve", "llmlingua", "gguf", "benchmarks"))
    for folder in ("src", "workflow", "training"):
        # The package needs nothing of the workflows.
        known = declared if folder == "src" else declared | {folder}
        assert distributions((ROOT / folder).rglob("*.py")) <= known


def test_the_oldest_versions_declared_are_those_tested() -> None:
    """The packages of tests/oldest.txt, under which ``make oldest`` runs, are all that the engine declares."""
    lines = (ROOT / "tests" / "oldest.txt").read_text(encoding="utf-8").splitlines()
    pinned = [Requirement(line) for line in lines if not line.startswith("#")]
    declared = {each.name: each.specifier for each in requirements("gguf", "test")}
    assert names(requirements("gguf")) <= names(pinned)
    for each in pinned:
        (lowest,) = [other.version for other in declared[each.name] if other.operator == ">="]
        assert each.specifier.contains(lowest), each


def import_graph(source: Path) -> dict[str, set[str]]:
    """The modules that each module of the package below ``source`` imports, inside functions too, types alone aside.

    With a module comes the ``__init__.py`` of each package around it, but for those that are around the importing
    module too: these are under way by then.
    """
    files = {}
    for path in (source / "utaca").rglob("*.py"):
        parts = path.relative_to(source).with_suffix("").parts
        files[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    graph = {}
    for name, path in files.items():
        imported = set()
        for module in modules(path):
            parts = module.split(".")
            imported |= {".".join(parts[:end]) for end in range(1, len(parts) + 1)} & files.keys()
        graph[name] = {module for module in imported if not f"{name}.".startswith(f"{module}.")}
    return graph


def test_no_module_imports_itself_by_way_of_others() -> None:
    graph = import_graph(ROOT / "src")
    assert "utaca.endpoints.client" in graph["utaca.judging.roles"]
    assert "utaca.endpoints" in graph["utaca.judging.roles"], "the package around it"
    # Raises CycleError, which names the modules that import each other.
    TopologicalSorter(graph).prepare()


def test_a_cycle_is_seen_wherever_the_imports_stand(tmp_path: Path) -> None:
    files = {
        "__init__.py": "",
        "one/__init__.py": "from utaca.one.a import f\n",
        "one/a.py": "def f():\n    from utaca.two import g\n",
        "one/b.py": "",
        "two.py": "from utaca.one import b\n",
        "three.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import utaca.four\n",
        "four.py": "import utaca.three\n",
    }
    for name, text in files.items():
        path = tmp_path / "utaca" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    graph = import_graph(tmp_path)
    assert graph["utaca.three"] == set(), "types alone"
    with pytest.raises(CycleError) as raised:
        TopologicalSorter(graph).prepare()
    assert set(raised.value.args[1]) >= {"utaca.one", "utaca.one.a", "utaca.two"}
    (tmp_path / "utaca" / "one" / "a.py").write_text("")
    TopologicalSorter(import_graph(tmp_path)).prepare()


INSTALLED = """
import json, sys
import utaca
reader = utaca.load_reader("tiny", dtype="float32")
memory = utaca.prefill(reader, "The university of Maria Olsson is Lund University. It was a cold day. " * 9)
answer = utaca.generate(memory, "Summarize the university of Maria Olsson.", budget=8)
files = [m.__file__ for name, m in sys.modules.items() if name.split(".")[0] == "utaca" and m.__file__]
assert utaca.Detector and utaca.load_detector
from utaca.biographies.corpora import embedded, topics
from utaca.judging.rules import tasks
assert embedded.articles(topics.paper_articles()[:1], 0, 2)
assert tasks.answer({"task": "biography", "person": "Ann Bell", "facts": [{"attribute": "hobby", "value": "Chess"}]})
print(json.dumps({"text": answer.text, "path": reader.settings.path, "files": files}))
"""


def test_an_installed_package_and_its_command_answer_with_core_dependencies_alone(tmp_path: Path) -> None:
    site, wheel = tmp_path / "site", PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]
    # As the wheel is unpacked, by what the build backend is told to pack.
    packed = {package: Path(package).name for package in wheel["packages"]} | wheel["force-include"]
    for source, target in packed.items():
        (site / target).parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / source).is_dir():
            shutil.copytree(ROOT / source, site / target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / source, site / target)

    def run(*words: str) -> dict[str, Any]:
        environment = {**os.environ, "PYTHONPATH": str(site), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, *words]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        said = json.loads(done.stdout.splitlines()[-1])
        assert said["text"] == "The university of Maria Olsson is Lund University."
        return said

    said = run("-c", INSTALLED)
    assert Path(said["path"]).is_relative_to(site)
    loaded = [Path(path) for path in said["files"]]
    assert all(path.is_relative_to(site) for path in loaded)
    # A GGUF file asks for its package when it is read, the URL of an answer store for the one that reads it.
    assert distributions(loaded) <= names(requirements()) | {"gguf", "sqlalchemy"}
    (tmp_path / "a.txt").write_text("The university of Maria Olsson is Lund University. It was a cold day. " * 9)
    words = ["-m", "utaca", "ask", "--reader", "tiny", "--document", "a.txt", "--no-cache", "--json"]
    assert run(*words, "Summarize the university of Maria Olsson.")["trigger"] == "needed_chained"
