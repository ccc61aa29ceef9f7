"""The tables of CAS beside string match."""

from pathlib import Path
from typing import TYPE_CHECKING

from utaca.records.logs import stage_log
from utaca.reporting.scorers import disagreements, scorers
from utaca.reporting.tables import save
from utaca.settings.checks import load

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

with stage_log(snakemake.log[0]):
    config, folder = load(snakemake.config), Path(snakemake.output[0]).parent
    for table in (scorers(snakemake.input.scores, config), disagreements(snakemake.input.scores, config)):
        save(table, folder)
