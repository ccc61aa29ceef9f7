"""Verdicts of every detector seed and baseline on the trajectories of a split."""

from dataclasses import replace

import pyarrow as pa
import torch

from utaca.detection.detector import load_for
from utaca.detection.training.data import Sequences, columns, sequences
from utaca.detection.training.verdicts import detections, heuristics, verdicts
from utaca.records.logs import stage_log
from utaca.records.tables import read, reader_of, write
from utaca.settings import schema
from utaca.settings.checks import digest


def traces(settings: schema.DetectorSettings, trajectories: list[str], labels: str) -> Sequences:
    """A split as a detector is shown it, judged by the labeller whatever the detector learned from."""
    table = read(trajectories, "trajectories", columns(settings))
    return sequences(table, read(labels, "labels"), replace(settings, label="judged"))


with stage_log(snakemake.log[0]):
    torch.set_num_threads(snakemake.threads)
    params = snakemake.params
    files = snakemake.input
    split = (files.trajectories, files.labels)
    logits = schema.DetectorSettings(embedding=False)
    plain = traces(logits, *split)
    baselines = heuristics(traces(logits, files.validation, files.validation_labels), plain)
    tables = [detections(decided, plain, name, 0) for name, decided in baselines.items()]
    reader = reader_of(files.trajectories)
    seeds = len(files.detectors) // len(params.variants)
    for place, variant in enumerate(params.variants):
        paths = files.detectors[place * seeds :][:seeds]
        detectors = [load_for(reader, path, params.taken.get(variant)) for path in paths]
        shown = traces(detectors[0].settings, *split)
        for seed, detector in enumerate(detectors):
            for readout, decided in verdicts(detector, shown).items():
                # Only the main variant is compared with the baselines under their rule.
                if readout != "youden" or variant == params.main:
                    name = f"{variant}_{readout}" if readout else variant
                    tables.append(detections(decided, shown, name, seed))
    made_from = [*files.trajectories, files.labels, *files.detectors, *files.validation, files.validation_labels]
    config = digest(dict(params.items()))
    write(snakemake.output[0], "detections", pa.concat_tables(tables), config=config, made_from=made_from)
