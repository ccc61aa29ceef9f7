"""The scripts that time the engine, detectors' training, the client and the answer store, on tiny sizes."""

import re
from collections.abc import Callable
from importlib import import_module

import pytest
from conftest import ROOT

ENGINE = ["--decode", "2048", "2560", "--prefill", "2048", "3072", "--full", "2048", "--document", "2560"]
ENGINE += ["--tokens", "8"]
Table = Callable[..., list[list[str]]]


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Table:
    """Runs a script with arguments; the cells of the table that it prints, its header left out."""
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))

    def run(script: str, *arguments: str) -> list[list[str]]:
        import_module(script).main([*arguments])
        lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
        return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]

    return run


@pytest.mark.parametrize(
    ("script", "arguments", "first"),
    [
        ("engine", [*ENGINE, "--rounds", "1"], ["7 points of 8 tokens from one prefill of 2560"]),
        ("compare", [str(ROOT), "--rounds", "1", "growth", *ENGINE], ["decode a token behind 2560, K=32"]),
        ("detectors", ["--widths", "16", "--seeds", "3", "--steps", "4"], ["16", "1"]),
        ("client", ["--items", "6", "--concurrency", "2", "--seconds", "0.01", "--rounds", "1"], ["1", "0.03"]),
        ("store", ["--answers", "10"], ["a temporary file"]),
        ("serve", ["--document", "1500", "--tokens", "4", "--clients", "2", "--rounds", "1"], ["the server"]),
    ],
)
def test_a_script_prints_what_it_measured(table: Table, script: str, arguments: list[str], first: list[str]) -> None:
    row = table(script, *arguments)[0]
    assert row[: len(first)] == first
    assert re.search("[1-9]", row[-1])
