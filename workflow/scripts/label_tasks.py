"""Labels of the tokens of a task's trajectories."""

from typing import TYPE_CHECKING, Any

from utaca.judging.answers import label_answers
from utaca.records.logs import stage_log
from utaca.records.tables import read, rows, write
from utaca.settings import schema
from utaca.settings.checks import build, digest

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

with stage_log(snakemake.log[0]):
    params, files = snakemake.params, snakemake.input
    labeller = build(schema.Endpoint, snakemake.config["labeller"], "labeller")
    columns = ["document", "budget", "step", "token", "text", "finish"]
    trajectories = read(files.trajectories, "trajectories", columns)
    questions = {row["id"]: (row["query"], tuple(row["references"])) for row in rows(files.examples, "examples")}
    used: list[dict[str, Any]] = []
    labels = label_answers(trajectories, questions, labeller, snakemake.config["answers"], used)
    write(snakemake.output.labels, "labels", labels, config=digest(dict(params.items())))
    write(snakemake.output.usage, "usage", used, config=digest(params.labeller))
