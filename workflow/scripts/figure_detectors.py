"""The table of detection as a figure."""

from pathlib import Path
from typing import TYPE_CHECKING

from utaca.records.logs import stage_log
from utaca.reporting.spread import spread

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

with stage_log(snakemake.log[0]):
    spread(snakemake.input.table, Path(snakemake.output[0]).parent)
