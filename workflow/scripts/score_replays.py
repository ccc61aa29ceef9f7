"""Scores of the replayed answers."""

from utaca.judging.cas import score
from utaca.judging.roles import Role
from utaca.records.logs import stage_log
from utaca.records.schemas import replay_name
from utaca.records.tables import rows, write
from utaca.settings.checks import digest

with stage_log(snakemake.log[0]):
    params = snakemake.params
    files = snakemake.input
    output = snakemake.output
    judge = Role.of("judge", snakemake.config)
    answers = [row | {"split": "test", "point": replay_name(row)} for row in rows(files.replays, "replays")]
    scores = score(answers, rows(files.documents, "documents"), judge)
    write(output.scores, "scores", scores, config=digest(dict(params.items())), made_from=[files.replays])
    write(output.usage, "usage", judge.used, config=digest(params.judge))
