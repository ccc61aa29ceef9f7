"""The table of what each stage took."""

from pathlib import Path
from typing import TYPE_CHECKING

from utaca.records.logs import stage_log
from utaca.reporting.resources import answered, decoded, resources
from utaca.reporting.tables import save
from utaca.settings.checks import load

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

with stage_log(snakemake.log[0]):
    params, config = snakemake.params, load(snakemake.config)
    documents = dict(zip(params.trajectories, snakemake.input.documents, strict=True))
    tokens = {"decode_trajectories": decoded(params.trajectories, documents)}
    tokens |= {f"generate_{split}": answered(*paths) for split, paths in params.generated.items()}
    save(resources(params.jobs, tokens, config), Path(snakemake.output[0]).parent)
