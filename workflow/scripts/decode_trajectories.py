"""Trajectories of a shard of documents under every compact budget."""

import shutil
from itertools import chain, groupby
from operator import itemgetter
from pathlib import Path

import torch

from utaca.biographies.evidence import variants
from utaca.generation.answers import ask
from utaca.generation.trajectories import trajectories
from utaca.memory.saved import SavedDocuments
from utaca.readers.load import load as load_reader
from utaca.records.journal import Journal, fingerprint
from utaca.records.logs import stage_log
from utaca.records.schemas import trajectory_schema
from utaca.records.tables import Origin, rows, write
from utaca.settings import schema
from utaca.settings.checks import build, digest

with stage_log(snakemake.log[0]):
    torch.set_num_threads(snakemake.threads)
    params = snakemake.params
    reader = load_reader(build(schema.ReaderSettings, snakemake.config["reader"], "reader"))
    # Documents that share a text are in one shard, so that it is read once.
    documents = rows(snakemake.input.documents, "documents")
    by_text = [[*same] for _, same in groupby(documents, key=itemgetter("text"))]
    documents = [*chain(*by_text[int(snakemake.wildcards.shard) :: params.shards])]
    settings = digest(dict(params.items()) | {"dtype": reader.precision})
    folder = Path(params.journal) / f"{snakemake.wildcards.split}-{snakemake.wildcards.shard}"
    journal = Journal(folder, fingerprint(settings, snakemake.input.reader))
    recorded = build(schema.TrajectorySettings, params.recorded, "trajectories")
    asked = [ask(reader, own) for document in documents for own in variants(document, params.evidence)]
    # What asks the same documents later need not read them again.
    later = params.together and snakemake.config["decode"].get(snakemake.wildcards.split)
    saved = SavedDocuments(Path(params.journal).with_name("memories") / folder.name) if later else None
    paths = [build(schema.PathSettings, path) for path in params.paths]
    budgets = [*params.budgets, *paths]
    how = {"signals": params.signals, "together": params.together}
    table = trajectories(reader, asked, budgets, recorded, journal, saved, **how)
    write(
        snakemake.output[0],
        "trajectories",
        table,
        schema=trajectory_schema(reader.width, recorded.sites, params.signals),
        config=settings,
        reader=Origin(reader.settings.name, reader.identity),
    )
    # The part holds all of it now.
    shutil.rmtree(folder)
