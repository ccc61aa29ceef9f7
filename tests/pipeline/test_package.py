"""The built package (``make package``): what its files hold, and that an installed wheel answers from anywhere."""

from __future__ import annotations

import email
import json
import os
import subprocess
import sys
import tarfile
import venv
import zipfile
from collections.abc import Mapping
from email.message import Message
from pathlib import Path

import pytest
from conftest import ROOT
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from test_packaging import EXTRAS, PROJECT

VERSION = PROJECT["project"]["version"]
QUESTION = "Summarize the university of Maria Olsson."


@pytest.fixture(scope="module")
def built() -> tuple[Path, Path]:
    """Wheel and source archive in ``dist``; skips where nothing has been built."""
    files = sorted((ROOT / "dist").glob("*"))
    if not files:
        pytest.skip("dist is empty; `make package` builds the package")
    wheel, archive = sorted(files, key=lambda path: path.suffix != ".whl")
    assert wheel.name == f"utaca-{VERSION}-py3-none-any.whl"
    assert archive.name == f"utaca-{VERSION}.tar.gz"
    return wheel, archive


def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as packed:
        return email.message_from_bytes(packed.read(f"utaca-{VERSION}.dist-info/METADATA"))


def test_the_wheel_holds_the_package_and_what_ships_with_it(built: tuple[Path, Path]) -> None:
    wheel, archive = built
    with zipfile.ZipFile(wheel) as packed:
        held = set(packed.namelist())
    source = ROOT / "src"
    modules = {path.relative_to(source).as_posix() for path in (source / "utaca").rglob("*.py")}
    assert modules <= held
    assert {name.split("/")[0] for name in held} == {"utaca", f"utaca-{VERSION}.dist-info"}
    shipped = {name for name in held if name.startswith("utaca/shipped/")}
    assert {"utaca/shipped/config/config.yaml", "utaca/shipped/data/readers/tiny/model.safetensors"} <= shipped
    assert not [name for name in held if name.endswith((".gguf", ".pyc"))]
    assert f"utaca-{VERSION}.dist-info/licenses/LICENSE" in held
    with tarfile.open(archive) as packed_source:
        members = {name.partition("/")[2] for name in packed_source.getnames()}
    assert {"pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "CITATION.cff", "src/utaca/trace.py"} <= members
    assert not [name for name in members if name.endswith(".gguf")]


def test_the_wheel_says_what_pyproject_says(built: tuple[Path, Path]) -> None:
    about = metadata(built[0])
    assert about["Version"] == VERSION
    assert about["Requires-Python"] == PROJECT["project"]["requires-python"]
    assert about["License-Expression"] == "Apache-2.0"
    assert set(about.get_all("Provides-Extra") or []) == set(EXTRAS)


@pytest.fixture(scope="module")
def program(built: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The command ``utaca`` of a new environment with nothing but the wheel in it.

    Its dependencies are those of the environment that runs the tests: a line of a ``.pth`` file puts their folder at
    the end of the path, behind the installed package. The editable checkout in that folder is not followed.
    """
    folder = tmp_path_factory.mktemp("installed") / "environment"
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    install = [python, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", built[0]]
    subprocess.run(install, check=True)
    (site,) = folder.glob("lib/python*/site-packages")
    (own,) = {path for path in sys.path if path.endswith("site-packages")}
    (site / "dependencies.pth").write_text(f"{own}\n", encoding="utf-8")
    return folder / "bin" / "utaca"


def call(program: Path, folder: Path, *words: str, python: str = "") -> str:
    """What the installed command prints, or a line of Python in its environment, called in ``folder``."""
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment = inherited | {"OMP_NUM_THREADS": "1", "XDG_CACHE_HOME": str(folder)}
    command = [program.with_name("python"), "-c", python] if python else [program, *words]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_an_installed_wheel_answers_from_an_empty_folder(program: Path, tmp_path: Path) -> None:
    place = call(program, tmp_path, python="import utaca; print(utaca.__file__)")
    assert Path(place.strip()).is_relative_to(program.parents[1])
    assert VERSION in call(program, tmp_path, "--version")
    assert "tiny" in call(program, tmp_path, "fetch")
    (tmp_path / "a.txt").write_text("The university of Maria Olsson is Lund University. It was a cold day. " * 9)
    asked = call(program, tmp_path, "ask", "--reader", "tiny", "--document", "a.txt", "--json", QUESTION)
    said = json.loads(asked.splitlines()[-1])
    assert said["text"] == "The university of Maria Olsson is Lund University."
    assert said["trigger"] == "needed_chained", "the detector that ships"


def test_every_public_name_is_there_in_an_installed_wheel(program: Path, tmp_path: Path) -> None:
    call(program, tmp_path, python="import utaca; [getattr(utaca, name) for name in utaca.__all__]")


def lock() -> Mapping[str, str]:
    """Versions of ``requirements.lock``, by normalised name."""
    lines = (ROOT / "requirements.lock").read_text(encoding="utf-8").splitlines()
    pinned = [line.partition("==") for line in lines if "==" in line and not line.startswith("#")]
    return {canonicalize_name(name): version.split()[0] for name, _, version in pinned}


@pytest.mark.parametrize("extra", sorted({*EXTRAS} - {"slurm", "llmlingua"}))
def test_the_lock_satisfies_an_extra(extra: str) -> None:
    """So the extra resolves; ``slurm`` and ``llmlingua`` are no part of the lock and pin themselves."""
    versions = lock()
    for each in map(Requirement, EXTRAS[extra]):
        assert each.specifier.contains(versions[canonicalize_name(each.name)]), each
