"""Copies of a reader's tables and figures in results/tables, and the index page."""

from pathlib import Path
from typing import TYPE_CHECKING

from utaca.records.logs import stage_log
from utaca.reporting.tables import index
from utaca.settings.checks import load

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

with stage_log(snakemake.log[0]):
    config = load(snakemake.config)
    index(snakemake.input.tables, Path(snakemake.output[0]).parent, config)
