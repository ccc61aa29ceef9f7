"""Composition and checks of the config, its page, and the import closure of scripts."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from config_page import PAGE, SCHEMA, json_text, page
from snakemake.cli import parse_config
from snakemake.utils import update_config

from utaca.data_files import sha256
from utaca.errors import UserError
from utaca.settings import runs, schema
from utaca.settings.checks import identity, load
from utaca.settings.command import check_config
from utaca.settings.command import read as read_command
from utaca.settings.compose import compose, groups
from utaca.settings.machine import free_memory, gpus, take_gpu, visible_gpus
from utaca.settings.modules import closure


@pytest.fixture(scope="module")
def config(root: Path) -> dict[str, Any]:
    return compose({}, root)


COMPANY = {
    ("points", "ood_public"): {"detectors": "calibrated"},
    ("points", "evidence"): {"detectors": "evidence"},
    ("detectors", "evidence"): {"points": "evidence"},
    ("detectors", "evidence_frozen"): {"points": "evidence"},
    ("detectors", "calibrated"): {"tasks": "paper"},
}
"""What some options want beside them."""


def test_every_option_of_every_group_composes(root: Path) -> None:
    for group, options in groups(root).items():
        for option in options:
            if (group, option) == ("corpus", "folder"):
                continue  # needs a path
            # The big readers' windows hold the documents of smaller scales whole.
            composed = compose({"scale": "paper", group: option} | COMPANY.get((group, option), {}), root)
            assert group in ("points", "detectors", "tasks") or composed[group]["name"] == option


def test_reader_brings_its_points_unless_told_otherwise(root: Path) -> None:
    def brought(**overrides: Any) -> list[int]:
        """K_max of the test split's points of the config's own detector."""
        points = load(compose({"scale": "paper", **overrides}, root)).decoded("test")
        return [point.budget for point in points if point.adaptive and not point.trigger]

    assert brought(reader="llama31_8b") == [32, 48, 64, 96]
    assert brought(reader="qwen2_7b") == [16, 32, 48]
    assert brought(reader="qwen2_7b", points="llama") == [32, 48, 64, 96]


def test_option_and_keys_together(root: Path) -> None:
    # Snakemake hands over all nested values as text.
    composed = compose({"judge": {"use": "gpt_oss_120b", "base_url": "http://gpu7:1/v1", "seed": "3"}}, root)
    assert (composed["judge"]["base_url"], composed["judge"]["seed"]) == ("http://gpu7:1/v1", 3)
    typed = compose(
        {"detectors": {"utaca": {"lstm": "false", "chain": "1", "signals": ["retrieval"]}}, "seed": "5"}, root
    )
    expected = {"lstm": False, "chain": 1, "signals": ["retrieval"], "site": "attention"}
    assert expected.items() <= typed["detectors"]["utaca"].items()
    assert typed["seed"] == 5


@pytest.mark.parametrize("path", ["/a b/it's.jsonl", "articles.parquet", "prose/"])
def test_path_as_corpus(root: Path, path: str) -> None:
    corpus = compose({"corpus": path}, root)["corpus"]
    assert (corpus["name"], corpus["source"], corpus["path"]) == ("folder", "folder", path)
    assert compose({"corpus": {"use": "folder", "path": path}}, root)["corpus"] == corpus


def test_points_of_ones_own(root: Path) -> None:
    mine = {"method": "utaca", "budget": "3", "policy": "sub.1"}
    composed = compose({"points": {"mine": mine}, "decode": {"test": ["mine", "infllm-K1"]}}, root)
    assert composed["points"]["mine"] == {**mine, "budget": 3, "trigger": "", "base": "", "seeds": 1}
    usual = compose({}, root)
    assert composed["points"] == {**usual["points"], "mine": composed["points"]["mine"]}, "beside the reader's"
    assert composed["decode"] == {**usual["decode"], "test": ["mine", "infllm-K1"]}, "a section is written anew"
    other = compose({"points": {"utaca-K8-sub2": {"method": "infllm", "budget": "5"}}}, root)
    assert other["points"]["utaca-K8-sub2"]["policy"] == "", "nothing of the point of that name is left"


@pytest.mark.parametrize(("seeds", "number"), [("2", 2), ("all", 3), ("1", 1), (None, 1)])
def test_points_are_decoded_under_as_many_seeds_as_wanted(root: Path, seeds: str | None, number: int) -> None:
    mine = {"method": "utaca", "budget": "8", "policy": "sub.2", "trigger": "chained"}
    mine |= {} if seeds is None else {"seeds": seeds}
    wanted = {"points": {"mine": mine}, "decode": {"test": ["infllm-K8", "mine"]}, "scale": {"detector_seeds": "3"}}
    settings = load(compose(wanted, root))
    fixed, *seeded = settings.decoded("test")
    assert (fixed.label, fixed.seed) == ("infllm-K8", 0)
    assert [point.seed for point in seeded] == list(range(number))
    assert [point.label for point in seeded] == ([f"mine-seed{n}" for n in range(number)] if number > 1 else ["mine"])
    assert settings.operating.keys() >= {point.label for point in seeded}


MISTAKES = r"""
plan: {primary: utaca-K4-sub1 over no_detector-K4-sub1}
    => plan names 'no_detector-K4-sub1' but must name adaptive points of decode.test, which are utaca-K4-sub1
suites: tiny_full => config key suites is of an earlier version; name operating points under points
jugde: x => unknown config key jugde; did you mean judge?
reader: {memory: {n_int: 1}} => did you mean reader.memory.n_init?
judge: {base_url: http://gpu7:8/v1}
    => judge.name is reference, which is the embedded endpoint's; name the server and its model, as in --config
    'judge={name: NAME, model: MODEL, base_url: URL}' or 'judge={use: gpt_oss_120b, base_url: URL}'
judge: {kind: reference, base_url: http://gpu7:8/v1} => but judge.kind is reference
judge: {model: m} => judge.model is 'm' but judge.kind is reference
judge: {use: gpt_oss_120b, model: m} => another than that of gpt_oss_120b; name it too
reader: {path: org/m} => --config 'reader={name: NAME, path: org/m}'
reader.memory.n_local: 3 => write --config 'reader={KEY: VALUE, ...}'
points: llama_variants => choose an option of detectors that has it
methods: {h3o: {}} => did you mean methods.h2o?
methods: {h2o: '0.25'} => methods.h2o must be a mapping of keys to values, not '0.25'
run: tables => a folder that runs share
run: a/b => run is 'a/b'
judge: [reference, gpt_oss_120b] => judge must be
seed: {a: 1} => seed
scale: {use: smoke, detector_steps: '3.5'} => scale.detector_steps
judge: {temperature: '3'} => judge.temperature is 3 but must be a number at least 0.0 and at most 2.0
reader: {dtype: int4} => reader.dtype is 'int4' but must be one of "auto", "float32", "bfloat16"
scale: {test: {tokens: ['9', '3']}} => scale.test.tokens is [9, 3]
scale: {train: {people: a.jsonl}} => scale.train.people is a.jsonl, but the test split alone
scale: {use: paper, test: {shards: 200}} => scale.test.shards is 200
scale: {test: {budgets: []}} => scale.test.budgets
{reader: llama31_8b, scale: smoke} => the window of reader llama31_8b holds documents below 4240 tokens whole, whatever
corpus: folder => corpus.path is empty
corpus: {path: x} => only corpus.source=folder reads it
detector: mine => detector is 'mine' but must name one of detectors, which are utaca, two_way
detectors: {mine: {signals: [], embedding: false}} => give it at least one input
detectors: {mine: {signals: [margins]}} => detectors.mine.signals names 'margins'
detectors: {mine: {site: mlp}} => detectors.mine.site is mlp, but trajectories.sites
detectors: {mine: {kind: evidential}} => kind evidential knows two classes
detectors: {mine: {label: needed, classes: '2'}} => detectors.mine.label is needed
detectors: {mine: {taken: results/a/detectors/b, start: utaca}}
    => detectors.mine.start is 'utaca', but detectors.mine.taken says that it is not trained
detectors: {mine: {chain: 6, lstm: false}} => detectors.mine.chain is 6 but without an LSTM
detectors: {mine: {start: yours}} => detectors.mine.start is 'yours' but must name another
detectors: {mine: {start: yours}, yours: {start: utaca}}
    => detectors.mine.start is yours, which itself starts from utaca
detectors: {mine: {start: utaca, lstm: false}}
    => detectors.mine.lstm is False but must be True, as in the variant that it starts from, utaca
detectors: {mine: {sets: [qa]}} => detectors.mine.sets names 'qa', but tasks.sets are
{detectors: {mine: {sets: [qa]}}, tasks: {sets: {qa: {task: qa_1}}}}
    => tasks.sets.qa.budgets is empty; give it compact budgets
detectors: {mine: {mixed: 'true'}} => detectors.mine.mixed is true but detectors.mine.sets is empty
detectors: {never: {}} => detectors.never has the name of a trigger that is no detector
trajectories: {expanded: 1} => trajectories.expanded is 1 but must be above the budgets, which go
trajectories: {sites: [mpl]} => trajectories.sites[0] is 'mpl' but must be one of
trajectories: {sites: [mlp, mlp]} => trajectories.sites is ['mlp', 'mlp'] but must name each once
reader: {memory: {n_representatives: 17}} => reader.memory.n_representatives
reader: {memory: {representatives: tokens, storage: host}}
    => set reader.memory.storage=device or representatives=attention_mass
reader: {name: a/b} => reader.name
points: {own: {method: infllm, bugdet: 3}} => did you mean points.own.budget?
points: {own: {budget: 3}} => points.own.method is missing; set it to a text
decode: {test: infllm-K1} => decode.test must be a list, not 'infllm-K1'
decode: {test: [infllm-K9]} => decode.test names 'infllm-K9', which is none of points; did you mean infllm-K8?
decode: {tset: [infllm-K1]}
    => decode.tset is unknown; sections are validation, test, sweep, methods, or a set of tasks.sets, which are none;
    add --config tasks=paper, or another option
decode: {test: [infllm-K1, infllm-K2, infllm-K1]} => decode.test names infllm-K1 twice; remove one
{points: {own: {method: snapkv}}, decode: {test: [own]}}
    => decode.test names own, of another method than block memory; decode it in methods
run: 2026_11 => run must be a text, but is 202611, which YAML takes for a number; begin it with a letter
run: 2026-11-01 => run must be a text, but is 2026-11-01, which YAML takes for a date
reader: {use: no} => reader=False is unknown
reader: {use: tiny, name: null} => reader.name must be a text, but is None, which YAML takes for nothing
reader: {use: tiny, methods: {no: {a: 1}}} => methods has the key False, which YAML takes for true
reader: {use: tiny, name: x, path: "a\ud83d"} => reader.path holds 'a\ud83d', which is no text
"""
"""What a user writes, and what is said of it."""


@pytest.mark.parametrize("mistake", re.split(r"\n(?! )", MISTAKES.strip()))
def test_mistakes_are_one_sentence(root: Path, mistake: str) -> None:
    written, _, said = " ".join(mistake.split()).partition(" => ")
    with pytest.raises(UserError, match=re.escape(said)) as caught:
        compose(yaml.safe_load(written), root)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("point", "said"),
    [
        (("infllm", 3, "sub.1"), "policy is 'sub.1' but is for method utaca, not infllm"),
        (("utaca", 3, ""), "needs set.N or sub.N"),
        (("utaca", 3, "set.4"), "must be at most the budget"),
        (("utaca", 3, "set.1.prop"), "needs set.N or sub.N"),
        (("infllm", 0), "budget is 0 but must be at least 1, in blocks"),
        (("other", 1), "method is 'other' but must be one of infllm, utaca, adakv"),
        (("snapkv", 3, "", "agreement"), "trigger is 'agreement' but is for method utaca, not snapkv"),
        (("utaca", 3, "sub.1", "agreement", "", 2), "seeds is set but no detector expands its budget"),
        (("utaca", 3, "sub.1", "", "", 9), "seeds is 9 but must be at most scale.detector_seeds, which is 8"),
        (
            ("utaca", 3, "sub.1", "other"),
            "trigger is 'other' but must be one of utaca, two_way, .* or never; define",
        ),
        (("utaca", 3, "sub.1", "agreement.3"), "trigger is agreement.3 but N must be below the budget, which is 3"),
        (("utaca", 3, "sub.1", "", "infllm"), "base is 'infllm' but must be one of"),
        (("utaca", 0, "sub.1", "", "full"), "budget is 0 but must be at least 1, in tokens"),
        (("utaca", 9, "sub.1", "", "full"), "of another method than block memory; decode it in methods"),
    ],
)
def test_impossible_points(config: dict[str, Any], point: tuple[Any, ...], said: str) -> None:
    own = dict(zip(("method", "budget", "policy", "trigger", "base", "seeds"), point, strict=False))
    with pytest.raises(UserError, match=f"^(points.own|decode.test).*{said}") as caught:
        load({**config, "points": {"own": own}, "decode": {"test": ["own"]}})
    assert "\n" not in str(caught.value)


def test_a_trigger_wants_its_detector_once_its_point_is_decoded(root: Path) -> None:
    mine = {"mine": {"method": "utaca", "budget": "8", "policy": "sub.2", "trigger": "margin"}}
    compose({"points": mine}, root)
    margin = {"margin": {"embedding": "false", "lstm": "false"}}
    compose({"points": mine, "decode": {"test": ["mine"]}, "detectors": margin}, root)


def test_a_point_and_a_variant_of_the_detector_are_one_entry_of_one_file(root: Path, tmp_path: Path) -> None:
    shutil.copytree(root / "config", tmp_path / "config")
    path = tmp_path / "config" / "points" / "tiny.yaml"
    text = path.read_text(encoding="utf-8")
    text = text.replace("points:\n", "points:\n  ours: {method: utaca, budget: 8, policy: set.1, trigger: mine}\n", 1)
    path.write_text(text.replace("  test:\n    [", "  test:\n    [ours, "), encoding="utf-8")
    with (tmp_path / "config" / "detectors" / "core.yaml").open("a") as file:
        file.write("  mine: {lstm: false}\n")
    settings = load(compose({}, tmp_path))
    assert settings.decoded("test")[0].label == "ours"
    assert not settings.detectors["mine"].lstm
    assert (len(settings.points), len(settings.detectors)) == (
        len(load(compose({}, root)).points) + 1, len(load(compose({}, root)).detectors) + 1
    )  # fmt: skip


def test_a_key_in_place_of_its_variable_is_not_shown(root: Path) -> None:
    address = {"use": "gpt_oss_120b", "base_url": "https://me:secret@gpu7/v1"}
    said = {"base_url must not hold a user, a password or a query": address}
    said |= {"api_key_env must be": {"api_key_env": "sk-secret-1"}}
    for sentence, judge in said.items():
        with pytest.raises(UserError, match=rf"judge\.{sentence}") as caught:
            compose({"judge": judge}, root)
        assert "secret" not in str(caught.value)


def test_identity_leaves_transport_out(config: dict[str, Any]) -> None:
    host = schema.MemorySettings(storage="host")
    assert repr(host) == repr(schema.MemorySettings()) != repr(schema.MemorySettings(n_local=1)), "journals go by it"
    judge = identity(load(config))["judge"]
    assert {"model", "temperature", "seed"} <= set(judge)
    assert not {"base_url", "concurrency", "timeout_s", "api_key_env"} & set(judge)


# Runs


@pytest.mark.parametrize(
    ("overrides", "named"),
    [
        ({}, "quick"),
        ({"judge": "gpt_oss_120b", "points": "methods", "generation": {"together": "true"}}, "quick"),
        ({"methods": {"h2o": {"heavy": "0.25"}}, "reader": {"memory": {"storage": "host"}}}, "quick"),
        ({"scale": "paper", "reader": "llama31_8b", "corpus": "wikipedia"}, "paper-llama31_8b-wikipedia"),
        ({"run": "mine", "seed": "3"}, "mine"),
    ],
)
def test_a_run_is_named_after_what_it_is_made_of(root: Path, overrides: dict[str, Any], named: str) -> None:
    assert compose(overrides, root)["run"] == named


def test_single_keys_tell_runs_apart(root: Path) -> None:
    changes: list[dict[str, Any]] = [
        {"seed": "3"},
        {"seed": "4"},
        {"detectors": "paper"},  # records more of every trajectory
        {"corpus": "one.jsonl"},
        {"corpus": "two.jsonl"},
        {"reader": {"dtype": "bfloat16"}},
        {"reader": {"name": "other", "path": "x/y"}, "scale": "paper"},
    ]
    names = [compose(each, root)["run"] for each in changes]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"(quick|quick-folder|paper-other)-[0-9a-f]{6}", name) for name in names), names
    assert compose({"seed": "3"}, root)["run"] == names[0]


@pytest.mark.parametrize(
    "overrides",
    [
        {},
        {"scale": "smoke", "detectors": {"mine": {"lstm": "false"}}, "methods": {"h2o": {"heavy": "0.25"}}},
        {"scale": "paper", "reader": "qwen2_7b", "points": "methods_qwen", "judge": "gpt_oss_120b"},
        {"reader": {"name": "own", "path": "data/readers/tiny", "memory": {"n_local": "256"}}, "run": "x"},
    ],
)
def test_a_saved_run_composes_to_itself(root: Path, overrides: dict[str, Any], tmp_path: Path) -> None:
    composed = compose(overrides, root)
    path = tmp_path / "deep" / "run.yaml"
    runs.write(composed, path)
    saved = yaml.safe_load(path.read_text())
    assert compose(saved, root) == composed
    comment = path.read_text().splitlines()[0]
    assert comment == f"# Repeats this run: snakemake --cores all results/tables --configfile {path}"
    assert [file.name for file in path.parent.iterdir()] == ["run.yaml"]


def saved_with(root: Path, path: Path, *entries: str, **overrides: Any) -> dict[str, Any]:
    """The config of a saved run with ``--config`` entries on top, as Snakemake merges them."""
    runs.write(compose(overrides, root), path)
    merged = yaml.safe_load(path.read_text())
    update_config(merged, parse_config(entries))
    return compose(merged, root)


def test_entries_go_on_top_of_a_saved_run(root: Path, tmp_path: Path) -> None:
    path, start = tmp_path / "run.yaml", compose({"scale": "smoke"}, root)
    judge = saved_with(root, path, "judge=gpt_oss_120b", scale="smoke")
    assert judge == {**start, "judge": compose({"judge": "gpt_oss_120b"}, root)["judge"]}
    both = saved_with(root, path, "judge={use: gpt_oss_120b, base_url: http://gpu7:1/v1}", scale="smoke")["judge"]
    assert both == {**judge["judge"], "base_url": "http://gpu7:1/v1"}
    keys = saved_with(root, path, "scale={bootstrap: 300}", "detectors={utaca: {chain: 8}}", scale="smoke")
    assert (keys["scale"]["bootstrap"], keys["scale"]["test"]) == (300, start["scale"]["test"])
    assert list(keys["detectors"]) == list(start["detectors"])
    assert keys["detectors"]["utaca"] == {**start["detectors"]["utaca"], "chain": 8}
    few, qwen = saved_with(root, path, "points=qwen", scale="smoke"), compose({"points": "qwen"}, root)
    assert (few["points"], few["decode"]) == (qwen["points"], qwen["decode"])
    one = saved_with(root, path, "decode={test: [infllm-K8, utaca-K8-sub2]}", scale="smoke")["decode"]
    assert one == {**start["decode"], "test": ["infllm-K8", "utaca-K8-sub2"]}
    changed = saved_with(root, path, "methods={h2o: {heavy: 0.1}}", scale="smoke", methods={"h2o": {"chunk": 9}})
    assert changed["methods"] == {"h2o": {"chunk": 9, "heavy": 0.1}}


def test_a_run_of_another_base_is_refused(root: Path, tmp_path: Path) -> None:
    folder = tmp_path / "smoke"
    start = compose({"scale": "smoke"}, root)
    runs.check(start, folder)
    runs.write(start, folder / "run.yaml")
    added = {"scale": {"use": "smoke", "bootstrap": "900"}, "judge": "gpt_oss_120b", "points": "qwen"}
    runs.check(compose(added, root), folder)
    named = {"run": "smoke", "scale": {"use": "smoke", "detector_steps": "61"}, "seed": "3"}
    with pytest.raises(UserError) as caught:
        runs.check(compose(named, root), folder)
    said = str(caught.value)
    steps = start["scale"]["detector_steps"]
    assert f"another seed (0 there, 3 now) and scale.detector_steps ({steps} there, 61 now)" in said
    assert "--config run=NAME" in said
    (folder / "run.yaml").write_text((folder / "run.yaml").read_text().replace("detector_steps", "stepz"))
    with pytest.raises(UserError, match=r"run\.yaml was written under .*: scale\.detector_steps is missing"):
        runs.check(start, folder)
    (folder / "run.yaml").write_text("- 1\n")
    with pytest.raises(UserError, match="holds no saved config"):
        runs.check(start, folder)


def test_shipped_runs_compose(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    described = json.loads((root / SCHEMA).read_text(encoding="utf-8"))
    shipped = {path.stem: yaml.safe_load(path.read_text()) for path in (root / "config" / "runs").glob("*.yaml")}
    assert {"quick", "smoke", "paper", "methods", "variants"} <= set(shipped)
    for name, overrides in shipped.items():
        jsonschema.validate(overrides, described)
        composed = compose(overrides, root)
        # Those that go by another name add to its run.
        assert name == composed["run"] or runs.base(composed) == runs.base(compose(shipped[composed["run"]], root))
    assert compose(shipped["quick"], root) == compose({}, root)
    assert compose(shipped["paper"], root)["judge"]["model"] == "openai/gpt-oss-120b"


def test_the_page_is_current_and_the_json_schema_tells_saved_runs_from_mistakes(root: Path, tmp_path: Path) -> None:
    described = json.loads((root / SCHEMA).read_text(encoding="utf-8"))
    assert (root / PAGE).read_text(encoding="utf-8") == page(root), "run python docs/config_page.py"
    assert (root / SCHEMA).read_text(encoding="utf-8") == json_text(root), "run python docs/config_page.py"
    assert described["properties"]["seed"]["description"] == "seed of people, facts, padding and bootstrap"
    jsonschema.Draft202012Validator.check_schema(described)
    runs.write(compose({}, root), tmp_path / "run.yaml")
    jsonschema.validate(yaml.safe_load((tmp_path / "run.yaml").read_text()), described)
    for wrong in ({"jugde": "x"}, {"seed": "x"}, {"judge": {"temprature": 1}}, {"scale": {"bootstrap": 1}}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, described)


def test_a_manifest_says_where_results_come_from(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prose, model = tmp_path / "a.txt", tmp_path / "model"
    prose.write_text("prose")
    model.mkdir()
    (model / "config.json").write_text("{}")
    (model / "notes.md").write_text("")
    config = compose({"reader": {"name": "m", "path": str(model)}, "scale": "paper"}, root)
    made = json.loads(json.dumps(runs.manifest(config, [prose, tmp_path / "none.txt"], tmp_path)))
    assert made["commit"] == "", "no checkout"
    assert made["inputs"] == {str(prose): sha256(prose), str(tmp_path / "none.txt"): ""}
    assert made["model"] == {"path": str(model), "files": {"config.json": sha256(model / "config.json")}}
    assert made["packages"]["torch"].startswith("2.")
    assert made["machine"]["cores"] >= 1
    me = "-c user.name=n -c user.email=e -c commit.gpgsign=false"
    for command in ("init -q", "add a.txt", f"{me} commit -qm one"):
        subprocess.run(["git", *command.split()], cwd=tmp_path, check=True)
    first = runs.manifest(config, [], tmp_path)
    assert re.fullmatch("[0-9a-f]{40}", first["commit"])
    assert not first["dirty"]
    prose.write_text("more")
    assert runs.manifest(config, [], tmp_path)["dirty"]


# What would be misread


def test_all_faults_are_said_at_once(root: Path) -> None:
    wrong = {
        "jugde": "x",
        "seed": "x",
        "corpus": "wikipeda",
        "scale": {"bootstrap": "many", "test": {"shards": "0"}},
        "detectors": {"mine": {"site": "nose"}},
        "judge.base_url": "http://x/v1",
    }
    with pytest.raises(UserError) as caught:
        compose(wrong, root)
    first, *lines = str(caught.value).split("\n- ")
    assert first == "the config has 7 faults:"
    assert set(lines) == {
        "unknown config key jugde; did you mean judge?",
        "seed must be a whole number, not 'x'.",
        "corpus=wikipeda is unknown; corpus is one of embedded, folder, wikipedia, or the path of your own.",
        "scale.bootstrap must be a whole number at least 100, not 'many'.",
        "scale.test.shards is 0 but must be a whole number at least 1.",
        'detectors.mine.site is \'nose\' but must be one of "attention", "mlp", "residual".',
        "config key judge.base_url is dotted; write --config 'judge={KEY: VALUE, ...}'.",
    }
    crossed = {"detector": "mine", "decode": {"test": ["mine"]}, "trajectories": {"expanded": "2"}}
    with pytest.raises(UserError, match="the config has 3 faults"):
        compose(crossed, root)


def test_a_fault_in_an_options_file_is_said_like_any_other(root: Path, tmp_path: Path) -> None:
    shutil.copytree(root / "config", tmp_path / "config")
    (tmp_path / "config" / "reader" / "mine.yaml").write_text("nam: mine\npath: x\nmemory: {n_local: few}\n")
    with pytest.raises(UserError) as caught:
        compose({"reader": "mine"}, tmp_path)
    assert set(str(caught.value).split("\n- ")[1:]) == {
        "reader.name is missing; set it to a text.",
        "unknown config key reader.nam; did you mean reader.name?",
        "reader.memory.n_local must be a whole number at least 1, not 'few'.",
    }
    for text, what in (("name: [mine\n", "parsing"), ("name: a\nname: b\n", "constructing")):
        (tmp_path / "config" / "reader" / "mine.yaml").write_text(text)
        with pytest.raises(UserError, match=f"do not compose: while {what}"):
            compose({"reader": "mine"}, tmp_path)


@pytest.mark.parametrize(
    ("line", "wanted", "dry"),
    [
        ("--cores all results/tables --config scale=smoke", ["results/tables"], False),
        ("--cores 1 -np --config scale=smoke seed=3 -- a b", ["a", "b"], True),
        ("--no-such-flag x", ["x"], False),
    ],
)
def test_a_command_line_is_read_as_snakemake_reads_it(line: str, wanted: list[str], dry: bool) -> None:
    argv = ["/usr/bin/snakemake", *line.split()]
    command = read_command(argv)
    assert (list(command.targets), command.dryrun) == (wanted, dry)


@pytest.mark.parametrize("entry", ["run=a #1", "corpus=/data/my #2/a.jsonl", "corpus=/data/a: b.jsonl", "run=&x y"])
def test_a_text_that_yaml_reads_otherwise_is_refused(entry: str) -> None:
    (given,) = read_command(["snakemake", "biographies", "--config", entry, "--cores", "1"]).config
    with pytest.raises(UserError, match=rf"^--config {re.escape(entry)} is YAML for .*; write it in a config file"):
        check_config([given])


def test_what_yaml_reads_as_it_is_typed_is_taken() -> None:
    entries = ["run=a", "run='a b'", "run=", "seed=3", "corpus=/a b/it's.jsonl", "judge={use: x}", "corpus=[x]/a.jsonl"]
    check_config(entries)
    assert read_command(["snakemake", "--config", *entries]).config == entries


# The machine


def test_gpus_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert gpus(tmp_path) == 2
    for visible, number in (("1", 1), ("", 0)):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        assert gpus(tmp_path) == number


def test_of_several_gpus_each_process_takes_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert visible_gpus(2) == ["0", "1"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,1")
    names = visible_gpus(2)
    first = take_gpu(names, tmp_path)
    assert first is not None
    assert first[0] == 0
    held = "import sys; from pathlib import Path; from utaca.settings.machine import take_gpu; "
    # Another process is shown them in another order; the second is free, the first is not.
    held += "found = take_gpu(['3', '1'], Path(sys.argv[1])); print(found[0], flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", held, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout.readline() == "1\n"
        assert take_gpu(["1"], tmp_path) is None
        other.kill()
    assert take_gpu(["1"], tmp_path) is not None, "a killed process holds nothing"
    first[1].close()
    assert take_gpu(["3"], tmp_path) is not None


_LOADED = """
import ast, json, sys
from pathlib import Path
found = {}
for script in sorted(Path("workflow/scripts").glob("*.py")):
    for name in [name for name in sys.modules if name.split(".")[0] == "utaca"]:
        del sys.modules[name]
    tree = ast.parse(script.read_text())
    tree.body = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    exec(compile(tree, str(script), "exec"), {})
    modules = [module for name, module in sys.modules.items() if name.split(".")[0] == "utaca"]
    found[script.stem] = sorted(str(Path(module.__file__).relative_to(Path.cwd())) for module in modules)
json.dump(found, sys.stdout)
"""


def test_closures_are_the_real_import_graph(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a script loads is in its closure; beyond it there are only lazily loaded modules and data files."""
    monkeypatch.chdir(root)
    monkeypatch.setenv("PYTHONPATH", "src")
    done = subprocess.run([sys.executable, "-c", _LOADED], capture_output=True, text=True, check=True)
    scripts = json.loads(done.stdout)
    assert scripts
    for stem, loaded in scripts.items():
        # What the modules of tables load is another matter: tests/test_plan.py.
        listed = set(closure(Path("workflow/scripts") / f"{stem}.py", Path("src")))
        assert set(loaded) <= listed, stem
        beyond = {path for path in listed - set(loaded) if path.endswith(".py")}
        # the reference endpoint, with its writer, and the tokenizer of a model that was fetched, with what reads its
        # files, are loaded where they are needed
        readers = ("tokenizer", "files", "gguf", "public", "families")
        told = ("biographies/__init__.py", "biographies/templates.py")
        lazy = ("reference/", *told, *(f"readers/{name}.py" for name in readers), "sizes.py", "layout.py")
        named = tuple(f"src/utaca/{name}" for name in lazy)
        assert all(path.startswith(named) for path in beyond), (stem, beyond)


def test_composing_imports_nothing_heavy(root: Path) -> None:
    code = (
        "import sys; from pathlib import Path; import utaca; from utaca.settings.compose import compose;"
        "import utaca.settings.machine, utaca.settings.modules; compose({}, Path('.'));"
        "print(sorted({'torch', 'transformers', 'openai', 'pandas', 'pyarrow', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=root, env={"PYTHONPATH": "src"}, capture_output=True, text=True
    )
    assert done.stdout.strip() == "[]", done.stderr


def test_free_memory_heeds_the_containers_limit_but_not_its_file_cache(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    assert free_memory(meminfo, tmp_path) is None
    meminfo.write_text("MemTotal: 9000 kB\nMemFree: 10 kB\nMemAvailable:    5000 kB\n")
    assert free_memory(meminfo, tmp_path) == 5000 * 1024
    (tmp_path / "memory.current").write_text("900000\n")
    (tmp_path / "memory.stat").write_text("anon 100000\ninactive_file 700000\n")
    (tmp_path / "memory.max").write_text("max\n")
    assert free_memory(meminfo, tmp_path) == 5000 * 1024
    (tmp_path / "memory.max").write_text("1000000\n")
    assert free_memory(meminfo, tmp_path) == 800_000
