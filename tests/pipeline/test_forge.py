"""What the forge runs (``.github``), and what a release states in several places."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import ROOT
from test_docs import check_make, check_snakemake
from test_packaging import PROJECT

import utaca

FORGE = ROOT / ".github"
WORKFLOWS = sorted((FORGE / "workflows").glob("*.yml"))
NAMED = {"ids": lambda path: path.name}
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")


def read(path: Path) -> dict[Any, Any]:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def commands(path: Path) -> Iterator[str]:
    """What the steps of a workflow run, a command each."""
    for job in read(path)["jobs"].values():
        for step in job["steps"]:
            yield from step.get("run", "").splitlines()


@pytest.mark.parametrize("path", WORKFLOWS, **NAMED)
def test_jobs_of_the_forge_are_bounded_and_may_do_little(path: Path) -> None:
    workflow = read(path)
    # YAML 1.1 reads the key "on" as true.
    assert True in workflow
    writes = "write" if path.name == "release.yml" else "read"
    assert workflow["permissions"] == {"contents": writes}
    for job in workflow["jobs"].values():
        assert job["timeout-minutes"] <= 90
        for step in job["steps"]:
            place = step.get("uses", "./.github/actions/environment")
            assert not place.startswith("./") or (ROOT / place / "action.yml").is_file()


@pytest.mark.parametrize("path", WORKFLOWS, **NAMED)
def test_what_the_forge_runs_is_there_and_documented(path: Path) -> None:
    for command in commands(path):
        program, *words = command.split()
        if program == "make":
            check_make(words)
            assert f"make {words[0]}" in CONTRIBUTING + (ROOT / "docs" / "install.md").read_text(encoding="utf-8")
        elif program.endswith("snakemake"):
            check_snakemake(words)
        else:
            assert program in ("docker", "gh"), command


def test_the_forge_runs_what_ci_run_does_and_more() -> None:
    run = {command for path in WORKFLOWS for command in commands(path)}
    (ours,) = re.findall(r"^make (.*)$", (ROOT / ".ci" / "run").read_text(encoding="utf-8"), re.MULTILINE)
    assert {f"make {target}" for target in ours.split()} <= run
    assert {"make lint", "make docs", "make package", "make oldest", "make oracle", "make tables"} <= run
    pythons = read(FORGE / "workflows" / "ci.yml")["jobs"]["test"]["strategy"]["matrix"]["python"]
    assert PROJECT["project"]["requires-python"] == f">={pythons[0]}"


def test_the_forge_makes_the_environment_as_the_pages_say() -> None:
    *_, made = read(FORGE / "actions" / "environment" / "action.yml")["runs"]["steps"]
    assert made["run"].splitlines()[-1] == "make environment"


def test_what_leaves_the_package_is_announced() -> None:
    lines = (ROOT / "tests" / "data" / "public_names.txt").read_text(encoding="utf-8").splitlines()
    gone = {line for line in lines if not line.startswith("#")} - {*utaca.__all__}
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert [name for name in sorted(gone) if f"`utaca.{name}`" not in changes] == []


def test_the_page_lists_what_is_public() -> None:
    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    table = page.partition("## What is public\n")[2].partition("\n\n`utaca.__all__`")[0]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    listed = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
    assert sorted(listed) == utaca.__all__
    for name in utaca.__all__:
        assert getattr(utaca, name).__doc__, f"the reference says nothing of {name}"


def test_a_release_has_one_version_and_one_licence() -> None:
    version, licence = PROJECT["project"]["version"], PROJECT["project"]["license"]
    citation = read(ROOT / "CITATION.cff")
    assert (citation["version"], citation["license"]) == (version, licence)
    assert {"cff-version", "message", "title", "authors", "type"} <= set(citation)
    assert citation["preferred-citation"]["type"] == "article"
    assert f"utaca-{version}-py3-none-any.whl" in (ROOT / "docs" / "install.md").read_text(encoding="utf-8")
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    released = re.findall(r"^## \[(\d+\.\d+\.\d+)\]", changes, re.MULTILINE)
    # Before the first release, and between two, the newest changes are unreleased.
    assert not released or released[0] == version
    assert changes.index("## [Unreleased]") < changes.index(f"## [{version}]" if released else "### Added")
