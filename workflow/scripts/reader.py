"""Training of the tiny reader; a killed training resumes from the folder beside the output."""

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from utaca.readers.tiny.recipe import make
from utaca.records.logs import stage_log
from utaca.settings import schema
from utaca.settings.checks import build

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

with stage_log(snakemake.log[0]):
    torch.set_num_threads(snakemake.threads)
    settings = build(schema.Reader, snakemake.config["reader"], "reader")
    output = Path(snakemake.output[0])
    scratch = output.with_name("training")
    make(settings, scratch)
    shutil.copytree(scratch, output, ignore=shutil.ignore_patterns("checkpoint.pt"), dirs_exist_ok=True)
    shutil.rmtree(scratch)
