"""Official scores of a task's answers."""

from utaca.records.logs import stage_log
from utaca.records.tables import rows, write
from utaca.settings.checks import digest
from utaca.tasks.questions import scores
from utaca.tasks.registry import TASKS

with stage_log(snakemake.log[0]):
    params = snakemake.params
    files = snakemake.input
    found = scores(TASKS[params.task](), rows(files.examples, "examples"), rows(files.answers, "answers"))
    config = digest(dict(params.items()))
    write(snakemake.output[0], "task_scores", found, config=config, made_from=[files.answers])
