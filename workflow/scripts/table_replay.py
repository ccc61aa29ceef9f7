"""The tables of single decisions replayed the other way."""

from pathlib import Path
from typing import TYPE_CHECKING

from utaca.records.logs import stage_log
from utaca.reporting.replays import Files, cases, failures, replay
from utaca.reporting.tables import save
from utaca.settings.checks import load

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

with stage_log(snakemake.log[0]):
    config, given = load(snakemake.config), snakemake.input
    files = Files(given.answers, given.scores, given.replays, given.replay_scores)
    folder = Path(snakemake.output[0]).parent
    for table in (replay(files, config), failures(files, config), cases(files, given.fixed, config)):
        save(table, folder)
