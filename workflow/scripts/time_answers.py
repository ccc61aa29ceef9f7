"""Answers of the first test documents, each decoded by itself, for the seconds and the memory that it takes."""

import pyarrow as pa
import torch

from utaca.generation.answers import ask
from utaca.generation.points import decode_points, prepare
from utaca.records.journal import Journal, fingerprint
from utaca.records.logs import stage_log
from utaca.records.tables import rows, write
from utaca.settings.checks import digest

with stage_log(snakemake.log[0]):
    torch.set_num_threads(snakemake.threads)
    params = snakemake.params
    files = snakemake.input
    prepared = prepare(snakemake.config["reader"], params.points, {}, params.triggers, params.taken)
    documents = rows(files.documents, "documents")[: params.number]
    asked = [ask(prepared.reader, document) for document in documents]
    settings = digest(dict(params.items()) | {"dtype": prepared.reader.precision})
    journal = Journal(params.journal, fingerprint(settings, files.reader))
    found = decode_points(prepared, asked, journal, split="test")
    made_from = [files.documents, *files.detectors]
    table = pa.concat_tables(found.answers.values())
    write(snakemake.output[0], "answers", table, config=settings, made_from=made_from)
