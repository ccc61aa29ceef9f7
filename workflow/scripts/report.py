"""The report of a run."""

from pathlib import Path

from utaca.records import atomic_path
from utaca.records.logs import stage_log
from utaca.reporting.registry import ENTRIES
from utaca.reporting.report import page
from utaca.settings.checks import load

with stage_log(snakemake.log[0]):
    files = snakemake.input
    path = Path(snakemake.output[0])
    about = {"run": files.run, "manifest": files.manifest}
    config = load(snakemake.config)
    html = page(
        files.results,
        snakemake.params.links,
        config,
        path.parent,
        registry=ENTRIES,
        about=about,
        left_out=snakemake.params.left_out,
    )
    with atomic_path(path) as scratch:
        scratch.write_text(html, encoding="ascii")
