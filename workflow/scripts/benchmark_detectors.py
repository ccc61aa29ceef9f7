"""The table of how long the training of the detector takes."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from utaca.benchmarks.detectors import LENGTHS, measure
from utaca.records.logs import stage_log
from utaca.reporting.render import number
from utaca.reporting.tables import Column, Table, save

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

with stage_log(snakemake.log[0]):
    params = snakemake.params
    threads = sorted({1, snakemake.threads})
    frame = pd.DataFrame([asdict(one) for one in measure(params.widths, threads, params.seeds, params.steps)])
    alone = frame[frame["seeds"] == 1].set_index(["width", "threads"])["step_s"]
    frame["alone_ratio"] = [row.seeds * alone[row.width, row.threads] / row.step_s for row in frame.itertuples()]
    frame["paper_minutes"] = frame["step_s"] * params.paper_steps / 60
    columns = (
        Column("D_in", lambda row: str(row["width"])),
        Column("Threads", lambda row: str(row["threads"])),
        Column("Seeds side by side", lambda row: str(row["seeds"])),
        Column("Step ms", lambda row: number(1000 * row["step_s"], 1)),
        Column("CPU ms", lambda row: number(1000 * row["cpu_s"], 1)),
        Column(f"{params.paper_steps} steps, minutes", lambda row: number(row["paper_minutes"], 1)),
        Column("Times as fast as one after another", lambda row: number(row["alone_ratio"], 2)),
    )
    caption = (
        f"Training of the default detector, validation every 100 steps included, {params.steps} steps a row, batches "
        f"of 16 random trajectories of {LENGTHS[0]} to {LENGTHS[1]} tokens. The paper trains {params.paper_steps} "
        "steps; minutes are for all seeds of the row. The pipeline gives a variant one thread and trains as many "
        "variants at once as there are cores. Times depend on the machine and what else it does."
    )
    save(Table("detectors", "Training of the detector", caption, frame, columns), Path(snakemake.output[0]).parent)
