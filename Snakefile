"""UT-ACA from biographies to tables: `snakemake --cores all results/tables`.

The config is composed here, once. Every rule gets just the part of it that it uses as params, and a digest of the
package's modules that its script runs, so that an edit reruns what depends on it and nothing else.
"""

import atexit
import os
import shlex
import sys
from pathlib import Path

# This file's folder; where workflow/Snakefile includes it, workflow.basedir is that file's.
ROOT = Path(str(workflow.current_basedir))
SOURCE = Path(os.path.relpath(ROOT / "src"))
sys.path[:0] = [str(SOURCE.resolve()), str(ROOT)]
from snakemake.common.configfile import load_configfile
from snakemake.utils import min_version
from utaca.runs import preflight
from utaca.errors import UserError
from utaca.runs import record as runs
from utaca.runs import command_line as command
from utaca.runs import config_files as configfiles
from utaca.runs import interrupt
from utaca.runs.compose import compose
from utaca.runs.places import check_paths, share_source
from utaca.readers import public
from utaca.settings.checks import SPLITS
from utaca.settings.triggers import as_written
from workflow.needs import Needs
from workflow.plan import KINDS, SHEETS, Plan, there
from workflow.time_left import watch

# Earlier ones do not read profiles/default/profile.yaml.
min_version("9.19.0")
interrupt.end_quietly()
shell.prefix(interrupt.DEAF)
# Scripts run in processes of their own, which Snakemake calls by a shell without quoting the interpreter's path.
sys.executable = shlex.quote(sys.executable)
share_source(SOURCE)
COMMAND = command.read(sys.argv)
HERE = command.runs_here(COMMAND)
try:
    command.check_config(COMMAND.config or [])
    for path in workflow.overwrite_configfiles:
        configfiles.check(path)
    config.update(compose(config, ROOT, map(load_configfile, workflow.overwrite_configfiles)))
    # Imported only here: a table of the user's may be declared wrongly.
    from utaca.reporting.registry import ENDINGS, ENTRIES
    from workflow.digests import Digests
    from workflow.reporting import OF_RUN, SHOWN, Reporting
    from workflow.targets import Targets

    # What the rules ask, and short names for paths in them.
    plan = Plan(config, ROOT)
    needs = Needs(plan, HERE)
    digests = Digests(plan, SOURCE)
    reporting = Reporting(plan)
    targets = Targets(reporting)
    SETTINGS, IDENTITY = plan.settings, plan.identity
    OUT, LOGS, BENCHMARKS, LABELS, SCORES = plan.out, plan.logs, plan.benchmarks, plan.labels, plan.scores
    check_paths([ROOT, *plan.inputs])
    plan.check_there()
    reporting.check_tables()
    runs.check(config, Path(OUT))
    targets.check(COMMAND.targets)
except UserError as error:
    sys.exit(f"Error: {error}")
LAST_LINE = f"Run {SETTINGS.run} is done: open {plan.report}; its tables are in {OUT}/tables."


# The environment of every job under `--sdm apptainer`; `make sif` makes the file. Otherwise it has no effect.
container: "utaca.sif"


# What `snakemake --report` says on its first page.
report: "workflow/report/workflow.rst"


wildcard_constraints:
    split="|".join(SPLITS),
    kind="|".join(KINDS),
    shard=r"\d+",
    task="|".join(SETTINGS.tasks.sets) or "none",
    variant="|".join(SETTINGS.detectors),


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
        plan.report,
    localrule: True


# Other targets: all that a stage leaves.
for target, made in targets.stages.items():

    rule:
        name:
            target
        input:
            made,
        localrule: True


try:
    targets.check_names(COMMAND.targets, [rule.name for rule in workflow.rules])
except UserError as error:
    sys.exit(f"Error: {error}")


onstart:
    if not workflow.touch:
        try:
            jobs = list(workflow.dag.needrun_jobs())
            checked = preflight.check_jobs(SETTINGS, jobs, here=HERE)
            preflight.check_files(jobs, Path(OUT))
            if preflight.WINDOW in checked:
                print(f"Checked: {checked[preflight.WINDOW]}.", file=sys.stderr, flush=True)
            # Whatever part of the run is made first, its name is taken.
            asked = any(job.rule.name == "run_config" for job in workflow.dag.jobs)
            runs.claim(config, Path(OUT), asked=asked)
            watch(SETTINGS, jobs, Path(OUT).parent)
        except UserError as error:
            sys.exit(f"Error: {error}")


if COMMAND.dryrun:
    atexit.register(print, preflight.NOT_IN_A_DRY_RUN, file=sys.stderr, flush=True)


# The very last line says where the files are.
onsuccess:
    whole = any(job.rule.name == "report" for job in workflow.dag.jobs)
    targets.say_where(COMMAND.targets, LAST_LINE if whole else "")


if not COMMAND.dryrun:
    whole_run = {*COMMAND.targets} <= {"tables", "results/tables"}
    command.when_nothing_is_to_do(lambda: targets.say_where(COMMAND.targets, LAST_LINE if whole_run else ""))
