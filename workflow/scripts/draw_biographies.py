"""Biographies of the training and validation split."""

from utaca.biographies.dataset import biographies
from utaca.records.logs import stage_log
from utaca.records.tables import write
from utaca.settings.checks import digest

with stage_log(snakemake.log[0]):
    params = snakemake.params
    rows = biographies(snakemake.wildcards.split, params.number, params.seed)
    write(snakemake.output[0], "biographies", rows, config=digest(dict(params.items())))
