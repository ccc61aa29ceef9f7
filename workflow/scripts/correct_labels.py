"""Labels of a split with what people changed, where they filled in a sheet."""

from pathlib import Path

from utaca.judging.sheets import Correction, correct, read_sheet
from utaca.records.logs import stage_log
from utaca.records.tables import read, write
from utaca.settings.checks import digest

with stage_log(snakemake.log[0]):
    labels = read(snakemake.input.labels, "labels")
    for sheet in snakemake.input.sheet:
        labels = correct(labels, snakemake.wildcards.split, read_sheet(Path(sheet), Correction))
    write(snakemake.output[0], "labels", labels, config=digest(dict(snakemake.params.items())))
