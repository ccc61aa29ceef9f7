"""Quality and cost of the operating points of a split, as a table."""

from typing import TYPE_CHECKING

from utaca.records.logs import stage_log
from utaca.records.tables import read
from utaca.reporting import tables

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

with stage_log(snakemake.log[0]):
    params, output = snakemake.params, snakemake.output
    make = tables.tradeoff_table if params.table == "tradeoff" else tables.generation_table
    table = make(
        read(snakemake.input.answers, "answers"),
        read(snakemake.input.scores, "scores"),
        reader=params.reader,
        bootstrap=params.bootstrap,
        seed=params.seed,
    )
    table.write(csv=output.csv, markdown=output.md, latex=output.tex)
