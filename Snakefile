"""UT-ACA from biographies to tables: `snakemake --cores all results/tables`.

The config is composed here, once; every rule gets just the part that it uses as params, and the package's modules
that its script runs as input, so that an edit reruns what depends on it and nothing else.
"""

import atexit
import json
import os
import sys
from dataclasses import asdict
from pathlib import Path

ROOT = Path(workflow.basedir)
SOURCE = Path(os.path.relpath(ROOT / "src"))
sys.path.insert(0, str(SOURCE.resolve()))
from utaca.errors import UserError
from utaca.settings.checks import ROLES, identity, load
from utaca.settings.compose import command, compose
from utaca.settings.machine import gpus, prose_files, share_source
from utaca.settings.modules import closure

# Scripts run in processes of their own.
share_source(SOURCE)
COMMAND = command(config, "results/report.html")
try:
    config.update(compose(config, ROOT))
except UserError as error:
    sys.exit(f"Error: {error}")

SETTINGS = load(config)
IDENTITY = identity(SETTINGS)
SCALE = IDENTITY["scale"]
OUT = f"results/{SETTINGS.reader.name}"
LOGS = f"logs/{SETTINGS.reader.name}"
# What Snakemake measured of each job, and which jobs these are.
BENCHMARKS = f"{OUT}/benchmarks"
JOBS = f"{BENCHMARKS}/jobs.json"
STORE = "results/answers.sqlite"
ENVIRONMENT = str(ROOT / "environment.yml")
SPLITS = ["train", "validation", "test"]
LABELS = f"{OUT}/labels/{SETTINGS.labeller.name}"
READER = {
    key: value
    for key, value in IDENTITY["reader"].items()
    if key not in ("training", "positions", "methods")
}
READER_FILES = [
    str(path)
    for path in sorted(Path(SETTINGS.reader.path).glob("*"))
    if path.suffix in {".json", ".jinja", ".safetensors"}
]
CORPUS_FILES = prose_files(SETTINGS.corpus.path)
TRAINING_FILES = prose_files(SETTINGS.reader.training.corpus)
TOKENIZER_FILES = [path for path in READER_FILES if "token" in Path(path).name]
TRAJECTORIES = {
    split: expand(
        f"{OUT}/trajectories/{split}/part-{{shard}}.parquet",
        shard=range(SCALE[split]["shards"]),
    )
    for split in SPLITS
}
DETECTORS = {
    variant: expand(
        f"{OUT}/detectors/{variant}/seed{{seed}}/model.safetensors",
        seed=range(SCALE["detector_seeds"]),
    )
    for variant in SETTINGS.detectors
}
SUITES = {
    split: suites
    for split in ["validation", "test"]
    if (suites := [name for name, s in SETTINGS.suites.items() if s.split == split])
}
RAN = {
    name: suite.ran(SETTINGS.scale.detector_seeds)
    for name, suite in SETTINGS.suites.items()
}
# By split and suite, the points decoded from block memory, and those of other methods.
BLOCKS, METHODS = (
    {
        split: {
            suite: points
            for suite in suites
            if (points := [point for point in RAN[suite] if point.in_blocks == kind])
        }
        for split, suites in SUITES.items()
    }
    for kind in [True, False]
)
POINTS = {name: [point.label for point in points] for name, points in RAN.items()}
# Variant, seed and file of the detector of every point that has one, by label.
TRIGGERS = {
    point.label: [variant, seed, DETECTORS[variant][seed]]
    for points in RAN.values()
    for point in points
    if point.method == "utaca"
    for variant in [point.detector or SETTINGS.detector]
    for seed in [point.seed if point.seed >= 0 else SETTINGS.detector_seed]
}
# Splits with decisions replayed.
REPLAYS = ["test"] if SETTINGS.scale.replays else []
GENERATIONS = {
    name: expand(
        f"{OUT}/generations/{name}/{{point}}/answers-{{shard}}.parquet",
        point=POINTS[name],
        shard=range(SCALE[suite.split]["shards"]),
    )
    for name, suite in SETTINGS.suites.items()
}
# Answers and traces of the points with a detector, by suite: it is judged on them too.
TRIED = {
    name: {
        kind: expand(
            f"{OUT}/generations/{name}/{{point}}/{kind}-{{shard}}.parquet",
            point=points,
            shard=range(SCALE[suite.split]["shards"]),
        )
        for kind in ["answers", "traces"]
    }
    for name, suite in SETTINGS.suites.items()
    if suite.table in ("generation", "seeds")
    for points in [[point.label for point in RAN[name] if point.method == "utaca"]]
    if points
}
SCORES = {
    name: expand(
        f"{OUT}/scores/{SETTINGS.judge.name}/{name}/{{point}}.parquet",
        point=points,
    )
    for name, points in POINTS.items()
}
# The point with replays: its answers and scores, and those of the replays.
REPLAYED = {}
if REPLAYS:
    suite = next(name for name in SUITES["test"] if SETTINGS.replays_of in POINTS[name])
    shards = range(SCALE["test"]["shards"])
    folder = f"{OUT}/scores/{SETTINGS.judge.name}"
    REPLAYED = {
        "answers": expand(
            f"{OUT}/generations/{suite}/{SETTINGS.replays_of}/answers-{{shard}}.parquet",
            shard=shards,
        ),
        "scores": f"{folder}/{suite}/{SETTINGS.replays_of}.parquet",
        "replays": expand(
            f"{OUT}/replays/{SETTINGS.replays_of}/part-{{shard}}.parquet", shard=shards
        ),
        "replay_scores": f"{folder}/replays/{SETTINGS.replays_of}.parquet",
    }
# What each endpoint was needed for.
USAGE = {
    "writer": "results/usage/biographies/test.parquet",
    "labeller": expand(
        f"{OUT}/usage/labels/{SETTINGS.labeller.name}/{{name}}.parquet",
        name=[*SPLITS, *(f"traces/{suite}" for suite in TRIED)],
    ),
    "judge": [
        path.replace(f"{OUT}/scores/", f"{OUT}/usage/scores/", 1)
        for paths in [*SCORES.values(), [REPLAYED["replay_scores"]] if REPLAYED else []]
        for path in paths
    ],
}
MODULES = {
    script.stem: closure(script, SOURCE)
    for script in sorted((ROOT / "workflow" / "scripts").glob("*.py"))
}
# Asked again where a network may have failed; the reference endpoint fails for good reasons only.
RETRIES = {role: 2 if config[role]["kind"] == "remote" else 0 for role in ROLES}

# One reader at a time on the GPU, unless --resources gpu=N says otherwise.
GPU = 1 if SETTINGS.reader.device != "cpu" and gpus() else 0
workflow.global_resources.setdefault("gpu", 1)


wildcard_constraints:
    split="train|validation|test",
    shard=r"\d+",
    suite="[^/]+",
    point="[^/]+",


include: "workflow/rules/biographies.smk"
include: "workflow/rules/readers.smk"
include: "workflow/rules/trajectories.smk"
include: "workflow/rules/judging.smk"
include: "workflow/rules/detection.smk"
include: "workflow/rules/generation.smk"
include: "workflow/rules/methods.smk"
include: "workflow/rules/reporting.smk"
include: "workflow/rules/report.smk"
include: "workflow/rules/benchmarks.smk"


rule tables:
    input:
        COLLECTED,
    localrule: True


for alias in ["results/tables", "results/tables/"]:

    rule:
        name:
            alias
        input:
            COLLECTED,
        localrule: True


onstart:
    # A failed variant or shard does not stop the others.
    workflow.scheduler.keepgoing = True
    if not workflow.touch:
        from utaca import preflight

        try:
            preflight.check(
                SETTINGS, {job.rule.name for job in workflow.dag.needrun_jobs()}
            )
        except UserError as error:
            sys.exit(f"Error: {error}")
        if any(
            job.rule.name == "table_resources"
            for job in workflow.dag.needrun_jobs()
        ):
            order = {rule.name: place for place, rule in enumerate(workflow.rules)}
            jobs = [
                [job.rule.name, str(job.benchmark), str(job.log[0])]
                for job in workflow.dag.jobs
                if job.benchmark and job.rule.name not in AFTER_RESOURCES
            ]
            jobs.sort(key=lambda job: (order[job[0]], job))
            Path(JOBS).parent.mkdir(parents=True, exist_ok=True)
            Path(JOBS).write_text(json.dumps(jobs))


onsuccess:
    if any(job.rule.name in TABLE_TARGETS for job in workflow.dag.jobs):
        # The very last line of the run.
        atexit.register(
            print,
            f"The tables of {SETTINGS.reader.name} are in results/tables; start with results/tables/index.md.",
            file=sys.stderr,
            flush=True,
        )
