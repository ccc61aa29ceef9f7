"""Facts about rows that RULER's own generator makes, with which test_ruler_rows.py compares ours.

    python tests/ruler_facts.py CHECKOUT [DATA]

runs the scripts of a checkout of github.com/NVIDIA/RULER, in a copy, on the project's own files and, if a folder DATA
of benchmarks' files is given, on those of :data:`REAL`. It writes digests of the rows, and their answers, to
``tests/data/ruler.json``. The scripts want the packages nltk, scipy, tenacity, tqdm, transformers and wonderwords.
"""

import ast
import json
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import nltk
import nltk.tokenize
import yaml

from utaca.readers.prompts import Prompts
from utaca.readers.tokenizer import load_tokenizer
from utaca.tasks.registry import TASKS
from utaca.tasks.ruler_texts import FOLDER, RULES

ROOT = Path(__file__).parents[1]
FACTS = ROOT / "tests" / "data" / "ruler.json"
TINY = ROOT / "data" / "readers" / "tiny"
N_ROWS = 4
_PAIRS: list[str] = []
NEW_NAMES = {"qa_1": "ruler_qa_1", "qa_2": "ruler_qa_2"}
"""Names that RULER's tasks have here, where these differ."""
REAL = {
    "essays": "RULER/PaulGrahamEssays.json",
    "sentences": "RULER/punkt_tab.zip",
    "ruler_qa_1": "qa/squad_dev_v2_cs224n.json",
    "ruler_qa_2": "qa/hotpotqa_dev_distractor_50.jsonl",
}
"""Files of a folder of benchmarks' files: the essays and rules by their names, those of questions by their tasks'."""

KEYS = ("task", "length", "files", "seed")
"""What names a case."""

ESSAY = """\
Dr. Holm kept the gauges of the river, e.g. the one at Tewkesbury, for 3.5 years; nobody asked her to. "Why not?" she
said... The mill stood still! In 1958 the U.S. Navy bought it from Messrs. Ashdown & Co. (of Leicester). It burned down.
He wrote to Prof. Lund at 9 a.m. on Monday. Lund answered at once: the wheel, i.e. the old one, would turn again. So it
did. Its owner came from St. Ives and read geology, botany etc. until he was forty. What for? Nobody knows.

Mr. J. Moss sold the meadow. No. 7 of the list was a boat
that leaked.  It sank on the 4th of May. "Let it lie," they said. And it lies there still, under the third bridge.
"""
"""A text of the project's own, with full stops that end no sentence."""
SENTENCES = {
    "abbrev_types.txt": ["dr", "e.g", "u.s", "messrs", "prof", "a.m", "i.e", "st", "mr", "no", "etc"],
    "collocations.tab": ["j\tmoss", "##number##\tof"],
    "ortho_context.tab": ["lund\t4", "navy\t64", "monday\t64", "so\t2", "it\t46", "botany\t32", "ives\t64"],
    "sent_starters.txt": ["it", "in", "so"],
}
"""Rules of sentences in the layout of NLTK's, written for this text."""


@dataclass(frozen=True)
class Case:
    """Rows of a task of up to ``length`` tokens with the chat template's ``template``, from a seed and files.

    ``files`` are "own" or "real".
    """

    task: str
    length: int
    files: str = "own"
    seed: int = 42


def cases(tasks: Mapping[str, Any], real: bool) -> Iterator[Case]:
    """The cases of RULER's tasks, which are given by its own names."""
    for name in tasks:
        yield Case(name, 2000)
        yield Case(name, 4096)
        if real and (name in NEW_NAMES or tasks[name]["args"].get("type_haystack") == "essay"):
            yield Case(name, 8192, "real")
    for name in ("niah_multivalue", "vt", "cwe", "fwe", "qa_1"):
        yield Case(name, 3000, seed=7)


def own_files(folder: Path) -> dict[str, Path]:
    """Write the project's own files for all tasks into a folder; returns their paths as in :data:`REAL`."""
    essays = folder / "essays.json"
    essays.write_text(json.dumps({"text": ESSAY}), encoding="utf-8")
    sentences = folder / "sentences.zip"
    with zipfile.ZipFile(sentences, "w") as archive:
        for name in RULES:
            archive.writestr(FOLDER + name, "\n".join(SENTENCES[name]))
    shipped = ROOT / "data" / "tasks"
    return {
        "essays": essays,
        "sentences": sentences,
        "ruler_qa_1": shipped / "questions.json",
        "ruler_qa_2": shipped / "pairs.json",
    }


def digest(prompt: str) -> str:
    """What is kept of a prompt."""
    return sha256(prompt.encode()).hexdigest()[:24]


def main(checkout: Path, data: Path | None) -> None:
    scripts = checkout / "scripts"
    tasks = yaml.safe_load((scripts / "synthetic.yaml").read_text(encoding="utf-8"))
    prompts = Prompts(load_tokenizer(str(TINY), ""))
    facts = []
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        copied = {"own": _copied(scripts, folder / "own", own_files(folder))}
        if data:
            copied["real"] = _copied(scripts, folder / "real", {name: data / path for name, path in REAL.items()})
        for case in cases(tasks, bool(data)):
            name = NEW_NAMES.get(case.task, case.task)
            task = TASKS[name]()
            template = task.room(case.length, prompts).template
            rows = _rows(copied[case.files], case, tasks[case.task], template, folder / "out")
            kept = [
                {
                    "prompt": digest(row["input"] + row["answer_prefix"]),
                    "answers": row["outputs"],
                    "length": row["length"],
                }
                for row in rows
            ]
            facts.append(asdict(case) | {"task": name, "rows": kept})
            print(case, kept[0]["length"], flush=True)
    lines = ",\n".join(json.dumps(fact) for fact in facts)
    FACTS.write_text(f"[\n{lines}\n]\n", encoding="utf-8")


def _copied(scripts: Path, folder: Path, files: Mapping[str, Path]) -> Path:
    """Copy RULER's scripts into a folder and put files where they read them; returns the folder."""
    shutil.copytree(scripts, folder)
    json_folder = folder / "data" / "synthetic" / "json"
    shutil.copyfile(files["essays"], json_folder / "PaulGrahamEssays.json")
    shutil.copyfile(files["ruler_qa_1"], json_folder / "squad.json")
    text = files["ruler_qa_2"].read_text(encoding="utf-8")
    rows = json.loads(text) if text.startswith("[") else [json.loads(line) for line in text.splitlines()]
    (json_folder / "hotpotqa.json").write_text(json.dumps(rows), encoding="utf-8")
    # No list of a case is so long that it takes these.
    (json_folder / "english_words.json").write_text("{}", encoding="utf-8")
    with zipfile.ZipFile(files["sentences"]) as archive:
        for rule in RULES:
            archive.extract(FOLDER + rule, folder / "nltk_data" / "tokenizers")
    return folder


def _rows(scripts: Path, case: Case, task: Mapping[str, Any], template: int, out: Path) -> list[dict[str, Any]]:
    """Run the generator of a task as ``prepare.py --prepare_for_ns`` does; returns its rows."""
    synthetic = scripts / "data" / "synthetic"
    constants: dict[str, Any] = {}
    exec((synthetic / "constants.py").read_text(encoding="utf-8"), constants)
    about = constants["TASKS"][task["task"]]
    options = {
        **{"save_dir": out, "save_name": "rows", "tokenizer_path": TINY, "tokenizer_type": "hf"},
        **{"max_seq_length": case.length, "tokens_to_generate": about["tokens_to_generate"], "num_samples": N_ROWS},
        **{"random_seed": case.seed, "model_template_token": template},
        **{"template": about["template"] + about["answer_prefix"]},
        **task["args"],
    }
    words = [word for key, value in options.items() for word in (f"--{key}", str(value))]
    nltk.data.path[:] = [str(scripts / "nltk_data")]
    nltk.tokenize._get_punkt_tokenizer.cache_clear()
    _run(synthetic / f"{task['task']}.py", words)
    lines = (out / "rows" / "validation.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def _run(script: Path, arguments: list[str]) -> None:
    """Run a script as a program. The list of pairs of words, the same for all needles, is made once."""
    tree = ast.parse(script.read_text(encoding="utf-8"))
    names: dict[str, Any] = {"__name__": "__main__", "__file__": str(script)}
    if script.stem == "niah" and _PAIRS:
        names["words"] = _PAIRS
        tree.body = [node for node in tree.body if not _assigns_words(node)]
    sys.path.insert(0, str(script.parent))
    sys.argv = [str(script), *arguments]
    exec(compile(tree, str(script), "exec"), names)
    if script.stem == "niah":
        _PAIRS[:] = names["words"]


def _assigns_words(node: ast.stmt) -> bool:
    return isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == "words"


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]) if sys.argv[2:] else None)
