"""Verdicts of every detector seed and baseline on the test trajectories."""

from typing import TYPE_CHECKING

import pyarrow as pa
import torch

from utaca.detection.data import detect, sequences
from utaca.detection.detector import load
from utaca.detection.heuristics import load_heuristics
from utaca.records.logs import stage_log
from utaca.records.tables import read, write
from utaca.settings.checks import digest

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

with stage_log(snakemake.log[0]):
    torch.set_num_threads(snakemake.threads)
    params = snakemake.params
    traces = sequences(read(snakemake.input.trajectories, "trajectories"), read(snakemake.input.labels, "labels"))
    tables = [
        detect(heuristic, traces, name, 0) for name, heuristic in load_heuristics(snakemake.input.baselines[0]).items()
    ]
    for seed, path in enumerate(snakemake.input.detectors):
        tables.append(detect(load(path), traces, params.detector, seed))
    write(snakemake.output[0], "detections", pa.concat_tables(tables), config=digest(dict(params.items())))
