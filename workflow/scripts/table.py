"""A table or figure of the registry."""

from pathlib import Path

from utaca.records.logs import stage_log
from utaca.reporting.table import make
from utaca.settings.checks import load

with stage_log(snakemake.log[0]):
    (name,) = snakemake.wildcards
    # A name of one file is a text, of several a list.
    files = {key: [found] if isinstance(found, str) else list(found) for key, found in snakemake.input.items()}
    make(name, files, load(snakemake.config), Path(snakemake.output[0]).parent)
