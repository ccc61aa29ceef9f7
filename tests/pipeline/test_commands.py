"""``python -m utaca``: what it lists is there, runs, and is all there is."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path

import pytest
from commands import snakemake
from configs import planned
from conftest import ROOT

from utaca.__main__ import TARGETS, commands, main


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
    assert set(listed) == runnable() - {"utaca"}
    assert all(re.fullmatch(r"[A-Z].{20,}[^.`]", said) for said in listed.values()), listed


@pytest.mark.filterwarnings("ignore:.*found in sys.modules:RuntimeWarning")
@pytest.mark.parametrize("name", ["utaca", *commands()])
def test_a_listed_command_says_how_it_is_used(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["", "--help"])
    monkeypatch.chdir(tmp_path)  # where a command that wrote instead would find nothing
    with pytest.raises(SystemExit) as ended:
        runpy.run_module(name, run_name="__main__", alter_sys=True)
    assert ended.value.code == 0
    assert f"usage: python -m {name} " in capsys.readouterr().out.replace("\n", " ")
    assert not list(tmp_path.iterdir())


def test_targets_are_those_of_the_workflow(checkout: Path) -> None:
    done = snakemake(checkout, "--list-target-rules", "--quiet")
    assert done.returncode == 0, done.stdout
    rules, plan = done.stdout.split(), planned(ROOT)
    assert {"biographies", "generations", "tasks", "traces"} <= set(rules) & set(TARGETS)
    assert next(iter(TARGETS)) == "results/tables"
    for target in TARGETS:
        assert target in rules or target.format(run=plan.SETTINGS.run, table="test") in plan.RESULTS, target
