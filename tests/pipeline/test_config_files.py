"""Config files and the words of a command line that Snakemake would misread or end in a traceback for."""

import io
import re
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from utaca.errors import UserError
from utaca.records.logs import stage_log
from utaca.records.progress import progress
from utaca.records.tables import atomic_path
from utaca.runs.config_files import check, check_words

FILES = {
    b"seed: 1\nreader: tiny\nseed: 2\n": "line 3: the key 'seed' comes twice, first in line 1",
    b"scale:\n  test:\n    tokens: 1\n    tokens: 2\n": "line 4: the key 'tokens' comes twice, first in line 3",
    b"points: [{a: 1, a: 2}]\n": "line 1: the key 'a' comes twice",
    b'seed: 1\n"seed": 2\n': "line 2: the key 'seed' comes twice",
    b'{"seed": 1, "seed": 2}': "the key 'seed' comes twice",
    b"scale:\n\tname: x\n": "line 2, begins with a tab",
    b"a: [1\nb: 2\n": "line 2, is not YAML",
    b"a: 'x\n": "is not YAML",
    b"": "holds no keys and values",
    b"# nothing\n": "holds no keys and values",
    b"- 1\n": "holds no keys and values",
    b"7\n": "holds no keys and values",
    b"[1, 2]": "holds no keys and values",
    b"a: &x\n  b: *x\n": "line 1: an anchor holds itself",
    b"a: 1\n---\nb: 2\n": "is not YAML",
    b"a: \xff\n": "is not UTF-8 text",
    b"\xff\xfea\x00": "is not UTF-8 text",
    b"a: " + b"[" * 3000 + b"]" * 3000: "nested too deeply",
    b"a: *b\n": "is not YAML",
    b"a: \x00\n": "is not YAML",
    b"a: 1\nb: " + b"9" * 5000 + b"\n": "line 2: '9{40}' cannot be read as the int that YAML takes it for",
    b"a: !!float x\n": "line 1: 'x' cannot be read as the float",
    b"a:\n  - !!bool x\n": "line 2: 'x' cannot be read as the bool",
    b"a: 2020-13-45\n": "line 1: '2020-13-45' cannot be read as the timestamp",
    b"a: !!timestamp x\n": "line 1: 'x' cannot be read as the timestamp",
    b"? [a, b]\n: c\n": "line 1, is not YAML",
    b"<<: 5\n": "line 1, is not YAML",
    b"a: !mine x\n": "line 1, is not YAML",
}


@pytest.mark.parametrize("content", FILES, ids=FILES.values())
def test_a_malformed_config_file_is_named_with_its_line(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_bytes(content)
    with pytest.raises(UserError, match=FILES[content]) as fault:
        check(path)
    assert str(path) in str(fault.value)
    assert "\n" not in str(fault.value)


def test_a_sound_config_file_is_taken(root: Path, tmp_path: Path) -> None:
    for path in (root / "config").rglob("*.yaml"):
        if path.read_text(encoding="utf-8").strip().lstrip("#"):
            check(path)
    for content in (
        "\ufeffseed: 1\n",
        '{\n\t"seed": 5\n}',
        "a: &x {b: 1}\nc: *x\nd: *x\n",
        "a: &x {b: 1}\nc: {<<: *x}\n",
        "a: {b: 1}\nc: {b: 1}\n",
    ):
        (tmp_path / "mine.yaml").write_text(content, encoding="utf-8")
        check(tmp_path / "mine.yaml")


def test_files_of_every_spelling_are_found_on_a_command_line(tmp_path: Path) -> None:
    sound = tmp_path / "mine.yaml"
    sound.write_text("seed: 1\n", encoding="utf-8")
    for words in (
        f"--configfile {sound} none.yaml", "--configfile=none.yaml", f"-n --configfiles {sound} none.yaml --cores 1",
    ):  # fmt: skip
        with pytest.raises(UserError, match=r"the config file none\.yaml cannot be read"):
            check_words(words.split())
    for words in ("-C seed=1 tables", "--config tables", "--config=tables", "--config seed=1 tables --cores 1"):
        with pytest.raises(UserError, match="tables is taken for an entry of --config"):
            check_words(words.split())
    for entry in ("=x", "a=1", "2a=1", "a.b=1", "é=1"):
        with pytest.raises(UserError, match=f"--config {re.escape(entry)} does not begin with a key"):
            check_words(["--config", "seed=1", entry])
    for words in ("-d /dev/null/x", "--directory=/dev/null/x"):
        with pytest.raises(UserError, match="--directory /dev/null/x cannot be made"):
            check_words(words.split())
    check_words(f"--configfile {sound} --config seed=1 --cores 1 tables -d {tmp_path} tables -n".split())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stage_that_is_ended_leaves_a_line_in_its_log_and_no_scratch_file(
    number: signal.Signals, tmp_path: Path
) -> None:
    log = tmp_path / "logs" / "stage.log"
    script = f"""
        import time
        from utaca.records.logs import stage_log
        from utaca.records.tables import atomic_path
        with stage_log({str(log)!r}), atomic_path({str(tmp_path / "made")!r}) as scratch:
            print("begun", flush=True)
            time.sleep(60)
    """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    run = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert run.stdout.readline() == "begun\n"
    run.send_signal(number)
    assert run.communicate()[1] == ""
    assert run.returncode == 130
    assert log.read_text(encoding="utf-8") == "interrupted\n"
    assert [path.name for path in tmp_path.iterdir()] == ["logs"]


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "journal").write_text("", encoding="utf-8")
    with pytest.raises(SystemExit) as end, stage_log(tmp_path / "stage.log"), atomic_path(tmp_path / "journal" / "a"):
        raise AssertionError
    assert end.value.code == 1
    said = capsys.readouterr().err
    assert said == f"Error: {tmp_path / 'journal'}: File exists; correct it and run again\n"
    assert "Traceback" in (tmp_path / "stage.log").read_text(encoding="utf-8")


def test_a_terminal_without_a_size_shows_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    shown = Terminal()
    monkeypatch.setattr(sys, "stderr", shown)
    list(progress(range(3), desc="answers", file=shown))
    assert "answers: 100%" in shown.getvalue()
    assert "3/3" in shown.getvalue()


def test_a_bar_has_the_name_of_its_job(tmp_path: Path) -> None:
    for log, label in (
        ("decode_trajectories/train-0.log", "answers train-0: 100%"),
        ("label/reference/test-1.log", "answers test-1: 100%"),
        ("pad.log", "answers: 100%"),  # the rule has one job
    ):
        path = tmp_path / "logs" / "quick" / log
        with stage_log(path):
            list(progress(range(3), desc="answers"))
        assert label in path.read_text(encoding="utf-8")


def test_a_stage_keeps_the_handler_that_was_there(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)
    with stage_log(tmp_path / "stage.log"):
        assert signal.getsignal(signal.SIGTERM) is not before
    assert signal.getsignal(signal.SIGTERM) is before
