"""Padding prose from the configured source."""

from pathlib import Path

from utaca.biographies import corpora
from utaca.records.logs import stage_log
from utaca.records.tables import write
from utaca.settings import schema
from utaca.settings.checks import build, digest

with stage_log(snakemake.log[0]):
    params = snakemake.params
    settings = build(schema.CorpusSettings, snakemake.config["corpus"], "corpus")
    rows = corpora.load(settings, params.seed, Path(params.cache))
    write(snakemake.output[0], "corpus", rows, config=digest(dict(params.items())))
