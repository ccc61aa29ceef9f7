"""The table of quality, latency and memory on the test split."""

from pathlib import Path
from typing import TYPE_CHECKING

from utaca.records.logs import stage_log
from utaca.reporting.generation import tradeoff
from utaca.reporting.tables import save
from utaca.settings.checks import load

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

with stage_log(snakemake.log[0]):
    config = load(snakemake.config)
    save(tradeoff(snakemake.input.answers, snakemake.input.scores, config), Path(snakemake.output[0]).parent)
