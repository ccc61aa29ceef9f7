"""Fetching of a public model's file, once for all runs."""

from pathlib import Path

from utaca.errors import UserError
from utaca.readers import public
from utaca.records.logs import stage_log

with stage_log(snakemake.log[0]):
    path = Path(snakemake.output[0])
    if (file := public.entry(path)) is None:
        raise UserError(
            f"{path} does not exist, and data/readers/public.yaml does not list it; copy the file here, or correct the "
            "path"
        )
    public.fetch(path, file)
