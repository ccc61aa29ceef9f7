"""Labels of the tokens of a task's trajectories."""

from utaca.judging.labels import label_answers
from utaca.judging.roles import Role
from utaca.records.logs import stage_log
from utaca.records.tables import read, rows, write
from utaca.settings.checks import digest

with stage_log(snakemake.log[0]):
    params = snakemake.params
    files = snakemake.input
    labeller = Role.of("labeller", snakemake.config)
    columns = ["document", "budget", "step", "token", "text", "finish"]
    trajectories = read(files.trajectories, "trajectories", columns)
    questions = {row["id"]: (row["query"], tuple(row["references"])) for row in rows(files.examples, "examples")}
    labels = label_answers(trajectories, questions, labeller)
    write(snakemake.output.labels, "labels", labels, config=digest(dict(params.items())))
    write(snakemake.output.usage, "usage", labeller.used, config=digest(params.labeller))
