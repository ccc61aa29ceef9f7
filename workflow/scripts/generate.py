"""Answers of a shard of documents at the operating points of a split."""

from pathlib import Path

import pyarrow as pa
import torch

from utaca.generation.answers import ask
from utaca.generation.points import decode_points, prepare
from utaca.memory.saved import SavedDocuments
from utaca.records.journal import Journal, fingerprint
from utaca.records.logs import stage_log
from utaca.records.tables import rows, write
from utaca.settings.checks import digest

with stage_log(snakemake.log[0]):
    torch.set_num_threads(snakemake.threads)
    params = snakemake.params
    files = snakemake.input
    output = snakemake.output
    wildcards = snakemake.wildcards
    prepared = prepare(snakemake.config["reader"], params.points, params.methods, params.triggers, params.taken)
    reader = prepared.reader
    documents = rows(files.documents, "documents")[int(wildcards.shard) :: params.shards]
    # Operating points that are added or asked for again find the others in the journal.
    alike = {"code": params.code, "reader": params.reader, "dtype": reader.precision, "together": params.together}
    journal = Journal(params.journal, fingerprint(digest(alike), files.reader))
    asked = [ask(reader, document) for document in documents]
    # Those that the trajectories' stage has read.
    saved = SavedDocuments(Path(params.journal).with_name("memories") / f"{wildcards.split}-{wildcards.shard}", room=0)
    how = {"split": wildcards.split, "together": params.together, "saved": saved, "codes": params.codes}
    found = decode_points(prepared, asked, journal, **how)
    if wildcards.kind == "blocks":
        saved.clear()
    changing = ("points", "methods", "triggers", "taken", "codes")
    settings = digest({key: value for key, value in params.items() if key not in changing})
    made_from = [files.documents, *files.detectors]
    tables = {
        "answers": pa.concat_tables(found.answers.values()),
        "traces": pa.concat_tables(found.traces.values()),
    }
    for kind, table in tables.items():
        write(output[kind], kind, table, config=settings, made_from=made_from)
