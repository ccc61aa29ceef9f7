"""Composition and checks of the config, its page, and the import closure of scripts."""

import json
import re
import shutil
import subprocess
import sys
from copy import deepcopy
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from config_page import PAGE, SCHEMA, json_text, page
from snakemake.cli import parse_config
from snakemake.utils import update_config

from utaca import machine
from utaca.data_files import sha256
from utaca.errors import UserError
from utaca.machine import free_gpu_memory, free_memory, gpus, take_gpu, visible_gpus
from utaca.runs import record as runs
from utaca.runs.code_digest import closure, code
from utaca.runs.command_line import check_config, runs_here
from utaca.runs.command_line import read as read_command
from utaca.runs.compose import compose, groups
from utaca.runs.places import share_source
from utaca.settings import schema
from utaca.settings.checks import identity, load
from utaca.settings.validation import keys, keys_of

COMPANY = {
    ("points", "ood_public"): {"detectors": "calibrated"},
    ("points", "evidence"): {"detectors": "evidence"},
    ("points", "plan"): {"detectors": "evidence"},
    ("detectors", "evidence"): {"points": "evidence"},
    ("detectors", "evidence_frozen"): {"points": "evidence"},
    ("detectors", "calibrated"): {"tasks": "paper"},
    ("points", "smoke"): {"detectors": "smoke"},
    ("detectors", "smoke"): {"tasks": "small"},
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


# Snakemake hands over all nested values as text. A reader brings its points; others are beside these, a section is
# written again, nothing is left of a point of the same name; a trigger wants its detector once its point is decoded.
WRITTEN = """
judge: {use: gpt_oss_120b, base_url: 'http://gpu7:1/v1', seed: '3'}
    => judge: {name: gpt_oss_120b, base_url: 'http://gpu7:1/v1', seed: 3}
detectors: {utaca: {lstm: 'false', chain: '1', signals: [retrieval]}}
    => detectors: {utaca: {lstm: false, chain: 1, signals: [retrieval], site: attention}}
corpus: /a b/it's.jsonl => corpus: {name: folder, source: folder, path: /a b/it's.jsonl}
corpus: {use: folder, path: articles.parquet} => corpus: {name: folder, source: folder, path: articles.parquet}
{scale: paper, reader: llama31_8b} => points: {utaca-K96-sub16: {budget: 96}}
{scale: paper, reader: qwen2_7b, points: llama} => points: {utaca-K96-sub16: {budget: 96}}
points: {mine: {method: utaca, budget: '3', policy: sub.1}}
    => points: {mine: {budget: 3, trigger: '', base: '', seeds: 1}, infllm-K8: {method: infllm, budget: 8}}
decode: {test: [infllm-K1]} => decode: {test: [infllm-K1]}
points: {utaca-K8-sub2: {method: infllm, budget: '5'}} => points: {utaca-K8-sub2: {policy: ''}}
methods: {llmlingua2: {force_tokens: ['1', x]}} => methods: {llmlingua2: {force_tokens: [1, x]}}
points: {mine: {method: infllm, budget: 2.50%}} => points: {mine: {budget: 2.50%}}
points: {mine: {method: utaca, budget: 5%, policy: set.40}} => points: {mine: {budget: 5%}}
reader: {use: tiny, budget: 5%} => reader: {budget: 5%}
reader: {use: tiny, budget: '9'} => reader: {budget: 9}
points: {mine: {method: utaca, budget: '3', policy: sub.1, trigger: margin.2}} => points: {mine: {trigger: margin.2}}
"""


@pytest.mark.parametrize("line", re.split(r"\n(?! )", WRITTEN.strip()))
def test_what_is_written_goes_on_top_of_the_options(root: Path, line: str) -> None:
    written, _, part = " ".join(line.split()).partition(" => ")
    composed = compose(yaml.safe_load(written), root)
    merged = deepcopy(composed)
    update_config(merged, yaml.safe_load(part))
    assert merged == composed


MISTAKES = r"""
plan: {primary: utaca-K4-sub1 over no_detector-K4-sub1}
    => plan names 'no_detector-K4-sub1' after 'over' but must name adaptive or top_p points of decode.test, which are
    utaca-K4-sub1
plan: {primary: infllm-K4} => plan names 'infllm-K4' but must name adaptive points of decode.test, which are
suites: tiny_full => unknown config key suites
judge: {base_url: http://gpu7:8/v1}
    => judge.name is reference, which is the name of the built-in endpoint; name the server and its model: --config
    'judge={name: NAME, model: MODEL, base_url: URL}' or 'judge={use: gpt_oss_120b, base_url: URL}'
judge: {kind: reference, base_url: http://gpu7:8/v1} => but judge.kind is reference
judge: {model: m} => judge.model is 'm' but judge.kind is reference
judge: {use: gpt_oss_120b, model: m} => not the model of gpt_oss_120b; also set its name
reader: {path: org/m} => --config 'reader={name: NAME, path: org/m}'
points: llama_variants => choose an option of detectors that has it
methods: {h2o: '0.25'} => methods.h2o must be a mapping of keys to values, not '0.25'
run: tables => the name of a folder that all runs share
run: a/b => run is 'a/b'
corpus: wikipeda
    => corpus=wikipeda is unknown; corpus is one of embedded, folder, wikipedia, or the path of your own corpus.
scale: {test: {shards: '0'}} => scale.test.shards is 0 but must be a whole number at least 1.
detectors: {mine: {site: nose}} => detectors.mine.site is 'nose' but must be one of "attention", "mlp", "residual".
judge.base_url: http://x/v1 => config key judge.base_url has a dot; write --config 'judge={KEY: VALUE, ...}'.
scale: {test: {tokens: ['9', '3']}} => scale.test.tokens is [9, 3]
scale: {train: {paths: [{budget: 8, policy: sub.0}]}} => scale.train.paths[0].policy is 'sub.0' but must be set.N
scale: {train: {paths: [{budget: 2, policy: sub.1}]}} => scale.train.paths has K_max=2, which another path or
    scale.train.budgets has too
scale: {validation: {paths: [{budget: 8, policy: sub.2}, {budget: 8, policy: set.1}]}}
    => scale.validation.paths has K_max=8
{trajectories: {expanded: 7}, scale: {train: {paths: [{budget: 8, policy: sub.2}]}}}
    => trajectories.expanded is 7 but must be at least the K_max of paths, which go up to 8.
{trajectories: {expanded: 3}} => trajectories.expanded is 3 but must be above the budgets, which go up to 3.
scale: {train: {people: a.jsonl}} => scale.train.people is a.jsonl, but only the test split
scale: {use: paper, test: {shards: 200}} => scale.test.shards is 200
scale: {train: {mean_tokens: 2600}} => scale.train.mean_tokens is 2600 but must be from 2000 to 2500, a mean of lengths
{reader: llama31_8b, scale: smoke}
    => (reader.memory.n_init=128, n_local=512) leaves only 23% of the facts of scale.train and 23% of the facts of
corpus: folder => corpus.path is empty
corpus: {path: x} => only corpus.source=folder reads it
detector: mine => detector is 'mine' but must name one of detectors, which are utaca, two_way
detectors: {mine: {signals: [], embedding: false}} => give it at least one input
detectors: {mine: {signals: [margins]}} => detectors.mine.signals has 'margins'
{trajectories: {sites: [attention, residual]}} => detectors.mlp.site is mlp, but trajectories.sites
detectors: {mine: {kind: evidential}} => kind evidential has two classes
detectors: {mine: {label: needed, classes: '2'}} => detectors.mine.label is needed
detectors: {mine: {taken: results/a/detectors/b, start: utaca}}
    => detectors.mine.start is 'utaca', but detectors.mine.taken says that the detector is not trained here
detectors: {mine: {chain: 6, lstm: false}} => detectors.mine.chain is 6, but only a detector with an LSTM
detectors: {mine: {start: yours}} => detectors.mine.start is 'yours' but must name another
detectors: {mine: {start: yours}, yours: {start: utaca}}
    => detectors.mine.start is yours, which itself starts from utaca
detectors: {mine: {start: utaca, lstm: false}}
    => detectors.mine.lstm is False but must be True, as in the detector that it starts from, utaca
detectors: {mine: {sets: [qa]}} => detectors.mine.sets names 'qa', which is not in tasks.sets; tasks.sets has
{detectors: {mine: {sets: [qa]}}, tasks: {sets: {qa: {task: qa_1}}}}
    => tasks.sets.qa.budgets is empty; give it some budgets
tasks: {sets: {a/b: {task: qa_1}}} => tasks.sets.a/b is 'a/b' but is used in file names
tasks: {sets: {test: {task: qa_1}}} => tasks.sets.test has the name of a section of decode; give it another
detectors: {mine: {mixed: 'true'}} => detectors.mine.mixed is true but detectors.mine.sets is empty
detectors: {utaca_youden: {decision: youden}} => detectors.utaca_youden has a name that the tables use for a baseline
detectors: {lowest_probability: {}} => detectors.lowest_probability has a name that the tables use for a baseline
detectors: {mine: {kind: linear, lstm: false}} => detectors.mine.kind is linear, which reads only the embedding; set
detectors: {never: {}} => detectors.never has the name of a kind of trigger
trajectories: {expanded: 1} => trajectories.expanded is 1 but must be above the budgets, which go
trajectories: {sites: [mlp, mlp]} => trajectories.sites is ['mlp', 'mlp'] but must name each once
reader: {memory: {representatives: tokens, storage: host}}
    => set reader.memory.storage=device or reader.memory.representatives=attention_mass
{reader: {use: tiny, name: x, graphs: true, device: cuda, memory: {storage: host}}, generation: {together: false}}
    => reader.graphs=true needs reader.memory.storage=device; set it, or leave reader.graphs out
{reader: {use: tiny, name: x, graphs: true, device: cpu}, generation: {together: false}}
    => reader.graphs=true needs reader.device=cuda
reader: {use: tiny, name: x, graphs: true} => works only if answers do not share passes; set generation.together=false
points: {own: {budget: 3}} => points.own.method is missing; set it to text
decode: {test: infllm-K1} => decode.test must be a list, not 'infllm-K1'
decode: {test: [infllm-K9]} => decode.test names 'infllm-K9', which is not in points; did you mean infllm-K8?
decode: {tset: [infllm-K1]}
    => decode.tset is unknown; sections are validation, test, sweep, ablation, drafts, methods, or one of tasks.sets,
    which has none; add --config tasks=paper, or another option
decode: {test: [infllm-K1, infllm-K2, infllm-K1]} => decode.test names infllm-K1 twice; remove one
run: 2026_11 => run must be text, but YAML takes 202611 for a number; begin it with a letter
reader: {use: no} => reader=False is unknown
reader: {use: tiny, methods: {no: {a: 1}}} => methods has the key False, which YAML takes for true
reader: {use: tiny, bars: [{set: biographies, limit: 800}]}
    => reader.bars[0].limit is 800 but must be a number at least -100.0 and at most 100.0
reader: {use: tiny, name: x, path: ''} => reader.path is empty
methods: {h20: {budget: 64}} => unknown config key methods.h20; did you mean methods.h2o?
answers: '' => answers is empty; name a file
scale: {test: {budgets: [2, 1]}} => scale.test.budgets is [2, 1] but must be ascending, distinct
scale: {test: {evidence: []}} => scale.test.evidence is empty; name some of complete, partial, missing
corpus: 3 => corpus must be the name of an option or a mapping of keys, or a path such as ./articles, not 3
plan: {secondary: [utaca-K4-sub1]} => plan.secondary is set but plan.primary is empty
plan: {primary: utaca-K4-sub1, secondary: [utaca-K4-sub1]} => plan names utaca-K4-sub1 twice
plan: {primary: utaca-K4-sub1 over utaca-K4-sub1} => plan compares utaca-K4-sub1 with itself
points: {own: {method: utaca, budget: 3, policy: sub.1, base: other}} => points.own.base is 'other' but must be one of
reader: {use: tiny, name: x, path: "a\ud83d"} => reader.path holds 'a\ud83d', which is not valid text
judge: {use: gpt_oss_120b, base_url: 'https://me:secret@gpu7/v1'}
    => judge.base_url must not have a user, a password or a query
judge: {api_key_env: sk-secret-1} => judge.api_key_env must be
judge: {api_key_env: [sk-secret-1]} => judge.api_key_env must be text
points: {own: {method: infllm, budget: 3, policy: sub.1}}
    => points.own.policy is 'sub.1' but only method utaca uses it, not infllm
points: {own: {method: utaca, budget: 3, policy: set.1.prop}} => needs set.N or sub.N
points: {own: {method: utaca, budget: 3, policy: set.4}} => must be at most the budget
points: {own: {method: snapkv, drafts: 3}} => points.own.drafts is 3 but only points with block memory use drafts
points: {own: {method: infllm, budget: 0}} => points.own.budget is 0 but must be at least 1, in blocks
points: {own: {method: infllm, budget: 0%}} => points.own.budget is '0%' but must be a whole number of at least 0, or
    a share of the document's blocks above 0% and up to 100%, as 5%.
points: {own: {method: infllm, budget: 120%}} => points.own.budget is '120%' but must be a whole number of at least 0
points: {own: {method: infllm, budget: 5 %}} => points.own.budget is '5 %' but must be a whole number of at least 0, or
points: {own: {method: infllm, budget: 1.5}} => points.own.budget is 1.5 but must be a whole number of at least 0, or
points: {own: {method: infllm, budget: [5]}} => points.own.budget is [5] but must be a whole number of at least 0, or
points: {own: {method: infllm, budget: true}} => points.own.budget is True but must be a whole number of at least 0, or
points: {own: {method: infllm, budget: -1}} => points.own.budget is -1 but must be a whole number of at least 0, or
points: {own: {method: snapkv, budget: 5%}}
    => points.own.budget is 5%, a share of blocks, but this point has none; give a number of tokens.
points: {own: {method: utaca, budget: 5%, policy: sub.8, base: tokenselect}}
    => points.own.budget is 5%, a share of blocks, but this point has none; give a number of tokens.
points: {own: {method: infllm, budget: 5%, drafts: 3, draft_budget: 1}}
    => points.own.draft_budget is 1 but must be below the budget, which is 5% and may be a single block.
points: {own: {method: utaca, budget: 5%, policy: sub.1, trigger: agreement.1}}
    => points.own.trigger is agreement.1 but N must be below the budget, which is 5% and may be a single block.
reader: {use: tiny, budget: 0} => reader.budget is 0 but must be at least 1
reader: {use: tiny, budget: 101%} => reader.budget is '101%' but must be a whole number of at least 0, or
points: {own: {method: other, budget: 1}} => points.own.method is 'other' but must be one of infllm, top_p, utaca, adakv
points: {own: {method: utaca, budget: 3, policy: sub.1, trigger: agreement, seeds: 2}}
    => points.own.seeds is set, but the point has no detector
points: {own: {method: utaca, budget: 3, policy: sub.1, seeds: 9}}
    => points.own.seeds is 9 but must be at most scale.detector_seeds, which is 8
{points: {own: {method: utaca, budget: 3, policy: sub.1, trigger: other}}, decode: {test: [own]}}
    => points.own.trigger is 'other' but must be one of utaca, two_way,
points: {own: {method: utaca, budget: 3, policy: sub.1, trigger: agreement.3}}
    => points.own.trigger is agreement.3 but N must be below the budget, which is 3
points: {own: {method: utaca, budget: 0, policy: sub.1, base: full}}
    => points.own.budget is 0 but must be at least 1, in tokens
{points: {own: {method: utaca, budget: 9, policy: sub.1, base: full}}, decode: {test: [own]}}
    => decode.test names own, which does not use block memory; move it to decode.methods
"""
"""What a user writes, and what is said of it."""


@pytest.mark.parametrize("mistake", re.split(r"\n(?! )", MISTAKES.strip()))
def test_mistakes_are_one_sentence(root: Path, mistake: str) -> None:
    written, _, said = " ".join(mistake.split()).partition(" => ")
    with pytest.raises(UserError, match=re.escape(said)) as caught:
        compose(yaml.safe_load(written), root)
    assert "\n" not in str(caught.value)
    assert "secret" not in str(caught.value), "a key in place of its variable"


def test_identity_leaves_transport_out(root: Path) -> None:
    host = schema.MemorySettings(storage="host")
    assert repr(host) == repr(schema.MemorySettings()) != repr(schema.MemorySettings(n_local=1)), "journals go by it"
    plain = identity(load(compose({}, root)))
    bars = {"use": "tiny", "bars": [{"set": "biographies", "limit": 50}]}
    assert identity(load(compose({"reader": bars}, root))) == plain, "a different bar decodes nothing again"
    judge = plain["judge"]
    assert {"model", "temperature", "seed"} <= set(judge)
    assert not {"base_url", "concurrency", "timeout_s", "api_key_env"} & set(judge)


# Runs

NAMED = [
    ({}, "quick"),
    ({"judge": "gpt_oss_120b", "points": "methods", "generation": {"together": "true"}}, "quick"),
    ({"methods": {"h2o": {"heavy": "0.25"}}, "reader": {"memory": {"storage": "host"}}}, "quick"),
    ({"scale": "paper", "reader": "llama31_8b", "corpus": "wikipedia"}, "paper-llama31_8b-wikipedia"),
    ({"run": "mine", "seed": "3"}, "mine"),
    ({"seed": "3"}, "quick-[0-9a-f]{6}"),
    ({"seed": "4"}, "quick-[0-9a-f]{6}"),
    ({"detectors": "paper"}, "quick-[0-9a-f]{6}"),  # records more of every trajectory
    ({"corpus": "one.jsonl"}, "quick-folder-[0-9a-f]{6}"),
    ({"corpus": "two.jsonl"}, "quick-folder-[0-9a-f]{6}"),
    ({"reader": {"dtype": "bfloat16"}}, "quick-[0-9a-f]{6}"),
    ({"reader": {"name": "other", "path": "x/y", "memory": {"n_local": "256"}}, "scale": "paper"}, "paper-other-.{6}"),
]


def saved_with(root: Path, path: Path, *entries: str, **overrides: Any) -> dict[str, Any]:
    """The config of a saved run with ``--config`` entries on top, as Snakemake merges them."""
    runs.write(compose(overrides, root), path)
    merged = yaml.safe_load(path.read_text())
    update_config(merged, parse_config(entries))
    return compose(merged, root)


def test_a_run_is_named_after_what_it_is_made_of_and_composes_to_itself(root: Path, tmp_path: Path) -> None:
    names, path = [], tmp_path / "deep" / "run.yaml"
    for written, name in NAMED:
        composed = compose(written, root)
        names.append(composed["run"])
        assert re.fullmatch(name, names[-1])
        assert saved_with(root, path, **written) == composed
    assert len(set(names)) == len(names) - 2, "single keys tell runs apart"
    assert compose({"seed": "3"}, root)["run"] == names[5]
    comment = path.read_text().splitlines()[0]
    assert comment == f"# Repeats this run: snakemake --cores all results/tables --configfile {path}"
    assert [file.name for file in path.parent.iterdir()] == ["run.yaml"]


def test_entries_go_on_top_of_a_saved_run(root: Path, tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    for entry in (
        "judge=gpt_oss_120b",
        "judge={use: gpt_oss_120b, base_url: http://gpu7:1/v1}",
        "detectors={utaca: {chain: 8}}",
        "points=qwen",
        "decode={test: [infllm-K8, utaca-K8-sub2]}",
    ):
        anew = compose({"scale": "smoke", **parse_config([entry])}, root)
        assert saved_with(root, path, entry, scale="smoke") == anew
    start, entries = {"scale": "smoke", "methods": {"h2o": {"chunk": 9}}}, ["methods={h2o: {heavy: 0.1}}"]
    changed = saved_with(root, path, "scale={bootstrap: 300}", *entries, **start)
    assert changed["methods"] == {"h2o": {"chunk": 9, "heavy": 0.1}}
    assert changed["scale"] == {**compose(start, root)["scale"], "bootstrap": 300}


def test_a_run_of_another_base_is_refused(root: Path, tmp_path: Path) -> None:
    path, start = tmp_path / "smoke" / "run.yaml", compose({"scale": "smoke"}, root)
    added = {"scale": {"use": "smoke", "bootstrap": "900"}, "judge": "gpt_oss_120b", "points": "qwen"}
    grown, moved = (compose(added | more, root) for more in ({}, {"answers": "results/other.sqlite"}))
    for now, asked, saved in ((start, False, start), (grown, False, start), (grown, True, grown), (moved, True, grown)):
        runs.check(now, path.parent)
        runs.claim(now, path.parent, asked=asked)
        assert runs.read(path) == saved
    named = {"run": "smoke", "scale": {"use": "smoke", "detector_steps": "61"}, "seed": "3"}
    steps = start["scale"]["detector_steps"]
    said = (
        rf"other settings: seed \(0 there, 3 now\), scale\.detector_steps \({steps} there, 61 now\).*--config run=NAME"
    )
    with pytest.raises(UserError, match=said):
        runs.check(compose(named, root), path.parent)
    with pytest.raises(UserError, match=r"run\.yaml is not a folder, or links to a disk that is not mounted"):
        runs.check(start, path)
    older = path.read_text().replace("detector_steps", "stepz")
    wrong = {
        older: r"run\.yaml was written with .*: scale\.detector_steps is missing",
        "- 1\n": "is not a complete config",
    }
    wrong["run: \udcff\n"] = r"run\.yaml is not a complete config of a run; remove it and run again"
    for text, said in wrong.items():
        path.write_text(text, errors="surrogateescape")
        with pytest.raises(UserError, match=said):
            runs.check(start, path.parent)


def test_the_docstring_below_a_key_is_its_meaning_and_must_be_there() -> None:
    @keys
    class Explained:
        size: int = schema.setting(1, minimum=0)
        """How large it is."""

    assert keys_of(Explained)["size"][1].description == "How large it is."
    with pytest.raises(TypeError, match="the key bare of Unexplained has no meaning; write a docstring below it"):

        @keys
        class Unexplained:
            size: int = schema.setting(1)
            """How large it is."""

            bare: int = schema.setting(2)


def test_names_that_a_key_lists_follow_its_meaning(root: Path) -> None:
    meaning = f"Signals that the detector reads: {', '.join(schema.SIGNALS)}."
    assert meaning in page(root)
    described = json.loads(json_text(root))
    assert described["$defs"]["DetectorSettings"]["properties"]["signals"]["description"] == meaning


def test_the_page_and_the_json_schema_are_current_and_shipped_runs_compose(root: Path) -> None:
    described = json.loads((root / SCHEMA).read_text(encoding="utf-8"))
    assert (root / PAGE).read_text(encoding="utf-8") == page(root), "run python docs/config_page.py"
    assert (root / SCHEMA).read_text(encoding="utf-8") == json_text(root), "run python docs/config_page.py"
    jsonschema.Draft202012Validator.check_schema(described)
    shipped = {path.stem: yaml.safe_load(path.read_text()) for path in (root / "config" / "runs").glob("*.yaml")}
    assert {"quick", "smoke", "paper", "methods", "variants"} <= set(shipped)
    for name, overrides in shipped.items():
        jsonschema.validate(overrides, described)
        composed = compose(overrides, root)
        # Those that go by another name add to its run.
        assert name == composed["run"] or runs.base(composed) == runs.base(compose(shipped[composed["run"]], root))
    assert compose(shipped["quick"], root) == compose({}, root)
    assert compose(shipped["paper"], root)["judge"]["model"] == "openai/gpt-oss-120b"
    for wrong in ({"jugde": "x"}, {"seed": "x"}, {"judge": {"temprature": 1}}, {"scale": {"bootstrap": 1}}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, described)


ABLATED = {"embedding", "embedding_lstm", "margin_embedding", "two_way"}


@pytest.mark.parametrize(
    ("overrides", "budget"),
    [
        ("paper", (64, "sub.16")),
        ("paper_methods", (64, "sub.16")),
        ("quick", (8, "sub.2")),
        ({"points": "llama"}, (64, "sub.16")),
    ],
)
def test_the_papers_ablations_are_decoded_in_a_section_of_their_own(root: Path, overrides: Any, budget: Any) -> None:
    if isinstance(overrides, str):
        overrides = yaml.safe_load((root / "config" / "runs" / f"{overrides}.yaml").read_text())
    config = load(compose(overrides, root))
    at = {
        section: {x.detector for x in config.decoded(section) if (x.budget, x.policy) == budget}
        for section in config.decode
    }
    assert at["ablation"] == ABLATED
    assert "" in at["test"], "the whole detector"
    assert not ABLATED & {point.detector for point in config.decoded("test")}
    assert config.operating.keys() >= {*config.shown("test", "ablation")}


def test_a_manifest_says_where_results_come_from(root: Path, tmp_path: Path, monkeypatch) -> None:
    prose, none, model = tmp_path / "a.txt", tmp_path / "none.txt", tmp_path / "model"
    model.mkdir()
    for path in (prose, model / "config.json", model / "notes.md"):
        path.write_text("{}")
    config = compose(
        {"reader": {"name": "m", "path": str(model), "memory": {"n_local": "512"}}, "scale": "paper"}, root
    )
    made = json.loads(json.dumps(runs.manifest(config, [prose, none], tmp_path)))
    assert made["commit"] == "", "no checkout"
    for hub in ("x/not-here", "x/y/z"):
        config["reader"]["path"] = hub
        assert runs.manifest(config, [], tmp_path)["model"] == {"path": hub, "revision": ""}
    assert made["inputs"] == {str(prose): sha256(prose), str(none): ""}
    assert made["model"] == {"path": str(model), "files": {"config.json": sha256(model / "config.json")}}
    assert made["packages"]["torch"].startswith("2.")
    assert made["machine"]["cores"] >= 1
    me = "-c user.name=n -c user.email=e -c commit.gpgsign=false"
    for command in ("init -q", "add a.txt", f"{me} commit -qm one"):
        subprocess.run(["git", *command.split()], cwd=tmp_path, check=True)
    first = runs.manifest(config, [], tmp_path)
    assert re.fullmatch("[0-9a-f]{40}", first["commit"])
    prose.write_text("more")
    assert [first["dirty"], runs.manifest(config, [], tmp_path)["dirty"]] == [False, True]
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(runs, "_PACKAGES", ["not-installed"])
    bare = runs.manifest(config, [], tmp_path)
    assert (bare["commit"], bare["packages"]) == ("", {"not-installed": ""})


# What would be misread


def test_all_faults_are_said_at_once_in_an_options_file_too(root: Path, tmp_path: Path) -> None:
    crossed = {"detector": "mine", "decode": {"test": ["mine"]}, "trajectories": {"expanded": "2"}}
    with pytest.raises(UserError, match="the config has 3 faults"):
        compose(crossed, root)
    shutil.copytree(root / "config", tmp_path / "config")
    (tmp_path / "config" / "reader" / "mine.yaml").write_text("nam: mine\npath: x\nmemory: {n_local: few}\n")
    with pytest.raises(UserError) as caught:
        compose({"reader": "mine", "jugde": "x"}, tmp_path)
    assert set(str(caught.value).split("\n- ")) == {
        "the config has 4 faults:",
        "unknown config key jugde; did you mean judge?",
        "reader.name is missing; set it to text.",
        "unknown config key reader.nam; did you mean reader.name?",
        "reader.memory.n_local must be a whole number at least 1, not 'few'.",
    }
    for text, said in (
        ("name: [mine\n", "do not compose: while parsing"),
        ("name: a\nname: b\n", "do not compose: while constructing"),
        ("[mine]\n", "reader.name is missing; set it to text"),
    ):
        (tmp_path / "config" / "reader" / "mine.yaml").write_text(text)
        with pytest.raises(UserError, match=said):
            compose({"reader": {"use": "mine", "path": "x"}}, tmp_path)
    # An option may leave a key to its users.
    tiny = (root / "config" / "reader" / "tiny.yaml").read_text()
    (tmp_path / "config" / "reader" / "mine.yaml").write_text(tiny.replace("name: tiny\n", ""))
    assert re.fullmatch("quick-m-[0-9a-f]{6}", compose({"reader": {"use": "mine", "name": "m"}}, tmp_path)["run"])


def test_a_command_line_is_read_as_snakemake_reads_it_but_for_what_yaml_misreads() -> None:
    for line in ("-n", "--profile a", "-e dryrun"):
        assert runs_here(read_command(["snakemake", *line.split()])) == (line == "-n")
    for line, wanted, dry in (
        ("--cores all results/tables --config scale=smoke", ["results/tables"], False),
        ("--cores 1 -np --config scale=smoke seed=3 -- a b", ["a", "b"], True),
        ("--no-such-flag x", ["x"], False),
        ("--seconds-between-status-checks x", [], False),
    ):
        command = read_command(["/usr/bin/snakemake", *line.split()])
        assert (list(command.targets), command.dryrun) == (wanted, dry)
    taken = ["run=a", "run='a b'", "run=", "seed=3", "corpus=/a b/it's.jsonl", "judge={use: x}", "corpus=[x]/a.jsonl"]
    refused = ["run=a #1", "corpus=/data/my #2/a.jsonl", "corpus=/data/a: b.jsonl", "run=&x y"]
    command = read_command(["snakemake", "biographies", "--config", *taken, *refused, "--cores", "1"])
    assert command.config == [*taken, *refused]
    check_config(taken)
    for entry in refused:
        with pytest.raises(
            UserError,
            match=rf"^--config {re.escape(entry)}: YAML reads the value as .*; to keep it as text, write it in quotes",
        ):
            check_config([entry])


# The machine


def test_of_several_gpus_each_process_takes_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert (gpus(tmp_path), free_gpu_memory(), machine.natural_dtype("cuda")) == (0, None, "bfloat16")
    # Under WSL2 the driver's tool alone tells of GPUs; of several, the emptiest and the newest count.
    tool = "#!/bin/sh\ncase $1 in *free) echo 7; echo 5; echo '[N/A]';; *cap) echo 7.0; echo 7.5;; *) echo GPU;; esac"
    (tmp_path / "nvidia-smi").write_text(tool)
    (tmp_path / "nvidia-smi").chmod(0o755)
    assert (gpus(tmp_path), free_gpu_memory(), machine.natural_dtype("cuda")) == (1, 7 * 2**20, "float32")
    assert machine.gpu_names(tmp_path) == ["GPU"]
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    assert (gpus(tmp_path), visible_gpus(2)) == (2, ["0", "1"])
    for visible, number in (("", 0), ("1", 1), ("1,-1,0", 1), ("3,1", 2)):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        assert gpus(tmp_path) == number
    first = take_gpu(visible_gpus(2), tmp_path)
    assert first[0] == 0
    held = "import sys; from pathlib import Path; from utaca.machine import take_gpu; "
    # Another process is shown them in another order; the second is free, the first is not.
    held += "found = take_gpu(['3', '1'], Path(sys.argv[1])); print(found[0], flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", held, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout.readline() == "1\n"
        assert take_gpu(["1"], tmp_path) is None
        other.kill()
    assert take_gpu(["1"], tmp_path) is not None, "a killed process holds nothing"


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


def test_what_a_script_loads_is_in_its_closure(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(root)
    monkeypatch.setenv("PYTHONPATH", "elsewhere")
    share_source(Path("src"))
    done = subprocess.run([sys.executable, "-c", _LOADED], capture_output=True, text=True, check=True)
    scripts = json.loads(done.stdout)
    assert scripts
    # What a package loads by name is in the closure of a job that uses it: test_extending.py.
    named = [f"utaca.methods.{name}" for name in (*schema.CONTEXT_METHODS, schema.TOP_P)]
    named += [f"utaca.detection.signals.{name}" for name in schema.SIGNALS]
    for stem, loaded in scripts.items():
        # What the modules of tables load is another matter: test_plan.py.
        assert set(loaded) <= set(closure(Path("workflow/scripts") / f"{stem}.py", Path("src"), *named)), stem
    digests = {code(Path("workflow/scripts") / f"{stem}.py", Path("src")) for stem in ("pad", "pad", "score")}
    assert [len(digest) for digest in digests] == [16, 16]


@pytest.mark.parametrize("limited", ["", "job_7", "memory/job_8"])
def test_free_memory_heeds_a_groups_limit_but_not_its_file_cache(limited: str, tmp_path: Path, monkeypatch) -> None:
    meminfo, own, group = tmp_path / "meminfo", tmp_path / "own", tmp_path / limited
    second = ("usage_in_bytes", "limit_in_bytes", 2**63 - 4096, "total_inactive_file")
    used, limit, no_limit, cache = second if "memory" in limited else ("current", "max", "max", "inactive_file")
    monkeypatch.setattr("utaca.machine._GROUP", own)
    assert free_memory(meminfo, tmp_path) is None
    meminfo.write_text("MemTotal: 9000 kB\nMemFree: 10 kB\nMemAvailable:    5000 kB\n")
    own.write_text("4:cpu:/\n3:memory:/job_8/step_0\n0::/job_7/step_0\n")
    group.mkdir(parents=True, exist_ok=True)
    for name, text in ((used, "900000"), ("stat", f"anon 100000\n{cache} 700000"), (limit, f"{no_limit}")):
        (group / f"memory.{name}").write_text(f"{text}\n")
    assert free_memory(meminfo, tmp_path) == 5000 * 1024
    (group / f"memory.{limit}").write_text("1000000\n")
    assert free_memory(meminfo, tmp_path) == 800_000
