"""The reader's files, fetched before jobs need them."""

import sys

from utaca.readers import files
from utaca.records.logs import stage_log
from utaca.settings import schema
from utaca.settings.checks import build

with stage_log(snakemake.log[0]):
    print(files.fetch(build(schema.ReaderSettings, snakemake.config["reader"], "reader")), file=sys.stderr)
