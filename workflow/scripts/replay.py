"""Answers of the test split with single decisions of a detector reversed."""

import torch

from utaca.generation.answers import ask
from utaca.generation.points import prepare
from utaca.generation.replays import drawn, replays, wrong_decisions
from utaca.records.journal import Journal, fingerprint
from utaca.records.logs import stage_log
from utaca.records.tables import rows, write
from utaca.settings.checks import digest

with stage_log(snakemake.log[0]):
    torch.set_num_threads(snakemake.threads)
    params = snakemake.params
    files = snakemake.input
    prepared = prepare(snakemake.config["reader"], params.points, {}, params.triggers, params.taken)
    (label,) = prepared.methods
    labels = [row for row in rows(files.labels, "trace_labels") if row["point"] == label]
    decisions = drawn(wrong_decisions(labels), params.number, params.seed)
    settings = digest(dict(params.items()) | {"dtype": prepared.reader.precision})
    journal = Journal(params.journal, fingerprint(settings, [*files.reader, *files.detector]))
    table = replays(
        prepared.reader,
        [ask(prepared.reader, document) for document in rows(files.documents, "documents")],
        label,
        prepared.methods[label],
        prepared.detectors[label].detector,
        decisions,
        journal,
        together=params.together,
    )
    made_from = [files.documents, files.labels, *files.detector]
    write(snakemake.output[0], "replays", table, config=settings, made_from=made_from)
