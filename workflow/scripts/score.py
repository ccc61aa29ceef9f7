"""Scores of the answers of one operating point."""

from utaca.judging.cas import score
from utaca.judging.roles import Role
from utaca.records.logs import stage_log
from utaca.records.tables import rows, write
from utaca.settings.checks import digest

with stage_log(snakemake.log[0]):
    params = snakemake.params
    judge = Role.of("judge", snakemake.config)
    answers = rows(snakemake.input.answers, "answers")
    documents = rows(snakemake.input.documents, "documents")
    scores = score(answers, documents, judge)
    made_from = snakemake.input.answers
    write(snakemake.output.scores, "scores", scores, config=digest(dict(params.items())), made_from=made_from)
    write(snakemake.output.usage, "usage", judge.used, config=digest(params.judge))
