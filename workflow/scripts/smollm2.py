"""Fetching and conversion of SmolLM2-135M-Instruct, once for all runs."""

from pathlib import Path
from typing import TYPE_CHECKING

import torch

from utaca.readers.smollm2.fetch import fetch
from utaca.records.logs import stage_log

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

with stage_log(snakemake.log[0]):
    torch.set_num_threads(snakemake.threads)
    fetch(Path(snakemake.output[0]).parent)
