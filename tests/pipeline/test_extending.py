"""What users add, as the pages below docs/extending.md show it: their examples run here, outside of the package."""

import json
import os
import random
import re
import shutil
import subprocess
import sys
from dataclasses import asdict
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import yaml
from configs import planned
from conftest import ROOT
from small import make_reader, some_tokens
from snakemake.cli import get_argument_parser, parse_config
from test_docs import typed
from test_readers import NEOX
from torch import Tensor

import utaca
from utaca.biographies import attributes, templates
from utaca.biographies.handwritten import handwritten
from utaca.detection.detector import Detector
from utaca.detection.signal import Signal
from utaca.detection.signals import SIGNALS
from utaca.errors import UserError
from utaca.generation.answers import Answers
from utaca.memory import prefill
from utaca.methods import METHODS, build
from utaca.methods.bases.dense import Continuation, DenseMethod
from utaca.readers.families import FAMILIES
from utaca.readers.load import Reader
from utaca.readers.questions import question
from utaca.reporting import registry
from utaca.settings import schema
from utaca.tasks.questions import ask, scores
from utaca.tasks.registry import TASKS
from utaca.tasks.rows import Rows

QUESTION = "Who is it?"


def examples(page: str, language: str = "python") -> list[str]:
    """The code of a page, block by block."""
    text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def imported(page: str, path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The first example of a page, written to a file and imported from there."""
    path.write_text(examples(page)[0], encoding="utf-8")
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


def test_the_page_answers_by_the_method(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    method = imported("add_method", tmp_path / "agreed.py", monkeypatch).Agreed
    monkeypatch.setitem(METHODS, "agreed", method)
    reader = make_reader()
    answers, options = Answers(reader, some_tokens(60)), {"max_new_tokens": 64}
    ours = build("utaca", {"base": build("agreed", {}), "budget": 32, "policy": "sub.8"})
    fixed = answers.answer(build("agreed", {"budget": 32}), QUESTION, **options).generation.trace
    adaptive = answers.answer(ours, QUESTION, **options, detector=detector_of(reader, 3)).generation.trace
    assert {token.k for token in fixed} == {32}
    assert [(token.tentative or token).k for token in adaptive[:2]] == [32, 24]
    assert all(token.gdm for token in adaptive)
    monkeypatch.setattr(method, "adjustable", False)
    with pytest.raises(UserError, match="agreed cannot change its budget from step to step"):
        build("utaca", {"base": method()})
    with pytest.raises(UserError, match="this method keeps the budget that it read the document with"):
        utaca.generate(method().read(reader, some_tokens(60), 40), QUESTION, budget=9)


@pytest.mark.parametrize("page", ["add_policy", "add_trigger"])
def test_a_policy_and_a_trigger_decode(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reader, module = make_reader(), imported(page, tmp_path / "example.py", monkeypatch)
    memory = prefill(reader, some_tokens(300))
    if page == "add_policy":
        options = {"budget": 32, "policy": module.Careful(), "trigger": utaca.Detected(detector_of(reader, 1))}
    else:
        options = {"budget": 16, "policy": utaca.Sub(6), "trigger": module.Surer(0.8)}
    found = utaca.generate(memory, QUESTION, **options, max_new_tokens=40)
    assert 0 < found.rollbacks < len(found.trace)
    expanded = {token.k for token in found.trace if token.rolled_back}
    assert expanded == {16} if page == "add_trigger" else {32} < expanded, "as far as the GDM asks for"
    replayed = utaca.generate(memory, QUESTION, budget=[token.k for token in found.trace], max_new_tokens=40)
    assert [token.token for token in replayed.trace] == [token.token for token in found.trace]


# A signal


def lead(scores: Tensor, reader: Reader) -> float:
    """The example's figure from the scores of the retrieved blocks, [layers, k], which hold the best two of all."""
    leads = []
    for layer in scores.tolist():
        first, second = sorted(layer, reverse=True)[:2] if len(layer) > 1 else (0.0, 0.0)
        leads.append((first - second) / (reader.sizes.heads * reader.sizes.head_size**0.5))
    return sum(leads) / len(leads)


def test_a_signal_is_measured_by_its_own_hook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SIGNALS, "lead", imported("add_signal", tmp_path / "lead.py", monkeypatch).SIGNAL)
    monkeypatch.setattr(schema, "SIGNALS", (*schema.SIGNALS, "lead"))
    reader = make_reader()
    # While a short document is answered, no block is far, then one, then several.
    for length in (300, 18):
        document = prefill(reader, some_tokens(length))
        found = utaca.generate(document, QUESTION, budget=5, max_new_tokens=40, measured=True)
        far = [token.selected.shape[1] for token in found.trace]
        assert min(far) == 5 if length == 300 else {0, 1, 2} <= set(far)
        for token in found.trace:
            assert set(token.signals) == {"margin", "retrieval", "lead"}
            assert token.signals["lead"] == pytest.approx(lead(token.scores, reader), rel=1e-4, abs=1e-6)
        assert any(token.signals["lead"] > 0.01 for token in found.trace)


# Files in the package

ADDED = {
    "methods/agreed.py": "add_method",
    "detection/signals/lead.py": "add_signal",
    "reporting/tables/lengths.py": "add_table",
}
"""The method, the signal and the table, each a file of the package, by the page that has them."""


def told(page: str) -> list[dict[str, Any]]:
    """What the Snakemake commands of a page say on the config."""
    commands = [words[1:] for words in typed(ROOT / "docs" / f"{page}.md") if words[:2] == ["snakemake", "--cores"]]
    return [parse_config(get_argument_parser().parse_args(words).config) for words in commands]


INSTALLED = """
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from configs import planned
from utaca.detection.detector import Detector
from utaca.detection.signals import SIGNALS
from utaca.methods import method_of
from utaca.records import trajectory_schema, write
from utaca.settings import schema
from utaca.settings.checks import load
from utaca.runs.compose import compose
from utaca.runs.code_digest import closure
from workflow.digests import Digests
from workflow.reporting import Reporting

root, script = Path(sys.argv[1]), Path(sys.argv[2])
methods, signals = map(json.loads, sys.argv[3:])
for said in methods:
    assert [point.method for point in planned(root, **said).settings.decoded("methods")] == ["agreed"]
for said in signals:
    assert planned(root, **said).settings.detectors["mine"].signals == ["margin", "lead"]
points = {"points": {"own": {"method": "agreed"}}, "decode": {"methods": ["own"]}}
detectors = {"detectors": {"mine": {"signals": ["margin", "lead"]}}}
config = load(compose(points | detectors | {"methods": {"agreed": {"budget": "9"}}}, root))
print(method_of(*config.decoded("methods"), {"agreed": config.settings_of("agreed")}))
detector = Detector(schema.DetectorSettings(signals=["margin", "lead"]), 8)
columns = trajectory_schema(8, ["attention"], config.recorded).names
print(*sorted(SIGNALS), *columns, *detector.signal_encoders)
assert "lead" not in load(compose({}, root)).recorded, "no detector reads it"

plan = planned(root, scale="smoke")
plans = {"plain": plan, "own": planned(root, **points, **detectors)}
digests = {name: Digests(of, Path("src")) for name, of in plans.items()}
decoded = {name: digests[name].decoded_by(of.points.get(("test", "methods"), [])) for name, of in plans.items()}
generate = script.with_name("generate.py")
files = {name: closure(generate, Path("src"), *modules) for name, modules in decoded.items()}
assert not any("agreed" in path or "lead" in path for path in files["plain"]), "a job that does not use them"
assert any(path.endswith("methods/agreed.py") for path in files["own"]), "an edit of it reruns what it decoded"
signals = {name: of.loaded["decode_trajectories"](None) for name, of in digests.items()}
assert "utaca.detection.signals.lead" in signals["own"]
assert "utaca.detection.signals.lead" not in signals["plain"]
reporting = Reporting(plan)
assert reporting.made_from("lengths") == {"test_answers": plan.generations("answers", "test", "blocks")}
rows = [{"document": name, "point": "infllm-K1", "n_generated": n} for name, n in (("a", 10), ("b", 31))]
write("answers.parquet", "answers", rows)
outputs = [path for path in reporting.results if Path(path).stem == "lengths"]
inputs = {"test_answers": "answers.parquet"}
job = SimpleNamespace(log=["log"], wildcards=("lengths",), input=inputs, config=plan.config, output=outputs)
exec(compile(script.read_text(), script, "exec"), {"snakemake": job, "__name__": "script"})
print(*outputs, sep="\\n")
print(*reporting.made_from("speed"), *(path for path in reporting.results if Path(path).stem == "speed"))
"""


def test_a_method_a_signal_and_a_table_are_one_file_each(tmp_path: Path) -> None:
    source, script = tmp_path / "src", ROOT / "workflow" / "scripts" / "table.py"
    shutil.copytree(ROOT / "src", source, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "data").symlink_to(ROOT / "data")
    for file, page in ADDED.items():
        (source / "utaca" / file).write_text(examples(page)[0], encoding="utf-8")
    declarations = source / "utaca" / "reporting" / "tables.yaml"
    with declarations.open("a", encoding="utf-8") as file:
        file.write(examples("add_table", "yaml")[0])
    environment = {**os.environ, "PYTHONPATH": f"{source}:{ROOT / 'tests'}:{ROOT}", "PYTHONDONTWRITEBYTECODE": "1"}
    said = [told("add_method"), told("add_signal")]
    assert all(said)
    command = [sys.executable, "-c", INSTALLED, ROOT, script, *map(json.dumps, said)]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    method, signals, *outputs, speed = done.stdout.splitlines()
    assert speed.split()[:4] == ["test_answers", "test_scores", "timed_answers", "results/smoke/tables/speed.csv"]
    assert method == "Agreed(budget=9)"
    assert signals.split()[:3] == ["lead", "margin", "retrieval"]
    assert signals.split().count("lead") == 3
    csv, markdown, *_ = ((tmp_path / path).read_text(encoding="utf-8") for path in outputs)
    assert csv == "point,answered,longest,n_documents\ninfllm-K1,20.5,31,2\n"
    assert markdown.startswith("## Length of the answers\n\n| Point | Tokens per answer | Longest |\n")
    assert "| InfLLM K=1 | 20.5 | 31 |" in markdown
    assert "The longest answer has 31 tokens" in markdown
    assert "Documents are those of the test split." in markdown.partition("<details>")[2]


# A model family


def test_the_page_has_the_family_that_the_readers_tests_add(monkeypatch: pytest.MonkeyPatch) -> None:
    # What the example leaves there is taken away again.
    monkeypatch.setitem(FAMILIES, "gpt_neox", None)
    exec(examples("add_model_family")[0], {})
    assert FAMILIES["gpt_neox"] == NEOX


# A task of a benchmark

MILL = "The mill stands by the river."
FIELDS = [
    {"_id": "a", "context": MILL, "input": "Where is {context}?", "answers": ["by the river"]},
    {"_id": "b", "context": MILL, "input": "What stands?", "answers": ["A mill.", "it"]},
    {"_id": "c", "context": "Nobody came. " * 40, "input": "Who came?", "answers": ["nobody"]},
]


def test_a_task_asks_by_its_template_once_config_names_it(tiny: Reader, tmp_path: Path, monkeypatch) -> None:
    task = imported("add_task", tmp_path / "multifieldqa.py", monkeypatch).MultiFieldQA
    monkeypatch.setitem(TASKS, "multifieldqa_en", task)
    file = tmp_path / "LongBench" / "multifieldqa_en.jsonl"
    file.parent.mkdir()
    file.write_text("\n".join(map(json.dumps, FIELDS)), encoding="utf-8")
    said = yaml.safe_load(examples("add_task", "yaml")[0])
    said["tasks"]["path"] = str(tmp_path)
    plan = planned(ROOT, **said)
    assert plan.settings.asked == ["multifieldqa_en"]
    assert {*plan.outside()} - {*plan.inputs} == {*plan.task_files("multifieldqa_en")} == {str(file)}, "in the manifest"
    assert [point.method for point in plan.settings.decoded("multifieldqa_en")] == ["full", "infllm"]
    chosen = schema.TaskSetSettings(**said["tasks"]["sets"]["multifieldqa_en"])
    found = task().examples(chosen, {"rows": file}, tiny.prompts)
    assert f"{found[0].text}\n\n{found[0].question}" == (
        "Read the following text and answer briefly.\n\nThe mill stands by the river.\n\nNow, answer the following "
        "question based on the above text, only give me the answer and do not output any other words.\n\n"
        "Question: Where is {context}?\nAnswer:"
    )
    assert [(row.id, row.references) for row in found] == [(row["_id"], tuple(row["answers"])) for row in FIELDS]
    assert found[0].document == found[1].document != found[2].document
    answers = [{"document": row.id, "split": "fields", "point": "full", "text": "the old mill"} for row in found]
    given = [asdict(row) for row in found]
    assert [row["score"] for row in scores(task(), given, answers)] == [0, pytest.approx(200 / 3), 0]
    assert {(row.longest, row.prefix) for row in ask(task(), given)} == {(64, "")}


# An attribute


def test_people_with_an_attribute_of_ones_own_are_asked_for_it(tmp_path: Path) -> None:
    (tmp_path / "dishes.jsonl").write_text(examples("add_attribute", "json")[0], encoding="utf-8")
    rows = list(handwritten(tmp_path / "dishes.jsonl", 2))
    assert [fact["attribute"] for row in rows for fact in row["facts"]] == ["favourite dish", "favourite dish", "hobby"]
    assert question(["favourite dish"], rows[0]["person"], "compact") == "Summarize the favourite dish of Ada Lopez."
    said = yaml.safe_load(examples("add_attribute", "yaml")[0])
    plan = planned(ROOT, **said | {"tasks": said["tasks"] | {"path": str(tmp_path)}})
    assert plan.task_files("dishes") == [str(tmp_path / "dishes.jsonl")]
    assert [point.method for point in plan.settings.decoded("dishes")] == ["full"]


def test_an_attribute_of_invented_people_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    (line,) = examples("add_attribute", "text")
    (name, draw), *_ = eval(f"{{{line}}}").items()
    monkeypatch.setitem(attributes._DRAWS, name, draw)
    value = attributes.draw_value(name, random.Random(1), "en_US")
    assert value in {"grilled sardines", "lentil soup", "plum cake"}
    (sentence, *_) = templates.write("Ada Lopez", [(name, value)], varied=False)
    assert value in sentence


# Names of another language

DRAWN = """
import random
from utaca.biographies.attributes import HELD_OUT_ATTRIBUTES, TRAINING_ATTRIBUTES, draw_value
from utaca.biographies.people import LOCALES, draw_person

assert LOCALES[-1] == "pl_PL"
people = [draw_person(random.Random(seed)) for seed in range(300)]
assert any(person.locale == "pl_PL" for person in people)
for attribute in (*TRAINING_ATTRIBUTES, *HELD_OUT_ATTRIBUTES):
    assert all(draw_value(attribute, random.Random(seed), "pl_PL") for seed in range(20))
"""


def test_names_of_another_language_are_two_lines(tmp_path: Path) -> None:
    for folder in ("src", "data"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__", "*.gguf"))
    added = [block.partition("\n") for block in examples("add_names", "yaml")]
    assert [file for file, _, _ in added] == ["# data/biographies/locales.yaml", "# data/biographies/values.yaml"]
    for file, _, line in added:
        path = tmp_path / file.removeprefix("# ")
        # Both lists stand at the end of their files.
        path.write_text(path.read_text(encoding="utf-8").rstrip("\n") + f"\n  {line}", encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run([sys.executable, "-c", DRAWN], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


# What does not fit


def test_arguments_that_do_not_fit_are_named_at_once() -> None:
    def methods() -> None:
        class Wrong(DenseMethod):
            name = "wrong"

            def state(self, reading): ...

    def state() -> None:
        class Wrong(Continuation):
            def look(self, layer): ...

    def trigger() -> None:
        class Wrong(utaca.Trigger):
            def expands(self, step, token): ...

    def more() -> None:
        class Wrong(utaca.Trigger):
            def expands(self, step, token, second, threshold): ...

    def policy() -> None:
        class Wrong(utaca.Policy):
            def update(self, k): ...

    def task() -> None:
        class Wrong(Rows):
            def score(self, prediction): ...

    for define, said in (
        (methods, "Wrong.state must take self, reading, repeated, room"),
        (state, "Wrong.look must take self, layer, query, scaling"),
        (trigger, "Wrong.expands must take self, step, token, second"),
        (more, r"Wrong.expands must take .*missing a required argument: 'threshold'"),
        (policy, "Wrong.update must take self, k, k_max, token"),
        (task, "Wrong.score must take self, prediction, references"),
        (lambda: Signal(value=lambda: 1), "the value of a signal must take seen"),
        (lambda: Signal(len, capture=len), "the capture of a signal must take scores, n_far, scale"),
    ):
        with pytest.raises(UserError, match=said):
            define()

    class Fitting(utaca.Trigger):
        def expands(self, *seen, **named): ...

    assert Fitting()


TABLE = "title: T\n  maker: mine.f\n  theme: data\n  files: documents\n  caption: C"
DECLARED = {
    "mine: [": "cannot be read",
    "- mine": "must be a mapping of names of tables",
    "mine: 3": "the entry of table mine is malformed",
    "mine:\n  title: T": "the entry of table mine is malformed .*missing 3 required",
    f"mine:\n  {TABLE}\n  colour: red": "unexpected keyword argument 'colour'",
    f"mine:\n  {TABLE}\n  when: ever": "table mine has when 'ever', which is not one of always",
    f"mine:\n  {TABLE}\n  points: tests": "table mine has points 'tests', which is not one of validation, test",
    f"mine:\n  {TABLE}\n  paper: human": "table mine has paper 'human', which is not one of validation, test, tradeoff",
    f"mine:\n  {TABLE.replace('maker: mine.f', 'notes: N')}": "table mine has neither a maker nor points",
    f"mine:\n  {TABLE}\n  kind: chart": "table mine has kind 'chart', which is not one of table, figure",
    f"mine:\n  {TABLE.replace('mine.f', 'mine.g')}": "has no function mine.g",
    f"mine:\n  {TABLE.replace('mine.f', 'other.f')}": "has no function mine.f",
    f"verdict:\n  {TABLE}": "declares the table verdict, which another file declares too",
}


@pytest.mark.parametrize("declared", DECLARED)
def test_a_table_that_is_declared_wrongly_is_named(
    declared: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = ROOT / "src" / "utaca" / "reporting"
    (tmp_path / "tables").mkdir()
    shutil.copy(package / "tables.yaml", tmp_path)
    monkeypatch.setattr(registry, "files", lambda _: tmp_path)
    module = tmp_path / "tables" / "mine.py"
    module.write_text(f'"""A table.\n\n---\n{declared}\n"""\n\ndef f(files, config): ...\n', encoding="utf-8")
    with pytest.raises(UserError, match=DECLARED[declared]) as fault:
        registry._entries()
    assert "mine" in str(fault.value)


def test_a_file_that_does_not_load_is_named_before_the_first_job(tmp_path: Path) -> None:
    source = tmp_path / "src"
    shutil.copytree(ROOT / "src", source, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "data").symlink_to(ROOT / "data")
    script = "from utaca.runs import preflight; from utaca.errors import UserError\ntry: preflight._methods(None)\n"
    script += "except UserError as error: print(error)"
    environment = {**os.environ, "PYTHONPATH": str(source), "PYTHONDONTWRITEBYTECODE": "1"}
    for folder, text, said in (
        (
            "detection/signals",
            "SIGNAL = 3",
            "the signal mine cannot be loaded (TypeError: its SIGNAL is 3 and no Signal)",
        ),
        ("methods", "x = (", "the method mine cannot be loaded (SyntaxError: '(' was never closed"),
    ):
        path = source / "utaca" / folder / "mine.py"
        path.write_text(text, encoding="utf-8")
        done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True)
        assert done.stdout.startswith(said), done.stderr
        path.unlink()
