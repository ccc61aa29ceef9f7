"""UT-ACA from biographies to tables: `snakemake --cores all results/tables`.

The config is composed here, once. Every rule gets just the part of it that it uses as params, and a digest of the
package's modules that its script runs, so that an edit reruns what depends on it and nothing else.
"""

import atexit
import os
import shlex
import sys
from pathlib import Path

ROOT = Path(workflow.basedir)
SOURCE = Path(os.path.relpath(ROOT / "src"))
sys.path.insert(0, str(SOURCE.resolve()))
from snakemake.common.configfile import load_configfile
from utaca.runs import preflight
from utaca.errors import UserError
from utaca.runs import record as runs
from utaca.runs import command_line as command
from utaca.runs import config_files as configfiles
from utaca.runs import interrupt
from utaca.runs.compose import compose
from utaca.runs.places import check_paths, share_source

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
    # A table of the user's may be declared wrongly.
    from utaca.reporting import registry
except UserError as error:
    sys.exit(f"Error: {error}")


include: "workflow/rules/common.smk"


try:
    check_paths([ROOT, *INPUTS])
    check_there()
    check_tables()
    runs.check(config, Path(OUT))
    check_targets(COMMAND.targets)
except UserError as error:
    sys.exit(f"Error: {error}")
LAST_LINE = f"Run {SETTINGS.run} is done: open {REPORT}; its tables are in {OUT}/tables."


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
        REPORT,
    localrule: True


# Other targets: all that a stage leaves.
for target, made in STAGES.items():

    rule:
        name:
            target
        input:
            made,
        localrule: True


try:
    check_names(COMMAND.targets, [rule.name for rule in workflow.rules])
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
        except UserError as error:
            sys.exit(f"Error: {error}")


if COMMAND.dryrun:
    atexit.register(print, preflight.NOT_IN_A_DRY_RUN, file=sys.stderr, flush=True)


onsuccess:
    whole = any(job.rule.name == "report" for job in workflow.dag.jobs)
    # The very last line of the run.
    if last := LAST_LINE if whole else where(COMMAND.targets):
        atexit.register(print, last, file=sys.stderr, flush=True)
