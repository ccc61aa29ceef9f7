"""The table of generation on the test split, and its figure."""

from pathlib import Path
from typing import TYPE_CHECKING

from utaca.records.logs import stage_log
from utaca.reporting.figures import pareto
from utaca.reporting.tables import save, test
from utaca.settings.checks import load

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

with stage_log(snakemake.log[0]):
    config = load(snakemake.config)
    folder = Path(snakemake.output[0]).parent
    table = test(snakemake.input.answers, snakemake.input.scores, config)
    save(table, folder)
    pareto(table, folder, config)
