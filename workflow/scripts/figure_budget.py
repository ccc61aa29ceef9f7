"""The budget over the steps of the answers."""

from pathlib import Path
from typing import TYPE_CHECKING

from utaca.records.logs import stage_log
from utaca.reporting.budget import budget, draw
from utaca.settings.checks import load

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

with stage_log(snakemake.log[0]):
    config = load(snakemake.config)
    draw(budget(snakemake.input.traces, config), Path(snakemake.output[0]).parent, config)
