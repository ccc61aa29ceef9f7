"""The table of generation with detectors of several seeds."""

from pathlib import Path
from typing import TYPE_CHECKING

from utaca.records.logs import stage_log
from utaca.reporting.generation import seeds
from utaca.reporting.tables import save
from utaca.settings.checks import load

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

with stage_log(snakemake.log[0]):
    config = load(snakemake.config)
    save(seeds(snakemake.input.answers, snakemake.input.scores, config), Path(snakemake.output[0]).parent)
