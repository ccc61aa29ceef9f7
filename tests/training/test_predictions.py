"""Answers and detectors that ship: what comes back of a journal, and that nothing of a benchmark's own text does."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from commands import typed

from utaca.detection.detector import load
from utaca.errors import UserError
from utaca.generation.points import unpacked
from utaca.records import SCHEMAS
from utaca.records.journal import Journal
from utaca.tasks import predictions

ABOUT = {"suite": "questions", "point": "infllm-K8", "budget": 8}


def pair(number: int) -> pa.Table:
    """An answer of two tokens as the journal has it; that of document 0 has none."""
    answer = {"document": f"d{number}", "question": "Who?", "text": "Ann", "n_generated": 2, "finish": "eos"}
    token = {"document": f"d{number}", "token": 7, "text": "Ann", "k": 8, "selected": [[1, 2]], "scores": [[0.5, 0.25]]}
    trace = [token | {"step": step} for step in range(2)] if number else [None]
    return pa.table(
        {
            "answer": pa.array([answer] * len(trace), pa.struct(SCHEMAS["answers"])),
            "trace": pa.array(trace, pa.struct(SCHEMAS["traces"])),
        }
    )


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    for number in range(3):
        Journal(tmp_path / "journal", "reader").table(f"d{number}", lambda number=number: pair(number))
    return tmp_path / "journal"


def test_what_is_saved_comes_back_but_for_questions_and_blocks(journal: Path, tmp_path: Path) -> None:
    assert predictions.save(journal, tmp_path / "run.parquet") == 3
    assert b"Who?" not in (tmp_path / "run.parquet").read_bytes()
    assert predictions.restore(tmp_path / "run.parquet", tmp_path / "again") == 3
    kept = Journal(tmp_path / "again", "reader")
    for number in range(3):
        found = kept.table(f"d{number}", lambda: pytest.fail("decoded again"))
        was, now = unpacked(pair(number), ABOUT), unpacked(found, ABOUT)
        assert now.answer.drop_columns("question") == was.answer.drop_columns("question")
        assert now.answer["question"].to_pylist() == [None]
        assert now.trace.drop_columns(["selected", "scores"]) == was.trace.drop_columns(["selected", "scores"])
        assert now.trace["selected"].null_count == len(was.trace)
    assert not list((tmp_path / "again").rglob(".*")), "nothing half written is left"


def test_what_is_there_is_left_alone(journal: Path, tmp_path: Path) -> None:
    predictions.save(journal, tmp_path / "run.parquet")
    before = {path: path.read_bytes() for path in journal.rglob("*.parquet")}
    next(iter(before)).unlink()
    assert predictions.restore(tmp_path / "run.parquet", journal) == 1
    same = [path for path in list(before)[1:] if path.read_bytes() == before[path]]
    assert len(same) == 2


def test_what_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="holds no answers; decode points on a set of tasks"):
        predictions.save(tmp_path, tmp_path / "run.parquet")
    monkeypatch.chdir(tmp_path)
    done = typed("predictions", "restore", "nothing")
    assert done.exit_code == 2
    assert "data/predictions/nothing.parquet is missing" in done.stderr


def test_shipped_predictions_are_readable() -> None:
    for path in (Path(__file__).parents[2] / predictions.FOLDER).glob("*.parquet"):
        schema = pq.read_schema(path)
        assert {field.name for field in schema.field("answer").type} == {*SCHEMAS["answers"].names} - {"question"}


def test_shipped_detectors_are_of_one_reader() -> None:
    folder = Path(__file__).parents[2] / "data" / "detectors" / "smollm2-tuned"
    paths = sorted(folder.glob("*.safetensors"))
    detectors = [load(path) for path in paths]
    assert {detector.reader.identity for detector in detectors} == {"3862b4327815f367"}
    told = (folder / "README.md").read_text("utf-8")
    assert all(f"| `{path.stem}` |" in told for path in paths)
