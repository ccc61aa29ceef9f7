"""The table of labels, who decided them, and how people agree with the labeller."""

from pathlib import Path
from typing import TYPE_CHECKING

from utaca.judging.sheets import read_corrections
from utaca.records.logs import stage_log
from utaca.records.tables import read
from utaca.reporting.people import labels
from utaca.reporting.tables import save
from utaca.settings.checks import load

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

with stage_log(snakemake.log[0]):
    by_split = [
        {split: read(path, "labels") for split, path in zip(snakemake.params.splits, paths, strict=True)}
        for paths in (snakemake.input.uncorrected, snakemake.input.labels)
    ]
    sheet = next((read_corrections(Path(path)) for path in snakemake.input.sheet), None)
    save(labels(*by_split, sheet, load(snakemake.config)), Path(snakemake.output[0]).parent)
