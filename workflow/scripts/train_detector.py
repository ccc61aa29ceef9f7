"""One seed of the uncertainty detector."""

import csv
from typing import TYPE_CHECKING

import torch

from utaca.detection.data import sequences
from utaca.detection.training import train
from utaca.records.logs import stage_log
from utaca.records.tables import atomic_path, read
from utaca.settings import schema
from utaca.settings.checks import build

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

with stage_log(snakemake.log[0]):
    torch.set_num_threads(snakemake.threads)
    files = snakemake.input
    seed = int(snakemake.wildcards.seed)
    detector, curve = train(
        build(schema.Detector, snakemake.params.detector, "detector"),
        sequences(read(files.train, "trajectories"), read(files.train_labels, "labels")),
        sequences(read(files.validation, "trajectories"), read(files.validation_labels, "labels")),
        steps=snakemake.params.steps,
        seed=seed,
        description=f"detector {seed}",
    )
    detector.save(snakemake.output.model)
    with atomic_path(snakemake.output.curve) as scratch, open(scratch, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, curve[0])
        writer.writeheader()
        writer.writerows(curve)
