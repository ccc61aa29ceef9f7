"""The run's config as a file that repeats it."""

from pathlib import Path

from utaca.records.logs import stage_log
from utaca.runs import record as runs

with stage_log(snakemake.log[0]):
    runs.write(snakemake.config, Path(snakemake.output[0]))
