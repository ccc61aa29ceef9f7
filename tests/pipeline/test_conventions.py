"""What Snakemake and its workflow catalogue look for: versions, the Snakefile's place, schema, captions, the image."""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace

import jsonschema
import pytest
import yaml
from commands import ENVIRONMENT, snakemake
from config_page import CATALOGUE, catalogue_text
from conftest import ROOT, copy_checkout
from docutils.core import publish_parts
from jinja2 import Environment
from packaging.requirements import Requirement
from packaging.version import Version
from test_packaging import EXTRAS, PROJECT

from utaca.reporting.registry import ENTRIES
from workflow.reporting import SHOWN

CAPTIONS = ROOT / "workflow" / "report"


def test_the_snakefile_asks_for_the_oldest_snakemake_that_is_declared() -> None:
    (declared,) = [each for each in map(Requirement, EXTRAS["pipeline"]) if each.name == "snakemake"]
    (asked,) = re.findall(r'^min_version\("([\d.]+)"\)', (ROOT / "Snakefile").read_text("utf-8"), re.MULTILINE)
    (oldest,) = [each.version for each in declared.specifier if each.operator == ">="]
    assert Version(asked) == Version(oldest)
    assert "reports" in declared.extras


def test_the_catalogue_finds_the_workflow_its_instructions_and_its_keys() -> None:
    about = yaml.safe_load((ROOT / ".snakemake-workflow-catalog.yml").read_text(encoding="utf-8"))["usage"]
    assert set(about) == {"mandatory-flags", "software-stack-deployment"}
    assert about["software-stack-deployment"]["report"] is True
    assert (ROOT / "config" / "README.md").is_file()
    text = (ROOT / CATALOGUE).read_text(encoding="utf-8")
    assert text == catalogue_text(ROOT), "run python docs/config_page.py"
    assert "$ref" not in text, "the catalogue follows no reference"
    schema = yaml.safe_load(text)
    jsonschema.Draft202012Validator.check_schema(schema)
    scale = schema["properties"]["scale"]
    assert scale["type"] == ["string", "object"]
    assert "paper" in scale["description"]
    assert scale["properties"]["test"]["properties"]["shards"]["default"] == 1
    for path in (ROOT / "config" / "runs").glob("*.yaml"):
        jsonschema.validate(yaml.safe_load(path.read_text(encoding="utf-8")), schema)
    for wrong in ({"jugde": "x"}, {"seed": "x"}, {"judge": {"temprature": 1}}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, schema)


def test_the_catalogue_draws_the_rules_from_a_folder_of_its_own(checkout: Path, tmp_path: Path) -> None:
    """With the command that it calls."""
    place = ["-s", str(checkout / "workflow" / "Snakefile"), "-d", str(tmp_path / ".test")]
    done = snakemake(tmp_path, *place, "-c", "1", "--forceall", "--rulegraph")
    assert done.returncode == 0, done.stdout
    assert "train_detector" in done.stdout
    assert not (tmp_path / ".test" / "results").exists()


def rendered(caption: str, **job: object) -> str:
    """A caption as Snakemake's report renders it, in HTML."""
    text = Environment(trim_blocks=True, lstrip_blocks=True).from_string((CAPTIONS / caption).read_text("utf-8"))
    return publish_parts(text.render(snakemake=SimpleNamespace(**job)), writer="html")["body"]


@pytest.mark.parametrize("name", ENTRIES)
def test_captions_of_tables_and_figures_are_whole_sentences(name: str) -> None:
    entry = ENTRIES[name]
    # Snakemake's report leaves out a sentence with braces, and the first one says what is shown.
    assert "{" not in entry.caption.split(". ")[0]
    html = rendered("result.rst", params=SimpleNamespace(shown={"entry": entry}))
    assert "system-message" not in html
    assert f"<strong>{entry.title}</strong>" in html
    assert "{" not in html
    assert ".." not in html.replace("...", "")
    assert SHOWN[entry.kind] in ("csv", "svg")


def test_the_other_captions_name_the_run() -> None:
    named = {key: {"name": f"the {key}"} for key in ("reader", "writer", "labeller", "judge", "corpus", "scale")}
    for caption in ("run.rst", "config.rst", "manifest.rst", "workflow.rst"):
        html = rendered(caption, config={"run": "quick", **named})
        assert "system-message" not in html
        assert "quick" in html


# The image


def containerfile() -> str:
    return (ROOT / "Containerfile").read_text(encoding="utf-8")


def test_the_image_has_a_python_that_the_package_takes_and_runs_the_workflow() -> None:
    (python,) = re.findall(r"^FROM python:3\.(\d+)-slim$", containerfile(), re.MULTILINE)
    (oldest,) = re.findall(r">=3\.(\d+)", PROJECT["project"]["requires-python"])
    assert int(python) >= int(oldest)
    (command,) = re.findall(r"^CMD (\[.*\])$", containerfile(), re.MULTILINE)
    assert json.loads(command) == ["snakemake", "--cores", "all", "results/tables"]
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert {".git", ".venv", "results", "logs"} <= {*ignored}


APPTAINER = """#!/bin/sh
[ "$1" = --version ] && { echo apptainer version 1.3.0; exit; }
while [ "$1" != -c ]; do
    case "$1" in *.sif) echo "$1" >> "$IMAGES" ;; esac
    shift
done
exec bash -c "$2"
"""
"""Stands in for Apptainer: it notes the image that it is given, and runs the command here."""


def test_every_job_is_sent_to_the_image_where_apptainer_is_asked_for(tmp_path: Path) -> None:
    folder = copy_checkout(tmp_path / "utaca")
    program = tmp_path / "bin" / "apptainer"
    program.parent.mkdir()
    program.write_text(APPTAINER)
    program.chmod(0o755)
    images = tmp_path / "images"
    place = {"PATH": f"{program.parent}{os.pathsep}{ENVIRONMENT['PATH']}", "IMAGES": str(images)}
    command = ["--cores", "1", "biographies", "--config", "scale=smoke"]
    done = snakemake(folder, "--sdm", "apptainer", *command, **place)
    assert done.returncode == 0, done.stdout
    assert images.read_text().split() == ["utaca.sif"] * 3, "a job for each split"
    assert (folder / "results" / "smoke" / "biographies" / "test.parquet").is_file()


def builder() -> str:
    """The program that builds images here; skips where there is none, or none that can fetch the base image."""
    for name in ("podman", "buildah", "docker"):
        if shutil.which(name) is None:
            continue
        if name == "docker" and subprocess.run(["docker", "info"], capture_output=True).returncode:
            continue
        base = re.findall(r"^FROM (\S+)$", containerfile(), re.MULTILINE)[0]
        pulled = subprocess.run([name, "pull", f"docker.io/library/{base}"], capture_output=True, text=True)
        if pulled.returncode:
            pytest.skip(f"{name} cannot fetch {base}: {pulled.stderr.strip().splitlines()[-1]}")
        return name
    pytest.skip("no podman, no buildah, and no docker whose daemon answers")


@pytest.mark.slow
def test_the_image_is_built_and_plans_the_default_run() -> None:
    program = builder()
    build = ["make", "image", f"BUILDER={program}", "IMAGE=utaca-test"]
    done = subprocess.run(build, cwd=ROOT, text=True, capture_output=True)
    assert done.returncode == 0, done.stderr
    if program == "buildah":
        pytest.skip("buildah has built the image; it takes podman or docker to run it")
    run = [program, "run", "--rm", "--network", "none", "utaca-test"]
    try:
        planned = subprocess.run([*run, "snakemake", "-n", "--cores", "1"], text=True, capture_output=True)
        assert planned.returncode == 0, planned.stderr
        assert "train_detector" in planned.stdout + planned.stderr
        words = ["utaca", "ask", "--reader", "tiny", "--document", "-", "--no-cache"]
        question = "Summarize the university of Maria Olsson."
        asked = subprocess.run(
            [*run[:2], "--interactive", *run[2:], *words, question],
            input="The university of Maria Olsson is Lund University. " * 9, text=True, capture_output=True,
        )  # fmt: skip
        assert "Lund University" in asked.stdout, asked.stderr
    finally:
        subprocess.run([program, "rmi", "--force", "utaca-test"], capture_output=True)
