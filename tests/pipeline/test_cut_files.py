"""Files that a stage reads and that are cut off, empty or foreign: each is refused in a sentence that names it."""

import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from configs import reference_config
from safetensors.torch import save_file
from torch import zeros

from utaca.biographies.corpora import folder, wikipedia
from utaca.detection import about, detector
from utaca.detection.detector import Detector
from utaca.endpoints.store import AnswerStore, digest
from utaca.errors import UserError
from utaca.records import tables
from utaca.records.journal import Journal
from utaca.reporting import table
from utaca.reporting.report import page
from utaca.runs import record as runs
from utaca.runs.preflight import check_files
from utaca.settings import schema


def damaged(content: bytes) -> dict[str, bytes]:
    """Other contents of a file, by what is wrong with them."""
    return {
        "cut": content[: len(content) // 2],
        "cut before its end": content[:-9],
        "one byte": content[:1],
        "empty": b"",
        "zeros": bytes(len(content)),
        "a table of commas": b"a,b\n1,2\n",
        "text": "Zürich".encode("latin-1"),
    }


def faults(path: Path, *works: Callable[[], Any]) -> None:
    """Each of ``works`` names the file in a sentence."""
    for work in works:
        with pytest.raises(UserError) as fault:
            work()
        assert str(path) in str(fault.value)
        assert "\n" not in str(fault.value)


# Parquet


@pytest.fixture
def scores(tmp_path: Path) -> Path:
    """A whole file of scores."""
    path = tmp_path / "scores.parquet"
    tables.write(path, "scores", [])
    return path


def footer(content: bytes) -> int:
    """Bytes of a Parquet file's footer, with its length and the magic."""
    return int.from_bytes(content[-8:-4], "little") + 8


PARQUET = {
    "magic alone": lambda content: b"PAR1",
    "garbage after": lambda content: content + b"garbage",
    "footer": lambda content: content[: -footer(content)] + bytes(footer(content) - 8) + content[-8:],
    "length of the footer": lambda content: content[:-8] + b"\xff\xff\xff\x7fPAR1",
}


@pytest.mark.parametrize("kind", [*damaged(b""), *PARQUET])
def test_a_damaged_stage_file_is_named_by_all_that_read_it(kind: str, scores: Path, tmp_path: Path) -> None:
    path, content = tmp_path / "other.parquet", scores.read_bytes()
    path.write_bytes(PARQUET[kind](content) if kind in PARQUET else damaged(content)[kind])
    works = (
        lambda: tables.read(path, "scores"),
        lambda: tables.read(path, "scores", ["document"]),
        lambda: tables.rows([scores, path], "scores"),
        lambda: tables.reader_of([path]),
        lambda: tables.provenance([path]),
        lambda: tables.provenance([scores, path]),
        lambda: tables.check_source(path, [scores]),
        lambda: tables.check_source(scores, [path]),
        lambda: tables.check_whole(path),
    )
    faults(path, *works)
    with pytest.raises(UserError, match=r"other\.parquet is not a complete Parquet file; remove it and run again"):
        works[0]()


def test_a_file_that_cannot_be_opened_is_named(scores: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place, loop, missing = tmp_path / "place.parquet", tmp_path / "loop.parquet", tmp_path / "missing.parquet"
    place.mkdir()
    loop.symlink_to(loop)
    for path in (place, loop, missing, tmp_path / "missing.safetensors"):
        faults(path, lambda path=path: tables.read(path, "scores"), lambda path=path: tables.provenance([path]))
    with pytest.raises(UserError, match="does not exist; make it with its target"):
        tables.read(missing, "scores")

    def forbidden(*_: Any, **__: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(pq, "read_schema", forbidden)
    with pytest.raises(
        UserError, match=r"scores\.parquet cannot be read \(Permission denied\); correct its permissions"
    ):
        tables.read(scores, "scores")


def test_a_column_that_comes_twice_is_another_schema(tmp_path: Path) -> None:
    path = tmp_path / "twice.parquet"
    columns = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["document", "document"])
    pq.write_table(columns.replace_schema_metadata({"utaca.kind": "scores"}), path)
    faults(path, lambda: tables.read(path, "scores"), lambda: tables.read(path, "scores", ["document"]))


def test_a_journals_damaged_piece_is_made_again(tmp_path: Path) -> None:
    one = pa.table({"a": [1]})
    for content in damaged(b"PAR1" + bytes(60) + b"PAR1").values():
        journal = Journal(tmp_path, "x")
        journal.table("item", lambda: one)
        (path,) = tmp_path.rglob("*.parquet")
        path.write_bytes(content)
        assert journal.table("item", lambda: one) == one
        assert pq.read_table(path) == one


# Before the first job


def test_files_that_jobs_read_are_whole_before_the_first_job(scores: Path, tmp_path: Path) -> None:
    cut, made, model = tmp_path / "cut.parquet", tmp_path / "made.parquet", tmp_path / "seed0" / "model.safetensors"
    for path in (cut, made):
        path.write_bytes(scores.read_bytes()[:100])
    model.parent.mkdir()
    model.write_bytes(b"")
    jobs = [
        SimpleNamespace(input=[str(scores), str(cut), str(model), "none.parquet"], output=[str(made)]),
        SimpleNamespace(input=[str(made), str(cut)], output=["last"]),
    ]
    with pytest.raises(UserError) as fault:
        check_files(jobs, tmp_path)
    assert "2 files cannot be read" in str(fault.value)
    assert f"{cut} is not a complete Parquet file; remove it and run again." in str(fault.value)
    assert f"{model} is not a detector" in str(fault.value)
    check_files([*jobs[1:], SimpleNamespace(input=[], output=[str(cut), str(made)])], tmp_path)
    # A user's own files are of the checks of the corpus.
    cut.unlink()
    model.unlink()
    check_files(jobs, tmp_path / "other")


# Other files


def test_a_damaged_detector_is_named(tmp_path: Path) -> None:
    path = tmp_path / "seed0" / "model.safetensors"
    settings = schema.DetectorSettings(embedding=False)
    Detector(settings, 0).save(path)
    whole = path.read_bytes()
    assert about.settings_of(path) == settings
    told = json.loads(about.safe_open(path, framework="numpy").metadata()[about.KEY])
    changes: list[Any] = [
        None, [], "text", {}, {**told, "settings": []}, {**told, "settings": {"lstm": 3}}, {**told, "reader": [1]},
        {**told, "thresholds": {}}, {**told, "thresholds": None}, {**told, "input_width": "wide"},
    ]  # fmt: skip
    for content in damaged(whole).values():
        path.write_bytes(content)
        faults(path, lambda: detector.load(path), lambda: about.settings_of(path))
    for change in changes:
        save_file({"head.weight": zeros(3, 64)}, path, metadata={about.KEY: json.dumps(change)})
        faults(path, lambda: detector.load(path))
    save_file({"head.weight": zeros(3, 64)}, path)
    faults(path, lambda: detector.load(path), lambda: about.settings_of(path))


def test_a_cut_run_config_is_named(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    for content in (b"", b"scale: {use", b"scale:\n\t1", b"- 1", b"7", b"\xff\xfe", b"scale: null"):
        path.write_bytes(content)
        faults(path, lambda: runs.read(path), lambda: runs.check({"run": "x"}, tmp_path))


def test_a_cut_table_or_figure_is_named(tmp_path: Path) -> None:
    csv, shown, drawn = (tmp_path / f"test.{ending}" for ending in ("csv", "json", "svg"))
    csv.write_text("point,cas_pct\na,1\n", encoding="utf-8")
    assert isinstance(table.read_frame(csv), pd.DataFrame)
    config = reference_config()
    for content in (b"", b"point,cas", b"\xff\n"):
        csv.write_bytes(content)
        faults(csv, lambda: table.read_frame(csv))
    whole = b'{"title": "A", "columns": [], "rows": []}\n'
    shown.write_bytes(whole)
    assert page([shown], {}, config, tmp_path).endswith("</html>")
    for content in (b"", whole[:20], b"\xff\n", b"{}\n", b"[1]}\n", whole.replace(b"rows", b"lines")):
        shown.write_bytes(content)
        faults(shown, lambda: page([shown], {}, config, tmp_path))
    for content in (b"", b"<svg>", b"\xff</svg>\n"):
        drawn.write_bytes(content)
        faults(drawn, lambda: page([drawn], {}, config, tmp_path))


def test_a_cut_article_of_the_cache_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row = {"title": "Law", "text": "It is.", "url": "", "licence": "", "revision": "1", "source": "wikipedia"}
    monkeypatch.setattr(wikipedia, "_fetched", lambda api, title: row | {"synthetic": False})
    assert wikipedia.articles(tmp_path, titles=["Law"])[0]["title"] == "Law"
    (path,) = tmp_path.iterdir()
    for content in (*damaged(path.read_bytes()).values(), b"null", b"[1]", b'{"title": 3}'):
        path.write_bytes(content)
        faults(path, lambda: wikipedia.articles(tmp_path, titles=["Law"]))


def test_a_cut_corpus_is_named(tmp_path: Path) -> None:
    lines, columns = tmp_path / "corpus.jsonl", tmp_path / "corpus.parquet"
    record = {"title": "Law", "text": "It is a law of the land. " * 20}
    lines.write_text(json.dumps(record) + "\n", encoding="utf-8")
    pq.write_table(pa.Table.from_pylist([record]), columns)
    for path in (lines, columns):
        for content in damaged(path.read_bytes()).values():
            path.write_bytes(content)
            faults(path, lambda path=path: folder.articles(path))


def test_a_store_with_other_texts_is_named(tmp_path: Path) -> None:
    path = tmp_path / "answers.sqlite"
    request = json.dumps(["m", [], {}, {"title": "Ready"}, "1"])
    with AnswerStore(path) as store:
        store.put(request, "m", {"a": 1}, (1, 1), 0.1)
        assert store.get(digest(request)) == {"a": 1}
    for column, text in (("answer", '{"a'), ("answer", ""), ("request", "[1"), ("request", "3"), ("request", "[1, 2]")):
        with sqlite3.connect(path) as connection:
            connection.execute("UPDATE answers SET answer = '{}', request = ?", (request,))
            connection.execute(f"UPDATE answers SET {column} = ?", (text,))
        with AnswerStore(path) as store:
            works = [lambda: list(store.export())] + [lambda: store.get(digest(request))] * (column == "answer")
            faults(path, *works)
