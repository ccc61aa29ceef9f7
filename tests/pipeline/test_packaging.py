"""The package outside of a checkout: what it declares, and what lies inside it."""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from conftest import ROOT
from packaging.requirements import Requirement

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
EXTRAS = PROJECT["project"]["optional-dependencies"]
NAMES = {
    "dateutil": "python-dateutil",
    "hydra": "hydra-core",
    "markdown_it": "markdown-it-py",
    "pydantic_core": "pydantic",
    "rouge_score": "rouge-score",
    "spellchecker": "pyspellchecker",
    "text_to_num": "text2num",
    "yaml": "pyyaml",
}
"""Distributions that are called otherwise than what is imported of them."""


def requirements(*extras: str) -> list[Requirement]:
    """What is declared for the core and for some extras."""
    declared = [*PROJECT["project"]["dependencies"], *(line for extra in extras for line in EXTRAS[extra])]
    return [Requirement(line) for line in declared]


def imported(files: Iterable[Path]) -> Iterator[tuple[str, Path]]:
    """Distributions that files import from, wherever in them."""
    for path in files:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and not node.level:
                names = [node.module or ""]
            for name in {name.split(".")[0] for name in names} - {"utaca"} - set(sys.stdlib_module_names):
                yield NAMES.get(name, name).lower(), path


def test_the_lock_pins_what_is_declared() -> None:
    lines = (ROOT / "requirements.lock").read_text(encoding="utf-8").split()
    pins = {name.lower(): version for name, _, version in (line.partition("==") for line in lines)}
    for requirement in requirements("pipeline", "serve", "postgres", "test", "docs", "gguf", "benchmarks"):
        assert requirement.specifier, f"{requirement.name} has no range"
        assert requirement.specifier.contains(pins[requirement.name.lower()]), requirement


def test_every_import_is_declared() -> None:
    sources = {folder: list((ROOT / folder).rglob("*.py")) for folder in ("src", "workflow", "training")}
    extras = requirements("pipeline", "serve", "llmlingua", "gguf", "benchmarks")
    declared = {requirement.name.lower() for requirement in extras}
    for folder, paths in sources.items():
        # The package needs nothing of the trainings.
        known = declared | {"training"} if folder == "training" else declared
        for name, path in imported(paths):
            assert name in known, (name, path)


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


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as the wheel is unpacked, by what the build backend is told to pack."""
    folder, wheel = tmp_path_factory.mktemp("site"), PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]
    packed = {package: Path(package).name for package in wheel["packages"]} | wheel["force-include"]
    for source, target in packed.items():
        (folder / target).parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / source).is_dir():
            shutil.copytree(ROOT / source, folder / target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / source, folder / target)
    return folder


def test_an_installed_package_reads_and_answers_with_core_dependencies_alone(site: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(site), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", INSTALLED], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["text"] == "The university of Maria Olsson is Lund University."
    assert Path(said["path"]).is_relative_to(site)
    loaded = [Path(path) for path in said["files"]]
    assert all(path.is_relative_to(site) for path in loaded)
    # A GGUF file asks for its package when it is read, the URL of an answer store for the one that reads it.
    core = {requirement.name.lower() for requirement in requirements()} | {"gguf", "sqlalchemy"}
    assert {name for name, _ in imported(loaded)} <= core


def test_an_installed_command_answers_with_a_shipped_detector(site: Path, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("The university of Maria Olsson is Lund University. It was a cold day. " * 9)
    question = "Summarize the university of Maria Olsson."
    words = ["ask", "--reader", "tiny", "--document", "a.txt", "--no-cache", "--json", question]
    environment = {**os.environ, "PYTHONPATH": str(site), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "utaca", *words], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    totals = json.loads(done.stdout.splitlines()[-1])
    assert totals["text"] == "The university of Maria Olsson is Lund University."
    assert totals["trigger"] == "needed_chained"


def test_readers_are_loaded_without_biographies() -> None:
    for path in (ROOT / "src" / "utaca" / "readers").rglob("*.py"):
        assert "utaca.biographies" not in path.read_text(encoding="utf-8"), path
