"""Training of the small token classifier that compresses documents where LLMLingua-2's own is not to be had."""

from pathlib import Path
from typing import TYPE_CHECKING

import torch

from utaca.readers.tiny.keeper import train
from utaca.readers.tiny.recipe import paragraphs
from utaca.records.logs import stage_log
from utaca.settings import schema
from utaca.settings.checks import build

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

with stage_log(snakemake.log[0]):
    torch.set_num_threads(snakemake.threads)
    training = build(schema.Reader, snakemake.config["reader"], "reader").training
    train(paragraphs(training), Path(snakemake.output[0]).parent, snakemake.params.steps, training.seed)
