"""Labels of the trajectory tokens of a shard."""

from typing import TYPE_CHECKING, Any

from utaca.judging.labels import label
from utaca.records.logs import stage_log
from utaca.records.tables import read, rows, write
from utaca.settings import schema
from utaca.settings.checks import build, digest

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

with stage_log(snakemake.log[0]):
    params = snakemake.params
    labeller = build(schema.Endpoint, snakemake.config["labeller"], "labeller")
    columns = ["document", "budget", "step", "token", "text", "finish"]
    trajectories = read(snakemake.input.trajectories, "trajectories", columns)
    documents = rows(snakemake.input.documents, "documents")
    used: list[dict[str, Any]] = []
    labels = label(trajectories, documents, labeller, snakemake.config["answers"], used)
    write(snakemake.output.labels, "labels", labels, config=digest(dict(params.items())))
    write(snakemake.output.usage, "usage", used, config=digest(params.labeller))
