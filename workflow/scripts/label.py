"""Labels of the trajectory tokens of a shard."""

from utaca.judging.labels import label
from utaca.judging.roles import Role
from utaca.records.logs import stage_log
from utaca.records.tables import read, rows, write
from utaca.settings.checks import digest

with stage_log(snakemake.log[0]):
    params = snakemake.params
    labeller = Role.of("labeller", snakemake.config)
    columns = ["document", "budget", "step", "token", "text", "finish"]
    trajectories = read(snakemake.input.trajectories, "trajectories", columns)
    documents = rows(snakemake.input.documents, "documents")
    labels = label(trajectories, documents, labeller)
    write(snakemake.output.labels, "labels", labels, config=digest(dict(params.items())))
    write(snakemake.output.usage, "usage", labeller.used, config=digest(params.labeller))
