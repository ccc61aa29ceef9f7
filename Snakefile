"""UT-ACA from biographies to tables: `snakemake --cores all results/tables`.

The config is composed here, once, and planned: PLAN (`src/utaca/plan.py`) knows every file of the run and what it is
made from. Every rule gets just the part of the config that it uses as params, and a digest of the package's modules
that its script runs, so that an edit reruns what depends on it and nothing else.
"""

import atexit
import os
import shlex
import sys
from pathlib import Path

ROOT = Path(workflow.basedir)
SOURCE = Path(os.path.relpath(ROOT / "src"))
sys.path.insert(0, str(SOURCE.resolve()))
from utaca import preflight
from utaca.errors import UserError
from utaca.plan import KINDS, SPLITS, Plan, plain
from utaca.settings import command, runs
from utaca.settings.compose import compose
from utaca.settings.machine import check_paths, share_source

# Scripts run in processes of their own, which Snakemake calls by a shell without quoting the interpreter's path.
sys.executable = shlex.quote(sys.executable)
share_source(SOURCE)
COMMAND = command.read(sys.argv)
HERE = command.runs_here(COMMAND)
try:
    command.check_config(COMMAND.config or [])
    config.update(compose(config, ROOT))
    PLAN = Plan(config, SOURCE, here=HERE)
    check_paths([ROOT, *PLAN.inputs])
    runs.check(config, Path(PLAN.folder))
    PLAN.check_targets(COMMAND.targets)
except UserError as error:
    sys.exit(f"Error: {error}")

OUT, LOGS, MEASURED = PLAN.folder, PLAN.logs, PLAN.measured
SETTINGS, IDENTITY = PLAN.settings, PLAN.identity
LABELS, SCORES = PLAN.labels, PLAN.scores
SCRIPTS = sorted((ROOT / "workflow" / "scripts").glob("*.py"))
CODE = {script.stem: PLAN.code(script) for script in SCRIPTS}
TABLE = ROOT / "workflow" / "scripts" / "table.py"
ENVIRONMENT = str(ROOT / "environment.yml")
LAST_LINE = (
    f"Run {SETTINGS.run} is done: open {PLAN.report}; its tables are in {OUT}/tables."
)


wildcard_constraints:
    split="|".join(SPLITS),
    kind="|".join(KINDS),
    shard=r"\d+",
    variant="|".join(SETTINGS.detectors),
    table="|".join(PLAN.names("table")),
    figure="|".join(PLAN.names("figure")),


include: "workflow/rules/run.smk"
include: "workflow/rules/biographies.smk"
include: "workflow/rules/readers.smk"
include: "workflow/rules/trajectories.smk"
include: "workflow/rules/judging.smk"
include: "workflow/rules/detection.smk"
include: "workflow/rules/generation.smk"
include: "workflow/rules/tasks.smk"
include: "workflow/rules/reporting.smk"


rule tables:
    default_target: True
    input:
        PLAN.report,
    localrule: True


for alias in ["results/tables", "results/tables/"]:

    rule:
        name:
            alias
        input:
            PLAN.report,
        localrule: True


onstart:
    if not workflow.touch:
        try:
            preflight.check_jobs(SETTINGS, workflow.dag.needrun_jobs(), here=HERE)
            # Whatever part of the run is made first, its name is taken.
            runs.claim(config, Path(OUT))
        except UserError as error:
            sys.exit(f"Error: {error}")


if COMMAND.dryrun:
    atexit.register(print, preflight.NOT_IN_A_DRY_RUN, file=sys.stderr, flush=True)


onsuccess:
    if any(job.rule.name == "report" for job in workflow.dag.jobs):
        # The very last line of the run.
        atexit.register(print, LAST_LINE, file=sys.stderr, flush=True)
