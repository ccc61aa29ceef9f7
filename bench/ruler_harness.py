"""Full attention of a run on RULER's rows, scored once more by lm-evaluation-harness on the same rows.

``python bench/ruler_harness.py results/ruler-public --model Qwen/Qwen2.5-Coder-1.5B-Instruct`` writes the rows that the
run asked as tasks of the harness, whole prompts in the reader's chat template, has the harness answer and score them
with the model in transformers, and prints both scores of each set as a Markdown table. ``--python`` names the Python of
an environment with lm_eval, if that is another one. The harness has tasks of these names, but other rows, and scores
questions with several answers otherwise; both are replaced here.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from report import markdown

from utaca.readers.prompts import SEPARATOR, frame
from utaca.readers.tokenizer import load_tokenizer
from utaca.records import read
from utaca.tasks.registry import TASKS

TASK = """\
task: {name}
dataset_path: json
dataset_kwargs: {{data_files: {{test: {rows}}}}}
test_split: test
output_type: generate_until
doc_to_text: !function scoring.prompt
doc_to_target: "{{{{references[0]}}}}"
process_results: !function scoring.{score}
generation_kwargs: {{until: [], max_gen_toks: {new_tokens}, do_sample: false}}
metric_list: [{{metric: score, aggregation: mean, higher_is_better: true}}]
"""
SCORING = """\
def prompt(row):
    return row["prompt"]


def found(row, answer):
    return [reference.lower() in answer.lower() for reference in row["references"]]


def every(row, results):
    each = found(row, results[0])
    return {"score": 100 * sum(each) / len(each)}


def one(row, results):
    return {"score": 100 * any(found(row, results[0]))}
"""
"""What the harness loads: prompts, and RULER's two scores."""


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="the folder of a run that asked RULER's tasks under full attention")
    parser.add_argument("--model", required=True, help="the run's reader: a folder or an id of the Hugging Face hub")
    parser.add_argument("--python", default=sys.executable, help="Python of an environment with lm_eval")
    parser.add_argument("--dtype", default="bfloat16", help="number type of the weights (default: bfloat16)")
    parser.add_argument("--device", default="cpu", help="device of the model (default: cpu)")
    return parser.parse_args()


def main() -> None:
    options = parsed()
    before, after = frame(load_tokenizer(options.model, ""))
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        (folder / "scoring.py").write_text(SCORING, encoding="utf-8")
        # The scores of the run by set.
        scores: dict[str, list[float]] = {}
        for path in sorted((options.run / "tasks").glob("*/scores.parquet")):
            own = own_scores(path.parent)
            task = task_of_set(path.parent.name)
            if own and task:
                write_task(folder, path.parent, TASKS[task]().new_tokens, task, before, after)
                scores[path.parent.name] = own
        found = harness_scores(folder, list(scores), options)
    rows = []
    for name, own in scores.items():
        rows.append((name, str(len(own)), f"{np.mean(own):.1f}", f"{found[name]:.1f}"))
    means = [np.mean([np.mean(own) for own in scores.values()]), np.mean(list(found.values()))]
    rows.append(("mean", "", *(f"{mean:.1f}" for mean in means)))
    print(markdown(("set", "rows", "utaca, full attention", "lm-evaluation-harness"), rows))


def task_of_set(name: str) -> str:
    """The task of a set of ``tasks=ruler``, as "vt" of "vt-4k"; "" for a set of another name."""
    task = name.rpartition("-")[0]
    task = f"ruler_{task}" if task in ("qa_1", "qa_2") else task
    return task if task in TASKS else ""


def own_scores(folder: Path) -> list[float]:
    """The scores of a set under full attention."""
    answers = read(folder / "answers.parquet", "answers").to_pandas()
    full = set(answers.loc[answers["method"] == "full", "point"])
    scores = read(folder / "scores.parquet", "task_scores").to_pandas()
    return scores.loc[scores["point"].isin(full), "score"].tolist()


def write_task(folder: Path, of_set: Path, new_tokens: int, task: str, before: str, after: str) -> None:
    """Write a set's rows, and the task that asks them, into a folder of the harness's tasks."""
    lines = []
    for row in read(of_set / "examples.parquet", "examples").to_pylist():
        separator = "" if row["question"].startswith("\n") else SEPARATOR
        prompt = before + row["text"] + separator + row["question"] + after + row["prefix"]
        lines.append(json.dumps({"prompt": prompt, "references": row["references"]}) + "\n")
    rows = folder / f"{of_set.name}.jsonl"
    rows.write_text("".join(lines), encoding="utf-8")
    score = "one" if task.startswith("ruler_qa") else "every"
    about = TASK.format(name=of_set.name, rows=rows, score=score, new_tokens=new_tokens)
    (folder / f"{of_set.name}.yaml").write_text(about, encoding="utf-8")


def harness_scores(folder: Path, names: list[str], options: argparse.Namespace) -> dict[str, float]:
    """Run the harness on tasks of a folder; returns the score of each."""
    model = f"pretrained={options.model},dtype={options.dtype},add_bos_token=False"
    command = [options.python, "-m", "lm_eval", "--model", "hf", "--model_args", model, "--device", options.device]
    command += ["--batch_size", "1", "--include_path", str(folder), "--tasks", ",".join(names)]
    command += ["--output_path", str(folder / "out")]
    subprocess.run(command, env=os.environ | {"HF_DATASETS_OFFLINE": "1"}, check=True)
    (path,) = (folder / "out").rglob("results_*.json")
    results: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))["results"]
    return {name: results[name]["score,none"] for name in names}


if __name__ == "__main__":
    main()
