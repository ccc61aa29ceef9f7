"""What users add, as docs/extending.md shows it: its examples run here, from files outside of the package."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import asdict
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest
import torch
import yaml
from configs import planned
from conftest import ROOT
from small import make_reader, some_tokens
from test_readers import NEOX
from torch import Tensor

import utaca
from utaca.detection.detector import Detector
from utaca.detection.signals import SIGNALS
from utaca.errors import UserError
from utaca.generation.answers import Answers
from utaca.memory import BlockMemory, prefill
from utaca.methods import METHODS, build, method_of
from utaca.readers.families import FAMILIES
from utaca.readers.load import Reader
from utaca.records import Origin
from utaca.settings import schema
from utaca.settings.checks import load
from utaca.settings.compose import compose
from utaca.settings.modules import closure
from utaca.tasks.asking import ask, scores
from utaca.tasks.registry import TASKS, files_of, task_of
from utaca.tasks.task import Example, Task

QUESTION = "Who is it?"


def examples(page: str, heading: str, language: str = "python") -> list[str]:
    """The code of a section, block by block."""
    text = (ROOT / page).read_text(encoding="utf-8").partition(f"\n## {heading}\n")[2]
    return re.findall(rf"```{language}\n(.*?)```", re.split(r"^## ", text, flags=re.MULTILINE)[0], re.DOTALL)


def imported(heading: str, path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The first example of a section, written to a file and imported from there."""
    path.write_text(examples("docs/extending.md", heading)[0], encoding="utf-8")
    spec = spec_from_file_location(path.stem, path)
    module = module_from_spec(spec)
    monkeypatch.setitem(sys.modules, path.stem, module)
    spec.loader.exec_module(module)
    return module


def detector_of(reader: Reader, seed: int, **settings: object) -> Detector:
    """A detector with random weights; its LSTM makes a verdict depend on the tokens accepted before."""
    torch.manual_seed(seed)
    return Detector(schema.DetectorSettings(**settings), reader.width).eval()


# A method


@pytest.fixture
def method(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> type:
    module = imported("A method", tmp_path / "agreed.py", monkeypatch)
    monkeypatch.setitem(METHODS, "agreed", module.Agreed)
    return module.Agreed


def test_a_method_is_an_operating_point_once_its_file_is_there(method: type, monkeypatch: pytest.MonkeyPatch) -> None:
    points = {
        "alone": {"method": "agreed", "budget": 512},
        "ours": {"method": "utaca", "base": "agreed", "budget": 64, "policy": "set.9"},
    }
    said = {"points": points, "decode": {"methods": ["alone", "ours"]}}
    with pytest.raises(UserError, match="method is 'agreed' but must be one of"):
        compose(said, ROOT)
    monkeypatch.setattr(schema, "CONTEXT_METHODS", (*schema.CONTEXT_METHODS, "agreed"))
    config = load(compose(said, ROOT))
    alone, adaptive = (method_of(point, config.methods) for point in config.decoded("methods"))
    assert alone == method(512)
    assert (adaptive.base, adaptive.budget, adaptive.policy) == (method(64), 64, "set.9")


def test_a_method_that_cannot_change_its_budget_takes_no_trigger(method: type, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(method, "adjustable", False)
    with pytest.raises(UserError, match="agreed cannot give a step another budget than the last one"):
        build("utaca", {"base": method()})
    reading = method().read(make_reader(), some_tokens(60), 40)
    with pytest.raises(UserError, match="this method cannot give a step another budget"):
        utaca.generate(reading, QUESTION, budget=[9, 3])


def test_the_page_answers_by_the_method(method: type) -> None:
    reader, said = make_reader(), examples("docs/extending.md", "A method")[1]
    given = {"reader": reader, "document": some_tokens(60), "question": QUESTION, "detector": detector_of(reader, 3)}
    exec(said, given)
    fixed, adaptive = (given[name].generation.trace for name in ("fixed", "adaptive"))
    assert {token.k for token in fixed} == {32}
    assert [(token.tentative or token).k for token in adaptive[:2]] == [32, 24]
    assert all(token.gdm for token in adaptive)


# A policy


@pytest.fixture
def policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> utaca.Policy:
    return imported("A policy", tmp_path / "careful.py", monkeypatch).Careful()


@pytest.fixture(scope="module")
def memory() -> BlockMemory:
    return prefill(make_reader(), some_tokens(300))


def test_a_policy_chooses_by_margin_and_gdm(memory: BlockMemory, policy: utaca.Policy) -> None:
    k_max, trigger = 32, utaca.Detected(detector_of(memory.reader, 1))
    options = {"budget": k_max, "policy": policy, "trigger": trigger, "max_new_tokens": 40}
    found = utaca.generate(memory, QUESTION, **options)
    k, kept, wide, further = k_max, 0, 0, 0
    for token in found.trace:
        first = token.tentative or token
        assert first.k == k
        hallucinated, correct, unknown = token.gdm
        if max(hallucinated, unknown) > correct and k < k_max:
            further += k > 1
            k = 32 if unknown >= hallucinated else min(32, k + k)
            wide += k == k_max
            assert (token.rolled_back, token.k) == (True, k)
        elif token.margin < 1.0:
            assert not token.rolled_back
            kept += k > 1
        else:
            assert not token.rolled_back
            k = {32: 8, 16: 4, 8: 2, 4: 1, 2: 1, 1: 1}[k]
    # Each of the policy's ways was taken.
    assert kept
    assert further
    assert 0 < wide < found.rollbacks < len(found.trace)
    replayed = utaca.generate(memory, QUESTION, budget=[token.k for token in found.trace], max_new_tokens=40)
    assert [token.token for token in replayed.trace] == [token.token for token in found.trace]


# A trigger


def test_a_trigger_expands_where_k_max_is_surer(memory: BlockMemory, tmp_path: Path, monkeypatch) -> None:
    trigger = imported("A trigger", tmp_path / "surer.py", monkeypatch).Surer(0.8)
    options = {"budget": 16, "policy": utaca.Sub(6), "trigger": trigger, "max_new_tokens": 40}
    found = utaca.generate(memory, QUESTION, **options)
    k, kept = 16, 0
    for token in found.trace:
        first = token.tentative or token
        assert first.k == k
        if k < 16:
            wide = token if token.rolled_back else token.probe
            assert wide.k == 16
            assert token.rolled_back == (first.margin < 0.8 and wide.margin > first.margin)
            kept += token.probe is not None and first.margin < 0.8
        k = 16 if token.rolled_back else max(1, k - 6)
    assert kept
    assert 0 < found.rollbacks < len(found.trace)


# A signal


@pytest.fixture
def signal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = imported("A signal", tmp_path / "lead.py", monkeypatch)
    monkeypatch.setitem(SIGNALS, "lead", module.SIGNAL)
    monkeypatch.setattr(schema, "SIGNALS", (*schema.SIGNALS, "lead"))


def lead(scores: Tensor, reader: Reader) -> float:
    """The example's figure from the scores of the retrieved blocks, [layers, k], which hold the best two of all."""
    leads = []
    for layer in scores.tolist():
        first, second = sorted(layer, reverse=True)[:2] if len(layer) > 1 else (0.0, 0.0)
        leads.append((first - second) / (reader.sizes.heads * reader.sizes.head_size**0.5))
    return sum(leads) / len(leads)


def test_a_signal_is_measured_by_its_own_hook(signal: None) -> None:
    reader = make_reader()
    # While a short document is answered, no block is far, then one, then several.
    for length in (300, 18):
        document = prefill(reader, some_tokens(length))
        found = utaca.generate(document, QUESTION, budget=5, max_new_tokens=40, measured=True)
        assert len(found.trace) > 25
        far = [token.selected.shape[1] for token in found.trace]
        assert min(far) == 5 if length == 300 else {0, 1, 2} <= set(far)
        for token in found.trace:
            assert set(token.signals) == {"margin", "retrieval", "lead"}
            assert token.signals["lead"] == pytest.approx(lead(token.scores, reader), rel=1e-4, abs=1e-6)
        assert any(token.signals["lead"] > 0.01 for token in found.trace)


# Files in the package


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the package, to which the page's method, signal and table are added, a file each."""
    folder = tmp_path_factory.mktemp("src")
    shutil.copytree(ROOT / "src", folder / "src", ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "data").symlink_to(ROOT / "data")
    for file, heading in ADDED.items():
        path = folder / "src" / "utaca" / file
        path.write_text(examples("docs/extending.md", heading)[0], encoding="utf-8")
    return folder


ADDED = {
    "methods/agreed.py": "A method",
    "detection/signals/lead.py": "A signal",
    "reporting/tables/lengths.py": "A table",
}


def run_with(package: Path, code: str, *arguments: Path) -> list[str]:
    """What a script prints that imports the package with the added files, line by line."""
    environment = {**os.environ, "PYTHONPATH": f"{package / 'src'}:{ROOT / 'tests'}", "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, cwd=package, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


INSTALLED = """
import sys
from pathlib import Path
from utaca.detection.detector import Detector
from utaca.detection.signals import SIGNALS
from utaca.methods import method_of
from utaca.records import trajectory_schema
from utaca.settings import schema
from utaca.settings.checks import load
from utaca.settings.compose import compose

points = {"points": {"own": {"method": "agreed"}}, "decode": {"methods": ["own"]}}
config = load(compose(points | {"methods": {"agreed": {"budget": "9"}}}, Path(sys.argv[1])))
print(method_of(*config.decoded("methods"), {"agreed": config.settings_of("agreed")}))
detector = Detector(schema.DetectorSettings(signals=["margin", "lead"]), 8)
print(*sorted(SIGNALS), *trajectory_schema(8, ["attention"]).names, *detector.signal_encoders)
"""


def test_a_method_and_a_signal_are_one_file(package: Path) -> None:
    method, signals = run_with(package, INSTALLED, ROOT)
    assert method == "Agreed(budget=9)"
    assert signals.split()[:3] == ["lead", "margin", "retrieval"]
    assert signals.split().count("lead") == 3
    for script, file in (("decode_trajectories", "signals/lead"), ("generate", "signals/lead"), ("generate", "agreed")):
        files = closure(ROOT / "workflow" / "scripts" / f"{script}.py", package / "src")
        assert [path for path in files if path.endswith(f"{file}.py")], "an edit of it reruns what it decoded"


# A model family


def test_the_page_has_the_family_that_the_readers_tests_add(monkeypatch: pytest.MonkeyPatch) -> None:
    # What the example leaves there is taken away again.
    monkeypatch.setitem(FAMILIES, "gpt_neox", None)
    exec(examples("docs/extending.md", "A model family")[0], {})
    assert FAMILIES["gpt_neox"] == NEOX


# A task of a benchmark

MILL = "The mill stands by the river."
FIELDS = [
    {"_id": "a", "context": MILL, "input": "Where is {context}?", "answers": ["by the river"]},
    {"_id": "b", "context": MILL, "input": "What stands?", "answers": ["A mill.", "it"]},
    {"_id": "c", "context": "Nobody came. " * 40, "input": "Who came?", "answers": ["nobody"]},
]


@pytest.fixture
def task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> type[Task]:
    module = imported("A task of a benchmark", tmp_path / "multifieldqa.py", monkeypatch)
    monkeypatch.setitem(TASKS, "multifieldqa_en", module.MultiFieldQA)
    return module.MultiFieldQA


@pytest.fixture
def benchmarks(tmp_path: Path) -> Path:
    """A folder with the example's file."""
    path = tmp_path / "benchmarks" / "LongBench" / "multifieldqa_en.jsonl"
    path.parent.mkdir(parents=True)
    path.write_text("\n".join(map(json.dumps, FIELDS)), encoding="utf-8")
    return path.parents[1]


def asked(tiny: Reader, folder: Path, **settings: int) -> list[Example]:
    """The rows of a set of the example as the tiny reader is asked them."""
    chosen = schema.TaskSetSettings("multifieldqa_en", **settings)
    return task_of(chosen).examples(chosen, files_of(chosen, str(folder)), tiny.prompts)


def test_a_task_asks_by_its_template(tiny: Reader, task: type[Task], benchmarks: Path) -> None:
    found = asked(tiny, benchmarks)
    assert f"{found[0].text}\n\n{found[0].question}" == (
        "Read the following text and answer briefly.\n\nThe mill stands by the river.\n\nNow, answer the following "
        "question based on the above text, only give me the answer and do not output any other words.\n\n"
        "Question: Where is {context}?\nAnswer:"
    )
    assert [(row.id, row.references) for row in found] == [(row["_id"], tuple(row["answers"])) for row in FIELDS]
    assert found[0].document == found[1].document != found[2].document
    assert found[:2] == asked(tiny, benchmarks, examples=2)
    answers = [{"document": row.id, "split": "fields", "point": "full", "text": "the old mill"} for row in found]
    given = [asdict(row) for row in found]
    assert [row["score"] for row in scores(task(), given, answers)] == [0, pytest.approx(200 / 3), 0]
    assert {(row.longest, row.prefix) for row in ask(task(), given)} == {(64, "")}
    file = benchmarks / "LongBench" / "multifieldqa_en.jsonl"
    assert not task().is_official({"rows": file})
    file.write_text("\n".join(json.dumps(FIELDS[0] | {"_id": str(n)}) for n in range(150)), encoding="utf-8")
    assert task().is_official({"rows": file})


def test_a_task_is_asked_once_config_names_it(tiny: Reader, task: type[Task], benchmarks: Path) -> None:
    said = yaml.safe_load(examples("docs/extending.md", "A task of a benchmark", "yaml")[0])
    said["tasks"]["path"] = str(benchmarks)
    plan = planned(ROOT, **said)
    assert plan.SETTINGS.asked == ["multifieldqa_en"]
    assert plan.task_files("multifieldqa_en") == [str(benchmarks / "LongBench" / "multifieldqa_en.jsonl")]
    assert [point.method for point in plan.SETTINGS.decoded("multifieldqa_en")] == ["full", "infllm"]
    assert "ood" in plan.TABLES
    example = asked(tiny, benchmarks, length=said["tasks"]["sets"]["multifieldqa_en"]["length"])[1]
    answer = Answers(tiny, example.text).answer(build("infllm", {"budget": 8}), example.question, task.new_tokens)
    assert 0 < len(answer.generation.trace) <= 64
    assert 0 <= task().score(answer.generation.text, example.references) <= 100


# A table

MADE_BY_THE_SCRIPT = """
import sys
from pathlib import Path
from types import SimpleNamespace
from configs import planned
from utaca.records import write

root, script = Path(sys.argv[1]), Path(sys.argv[2])
plan = planned(root, scale="smoke")
plan.SOURCE = Path("src")
assert plan.made_from("lengths") == {"test_answers": plan.generations("answers", "test", "blocks")}
rows = [{"document": name, "point": "infllm-K1", "n_generated": n} for name, n in (("a", 10), ("b", 31))]
write("answers.parquet", "answers", rows)
outputs = [path for path in plan.RESULTS if Path(path).stem == "lengths"]
inputs = {"test_answers": "answers.parquet"}
job = SimpleNamespace(log=["log"], wildcards=("lengths",), input=inputs, config=plan.config, output=outputs)
exec(compile(script.read_text(), script, "exec"), {"snakemake": job, "__name__": "script"})
code = plan.code_of(SimpleNamespace(script="table.py"))
digests = {code(SimpleNamespace(entry=name)) for name in ("lengths", "test")}
assert len(digests) == 2, "it is made anew where its module changes"
print(*outputs, sep="\\n")
"""


def test_a_table_is_one_file(package: Path) -> None:
    script = ROOT / "workflow" / "scripts" / "table.py"
    outputs = run_with(package, MADE_BY_THE_SCRIPT, ROOT, script)
    csv, markdown, _ = ((package / path).read_text(encoding="utf-8") for path in outputs)
    assert csv == "point,answered,longest,n_documents\ninfllm-K1,20.5,31,2\n"
    assert markdown.startswith("## Length of the answers\n\n| Point | Tokens an answer | Longest |\n")
    assert "| InfLLM K=1 | 20.5 | 31 |" in markdown
    assert re.search(r"no answer is longer than \d+ tokens", markdown)
    assert "Documents are those of the test split." in markdown.partition("<details>")[2]
    files = closure(script, package / "src", "utaca.reporting.tables.lengths")
    assert str(package / "src" / "utaca" / "reporting" / "tables" / "lengths.py") in files


# The README and docs/python.md


def test_the_readmes_python_runs(tiny: Reader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    detector = detector_of(tiny, 0)
    detector.reader = Origin(tiny.settings.name, tiny.identity)
    detector.save("results/quick/detectors/utaca/seed0/model.safetensors")
    document = "The university of Emma Thompson is Lund University. " + "It was a cold day, and nobody came. " * 200
    given = {"document": document}
    code = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "python.md").read_text(encoding="utf-8"), re.DOTALL)
    assert len(code) >= 2
    for block in [*code, *examples("README.md", "From Python")]:
        exec(block, given)
    assert given["answer"].text == given["adaptive"].text
    assert {token.k for token in given["fixed"].trace} == {32}
    assert [(token.tentative or token).k for token in given["adaptive"].trace[:2]] == [64, 48]
    assert given["exact"].dtype == torch.float32
    assert given["exact"].settings.memory.prefill_budget == 4
