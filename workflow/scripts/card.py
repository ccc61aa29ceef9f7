"""The reader card."""

from pathlib import Path
from typing import TYPE_CHECKING

from utaca.records.logs import stage_log
from utaca.records.tables import read
from utaca.reporting.card import card
from utaca.reporting.tables import save
from utaca.settings.checks import load
from utaca.tasks.card.measures import scores

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

with stage_log(snakemake.log[0]):
    files, config = snakemake.input, load(snakemake.config)
    scored = scores(read(files.readings, "readings"), config.judge, config.answers)
    save(card(scored, config), Path(snakemake.output[0]).parent)
