"""The index page of results/tables."""

from pathlib import Path
from typing import TYPE_CHECKING

from utaca.reporting.tables import index_page

from utaca.records.logs import stage_log
from utaca.records.tables import atomic_path
from utaca.settings.checks import digest

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

with stage_log(snakemake.log[0]):
    config = snakemake.params.config
    tables = {Path(path).stem: Path(path).read_text(encoding="utf-8") for path in snakemake.input.tables}
    page = index_page(tables, config=config, digest=digest(config))
    with atomic_path(snakemake.output[0]) as scratch:
        scratch.write_text(page, encoding="utf-8")
