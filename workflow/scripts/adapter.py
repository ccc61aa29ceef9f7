"""Tuning of SmolLM2's adapter; a killed tuning resumes from the folder beside the output."""

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from utaca.readers.smollm2.recipe import make
from utaca.records.logs import stage_log
from utaca.settings import schema
from utaca.settings.checks import build

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

with stage_log(snakemake.log[0]):
    torch.set_num_threads(snakemake.threads)
    output = Path(snakemake.output[0])
    scratch = output.with_name("tuning")
    wordings = Path(snakemake.input.wordings[0]).parent
    make(build(schema.Reader, snakemake.config["reader"], "reader"), scratch, wordings)
    shutil.copytree(scratch, output, ignore=shutil.ignore_patterns("checkpoint.pt"), dirs_exist_ok=True)
    shutil.rmtree(scratch)
