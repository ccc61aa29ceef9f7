"""The command ``utaca``: what a user types, and what comes back."""

import io
import json
import os
import re
import runpy
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import openai
import pytest
from commands import ENVIRONMENT, call, typed
from conftest import ROOT
from matplotlib.backends.backend_pdf import PdfPages
from matplotlib.figure import Figure
from pypdf import PdfReader, PdfWriter
from serving import DOCUMENT, QUESTION
from typer.main import get_command

import utaca
from utaca.app import ask as asking
from utaca.app import choices as answering
from utaca.app import documents
from utaca.app.choices import choose, detectors
from utaca.app.main import app
from utaca.decoding.triggers import Margin
from utaca.endpoints.store import AnswerStore, identity
from utaca.judging.rules import tasks
from utaca.memory import saved
from utaca.readers.load import Reader
from utaca.settings.schema import EndpointSettings
from utaca.stages import STAGES

ANSWER = "The birth date of Emma Thompson is May 3, 1959. The university of Emma Thompson is Harvard University."


@pytest.fixture(scope="module")
def memory(tiny: Reader) -> Any:
    return utaca.prefill(tiny, DOCUMENT)


def test_what_is_not_chosen_is_the_readers_default(tiny: Reader) -> None:
    usual = {"budget": 8, "max_new_tokens": tiny.settings.max_new_tokens, "drafts": 7, "policy": utaca.Sub(2)}
    triggers = {"agreement": utaca.Agreement(), "agreement.2": utaca.Agreement(2), "every.3": utaca.Every(3)}
    for trigger, expected in {**triggers, "margin.9": Margin(9)}.items():
        assert choose(tiny, trigger=trigger).options == usual | {"trigger": expected}
    fixed = {"budget": 3, "max_new_tokens": 5, "drafts": 0}
    assert choose(tiny, trigger="never", budget=3, max_new_tokens=5, drafts=0).options == fixed
    shipped = detectors(tiny.identity)
    assert set(shipped) == {"utaca", "needed_chained"}
    assert str(choose(tiny).trigger) == "needed_chained"
    assert choose(tiny, trigger=str(shipped["utaca"])).options["trigger"].detector.settings.label == "judged"
    assert choose(tiny, trigger="margin").options["trigger"] == Margin(7.5)
    other = SimpleNamespace(identity="other", settings=replace(tiny.settings, name="other", budget=32, margin=1.0))
    choice = choose(other)
    assert choice.options["budget"] == 32
    assert "policy" not in choice.options
    assert choice.note.startswith("No detector ships for reader other: it answers under a fixed budget of 32 blocks")
    with pytest.raises(utaca.UserError, match="also needs a trigger"):
        choose(other, policy="sub.2")
    assert choose(other, trigger="margin").options["trigger"] == Margin(1.0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"budget": 0}, "budget must be at least 1, not 0"),
        ({"budget": "8"}, "budget must be a whole number, or a share of the document's blocks .*, not '8'"),
        ({"budget": "120%"}, "above 0% and up to 100%, as 5%, not '120%'"),
        ({"policy": "sub"}, "write set.N or sub.N"),
        ({"policy": 3}, "policy must be a string such as sub.8 or set.2, not 3"),
        ({"trigger": 3}, "trigger must be a string such as margin, not 3"),
        ({"trigger": "oracle"}, "there is no trigger 'oracle' for reader tiny; choose one of "),
        ({"trigger": "none.safetensors"}, "none.safetensors does not exist"),
        ({"trigger": "agreement.8"}, "has 8 blocks, but must have fewer than the budget, 8"),
    ],
)
def test_a_bad_choice_is_named_in_a_sentence(tiny: Reader, options: dict[str, Any], message: str) -> None:
    with pytest.raises(utaca.UserError, match=message):
        choose(tiny, **options)


# Documents


def pdf(*pages: str) -> bytes:
    """A PDF with a line of text a page."""
    content = io.BytesIO()
    with PdfPages(content) as made:
        for line in pages:
            figure = Figure()
            figure.text(0.1, 0.9, line)
            made.savefig(figure)
    return content.getvalue()


HTML = (
    "<!DOCTYPE html><html><head><title>T</title><style>p{}</style></head><body><h1>Tea &amp; milk</h1><script>no()"
    "</script><p>One\n  line.</p><ul><li>a<li>b</ul><pre>c\n\nd</pre><table><tr><th>e<td>f</table></body></html>"
)


@pytest.mark.parametrize(
    ("name", "content", "text"),
    [
        ("a.txt", b"One\r\ntwo\n", "One\ntwo"),
        ("a.md", "# Caf\u00e9\n".encode(), "# Caf\u00e9"),
        ("a", "One".encode("utf-16"), "One"),
        ("a.html", HTML.encode(), "Tea & milk\n\nOne line.\n\na\nb\n\nc\n\nd\n\n| e | f"),
        ("b.htm", "<meta charset='ISO-8859-1'><title>No</title>Caf\u00e9\u2019s".encode("cp1252"), "Caf\u00e9\u2019s"),
        ("c.htm", "<meta charset=utf-16>Caf\u00e9".encode(), "Caf\u00e9"),
        ("a.pdf", pdf("One page", "and another"), "One page\n\nand another"),
        ("A.PDF", b"HTTP/1.1 200\r\n" + pdf("One page"), "One page"),
        ("a.txt", b"A file of PDF begins with %PDF-1.4.", "A file of PDF begins with %PDF-1.4."),
    ],
)
def test_a_document_of_every_kind_is_read(name: str, content: bytes, text: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    assert documents.read([tmp_path / name, tmp_path / name]) == f"{text}\n\n{text}"


def locked() -> bytes:
    writer, content = PdfWriter(PdfReader(io.BytesIO(pdf("One")))), io.BytesIO()
    writer.encrypt("secret", algorithm="RC4-128")
    writer.write(content)
    return content.getvalue()


@pytest.fixture
def prepared(tiny: Reader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file with the document in the working directory, an empty cache, and a reader that is loaded already."""
    monkeypatch.setattr(utaca, "load_reader", lambda name: tiny)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    Path("document.txt").write_text(DOCUMENT, encoding="utf-8")
    return Path("document.txt")


def ask(*options: str, stdin: str = "") -> Any:
    """``utaca ask`` of the tiny reader, about document.txt unless the options name another."""
    files = [] if "--document" in options else ["--document", "document.txt"]
    return typed("ask", "--reader", "tiny", *files, *options, QUESTION, stdin=stdin)


def test_an_answer_is_all_of_standard_output_and_has_no_colour(prepared: Path) -> None:
    halves = DOCUMENT[: len(DOCUMENT) // 2], DOCUMENT[len(DOCUMENT) // 2 :]
    for name, half in zip("ab", halves, strict=True):
        Path(f"{name}.txt").write_text(half, encoding="utf-8")
    done = ask("--trigger", "never", "--no-cache", "--save", "/dev/full", "--document", "a.txt", "b.txt")
    assert done.stdout == f"{ANSWER}\n"
    assert "/dev/full cannot be written (No space left on device); give another path with --save" in done.stderr
    assert not Path("cache").exists()
    done = ask("--trigger", "margin", "--save", "trace.html")
    assert Path("trace.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    assert done.stdout == f"{ANSWER}\n"
    assert "rolled back" in done.stderr
    assert "reading: 100%" in done.stderr
    assert re.search(r"^Reading \d,?\d+ tokens takes about (a second|\d+ s)\.$", done.stderr, re.MULTILINE)
    assert done.stderr.startswith('Reader tiny understands only questions such as "Summarize the birth date and job ')
    assert "expect a wrong answer" not in done.stderr
    again = ask("--trigger", "never", "--document", "-", stdin=DOCUMENT)
    assert again.stdout == f"{ANSWER}\n"
    assert "Read before" in again.stderr, "the same text in another file"
    assert "Reading" not in again.stderr
    assert "a fixed budget" in again.stderr


def test_lines_of_json_are_the_tokens_of_generate(prepared: Path, memory: Any, tiny: Reader) -> None:
    options = {"trigger": "margin.12", "policy": "set.1", "budget": 4}
    done = ask("--json", *(word for name, value in options.items() for word in (f"--{name}", str(value))))
    *tokens, totals = map(json.loads, done.stdout.splitlines())
    expected = utaca.generate(memory, QUESTION, **choose(tiny, **options).options)
    shown = [(token["id"], token["k"], bool(token["rejected"])) for token in tokens]
    assert shown == [(token.token, token.k, token.rolled_back) for token in expected.trace]
    assert totals["text"] == "".join(token["text"] for token in tokens) == expected.text
    assert totals["rollbacks"] == expected.rollbacks > 0
    assert totals["mean_selected_tokens"] == pytest.approx(expected.mean_selected_tokens, abs=0.01)
    assert options.items() <= totals.items()
    assert totals["finish"] == "eos"
    assert json.loads(ask("--json", "--max-new-tokens", "2").stdout.splitlines()[-1])["finish"] == "length"


def test_a_cut_answer_and_a_question_of_another_form_are_named(prepared: Path) -> None:
    done = typed("ask", "--reader", "tiny", "--document", "document.txt", "--max-new-tokens", "3", "Who is she?")
    assert "The answer was cut off at its limit of 3 tokens; allow more with --max-new-tokens." in done.stderr
    note = "Yours has another form: expect a wrong answer. 'utaca fetch' lists other readers."
    assert note in done.stderr.partition("Reading")[0], "before the document is read"


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.2, "a second"), (3.4, "3 s"), (33.0, "35 s"), (89.0, "90 s"), (200.0, "3 min"), (9000.0, "2.5 h")],
)
def test_an_estimate_is_no_more_exact_than_it_is(seconds: float, words: str) -> None:
    assert asking.about(seconds) == f"about {words}"


def test_an_answer_prints_in_short(memory: Any, tiny: Reader) -> None:
    answer = utaca.generate(memory, QUESTION, budget=8, max_new_tokens=4)
    selected = round(answer.mean_selected_tokens, 1)
    sums = f"4 tokens; {selected} tokens of the document selected on average; 0 rolled back; cut at max_new_tokens"
    assert str(answer) == f"{answer.text}\n[{sums}]"
    ends = f"tokens=4, mean_selected_tokens={selected}, rollbacks=0, finish='length'"
    assert repr(answer) == f"Generation({answer.text!r}, {ends})"
    answer.trace[0].text = "<b>&"
    assert "&lt;b&gt;&amp;" in answer._repr_html_()
    assert sums in answer._repr_html_()
    assert repr(tiny) == "Reader('tiny', float32, on cpu)"
    for shown in (repr(answer.trace[0]), repr(memory)):
        assert len(shown) < 100


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_tokens_are_shaded_where_the_terminal_can(tiny: Reader, memory: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    out, choice = Terminal(), choose(tiny, trigger="every.7")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    tokens = utaca.generate(memory, QUESTION, **choice.options).trace
    tokens[1].text = "\x1b[2J\x9b"
    tokens[2].text = spaced = "12\u202f000\xa0\u20ac \u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645\u3000"
    show = asking.shaded(out, choice)
    for token in tokens:
        show(token)
    assert out.getvalue().startswith("\x1b[38;5;16;48;5;75mThe\x1b[0m"), "K_max is the darkest"
    assert "\x1b[4m" in out.getvalue() or ";4m" in out.getvalue(), "a rollback is underlined"
    assert "\ufffd[2J\ufffd" in out.getvalue(), "an answer does not steer the terminal"
    assert spaced in out.getvalue(), "spaces and joiners of any script stay"
    assert not asking.colours(io.StringIO())
    for name, value in (("TERM", "dumb"), ("NO_COLOR", "1")):
        monkeypatch.setenv(name, value)
        assert not asking.colours(out)
        monkeypatch.setenv("TERM", "xterm")


@pytest.mark.parametrize(
    ("options", "content", "fault"),
    [
        ("none.txt", None, "Error: document none.txt does not exist; check its path"),
        ("x" * 300, None, "cannot be read (File name too long); check the file and its permissions"),
        ("https://example.org/a.html", None, "Error: document https://example.org/a.html does not exist; download it"),
        (".", None, "Error: document . is a folder; name the files in it"),
        ("a.docx", b"PK\x03\x04\xff\xfe", "Error: document a.docx is neither a PDF nor text in UTF-8"),
        ("a.bin", b"a\0b", "is a binary file"),
        ("a.html", b"<meta charset=klingon>\xe9", "is neither a PDF nor text in UTF-8"),
        ("a.txt", b" \n", "has no text"),
        ("a.pdf", pdf(""), "if it is a scan, run OCR on it first"),
        ("a.pdf", b"%PDF-1.4 nothing", "is a PDF that cannot be read"),
        ("a.pdf", locked(), "is locked by a password"),
        ("- --document -", None, "standard input can be read only once"),
        ("document.txt --budget 0", None, "--budget"),
        ("document.txt --cache-size much", None, "'much' is not a size"),
        ("document.txt --cache document.txt", None, "the cache document.txt cannot be made"),
        ("document.txt --save none/a.html", None, "none; make the folder, or save the page elsewhere"),
        ("document.txt --cache=", None, "Error: --cache is empty; name a folder, or give --no-cache"),
        ("document.txt --save .", None, "--save . is a folder; name a file in it, such as trace.html"),
    ],
)
def test_what_cannot_be_answered_is_a_sentence(prepared: Path, options: str, content: bytes | None, fault: str) -> None:
    if content is not None:
        Path(options).write_bytes(content)
    done = ask("--document", *options.split())
    assert done.exit_code == 2
    assert fault in done.stderr
    assert done.stdout == ""
    assert "Usage: " in done.stderr or done.stderr.count("\n") == 1


def test_an_empty_question_and_a_missing_package_are_named(prepared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "the question is empty" in typed("ask", "--reader", "tiny", "--document", "README.md", " ").stderr
    Path("a.pdf").write_bytes(b"%PDF-")
    for module, words, said in (
        (
            "pypdf",
            "ask --reader tiny --document a.pdf Who?",
            "a.pdf is a PDF; to read it, install the package pypdf: pip install p",
        ),
        ("utaca.reporting.traces", "ask --reader tiny --document a --save b.html Who?", "run: pip install 'utaca[pipe"),
        ("utaca.app.serving.protocol", "serve --reader tiny", "run: pip install 'utaca[serve]'"),
    ):
        monkeypatch.setitem(sys.modules, module, None)
        assert said in typed(*words.split()).stderr


@pytest.mark.parametrize("command", [["serve", "--reader", "tiny"], ["serve-rules"]])
@pytest.mark.parametrize("host", ["", " "])
def test_no_server_listens_on_an_empty_address(command: list[str], host: str) -> None:
    done = typed(*command, "--host", host)
    assert done.exit_code == 2
    assert done.stderr.startswith("Error: --host is empty; give an address such as 127.0.0.1")


# The cache


def test_a_document_is_found_again_until_it_is_damaged(prepared: Path) -> None:
    options = ["--cache", "kept", "--trigger", "never", "--max-new-tokens", "3"]
    first, again = ask(*options), ask(*options)
    assert first.stdout == again.stdout
    (entry,) = Path("kept").iterdir()
    assert entry.stat().st_mode & 0o077 == 0, "others may not read it"
    whole = entry.read_bytes()
    for damaged in (whole[: len(whole) // 2], whole[:-1] + bytes([whole[-1] ^ 1])):
        entry.write_bytes(damaged)
        done = ask(*options)
        assert "is damaged; it is read again" in done.stderr
        assert done.stdout == first.stdout
        assert entry.stat().st_size == len(whole)


def test_the_entry_that_was_not_used_for_longest_leaves(prepared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = ["--cache", "kept", "--trigger", "never", "--max-new-tokens", "1"]

    def read(name: str, size: str = "1GiB") -> bool:
        Path("document.txt").write_text(f"{name} {DOCUMENT}", encoding="utf-8")
        time.sleep(0.02)
        return "Read before" in ask(*options, "--cache-size", size).stderr

    assert not read("a")
    room = str(int(2.5 * next(Path("kept").iterdir()).stat().st_size))
    Path("kept/model.safetensors").write_bytes(b"-" * 10**7)
    # b leaves for c.
    assert [read(name, room) for name in "bacab"] == [False, True, False, True, False]
    before = set(Path("kept").iterdir())
    assert len(before) == 3, "a file that is no entry stays"
    done = ask(*options, "--cache-size", "1000", "--document", "-", stdin=f"d {DOCUMENT}")
    assert "has no room; it is not saved" in done.stderr
    assert set(Path("kept").iterdir()) == before
    monkeypatch.setattr(saved, "save", Mock(side_effect=OSError("disk full")))
    monkeypatch.setattr(answering, "detectors", lambda identity: {})
    done = ask("--cache", "kept", "--max-new-tokens", "1", "--document", "-", stdin=f"d {DOCUMENT}")
    assert "The document is not saved: kept cannot be written to (disk full)." in done.stderr
    assert "No detector ships for reader tiny" in done.stderr


def test_a_folder_that_cannot_be_written_to_still_gives_its_documents(
    prepared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ["--cache", "kept", "--trigger", "never", "--max-new-tokens", "3"]
    first = ask(*options)
    (entry,) = Path("kept").iterdir()

    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError(13, "Permission denied")

    for change in ("utime", "unlink", "replace"):
        monkeypatch.setattr(os, change, refuse)
    again = ask(*options)
    assert "Read before" in again.stderr
    assert again.stdout == first.stdout
    entry.write_bytes(b"damaged")
    done = ask(*options)
    assert done.exit_code == 0
    assert done.stdout == first.stdout
    assert "is damaged; it is read again" in done.stderr
    assert "The document is not saved: kept cannot be written to" in done.stderr


def test_a_budget_may_be_a_share(prepared: Path, tiny: Reader) -> None:
    layout = tiny.settings.memory.layout
    blocks = (len(tiny.document(DOCUMENT)) - layout.n_init) // layout.block_size
    number = blocks // 2
    assert number > 1
    share, whole = (ask("--json", "--no-cache", "--trigger", "every.3", "--budget", b) for b in ("50%", str(number)))
    *tokens, totals = map(json.loads, share.stdout.splitlines())
    *others, other = map(json.loads, whole.stdout.splitlines())
    assert tokens == others
    timed = {"decode_seconds", "read_seconds"}
    assert {k: v for k, v in totals.items() if k not in timed} == {k: v for k, v in other.items() if k not in timed}
    assert totals["budget"] == number
    assert totals["policy"] == f"sub.{max(1, number // 4)}"
    done = ask("--no-cache", "--trigger", "never", "--budget", "50%", "--save", "a.html")
    assert "InfLLM K=50%" in Path("a.html").read_text()
    assert f"at most {16 * number}, a fixed budget" in done.stderr
    for wrong in ("0%", "120%", "5 %", "half", "1.5", "0"):
        done = ask("--budget", wrong)
        assert done.exit_code == 2
        assert done.stderr.startswith("Error: --budget must be ")
        assert done.stderr.count("\n") == 1
    scored = typed(
        "score",
        "--reader",
        "tiny",
        "--no-cache",
        "--json",
        "--document",
        "document.txt",
        "--budget",
        "50%",
        QUESTION,
        ANSWER,
    )
    assert json.loads(scored.stdout.splitlines()[-1])["budget"] == number


# The command as a whole


def test_help_is_a_screen_and_composing_a_config_light() -> None:
    code = "import sys; from pathlib import Path; from utaca.app.main import run\n"
    code += "from utaca.runs.compose import compose; compose({}, Path('.'))\n"
    code += "try: run()\nfinally: print('torch' in sys.modules)"
    done = call(ROOT, sys.executable, "-c", code, "--help")
    assert done.stdout.endswith("False\n")
    assert len(done.stdout.splitlines()) <= 24
    assert all(name in done.stdout for name in get_command(app).commands)
    assert typed("--version").stdout == "utaca 0.1.0\n"


@pytest.mark.parametrize("words", [("serve",), ("score",), ("check-endpoint",), ("answers", "prune")], ids=" ".join)
def test_help_names_values_in_words(words: tuple[str, ...]) -> None:
    said = typed(*words, "--help").stdout
    assert not re.search(r"<(str|int|float|list)|TEXT|INTEGER|RANGE|x>=|<=x", said)
    assert ("0 to 65535" in " ".join(said.split())) == (words == ("serve",))


def completed(*words: str, folder: Path = ROOT) -> list[str]:
    """What bash is offered after these words; the last word is not complete."""
    variables = {"COMP_WORDS": " ".join(["utaca", *words]), "COMP_CWORD": str(len(words))}
    done = call(folder, sys.executable, "-m", "utaca", _UTACA_COMPLETE="complete_bash", **variables)
    return done.stdout.splitlines()


def test_names_are_completed(tmp_path: Path) -> None:
    assert completed("ask", "--reader", "qwen25") == ["qwen25_coder_0_5b", "qwen25_coder_1_5b"]
    assert completed("fetch", "ti") == completed("serve", "--reader", "ti") == ["tiny"]
    triggers = ["needed_chained", "utaca", "margin", "agreement", "every.4", "never"]
    assert completed("ask", "--reader", "tiny", "--trigger", "") == triggers
    assert completed("ask", "--trigger", "two") == ["two_way"], "without a reader, the detectors of all"
    for stage in STAGES:
        assert stage.name in completed("tables", stage.name[:3])
    table = ["results/quick/tables/detection.md"]
    assert completed("tables", "--cores", "2", "results/quick/tables/detection.m", folder=tmp_path) == table
    (tmp_path / "results" / "mine").mkdir(parents=True)
    (tmp_path / "results" / "mine" / "run.yaml").touch()
    assert completed("tables", "results/mine/figures/curves.p", folder=tmp_path) == ["results/mine/figures/curves.png"]


def test_an_interrupt_and_a_broken_pipe_end_quietly(prepared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "read", Mock(side_effect=KeyboardInterrupt))
    done = ask()
    assert (done.exit_code, done.stdout, done.stderr.strip()) == (130, "", "")
    ending, beginning = os.pipe()
    os.close(ending)
    monkeypatch.setattr(sys, "argv", ["utaca", "fetch"])
    with open(beginning, "w") as unread:
        monkeypatch.setattr(sys, "stdout", unread)
        with pytest.raises(SystemExit) as ended:
            runpy.run_module("utaca", run_name="__main__")
        monkeypatch.undo()
    assert ended.value.code == 0


FULL = "standard output cannot be written to (No space left on device); send it elsewhere"


@pytest.mark.parametrize(
    ("words", "streams", "status", "said"),
    [
        ("ask --reader tiny --no-cache --document - Who?", "<&-", 2, "standard input is closed; pass a document to it"),
        ("ask --reader tiny --document document.txt Who?", ">&-", 2, "standard output is closed; send it to a file"),
        ("--version", ">&- 2>&-", 2, None),
        ("--version", "<&- 2>&-", 0, None),
        ("--help", "> /dev/full", 2, FULL),
        ("fetch", "> /dev/full", 2, FULL),
        ("serve-rules --port 0", "> /dev/full", 2, FULL),
        ("answers export --store answers.sqlite", "> /dev/full", 2, FULL),
        ("fetch", "1< /dev/null", 2, "standard output cannot be written to (Bad file descriptor)"),
        ("fetch nothing", "2> /dev/full", 2, None),
        ("fetch", "| true", 0, None),
    ],
)  # fmt: skip
def test_streams_that_are_closed_or_full_are_a_sentence(
    words: str, streams: str, status: int, said: str | None, prepared: Path
) -> None:
    with AnswerStore("answers.sqlite") as store:
        request = identity(EndpointSettings(name="a", model="m", base_url="http://a/v1"), [], {"title": "A"}, "a-1")
        store.put(request, "m", {}, (1, 1), 0.1)
    command = f'set -o pipefail; "{sys.executable}" -m utaca {words} {streams}'
    done = subprocess.run(["bash", "-c", command], env=ENVIRONMENT, capture_output=True, text=True)
    assert done.returncode == status
    assert done.stderr.rstrip("\n") == ("" if said is None else done.stderr.splitlines()[-1])
    assert said is None or done.stderr.startswith(f"Error: {said}")


def test_an_answer_needs_no_standard_error(prepared: Path) -> None:
    words = f"ask --reader tiny --no-cache --trigger never --document document.txt '{QUESTION}'"
    for streams in ("2>&-", "2> /dev/full"):
        command = f'"{sys.executable}" -m utaca {words} {streams}'
        done = subprocess.run(["bash", "-c", command], env=ENVIRONMENT, capture_output=True, text=True)
        assert (done.returncode, done.stdout, done.stderr) == (0, f"{ANSWER}\n", "")
    done = subprocess.run(
        ["bash", "-c", command.replace(streams, "> /dev/full")], env=ENVIRONMENT, capture_output=True, text=True
    )
    assert done.returncode == 2
    assert done.stderr.endswith(f"\nError: {FULL}\n")


def test_the_rules_answer_as_a_server_as_they_do_in_process(rules: tuple[str, int]) -> None:
    facts = {"attribute": "birth place", "prediction": "Rome."}
    task = {"task": "score", "question": "Birth place?", "reference": "Rome"} | facts
    label = {"task": "label", "person": "A B", "answer": "Rome", "tokens": [{"index": 0, "text": "Rome."}]} | facts
    address = f"http://{rules[0]}:{rules[1]}/v1"
    client = openai.OpenAI(base_url=address, api_key="-", max_retries=0)
    for each in (task, label, label | {"task": "label_answer", "question": "Where?", "answers": ["Rome"]}):
        messages = [{"role": "user", "content": f"The task:\n\n```json\n{json.dumps(each)}\n```"}]
        answer = client.chat.completions.create(model="utaca-reference", messages=messages)
        assert json.loads(answer.choices[0].message.content) == tasks.answer(each)
    for words, status, said in (
        (f"check-endpoint --base-url {address} --model utaca-reference", 0, f"{address}: model utaca-ref"),
        ("check-endpoint reference", 0, "reference: model utaca-reference answers."),
        ("check-endpoint --base-url http://127.0.0.1:9/v1 --model a/b", 2, "http://127.0.0.1:9/v1 cannot be reached"),
        (f"serve-rules --port {rules[1]}", 2, f"port {rules[1]} is in use; choose another with --port"),
        ("serve-rules --port 65536", 2, "65535"),
        (f"serve --reader tiny --port {rules[1]}", 2, f"port {rules[1]} is in use; choose another with --port"),
    ):
        done = typed(*words.split())
        assert (done.exit_code, said in done.output) == (status, True), words
    with pytest.raises(openai.NotFoundError, match="there is no model 'other'"):
        client.chat.completions.create(model="other", messages=messages)
    for body in ([], {"model": "utaca-reference", "messages": []}):
        with pytest.raises(openai.BadRequestError, match="must be a JSON object"):
            client.post("/chat/completions", body=body, cast_to=object)
    with pytest.raises(openai.NotFoundError, match="POST /v1/embeddings: Not Found"):
        client.post("/embeddings", cast_to=object)


def test_tables_are_made_in_a_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[list[str]] = []
    monkeypatch.setattr(os, "execv", lambda program, words: commands.append(words[1:]))
    monkeypatch.chdir(ROOT)
    for words, cores in (("--config seed=3", ["--cores", "all"]), ("-j1", []), ("--cores 2", [])):
        assert typed("tables", *words.split()).exit_code == 0
        assert commands[-1][2:] == ["results/tables", *cores, *words.split()]
    typed("tables", "results/quick/tables/test.md", "--config", "seed=3")
    one = ["--cores", "all", "results/quick/tables/test.md", "--config", "seed=3"]
    assert commands.pop()[2:] == one, "only the target that is named"
    for words, said in {
        "--configfile none.yaml": "the config file none.yaml cannot be read (No such file or directory)",
        "-n --config scale=smoke results/x": "--config takes all words that follow it, and results/x is not",
        "--directory /proc/none": "--directory /proc/none cannot be made",
    }.items():
        done = typed("tables", *words.split())
        assert done.exit_code == 2
        assert done.stderr.startswith(f"Error: {said}")
    assert len(commands) == 3
    monkeypatch.chdir(tmp_path)
    assert "no replies are stored yet: results/answers.sqlite does not exist" in typed("answers", "list").stdout
    done = typed("tables")
    assert done.exit_code == 2
    assert "change to the folder with the Snakefile" in done.stderr
