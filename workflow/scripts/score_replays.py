"""Scores of the replayed answers that are others than the original ones."""

from typing import TYPE_CHECKING

from utaca.judging.cas import score
from utaca.judging.roles import Role
from utaca.records.logs import stage_log
from utaca.records.tables import rows, write
from utaca.settings.checks import digest

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

with stage_log(snakemake.log[0]):
    params, files = snakemake.params, snakemake.input
    judge = Role.of("judge", snakemake.config)
    answers = [answer for answer in rows(files.answers, "answers") if answer["point"] == params.point]
    texts = {answer["document"]: answer["text"] for answer in answers}
    changed = [
        {**row, "suite": "replays", "point": str(row["step"])}
        for row in rows(files.replays, "replays")
        if row["text"] != texts[row["document"]]
    ]
    scores = score(changed, rows(files.documents, "documents"), judge)
    config, made_from = digest(dict(params.items())), [*files.replays, *files.answers]
    write(snakemake.output.scores, "scores", scores, config=config, made_from=made_from)
    write(snakemake.output.usage, "usage", judge.used, config=digest(params.judge))
