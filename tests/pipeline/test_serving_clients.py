"""Programs of others as clients of ``utaca serve``."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from serving import DOCUMENT, QUESTION, SEA, chat

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
