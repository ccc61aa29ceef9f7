"""Readers by name, path and hub id: names that are not there, an absent hub, and settings by what a file holds."""

import hashlib
import shutil
import time
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from commands import typed
from conftest import ROOT
from test_gguf import write_gguf

import utaca
from utaca.app.choices import choose
from utaca.detection.detector import load as load_detector
from utaca.errors import UserError
from utaca.readers import files, hub, public
from utaca.readers.checks import check
from utaca.readers.tokenizer import load_tokenizer
from utaca.settings.checks import build_reader
from utaca.settings.schema import MemorySettings, ReaderSettings

TINY = ROOT / "data" / "readers" / "tiny"


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the hub is asked, which cannot be reached."""
    questions: list[str] = []

    def ask(_: Any, path: str, **__: Any) -> None:
        questions.append(path)
        raise OSError("Name or service not known")

    def request(*words: Any, **_: Any) -> None:
        raise AssertionError(f"asked the hub again: {words}")

    monkeypatch.setattr("huggingface_hub.HfApi.model_info", ask)
    monkeypatch.setattr("huggingface_hub.utils._http._http_backoff_base", request)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr(hub, "_known", {})
    return questions


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("qwen25_code_1_5b", "there is no reader 'qwen25_code_1_5b'; did you mean qwen25_coder_1_5b?"),
        ("Qwen25-Coder-1-5b", "there is no reader 'Qwen25-Coder-1-5b'; did you mean qwen25_coder_1_5b?"),
        ("tinny", "there is no reader 'tinny'; did you mean tiny?"),
        ("gpt2", "there is no reader 'gpt2'; there are llama31_8b, qwen25_coder_0_5b, "),
        ("", "there is no reader ''; there are llama31_8b, "),
        ("/no/such/folder", "/no/such/folder is neither a folder nor a file that this user may read"),
        ("models/mine/v2", "models/mine/v2 is neither a folder nor a file that this user may read"),
        (
            "https://huggingface.co/Qwen/Qwen2.5-0.5B/tree/main",
            "is a page of the hub; name its model by its hub id, Qwen/Qwen2.5-0.5B",
        ),
        ("./mine", "./mine is neither a folder nor a file that this user may read"),
        ("~/no-such-folder", "/no-such-folder is neither a folder nor a file that this user may read"),
    ],
)
def test_a_name_that_no_reader_has_is_told_at_once(name: str, said: str, asked: list[str]) -> None:
    with pytest.raises(UserError) as loaded:
        utaca.load_reader(name)
    assert said in str(loaded.value)
    if name and not name.startswith("~"):
        with pytest.raises(UserError) as checked:
            check(build_reader({"name": "mine", "path": name}))
        assert str(checked.value) == str(loaded.value)
    assert not asked, "names without an organisation are no hub ids"


def test_the_commands_tell_of_a_misspelt_name(asked: list[str]) -> None:
    commands = [["fetch", "tinny"], ["ask", "--reader", "tinny", "--document", str(ROOT / "README.md"), "?"]]
    # The server needs the extra `serve`.
    if find_spec("uvicorn"):
        commands.append(["serve", "--reader", "tinny"])
    for words in commands:
        done = typed(*words)
        assert done.exit_code == 2
        assert "Error: there is no reader 'tinny'; did you mean tiny?" in done.stderr


def test_a_hub_that_does_not_answer_is_asked_once(asked: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    started = time.perf_counter()
    for _ in range(2):
        with pytest.raises(
            UserError, match=r"org/name\) is neither a folder .* nor a model that the hub has; download it"
        ):
            utaca.load_reader("org/name")
    with pytest.raises(UserError, match="of a repository of GGUF files, download one"):
        check(ReaderSettings(name="x", path="org/name-GGUF"))
    with pytest.raises(OSError, match="couldn't connect"):
        load_tokenizer("org/name")
    assert asked == ["org/name"]
    assert time.perf_counter() - started < 10
    assert "thrown while requesting" not in capfd.readouterr().err


def test_a_copy_of_a_listed_readers_folder_has_its_settings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copy = Path(shutil.copytree(TINY, tmp_path / "copy"))
    by_path, by_name = utaca.load_reader(copy), utaca.load_reader("tiny")
    assert by_path.settings.path == str(copy)
    assert by_path.settings.memory == by_name.settings.memory
    assert (by_path.settings.name, by_path.settings.max_new_tokens) == ("tiny", 48)
    assert choose(by_path) == choose(by_name)
    assert f"{copy} is the model of reader tiny, and gets that reader's settings.\n" in capsys.readouterr().err
    with (copy / "model.safetensors").open("ab") as file:
        file.write(b" ")
    assert files.listed_of(str(copy)) == ""


def test_a_file_of_the_catalogue_has_its_readers_settings_wherever_it_lies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UTACA_CACHE", str(tmp_path / "cache"))
    file = write_gguf(tmp_path / "mine.gguf")
    other, memory = utaca.load_reader(file, dtype="float32").settings, MemorySettings()
    assert (other.name, other.memory, other.max_new_tokens) == ("mine.gguf", memory, 64)
    content = file.read_bytes()
    changes = {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    entry = public.entry

    def listed(path: str | Path) -> public.File | None:
        found = entry(path)
        return found and found.model_copy(update=changes if "1.5b" in str(path) else {})

    monkeypatch.setattr(public, "entry", listed)
    settings = utaca.load_reader(file, dtype="float32").settings
    assert (settings.name, settings.path, settings.prompt) == ("qwen25_coder_1_5b", str(file), "instruct")
    assert (settings.memory.n_local, settings.memory.question_budget, settings.max_new_tokens) == (512, 32, 48)
    assert utaca.load_reader(file, dtype="float32", memory=memory).settings.memory == memory


def test_a_detector_tells_of_another_memory_than_its_own(tmp_path: Path) -> None:
    reader = utaca.load_reader(
        "tiny", memory=MemorySettings(n_init=32, n_local=128, prefill_chunk=256, prefill_budget=0)
    )
    said = "Detector {} was trained under n_local 256, and is used here under n_local 128."
    assert choose(reader).note == said.format("needed_chained")
    assert choose(reader, trigger="utaca").note == said.format("utaca")
    shipped = ROOT / "data" / "detectors" / "tiny" / "utaca" / "seed0" / "model.safetensors"
    assert choose(reader, trigger=str(shipped)).note == said.format("utaca")
    own = load_detector(shipped)
    own.facts["memory"] = asdict(reader.settings.memory) | {"n_init": 8, "storage": "host"}
    own.save(tmp_path / "mine" / "seed0" / "model.safetensors")
    told = "Detector mine was trained under n_init 8, and is used here under n_init 32."
    assert choose(reader, trigger=str(tmp_path / "mine" / "seed0" / "model.safetensors")).note == told
    assert choose(reader, trigger="margin").note == ""
    assert choose(utaca.load_reader("tiny")).note == ""
    with pytest.raises(UserError, match=r"no trigger 'needed_chaind' .*; did you mean needed_chained\?"):
        choose(reader, trigger="needed_chaind")
