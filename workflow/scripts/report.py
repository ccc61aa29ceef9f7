"""The report of a run, beside the results of its reader and in the folder of all results."""

from pathlib import Path
from typing import TYPE_CHECKING

from utaca.records import atomic_path
from utaca.records.logs import stage_log
from utaca.reporting.report import page
from utaca.settings.checks import load

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

with stage_log(snakemake.log[0]):
    params, config = snakemake.params, load(snakemake.config)
    path = Path(snakemake.output[0])
    html = page(snakemake.input.results, params.links, "snakemake", config, path.parent)
    with atomic_path(path) as scratch:
        scratch.write_text(html, encoding="ascii")
