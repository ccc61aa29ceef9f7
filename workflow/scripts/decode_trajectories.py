"""Trajectories of a shard of documents under every compact budget."""

from typing import TYPE_CHECKING

import torch
from utaca.decoding.trajectories import decode_trajectories

from utaca.readers.load import load
from utaca.records.logs import stage_log
from utaca.records.schemas import trajectory_schema
from utaca.records.tables import rows, write
from utaca.settings import schema
from utaca.settings.checks import build, digest

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

with stage_log(snakemake.log[0]):
    torch.set_num_threads(snakemake.threads)
    params = snakemake.params
    reader = load(build(schema.Reader, snakemake.config["reader"], "reader"))
    documents = rows(snakemake.input.documents, "documents")[int(snakemake.wildcards.shard) :: params.shards]
    table = decode_trajectories(reader, documents, params.budgets)
    write(
        snakemake.output[0],
        "trajectories",
        table,
        schema=trajectory_schema(reader.width),
        config=digest(dict(params.items())),
    )
