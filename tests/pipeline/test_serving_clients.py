"""Programs of others as clients of ``utaca serve``."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from serving import DOCUMENT, QUESTION, SEA, chat
from small import full_attention
from test_serving_scores import of_tokens

import utaca
from utaca.app.serving.server import Server
from utaca.readers.load import Reader


def installed(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


@pytest.mark.skipif(not shutil.which("curl"), reason="curl is not here")
def test_curl_asks(server: Server) -> None:
    command = f"curl -sN {server.address}/v1/chat/completions -H Content-Type:application/json -d @-".split()
    run = lambda body: subprocess.run(command, input=json.dumps(body), capture_output=True, text=True).stdout  # noqa: E731
    streamed = run(chat(stream=True))
    assert ": read " in streamed
    assert streamed.endswith("data: [DONE]\n\n")
    assert "Harvard University" in run(chat())


@pytest.mark.skipif(not installed("langchain_openai"), reason="langchain-openai is not installed")
def test_langchain_asks(server: Server) -> None:
    from langchain_openai import ChatOpenAI

    model = ChatOpenAI(model="tiny", base_url=f"{server.address}/v1", api_key="-", temperature=0)
    assert "Harvard University" in model.invoke([("system", DOCUMENT), ("human", QUESTION)]).content


# lm-evaluation-harness

PEOPLE = {"Emma Thompson": "Harvard University", "Ada Lopez": "Lund University", "Olga Petrova": "Yale University"}
GENERATION = """
generation_kwargs: {until: ["<never>"], max_gen_toks: 40, do_sample: false, temperature: 0}
metric_list: [{metric: exact_match, aggregation: mean, higher_is_better: true}]
"""
needs_harness = pytest.mark.skipif(not installed("lm_eval"), reason="lm-evaluation-harness is not installed")


def harness(server: Server, tiny: Reader, folder: Path, kind: str, rows: list[dict[str, Any]], **tasks: str) -> Path:
    """The folder of what the harness makes of these rows under tasks: each the type of its output, how a row becomes a
    text and a target, and more lines."""
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for name, lines in tasks.items():
        data = f"dataset_path: json\ndataset_kwargs: {{data_files: {{test: {folder / 'rows.jsonl'}}}}}\n"
        (folder / f"{name}.yaml").write_text(f"task: {name}\n{data}test_split: test\n{lines}")
    chats = kind == "local-chat-completions"
    at = f"{server.address}/v1/{'chat/' if chats else ''}completions"
    arguments = f"model=tiny,base_url={at},max_length=1280,max_retries=1,tokenizer={tiny.tokenizer.name_or_path}"
    command = [sys.executable, "-m", "lm_eval", "--model", kind, "--model_args", arguments, "--tasks", ",".join(tasks)]
    command += ["--include_path", str(folder), "--output_path", str(folder / "out"), "--log_samples"]
    command += ["--apply_chat_template"] if chats else []
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(folder / "home")}
    environment |= {"OPENAI_API_KEY": "-", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return folder / "out"


@needs_harness
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
    text = r"{{document}}\n\n{{question}}"
    text = text if kind == "local-chat-completions" else f"{tiny.before}{text}{tiny.after}"
    task = f'output_type: generate_until\ndoc_to_text: "{text}"\ndoc_to_target: "{{{{answer}}}}"{GENERATION}'
    out = harness(server, tiny, tmp_path, kind, rows, universities=task)
    result = json.loads(next(out.rglob("results*.json")).read_text())
    assert result["results"]["universities"]["exact_match,none"] == pytest.approx(sum(expected) / 3)
    assert sum(expected) >= 1


@needs_harness
def test_the_harness_scores_choices_and_texts(server: Server, tiny: Reader, tmp_path: Path) -> None:
    names = list(PEOPLE.values())
    rows = [
        {"text": f"The university of {person} is {name}. The university of {person} is", "answer": number}
        for number, (person, name) in enumerate(PEOPLE.items())
    ]
    choices = 'output_type: multiple_choice\ndoc_to_text: "{{text}}"\ndoc_to_target: "{{answer}}"\n'
    choices += f"doc_to_choice: {json.dumps(names)}\n"
    texts = 'output_type: loglikelihood_rolling\ndoc_to_text: ""\ndoc_to_target: "{{text}}"\n'
    texts += "metric_list: [{metric: word_perplexity}]\n"
    out = harness(server, tiny, tmp_path, "local-completions", rows, choices=choices, texts=texts)
    scored, rolled = (
        [json.loads(line)["filtered_resps"] for line in next(out.rglob(f"samples_{name}_*")).read_text().splitlines()]
        for name in ("choices", "texts")
    )
    encoded = lambda text: tiny.tokenizer(text, add_special_tokens=False)["input_ids"]  # noqa: E731
    for row, answers, whole in zip(rows, scored, rolled, strict=True):
        context = len(encoded(row["text"]))
        for name, (logprob, greedy) in zip(names, answers, strict=True):
            tokens = torch.tensor(encoded(f"{row['text']} {name}"))
            logits = full_attention(tiny, tokens)
            assert float(logprob) == pytest.approx(sum(of_tokens(logits, tokens)[context - 1 :]), abs=1e-3)
            assert str(greedy) == str(logits[context - 1 : -1].argmax(-1).equal(tokens[context:]))
        prefix = tiny.tokenizer.bos_token_id or tiny.tokenizer.eos_token_id
        tokens = torch.tensor([prefix, *encoded(row["text"])])
        expected = sum(of_tokens(full_attention(tiny, tokens), tokens))
        assert float(whole[0]) == pytest.approx(expected, abs=1e-3)
