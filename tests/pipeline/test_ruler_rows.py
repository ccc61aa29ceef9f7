"""RULER's thirteen tasks: rows equal to those of its own generator, settings that cannot be, files, and scores."""

import json
import os
import random
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import ruler_facts
import yaml
from conftest import ROOT

from utaca.errors import UserError
from utaca.readers.prompts import Prompts
from utaca.readers.tokenizer import load_tokenizer
from utaca.records import write
from utaca.reporting.tables.tasks import SetResult, groups
from utaca.settings.schema import TaskSetSettings
from utaca.tasks import metrics
from utaca.tasks.registry import TASKS, files_of, task_of
from utaca.tasks.ruler_tasks import OFFICIAL
from utaca.tasks.ruler_texts import Pairs, words
from utaca.tasks.task import Example

FACTS = json.loads(ruler_facts.FACTS.read_text(encoding="utf-8"))
DATA = Path(os.environ.get("UTACA_DATA", ROOT.parent / "shared" / "data"))


@pytest.fixture(scope="module")
def prompts() -> Prompts:
    return Prompts(load_tokenizer(str(ruler_facts.TINY), ""))


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return ruler_facts.own_files(tmp_path_factory.mktemp("ruler"))


def files_for(name: str, files: dict[str, Path]) -> dict[str, Path]:
    """Those files that a task reads, by the task's names for them."""
    found = {key: files[key] for key in TASKS[name].files if key in files}
    return found | ({"questions": files[name]} if name in files else {})


def example(
    name: str, files: dict[str, Path], prompts: Prompts, length: int = 2000, **settings: object
) -> list[Example]:
    chosen = TaskSetSettings(name, length=length, **settings)
    return TASKS[name]().examples(chosen, files_for(name, files), prompts)


# Rows


@pytest.mark.parametrize(
    "fact", [pytest.param(fact, id="-".join(str(fact[key]) for key in ruler_facts.KEYS)) for fact in FACTS]
)
def test_rows_are_those_of_the_official_generator(fact, own, prompts) -> None:
    files = own
    if fact["files"] == "real":
        files = {name: DATA / path for name, path in ruler_facts.REAL.items()}
    given = files_for(fact["task"], files)
    if not all(path.is_file() for path in given.values()):
        pytest.skip("needs the benchmarks' files; UTACA_DATA names the folder that has them")
    task = TASKS[fact["task"]]()
    room = task.room(fact["length"], prompts)
    count = len(fact["rows"])
    rows = task.generator(given, fact["length"], count, fact["seed"]).rows(count, room)
    assert [list(row.answers) for row in rows] == [row["answers"] for row in fact["rows"]]
    assert [room.tokens(row.prompt) + task.new_tokens for row in rows] == [row["length"] for row in fact["rows"]]
    assert [ruler_facts.digest(row.prompt) for row in rows] == [row["prompt"] for row in fact["rows"]]


def test_every_task_has_facts_at_both_sizes_of_step() -> None:
    of_own = [(fact["task"], fact["length"] < 4096) for fact in FACTS if fact["files"] == "own"]
    assert set(of_own) == {(name, is_short) for name in OFFICIAL for is_short in (True, False)}
    assert len(OFFICIAL) == 13


def test_examples_are_the_rows_in_the_readers_template(own, prompts) -> None:
    for fact in FACTS:
        if (fact["files"], fact["seed"], fact["length"]) == ("own", 42, 2000):
            found = example(fact["task"], own, prompts, examples=2)
            whole = [one.text + one.question + one.prefix for one in found]
            assert [ruler_facts.digest(prompt) for prompt in whole] == [row["prompt"] for row in fact["rows"][:2]]
            assert [one.id for one in found] == ["0", "1"]
            assert all(one.question.startswith("\n") for one in found)
            # The reader is asked the row and nothing else, and its answer goes on from the row's beginning of it.
            (one, _) = found
            tokens = prompts.document(one.text) + prompts.question(one.question, one.prefix)
            joint = prompts.before + one.text + one.question + prompts.after + one.prefix
            assert prompts._plain.decode(tokens) == joint, fact["task"]


def test_a_question_with_a_line_break_brings_its_own_separator(prompts) -> None:
    assert prompts.question("\n\nWho?") == prompts.question("Who?")
    assert len(prompts.question("\nWho?")) < len(prompts.question("Who?"))


def test_pairs_are_the_sorted_list_of_all_of_them() -> None:
    draw = random.Random(3)
    adjectives = ["well", "well-known", "well-kn", "a", "ab", "a-b", "well", "zero-"]
    nouns = ["mill", "known-mill", "b", "b-b", "kn", "", "zebra", "mill"]
    pairs = Pairs(adjectives, nouns)
    listed = sorted({f"{adjective}-{noun}" for adjective in adjectives for noun in nouns})
    assert [pairs[place] for place in range(len(pairs))] == listed
    nouns = draw.sample(words("noun"), 60)
    pairs = Pairs(words("adjective"), nouns)
    listed = sorted({f"{adjective}-{noun}" for adjective in words("adjective") for noun in nouns})
    assert len(pairs) == len(listed)
    places = draw.sample(range(len(listed)), 500)
    assert [pairs[place] for place in places] == [listed[place] for place in places]


def test_questions_about_one_paragraph_are_one_document(own, prompts) -> None:
    found = example("ruler_qa_1", own, prompts, examples=12)
    assert [one.query for one in found[:1]] == ["Which company paid Marguerite Ashdown?"]
    assert len({one.document for one in found}) == 12
    assert {one.document for one in example("vt", own, prompts, examples=2)} == {"0", "1"}


# Settings and files


@pytest.mark.parametrize(
    ("name", "settings", "said"),
    [
        ("vt", {"length": 20}, "needs a length above 30, the tokens of an answer, but its set has length=20"),
        ("fwe", {"length": 200}, "a prompt of task fwe does not fit into length=200.*; raise the set's length"),
        ("cwe", {"length": 300}, "a prompt of task cwe does not fit into length=300"),
        ("niah_single_2", {"length": 300}, "a prompt of task niah_single_2 does not fit into length=300"),
        ("ruler_qa_2", {"length": 60, "examples": 2}, "a prompt of task ruler_qa_2 does not fit into length=60"),
        ("ruler_qa_2", {"examples": 9}, r"pairs\.json has 6 questions for task ruler_qa_2, its set wants 9; ask for"),
        ("vt", {"shuffled": True}, "task vt has the official rows, which shuffled would change; leave it out"),
        ("ruler_qa_1", {"evidence": ["complete", "missing"]}, "which evidence would change"),
        ("ruler_qa_1", {"articles": ["Normans"]}, "which articles would change"),
    ],
)
def test_settings_that_cannot_be(name, settings, said, own, prompts) -> None:
    with pytest.raises(UserError, match=said):
        example(name, own, prompts, **settings)


def test_missing_and_broken_files_are_named(own, prompts, tmp_path) -> None:
    with pytest.raises(
        UserError, match=r"PaulGrahamEssays\.json, file 'essays' of task niah_single_2, does not exist; run uta"
    ):
        files_of(TaskSetSettings("niah_single_2"), str(tmp_path))
    assert files_of(TaskSetSettings("cwe"), str(tmp_path)) == {}
    for name in ("essays", "sentences"):
        broken = tmp_path / name
        broken.write_text('{"title": "x"}', encoding="utf-8")
        with pytest.raises(UserError, match=rf"{broken} .*; utaca fetch-tasks fetches it, see docs/ruler\.md"):
            example("niah_single_2", own | {name: broken}, prompts)
    task = TASKS["cwe"]()
    generator = task.generator({}, 4096, 1, 42)
    with pytest.raises(
        UserError, match=r"cwe needs RULER/english_words\.json, .*; run utaca fetch-tasks ruler_words, or"
    ):
        generator.sample(len(generator.words) + 1, 0)
    further = tmp_path / "english_words.json"
    further.write_text(json.dumps({str(n): f"word{n}" for n in range(9_000)}), encoding="utf-8")
    generator = task.generator({"words": further}, 4096, 1, 42)
    assert all(word.startswith("word") for word in generator.sample(len(generator.words) + 1, 0).answers)


def test_which_files_are_official(own) -> None:
    for name in ("niah_single_2", "ruler_qa_1", "ruler_qa_2"):
        assert not TASKS[name]().is_official(files_for(name, own)), name
    assert TASKS["niah_single_1"]().is_official({})
    assert TASKS["cwe"]().is_official({})
    real = files_for("niah_single_2", {name: DATA / path for name, path in ruler_facts.REAL.items()})
    if all(path.is_file() for path in real.values()):
        assert TASKS["niah_single_2"]().is_official(real)


def test_a_missing_package_is_named(own, prompts, monkeypatch) -> None:
    monkeypatch.setitem(metrics.VERSIONS, "wonderwords", "9.9")
    with pytest.raises(
        UserError, match=r'the task needs wonderwords 9\.9, which is .* here; run: pip install "utaca\[ben'
    ):
        example("niah_single_1", own, prompts)


# Scores


@pytest.mark.parametrize(
    ("name", "prediction", "references", "score"),
    [
        ("niah_multivalue", "12 and 34, also 56.", ["12", "34", "78", "90"], 50),
        ("vt", "abcde FGHIJ", ["ABCDE", "FGHIJ"], 100),
        ("cwe", "1. mill 2. boat", ["mill", "boat", "river", "oat"], 75),
        ("fwe", "", ["abcdef"], 0),
        ("ruler_qa_1", "Norway", ["Sweden", "No"], 100),
        ("ruler_qa_2", "Oslo", ["Bergen"], 0),
    ],
)
def test_scores_are_the_official_ones(name, prediction, references, score) -> None:
    assert TASKS[name]().score(prediction, references) == score


def test_the_harness_is_asked_whole_prompts_and_scores_alike(own, prompts, tmp_path, monkeypatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    harness = import_module("ruler_harness")
    rows = example("vt", own, prompts, examples=2)
    write(tmp_path / "vt-4k" / "examples.parquet", "examples", [asdict(row) | {"official": False} for row in rows])
    harness.write_task(tmp_path, tmp_path / "vt-4k", 30, "vt", prompts.before, prompts.after)
    written = [json.loads(line) for line in (tmp_path / "vt-4k.jsonl").read_text(encoding="utf-8").splitlines()]
    wanted = [prompts.before + row.text + row.question + prompts.after + row.prefix for row in rows]
    assert [row["prompt"] for row in written] == wanted
    task = (tmp_path / "vt-4k.yaml").read_text(encoding="utf-8")
    assert "max_gen_toks: 30" in task
    assert "!function scoring.every" in task
    assert [harness.task_of_set(name) for name in ("vt-4k", "qa_1-8k", "meetings")] == ["vt", "ruler_qa_1", ""]
    scoring: dict[str, Any] = {}
    exec(harness.SCORING, scoring)
    for answer in ("ABC and def", "none", ""):
        row = {"references": ["abc", "DEF", "ghi"]}
        for name, own_score in (("every", metrics.string_match_all), ("one", metrics.string_match_part)):
            assert scoring[name](row, [answer])["score"] == pytest.approx(own_score(answer, row["references"]))


# Tables and config


def test_the_thirteen_have_one_mean_at_each_length() -> None:
    sets = []
    for length in (4096, 8192):
        for name in OFFICIAL:
            sets.append(SetResult(f"{name}-{length}", TaskSetSettings(name, length=length), True, 1, 1.0, {}, None))
    # One is missing at the second length.
    found = [group for group in groups(sets[:-1]) if len(group.sets) > 1]
    assert [(group.name, group.sets) for group in found] == [("RULER-4k", sets[:13])]


def test_the_sets_are_all_tasks_at_the_official_lengths() -> None:
    sets = yaml.safe_load((ROOT / "config" / "tasks" / "ruler.yaml").read_text(encoding="utf-8"))["sets"]
    lengths = {f"{kilo}k": kilo * 1024 for kilo in (4, 8, 16, 32, 64, 128)}
    wanted = {}
    for name in OFFICIAL:
        for label, length in lengths.items():
            wanted[f"{name.removeprefix('ruler_')}-{label}"] = {"task": name, "length": length}
    assert sets == wanted
    for settings in sets.values():
        chosen = TaskSetSettings(**settings)
        task_of(chosen).check(chosen)


def test_the_experiment_asks_all_tasks_at_4k() -> None:
    run = yaml.safe_load((ROOT / "config" / "experiments" / "ruler-public.yaml").read_text(encoding="utf-8"))
    asked = {name for name, points in run["decode"].items() if points}
    assert asked == {f"{name.removeprefix('ruler_')}-4k" for name in OFFICIAL}
    assert {name: keys["examples"] for name, keys in run["tasks"]["sets"].items()} == dict.fromkeys(asked, 25)
