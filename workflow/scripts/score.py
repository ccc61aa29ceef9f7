"""Scores of the answers of one operating point."""

from typing import TYPE_CHECKING, Any

from utaca.judging.cas import score
from utaca.records.logs import stage_log
from utaca.records.tables import rows, write
from utaca.settings import schema
from utaca.settings.checks import build, digest

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

with stage_log(snakemake.log[0]):
    params = snakemake.params
    judge = build(schema.Endpoint, snakemake.config["judge"], "judge")
    answers = rows(snakemake.input.answers, "answers")
    documents = rows(snakemake.input.documents, "documents")
    used: list[dict[str, Any]] = []
    scores = score(answers, documents, judge, snakemake.config["answers"], used)
    made_from = snakemake.input.answers
    write(snakemake.output.scores, "scores", scores, config=digest(dict(params.items())), made_from=made_from)
    write(snakemake.output.usage, "usage", used, config=digest(params.judge))
