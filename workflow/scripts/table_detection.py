"""Token-level uncertainty detection, as a table."""

from typing import TYPE_CHECKING

from utaca.reporting.tables import detection_table

from utaca.records.logs import stage_log
from utaca.records.tables import read

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

with stage_log(snakemake.log[0]):
    params, output = snakemake.params, snakemake.output
    table = detection_table(
        read(snakemake.input.detections, "detections"),
        reader=params.reader,
        bootstrap=params.bootstrap,
        seed=params.seed,
    )
    table.write(csv=output.csv, markdown=output.md, latex=output.tex)
