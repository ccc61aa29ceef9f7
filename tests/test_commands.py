"""``python -m utaca``: what it lists is there, runs, and is all there is."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from commands import ENVIRONMENT
from conftest import ROOT

from utaca.__main__ import TARGETS, commands, main
from utaca.plan import STAGES, Plan
from utaca.settings.compose import compose

PROCESSES = {"utaca.benchmarks.endpoints", "utaca.benchmarks.engine.quick", "utaca.benchmarks.engine.resident"}
"""Started by benchmarks alone, as processes of their own."""


def runnable() -> set[str]:
    """Modules that do something under ``python -m``, by their text."""
    found = set()
    for path in (ROOT / "src" / "utaca").rglob("*.py"):
        if re.search(r"^if __name__ == .__main__.", path.read_text(encoding="utf-8"), re.MULTILINE):
            found.add(".".join(path.relative_to(ROOT / "src").with_suffix("").parts).removesuffix(".__main__"))
    return found


def test_every_command_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    main([])
    listed = dict(re.findall(r"^  python -m (\S+) +(.*)$", capsys.readouterr().out, re.MULTILINE))
    assert set(listed) == runnable() - PROCESSES - {"utaca"}
    assert all(re.fullmatch(r"[A-Z].{20,}[^.`]", said) for said in listed.values()), listed


@pytest.mark.parametrize("name", ["utaca", *commands()])
def test_a_listed_command_says_how_it_is_used(name: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", name, "--help"],
        cwd=tmp_path,  # where a command that wrote instead would find nothing
        env=ENVIRONMENT | {"PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("usage: ")
    assert f"python -m {name} " in done.stdout.partition("\n\n")[0]
    assert not list(tmp_path.iterdir())


def test_targets_are_those_of_the_workflow() -> None:
    rules = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "workflow" / "rules").glob("*.smk"))
    plan = Plan(compose({}, ROOT), ROOT / "src")
    assert set(STAGES) <= set(TARGETS)
    assert list(TARGETS)[0] == "results/tables"
    for target in TARGETS:
        path = target.format(run=plan.settings.run, table="test")
        known = re.search(rf"^rule {target}:$", rules, re.MULTILINE) or target in {"tables", "results/tables"}
        made = path in plan.results or Path(path).with_suffix("").as_posix() in rules.replace("{OUT}", plan.folder)
        assert known or made, target
