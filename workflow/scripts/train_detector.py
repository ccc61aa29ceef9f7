"""A variant of the uncertainty detector, all seeds side by side."""

import csv
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from utaca.decoding.policies import parse
from utaca.detection.training.data import Sequences, columns, sequences
from utaca.detection.training.training import train
from utaca.records.logs import stage_log
from utaca.records.tables import atomic_path, read, reader_of
from utaca.settings import schema
from utaca.settings.checks import build

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake


def shown(trajectories: Sequence[str], labels: str | list[str]) -> Sequences:
    """A split as the detector is shown it."""
    table = read(trajectories, "trajectories", columns(settings))
    return sequences(table, read(labels, "labels") if labels else None, settings)


with stage_log(snakemake.log[0]):
    torch.set_num_threads(snakemake.threads)
    files, output = snakemake.input, snakemake.output
    settings = build(schema.Detector, snakemake.params.detector, "detector")
    trained = train(
        settings,
        shown(files.train, files.train_labels),
        shown(files.validation, files.validation_labels),
        steps=snakemake.params.steps,
        seeds=range(len(output.models)),
        reader=reader_of([*files.train, *files.validation]),
        update=parse(settings.target.policy).update,
        description=snakemake.rule,
    )
    for (detector, curve), model_path, curve_path in zip(trained, output.models, output.curves, strict=True):
        detector.save(model_path)
        with atomic_path(curve_path) as scratch, open(scratch, "w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, curve[0])
            writer.writeheader()
            writer.writerows(curve)
