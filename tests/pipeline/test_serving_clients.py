"""Programs of others as clients of ``utaca serve``, its page in a browser, and clients that misbehave."""

from __future__ import annotations

import importlib.util
import json
import os
import random
import shutil
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from browser import CHROMIUM, Browser
from serving import DOCUMENT, QUESTION, SEA, begin, chat, post, serving, text_of, wait

import utaca
from utaca.app.serving.server import Server
from utaca.readers.load import Reader


def installed(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


@pytest.mark.skipif(not shutil.which("curl"), reason="curl is not here")
def test_curl_asks(server: Server) -> None:
    command = f"curl -sN {server.address}/v1/chat/completions -H Content-Type:application/json -d @-".split()
    run = lambda body: subprocess.run(command, input=json.dumps(body), capture_output=True, text=True).stdout  # noqa: E731
    assert "Harvard University" in run(chat())
    assert run(chat(stream=True)).endswith("data: [DONE]\n\n")


@pytest.mark.skipif(not installed("langchain_openai"), reason="langchain-openai is not installed")
def test_langchain_asks(server: Server) -> None:
    from langchain_openai import ChatOpenAI

    model = ChatOpenAI(model="tiny", base_url=f"{server.address}/v1", api_key="-", temperature=0)
    assert "Harvard University" in model.invoke([("system", DOCUMENT), ("human", QUESTION)]).content


PEOPLE = {"Emma Thompson": "Harvard University", "Ada Lopez": "Lund University", "Olga Petrova": "Yale University"}
TASK = """
task: universities
dataset_path: json
dataset_kwargs: {{data_files: {{test: {rows}}}}}
test_split: test
output_type: generate_until
doc_to_text: "{text}"
doc_to_target: "{{{{answer}}}}"
generation_kwargs: {{until: ["<never>"], max_gen_toks: 40, do_sample: false, temperature: 0}}
metric_list: [{{metric: exact_match, aggregation: mean, higher_is_better: true}}]
"""


@pytest.mark.skipif(not installed("lm_eval"), reason="lm-evaluation-harness is not installed")
@pytest.mark.parametrize("kind", ["local-chat-completions", "local-completions"])
def test_the_harness_scores_as_the_engine_does(server: Server, tiny: Reader, tmp_path: Path, kind: str) -> None:
    rows, expected = [], []
    for person, university in PEOPLE.items():
        document = f"{SEA * 40} The university of {person} is {university}.{SEA * 40}".strip()
        question = f"Summarize the university of {person}."
        answer = f"The university of {person} is {university}."
        # One that no answer equals, so that the score says something.
        rows.append({"document": document, "question": question, "answer": answer if person != "Ada Lopez" else "-"})
        engine = utaca.generate(utaca.prefill(tiny, document), question, budget=8, max_new_tokens=40)
        expected.append(engine.text == rows[-1]["answer"])
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    chats, text = kind == "local-chat-completions", r"{{document}}\n\n{{question}}"
    text = text if chats else f"{tiny.before}{text}{tiny.after}"
    (tmp_path / "universities.yaml").write_text(TASK.format(rows=tmp_path / "rows.jsonl", text=text))
    at = f"{server.address}/v1/{'chat/' if chats else ''}completions"
    arguments = f"model=tiny,base_url={at},num_concurrent=2,max_retries=1,tokenizer={tiny.tokenizer.name_or_path}"
    command = [sys.executable, "-m", "lm_eval", "--model", kind, "--model_args", arguments, "--tasks", "universities"]
    command += ["--include_path", str(tmp_path), "--output_path", str(tmp_path / "out"), "--log_samples"]
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(tmp_path / "home")}
    environment |= {"OPENAI_API_KEY": "-", "PYTHONPATH": os.pathsep.join(sys.path)}
    command += ["--apply_chat_template"] if chats else []
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    result = json.loads(next((tmp_path / "out").rglob("results*.json")).read_text())
    assert result["results"]["universities"]["exact_match,none"] == pytest.approx(sum(expected) / 3)
    assert sum(expected) >= 1


@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
def test_the_page_asks_and_shows_blocks(server: Server, tmp_path: Path) -> None:
    with Browser(tmp_path, patience=120) as browser:
        browser.view(1280, 900)
        browser.call("Page.navigate", url=server.address)
        browser.wait(lambda: browser.run("document.readyState === 'complete' && !!document.getElementById('ask')"))
        browser.run(f"document.getElementById('text').value = {json.dumps(DOCUMENT)}")
        browser.run("document.getElementById('question').focus()")
        browser.run("document.getElementById('ask').click()")
        assert "question" in browser.text("#state")
        browser.run(f"document.getElementById('question').value = {json.dumps(QUESTION)}")
        browser.run("document.getElementById('trigger').value = 'every.3'")
        browser.run("document.getElementById('ask').click()")
        browser.wait(lambda: browser.text("#state") == "Done.")
        assert "Harvard University" in browser.text("#a0")
        assert "Harvard University" in browser.text("#a1")
        assert "rolled back" in browser.text("#s0")
        assert browser.run("document.querySelectorAll('#a0 .back').length") > 0
        assert browser.text("#shown") == DOCUMENT
        assert browser.run("document.querySelectorAll('#shown mark').length") > 2
        browser.run("document.querySelector('#a1 button').focus()")
        browser.press("ArrowRight")
        assert browser.run("document.activeElement === document.querySelectorAll('#a1 button')[1]")
        assert browser.run("document.querySelectorAll('#shown mark.now').length") > 0
        assert browser.faint() == []
        browser.view(360, 640, dark=True)
        assert browser.run("document.documentElement.scrollWidth <= innerWidth")
        assert browser.faint() == []
        assert browser.complaints == []
        assert {request.split("/")[2] for request in browser.requests if request.startswith("http")} == {
            server.address.removeprefix("http://")
        }


def resident() -> int:
    """Bytes of this process in main memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(not Path("/proc/self/statm").is_file(), reason="needs Linux")
def test_clients_that_misbehave_harm_no_other(tiny: Reader) -> None:
    """Of 200 requests of 16 clients a fifth are cut or no JSON: no answer is mixed up, memory does not grow."""
    names = ["Emma", "Ada", "Maria", "Olga", "Ivan", "Hugo"]

    def about(name: str) -> tuple[str, str]:
        return f"The hobby of {name} Thompson is golf.{SEA * 25}", f"Summarize the hobby of {name} Thompson."

    with serving(tiny, room=12 << 20) as server:
        expected = {name: text_of(server, *about(name), max_tokens=8) for name in names}
        assert all(name in text for name, text in expected.items())
        chance, sizes = random.Random(0), []
        plan = [(chance.choice(names), chance.random(), chance.random()) for _ in range(200)]

        def ask(name: str, kind: float, cut: float) -> None:
            if kind < 0.1:
                assert post(server, json.dumps(chat(*about(name))).encode()[: int(cut * 500)])[0] == 400
            elif kind < 0.2:
                connection = begin(server.address, chat(*about(name), max_tokens=8, stream=True))
                if cut < 0.7:
                    connection.getresponse().read(int(cut * 1000))
                connection.sock.shutdown(socket.SHUT_RDWR)
                connection.close()
            else:
                assert text_of(server, *about(name), max_tokens=8) == expected[name]

        with ThreadPoolExecutor(16) as pool:
            for half in (plan[:100], plan[100:]):
                list(pool.map(lambda each: ask(*each), half))
                wait(lambda: not server.worker.answering and not server.worker.waiting)
                sizes.append((server.worker.memories.size, resident()))
        assert all(size <= 12 << 20 for size, _ in sizes)
        assert sizes[1][1] < sizes[0][1] + (48 << 20)
