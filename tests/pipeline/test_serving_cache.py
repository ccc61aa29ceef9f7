"""``utaca serve --cache``: documents that outlive the server, and what may go wrong with their files."""

import errno
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from commands import typed
from serving import DOCUMENT, QUESTION, SEA, chat, choice, post, serving, text_of
from small import SETTINGS, contents, make_reader, some_tokens

import utaca
from utaca.app.serving import memories as serving_memories
from utaca.app.serving.memories import Memories
from utaca.app.serving.server import Server
from utaca.memory import saved as saving
from utaca.memory.saved import SavedDocuments
from utaca.readers.load import Reader

KEY = "sk-nobody-may-read-this"


def kept(folder: Path, told: list[str] | None = None, room: int = 1 << 30) -> SavedDocuments:
    """The documents of a folder, as the command opens it; its sentences go to ``told``."""
    return SavedDocuments(folder, room, evict=True, private=True, tell=(told if told is not None else []).append)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "kept"


@pytest.fixture
def expected(tiny: Reader) -> str:
    """What the engine answers without a server."""
    return utaca.generate(utaca.prefill(tiny, DOCUMENT), QUESTION, budget=8, max_new_tokens=512).text


def cached(server: Server, document: str = DOCUMENT, **fields: Any) -> int:
    """Tokens of a document that a server did not read to answer a question about it."""
    status, answer = post(server, chat(document, **{"max_tokens": 2} | fields))
    assert status == 200, answer
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"]


@contextmanager
def no_reading(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Any pass that reads a document fails."""
    with monkeypatch.context() as patched:
        patched.setattr(serving_memories, "passes", Mock(side_effect=AssertionError("a document was read")))
        yield


def test_a_restarted_server_reads_no_document_again(
    tiny: Reader, folder: Path, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(tiny, saved=kept(folder)) as server:
        assert cached(server) == 0
        assert text_of(server) == expected
    (file,) = folder.iterdir()
    assert file.stat().st_mode & 0o777 == 0o600, "others may not read it"
    with no_reading(monkeypatch), serving(tiny, saved=kept(folder)) as server:
        assert text_of(server) == expected
        assert cached(server) == len(tiny.document(DOCUMENT))
    with serving(tiny) as server:
        assert cached(server) == 0, "a server without a cache"
    memory = kept(folder).find(tiny, tiny.document(DOCUMENT)).memory
    for a, b in zip(contents(memory), contents(utaca.prefill(tiny, DOCUMENT)), strict=True):
        assert torch.equal(a, b)


def test_server_and_command_share_their_files(
    tiny: Reader, folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(utaca, "load_reader", lambda name: tiny)
    Path("document.txt").write_text(DOCUMENT, encoding="utf-8")
    Path("other.txt").write_text(f"Other.{SEA * 20}", encoding="utf-8")

    def ask(document: str) -> str:
        words = ["--cache", "kept", "--trigger", "never", "--max-new-tokens", "1", QUESTION]
        return typed("ask", "--reader", "tiny", "--document", document, *words).stderr

    assert "Read before" not in ask("document.txt")
    with serving(tiny, saved=kept(folder)) as server:
        assert cached(server) == len(tiny.document(DOCUMENT))
        assert cached(server, f"Other.{SEA * 20}") == 0
    assert "Read before" in ask("other.txt")


def test_secrets_and_answers_are_not_written(tiny: Reader, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with serving(tiny, saved=kept(folder), api_key=KEY) as server:
        status, answer = post(server, chat(), Authorization=f"Bearer {KEY}")
        assert status == 200, answer
    (file,) = folder.iterdir()
    written = file.read_bytes()
    for secret in (KEY, QUESTION, answer["choices"][0]["message"]["content"]):
        assert secret.encode() not in written
        assert secret not in file.name
    assert KEY not in repr(server.settings)
    shown = capsys.readouterr()
    assert KEY not in shown.out + shown.err


def test_prompts_with_scores_are_not_kept(tiny: Reader, folder: Path) -> None:
    with serving(tiny, saved=kept(folder)) as server:
        body = {"model": "tiny", "prompt": f"{DOCUMENT}\n\n{QUESTION}", "echo": True, "logprobs": 1, "max_tokens": 1}
        first = post(server, body, "/v1/completions")[1]["choices"][0]["logprobs"]
        assert not folder.exists() or not [*folder.iterdir()]
        assert cached(server) == 0
    with serving(tiny, saved=kept(folder)) as server:
        again = post(server, body, "/v1/completions")[1]["choices"][0]["logprobs"]
    assert again["token_logprobs"][1:] == pytest.approx(first["token_logprobs"][1:], abs=1e-4)


# Faults


def full(*_: Any) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def broken(*_: Any) -> None:
    raise RuntimeError("nobody expected this")


@pytest.mark.parametrize(
    ("save", "said"),
    [(full, "The document is not saved: {} cannot be written to ([Errno 28] No space left on device)."), (broken, "")],
)
def test_a_file_that_cannot_be_written_ends_no_answer(
    tiny: Reader,
    folder: Path,
    expected: str,
    save: Callable[..., None],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(saving, "save", save)
    told: list[str] = []
    with serving(tiny, saved=kept(folder, told)) as server:
        assert text_of(server) == expected
        assert cached(server) == len(tiny.document(DOCUMENT)), "it is in memory"
    assert told == [said.format(folder)] * bool(said)
    assert ("a document was not saved" in caplog.text) is not bool(said)


def test_a_folder_that_is_gone_or_taken_ends_no_answer(tiny: Reader, folder: Path, expected: str) -> None:
    told: list[str] = []
    with serving(tiny, saved=kept(folder, told)) as server:
        folder.write_text("a file has its place")
        assert text_of(server) == expected
        server.worker.memories.finish_saving()
        assert len(told) == 1
        assert f"The document is not saved: {folder} cannot be written to" in told[0]
        folder.unlink()
        assert cached(server, f"Another. {DOCUMENT}") == 0
    assert len([*folder.iterdir()]) == 1


@pytest.mark.parametrize("damage", ["cut", "changed", "empty", "other"])
def test_a_damaged_file_is_read_again(tiny: Reader, folder: Path, expected: str, damage: str) -> None:
    with serving(tiny, saved=kept(folder)) as server:
        assert text_of(server) == expected
    (file,) = folder.iterdir()
    whole = file.read_bytes()
    changed = whole[:-1] + bytes([whole[-1] ^ 1])
    file.write_bytes({"cut": whole[: len(whole) // 2], "changed": changed, "empty": b"", "other": b"%PDF-1.4"}[damage])
    told: list[str] = []
    with serving(tiny, saved=kept(folder, told)) as server:
        assert cached(server) == 0
        assert text_of(server) == expected
    assert told == [f"The saved document {file} is damaged; it is read again."]
    assert file.stat().st_size == len(whole)
    with serving(tiny, saved=kept(folder)) as server:
        assert cached(server) == len(tiny.document(DOCUMENT))


def test_another_readers_files_are_left_alone(tiny: Reader, folder: Path) -> None:
    other = make_reader()
    kept(folder).read(other, some_tokens(60))
    different = replace(tiny.settings, memory=replace(tiny.settings.memory, prefill_budget=3))
    (folder / "notes.txt").write_text("mine")
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with serving(tiny, saved=kept(folder)) as server:
        assert cached(server) == 0
    after = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert before.items() <= after.items()
    assert len(after) == len(before) + 1
    tiny_elsewhere = Reader(tiny.model, tiny.tokenizer, different)
    assert not kept(folder).holds(tiny_elsewhere, tiny.document(DOCUMENT)), "other settings of its memory"


def test_two_servers_share_a_folder(tiny: Reader, folder: Path) -> None:
    documents = [f"Copy {number}. {DOCUMENT}" for number in range(4)]
    told: list[str] = []
    with (
        serving(tiny, saved=kept(folder, told)) as one,
        serving(tiny, saved=kept(folder, told)) as other,
        ThreadPoolExecutor(8) as pool,
    ):
        asked = [(server, document) for document in documents for server in (one, other)]
        answers = [*pool.map(lambda pair: text_of(*pair, max_tokens=4), asked)]
    assert answers[::2] == answers[1::2]
    assert told == []
    assert len([*folder.iterdir()]) == len(documents), "no file is left half-written"
    for document in documents:
        assert kept(folder).find(tiny, tiny.document(document))


def test_a_file_may_vanish_before_it_is_read(
    tiny: Reader, folder: Path, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(tiny, saved=kept(folder)) as server:
        assert text_of(server) == expected
    restored = saving.restored

    def late(path: Path, *more: Any) -> Any:
        """As if another server removed the file at this moment."""
        path.unlink()
        return restored(path, *more)

    told: list[str] = []
    monkeypatch.setattr(saving, "restored", late)
    with serving(tiny, saved=kept(folder, told)) as server:
        assert text_of(server) == expected
    assert told == [], "nothing is damaged"


def test_the_folder_stays_within_its_size(tiny: Reader, folder: Path) -> None:
    with serving(tiny, saved=kept(folder)) as server:
        cached(server, f"0. {DOCUMENT}")
    room = int(2.5 * next(folder.iterdir()).stat().st_size)
    with serving(tiny, saved=kept(folder, room=room)) as server:
        for number in range(1, 4):
            cached(server, f"{number}. {DOCUMENT}")
    assert sum(path.stat().st_size for path in folder.iterdir()) <= room
    found = [kept(folder).holds(tiny, tiny.document(f"{number}. {DOCUMENT}")) for number in range(4)]
    assert found == [False, False, True, True]


# In the background


def test_an_answer_does_not_wait_for_its_file(
    tiny: Reader, folder: Path, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, end, save = Event(), Event(), saving.save

    def slow(*arguments: Any) -> None:
        begun.set()
        assert end.wait(60)
        save(*arguments)

    monkeypatch.setattr(saving, "save", slow)
    with serving(tiny, saved=kept(folder)) as server:
        assert text_of(server) == expected
        assert begun.wait(60)
        assert text_of(server) == expected, "the document is in memory"
        assert not [*folder.glob("*.safetensors")]
        end.set()
    # The server's end waited for it.
    assert len([*folder.iterdir()]) == 1


def test_a_conversation_goes_on_from_a_file() -> None:
    reader = make_reader()
    chunk = SETTINGS.prefill_chunk
    text = some_tokens(chunk * 5).tolist()

    class Found:
        """A file of the first four chunks."""

        def find(self, reader: Reader, tokens: torch.Tensor) -> Any:
            return Mock(memory=utaca.prefill(reader, tokens)) if len(tokens) == chunk * 4 else None

    memories = Memories(reader, 1 << 30, Found())
    stored, passes, start = memories.begin(text[: chunk * 4])
    assert (start, [*passes]) == (chunk * 4, [])
    memories.keep("first", stored)
    longer, passes, start = memories.begin(text)
    assert start == chunk * 4
    assert [*passes] == [chunk * 5]
    for a, b in zip(contents(longer.memory), contents(utaca.prefill(reader, torch.tensor(text))), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


# The command


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--cache=", "Error: --cache is empty; name a folder, or leave it out"),
        ("--cache taken", "Error: the cache taken cannot be made (File exists); name another folder with --cache"),
        ("--cache new --cache-size much", "Error: 'much' is not a size"),
        ("--cache closed", "Error: the cache closed belongs to another user, who lets nobody read it; name another"),
        ("--budget 0%", "Error: --budget must be a whole number, or a share of the document's blocks"),
    ],
)
def test_a_fault_is_said_before_the_reader_is_loaded(
    tmp_path: Path, options: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(utaca, "load_reader", Mock(side_effect=AssertionError("loaded")))
    Path("taken").write_text("")
    access = os.access
    monkeypatch.setattr(os, "access", lambda path, *more, **how: str(path) != "closed" and access(path, *more, **how))
    done = typed("serve", "--reader", "tiny", "--port", "0", *options.split())
    assert done.exit_code == 2
    assert done.stderr.startswith(said)
    assert done.stderr.count("\n") == 1


def test_a_share_is_resolved_for_each_document(tiny: Reader) -> None:
    layout = tiny.settings.memory.layout
    short, long = DOCUMENT, f"{DOCUMENT} {SEA * 60}"
    with serving(tiny, budget="10%") as server:
        for document in (short, long):
            blocks = (len(tiny.document(document)) - layout.n_init) // layout.block_size
            for wanted, percent in ({}, 10), ({"budget": "40%"}, 40):
                found = choice(server, document, utaca=wanted | {"trace": True}, max_tokens=8)
                number = max(1, percent * blocks // 100)
                assert found["utaca"]["budget"] == number
                assert {token["budget"] for token in found["utaca"]["trace"]} == {number}
                whole = choice(server, document, utaca={"budget": number, "trace": True}, max_tokens=8)
                assert [token["token"] for token in whole["utaca"]["trace"]] == [
                    token["token"] for token in found["utaca"]["trace"]
                ]
        for wrong in ("0%", "120%", "5 %", "8", 1.5, True, [5], {"a": 1}, 0, -3):
            status, answer = post(server, chat(utaca={"budget": wrong}))
            assert status == 400
            assert answer["error"]["message"].startswith("budget must be ")
        assert "%" in server.html
        assert server.choice.budget == "10%"


def test_a_policy_of_a_share_is_that_of_its_number(tiny: Reader) -> None:
    blocks = (len(tiny.document(DOCUMENT)) - tiny.settings.memory.n_init) // tiny.settings.memory.block_size
    number = blocks // 2
    with serving(tiny, budget="50%", trigger="every.3") as server:
        first = choice(server, utaca={"trace": True}, max_tokens=12)["utaca"]
        second = choice(server, utaca={"trace": True, "budget": number}, max_tokens=12)["utaca"]
        assert [token["budget"] for token in first["trace"]] == [token["budget"] for token in second["trace"]]
        assert len({token["budget"] for token in first["trace"]}) > 1
