"""Thresholds of the logit baselines, chosen on the validation split."""

from typing import TYPE_CHECKING

from utaca.detection.training.data import columns, sequences
from utaca.detection.training.verdicts import fit_heuristics, save_heuristics
from utaca.records.logs import stage_log
from utaca.records.tables import read
from utaca.settings import schema

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

with stage_log(snakemake.log[0]):
    plain = schema.Detector(embedding=False)
    trajectories = read(snakemake.input.validation, "trajectories", columns(plain))
    labels = read(snakemake.input.validation_labels, "labels")
    save_heuristics(snakemake.output[0], fit_heuristics(sequences(trajectories, labels, plain)))
