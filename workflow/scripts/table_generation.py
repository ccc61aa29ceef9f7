"""The table of generation on a split."""

from pathlib import Path
from typing import TYPE_CHECKING

from utaca.records.logs import stage_log
from utaca.reporting.generation import generation
from utaca.reporting.tables import save
from utaca.settings.checks import load

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

with stage_log(snakemake.log[0]):
    config, files = load(snakemake.config), snakemake.input
    table = generation(snakemake.params.split, files.answers, files.scores, config)
    save(table, Path(snakemake.output[0]).parent)
