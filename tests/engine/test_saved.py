"""Documents that are saved in files are those that were read, bit for bit."""

import os
import sys
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from configs import point
from small import SETTINGS, contents, make_reader, some_tokens
from test_trajectories import asked, decoded, documents

from utaca.decoding.loop import generate
from utaca.generation.trajectories import trajectories
from utaca.memory import prefill, saved
from utaca.memory.prefill import seconds_to_read
from utaca.memory.saved import SavedDocuments
from utaca.records.journal import Journal
from utaca.settings.schema import TrajectorySettings


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> Mock:
    """Counts the documents that are read."""
    counted = Mock(wraps=prefill)
    monkeypatch.setattr(saved, "prefill", counted)
    return counted


@pytest.mark.parametrize("representatives", ["attention_mass", "tokens"])
@pytest.mark.parametrize(("dtype", "storage"), [(torch.float32, "device"), (torch.bfloat16, "host")])
@pytest.mark.parametrize("length", [10, 221])
def test_a_saved_document_is_the_one_that_was_read(
    dtype: torch.dtype, storage: str, representatives: str, length: int, tmp_path: Path, read: Mock
) -> None:
    reader = make_reader(memory=replace(SETTINGS, storage=storage, representatives=representatives))
    reader.model.to(dtype)
    tokens = some_tokens(length)
    assert not SavedDocuments(tmp_path).holds(reader, tokens)
    first, seconds, found = SavedDocuments(tmp_path).read(reader, tokens)
    assert SavedDocuments(tmp_path).holds(reader, tokens)
    again, told, again_found = SavedDocuments(tmp_path).read(reader, tokens)
    assert (found, again_found) == (False, True)
    assert read.call_count == 1
    assert told == seconds > 0
    for a, b in zip(contents(first), contents(again), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)
    places = [{part.data_ptr() for part in parts} for parts in (saved._parts(first).values(), contents(first))]
    assert places[0] == places[1], "the size of a large document is known without a copy of it"
    answers = [generate(memory, "Who?", budget=3, max_new_tokens=8) for memory in (first, again)]
    assert torch.equal(*(torch.stack([t.embeddings["attention"] for t in answer.trace]) for answer in answers))


def test_the_time_of_reading_is_that_of_its_first_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    # The first of two readings takes 5 s, and counts for nothing.
    clock = iter([0.0, 5.0, 10.0, 12.0])
    monkeypatch.setattr(sys.modules["utaca.memory.prefill"], "perf_counter", lambda: next(clock))
    assert seconds_to_read(make_reader(), some_tokens(640)) == pytest.approx(20.0)
    clock = iter([0.0, 0.0, 0.0, 1.0])
    assert seconds_to_read(make_reader(), some_tokens(10)) == pytest.approx(1.0)


def test_another_text_reader_or_setting_is_another_document(tmp_path: Path, read: Mock) -> None:
    reader, tokens = make_reader(), some_tokens(100)
    others = make_reader("qwen2"), make_reader("llama-yarn"), make_reader(memory=replace(SETTINGS, n_local=32))
    for one, text in [(reader, tokens), (reader, tokens.flip(0)), *((x, tokens) for x in others), (reader, tokens)]:
        SavedDocuments(tmp_path).read(one, text)
    assert read.call_count == len(list(tmp_path.iterdir())) == 5


def test_a_damaged_file_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read: Mock) -> None:
    reader, tokens = make_reader(), some_tokens(100)
    SavedDocuments(tmp_path).read(reader, tokens)
    (path,) = tmp_path.iterdir()
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    anew, again = (SavedDocuments(tmp_path).read(reader, tokens)[0] for _ in range(2))
    assert read.call_count == 2
    assert all(torch.equal(a, b) for a, b in zip(contents(anew), contents(again), strict=True))
    monkeypatch.setattr("utaca.memory.BlockMemory.fill", Mock(side_effect=torch.OutOfMemoryError))
    with pytest.raises(torch.OutOfMemoryError):
        SavedDocuments(tmp_path).read(reader, tokens)
    SavedDocuments(tmp_path, room=len(whole)).read(reader, tokens.flip(0))
    assert [*tmp_path.iterdir()] == [path]
    SavedDocuments(tmp_path).clear()
    SavedDocuments(tmp_path).clear()
    assert not tmp_path.exists()


def test_what_a_killed_process_left_counts_and_leaves(tmp_path: Path) -> None:
    reader, tokens = make_reader(), some_tokens(100)
    SavedDocuments(tmp_path).read(reader, tokens)
    (path,) = tmp_path.iterdir()
    half = tmp_path / f".{path.name}.k2_x9q3d"
    half.write_bytes(path.read_bytes()[:-100])
    os.utime(half, (0, 0))
    mine = tmp_path / ".mine.safetensors.bak"
    mine.write_bytes(b"-" * 10**6)
    room = 2 * path.stat().st_size
    SavedDocuments(tmp_path, room).read(reader, tokens.flip(0))
    assert len([*tmp_path.iterdir()]) == 3, "there is no room"
    SavedDocuments(tmp_path, room, evict=True).read(reader, tokens.flip(0))
    assert not half.exists()
    assert path.exists()
    assert mine.exists()
    assert len([*tmp_path.iterdir()]) == 3


def test_a_file_of_another_user_stays_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read: Mock) -> None:
    reader, tokens, told = make_reader(), some_tokens(100), []
    SavedDocuments(tmp_path).read(reader, tokens)
    (path,) = tmp_path.iterdir()
    monkeypatch.setattr(saved, "safe_open", Mock(side_effect=PermissionError(13, "Permission denied")))
    monkeypatch.setattr(os, "access", lambda *_: False)
    monkeypatch.setattr(os, "replace", Mock(side_effect=PermissionError(1, "Operation not permitted")))
    before = path.read_bytes()
    assert not SavedDocuments(tmp_path, tell=told.append).read(reader, tokens).found
    assert read.call_count == 2
    assert path.read_bytes() == before
    assert [*tmp_path.iterdir()] == [path]
    assert told[0] == f"The saved document {path} belongs to another user; it is read again."
    assert told[1].startswith(f"The document is not saved: {tmp_path} cannot be written to")


def test_what_trajectories_have_read_answers_need_not_read(tmp_path: Path, read: Mock) -> None:
    reader, given = make_reader(), documents(2)
    questions, points = asked(reader, given), [point("infllm", 2), point("infllm", 6)]
    folder = SavedDocuments(tmp_path / "memories")
    trajectories(reader, questions, [1], TrajectorySettings(), Journal(tmp_path / "a", "x"), folder)
    assert read.call_count == 2

    def answers(name: str, saved: SavedDocuments | None) -> list:
        found = decoded(reader, questions, points, Journal(tmp_path / name, "x"), together=True, saved=saved)
        return [table.drop_columns(["prefill_seconds", "decode_seconds"]) for table in found.answers.values()]

    assert answers("b", folder) == answers("c", None)
    assert read.call_count == 2
