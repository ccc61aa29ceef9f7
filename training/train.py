"""The training of a rule: its recipe fills a folder beside the output, from which a killed training resumes."""

import shutil
from importlib import import_module
from pathlib import Path

import torch

from training.settings import load
from utaca.records.logs import stage_log

with stage_log(snakemake.log[0]):
    torch.set_num_threads(snakemake.threads)
    output = Path(snakemake.output[0])
    scratch = output.with_name(f"{output.name}.unfinished")
    import_module(snakemake.params.recipe).make(load(snakemake.config), scratch)
    shutil.copytree(scratch, output, ignore=shutil.ignore_patterns("checkpoint.pt"), dirs_exist_ok=True)
    shutil.rmtree(scratch)
