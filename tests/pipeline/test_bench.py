"""The scripts that time the engine, detectors' training, the client and the answer store, on tiny sizes."""

import re
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

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


def test_the_engine_answers_every_question(table: Table) -> None:
    rows = table("engine", *ENGINE, "--rounds", "1")
    assert [row[0].partition(",")[0] for row in rows] == [
        "7 points of 8 tokens from one prefill of 2560",
        "3 points in shared passes behind 2560",
        "decode a token behind 2560",
        "prefill a token of 3072",
        "decode a token behind 2560 with detector and policy",
        "prefill of 2048 by full attention",
        "decode a token behind 2048 by full attention",
        "peak memory",
    ]
    for row in rows:
        middle, low, high = map(float, re.findall(r"[\d.e+]+", row[4]))
        assert 0 < low <= middle <= high


def test_a_big_shape_of_random_weights_is_timed(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = import_module("engine")
    shape, small = engine.LlamaConfig, {"hidden_size": 64, "intermediate_size": 80, "num_hidden_layers": 2}
    small |= {"num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 5000}
    monkeypatch.setattr(engine, "LlamaConfig", lambda **sizes: shape(**sizes | small))
    sizes = ["--decode", "5800", "5900", "--prefill", "5800", "5900", "--full", "5800"]
    rows = table("engine", "growth", "--reader", "random-8b", "--host", *ENGINE[-2:], "--rounds", "1", *sizes)
    assert len(rows) == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["speed"], "no question is called speed; ask points, growth, detector, full, memory"),
        (["--tokens", "3"], "an answer of 3 tokens is too short to time; give it 6 or more"),
        (["--decode", "100", "2560"], "Error: the shortest context has 100 tokens; give it more than "),
    ],
)
def test_the_engine_says_what_it_cannot_measure(
    table: Table, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        table("engine", *ENGINE, *arguments)
    assert message in f"{ended.value} {capsys.readouterr().err}"


def test_two_checkouts_are_measured_in_turns(table: Table, tmp_path: Path) -> None:
    rows = table("compare", str(ROOT), "--rounds", "1", "growth", *ENGINE)
    assert [row[0] for row in rows] == ["decode a token behind 2560, K=32", "prefill a token of 3072"]
    with pytest.raises(SystemExit, match="has no package utaca under src; give the folder of a checkout"):
        import_module("compare").measured(tmp_path, [])


def test_training_is_timed_alone_and_side_by_side(table: Table) -> None:
    row = table("detectors", "--widths", "16", "--seeds", "3", "--steps", "4")[0]
    assert row[:2] == ["16", "1"]
    assert float(row[-1]) > 0


def test_the_client_is_timed_beside_the_least_possible(table: Table) -> None:
    (row,) = table("client", "--items", "6", "--concurrency", "2", "--seconds", "0.01", "--rounds", "1")
    assert row[:2] == ["1", "0.03"]
    assert float(row[-1]) >= 1


def test_the_store_is_timed(table: Table) -> None:
    (row,) = table("store", "--answers", "10")
    assert row[0] == "a temporary file"
    assert all(int(cell.replace(",", "")) > 0 for cell in row[1:])


def test_the_server_is_timed_beside_hugging_face(table: Table) -> None:
    rows = table("serve", "--document", "1500", "--tokens", "4", "--clients", "2", "--rounds", "1")
    assert [row[0] for row in rows[:3]] == ["the server", "generate, cache kept", "generate, read anew"]
    assert rows[-1][0] == "an answer by the server"


def test_pages_name_the_scripts_that_there_are() -> None:
    text = "".join(page.read_text(encoding="utf-8") for page in (ROOT / "docs").glob("*.md"))
    named = set(re.findall(r"python (bench/\w+\.py)", text))
    assert {f"bench/{name}.py" for name in ("engine", "compare", "detectors", "client", "store", "serve")} <= named
    assert all((ROOT / name).is_file() for name in named)
