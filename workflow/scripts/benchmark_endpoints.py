"""The table of how near the client of the endpoints comes to what its concurrency allows."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from utaca.benchmarks.endpoints import measure
from utaca.records.logs import stage_log
from utaca.reporting.render import number
from utaca.reporting.tables import Column, Table, save

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

with stage_log(snakemake.log[0]):
    params = snakemake.params
    found = list(measure(params.number, params.concurrency, params.seconds, params.runs))
    frame = pd.DataFrame([{**asdict(one), "ratio": one.ratio} for one in found])
    columns = (
        Column("Run", lambda row: row["run"]),
        Column("Ideal s", lambda row: number(row["ideal_s"], 2)),
        Column("Took s", lambda row: number(row["took_s"], 2)),
        Column("Client CPU s", lambda row: number(row["cpu_s"], 2)),
        Column("Ratio", lambda row: number(row["ratio"], 2)),
    )
    caption = (
        f"{params.number} items, {params.concurrency} at once, against a server on this machine that takes "
        f"{1000 * params.seconds:g} ms for each; ideal: items x time / concurrency. Each run starts with an empty "
        "store and includes making the client. Times depend on the machine and what else it does."
    )
    save(Table("endpoints", "Client of the endpoints", caption, frame, columns), Path(snakemake.output[0]).parent)
