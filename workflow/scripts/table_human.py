"""The table of CAS, human scores and string match."""

from pathlib import Path
from typing import TYPE_CHECKING

from utaca.judging.sheets import read_scores
from utaca.records.logs import stage_log
from utaca.reporting.people import human
from utaca.reporting.tables import save
from utaca.settings.checks import load

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

with stage_log(snakemake.log[0]):
    sheet = next((read_scores(Path(path)) for path in snakemake.input.sheet), None)
    save(human(snakemake.input.scores, sheet, load(snakemake.config)), Path(snakemake.output[0]).parent)
