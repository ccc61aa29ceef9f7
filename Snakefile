"""UT-ACA from biographies to tables: `snakemake --cores all results/tables`.

The config is composed here, once; every rule gets just the part that it uses as params, and the package's modules
that its script runs as input, so that an edit reruns what depends on it and nothing else.
"""

import os
import sys
from pathlib import Path

from snakemake.exceptions import WorkflowError

ROOT = Path(workflow.basedir)
SOURCE = Path(os.path.relpath(ROOT / "src"))
sys.path.insert(0, str(SOURCE.resolve()))
from utaca.errors import UserError
from utaca.settings.checks import ROLES, identity, load
from utaca.settings.compose import compose
from utaca.settings.machine import gpus, share_source
from utaca.settings.modules import closure
from utaca.settings.points import point_name

# Scripts run in processes of their own.
share_source(SOURCE)
try:
    config.update(compose(config, ROOT))
except UserError as error:
    sys.exit(f"Error: {error}")

SETTINGS = load(config)
IDENTITY = identity(SETTINGS)
SCALE = IDENTITY["scale"]
OUT = f"results/{SETTINGS.reader.name}"
LOGS = f"logs/{SETTINGS.reader.name}"
STORE = "results/answers.sqlite"
ENVIRONMENT = str(ROOT / "environment.yml")
SPLITS = ["train", "validation", "test"]
LABELS = f"{OUT}/labels/{SETTINGS.labeller.name}"
READER = {key: value for key, value in IDENTITY["reader"].items() if key != "training"}
READER_FILES = [
    os.path.relpath(path)
    for path in sorted(Path(SETTINGS.reader.path).glob("*"))
    if path.suffix in {".json", ".jinja", ".safetensors"}
]
TOKENIZER_FILES = [path for path in READER_FILES if "token" in Path(path).name]
TRAJECTORIES = {
    split: expand(
        f"{OUT}/trajectories/{split}/part-{{shard}}.parquet",
        shard=range(SCALE[split]["shards"]),
    )
    for split in SPLITS
}
DETECTOR = f"{OUT}/detectors/{SETTINGS.detector.name}/seed{{seed}}/model.safetensors"
DETECTORS = expand(DETECTOR, seed=range(SCALE["detector_seeds"]))
POINTS = {
    name: [point_name(point) for point in suite.points]
    for name, suite in SETTINGS.suites.items()
}
GENERATIONS = {
    name: expand(
        f"{OUT}/generations/{name}/{{point}}/answers-{{shard}}.parquet",
        point=POINTS[name],
        shard=range(SCALE[suite.split]["shards"]),
    )
    for name, suite in SETTINGS.suites.items()
}
SCORES = {
    name: expand(
        f"{OUT}/scores/{SETTINGS.judge.name}/{name}/{{point}}.parquet",
        point=points,
    )
    for name, points in POINTS.items()
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
    seed=r"\d+",
    suite="[^/]+",
    point="[^/]+",


include: "workflow/rules/reporting.smk"
include: "workflow/rules/biographies.smk"
include: "workflow/rules/readers.smk"
include: "workflow/rules/trajectories.smk"
include: "workflow/rules/judging.smk"
include: "workflow/rules/detection.smk"
include: "workflow/rules/generation.smk"


rule tables:
    input:
        COLLECTED,
        "results/tables/index.md",
    localrule: True


for alias in ["results/tables", "results/tables/"]:

    rule:
        name:
            alias
        input:
            rules.tables.input,
        localrule: True


onstart:
    # A failed seed or shard does not stop the others.
    workflow.scheduler.keepgoing = True
    if not workflow.touch:
        from utaca import preflight

        try:
            preflight.check(
                SETTINGS, {job.rule.name for job in workflow.dag.needrun_jobs()}
            )
        except UserError as error:
            raise WorkflowError(str(error)) from None


onsuccess:
    if any(job.rule.name in TABLE_TARGETS for job in workflow.dag.jobs):
        print(
            f"The tables of {SETTINGS.reader.name} are in results/tables; start with results/tables/index.md.",
            file=sys.stderr,
        )
