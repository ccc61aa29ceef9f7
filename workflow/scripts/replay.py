"""Answers of the test split with single decisions of a detector turned."""

import torch

from utaca.detection.detector import load as load_detector
from utaca.generation.answers import ask
from utaca.generation.replays import drawn, replays, wrong_decisions
from utaca.methods import method_of
from utaca.readers.load import load as load_reader
from utaca.records.journal import Journal, fingerprint
from utaca.records.logs import stage_log
from utaca.records.tables import rows, write
from utaca.settings import schema
from utaca.settings.checks import build, digest

with stage_log(snakemake.log[0]):
    torch.set_num_threads(snakemake.threads)
    params, files = snakemake.params, snakemake.input
    reader = load_reader(build(schema.ReaderSettings, snakemake.config["reader"], "reader"))
    point = build(schema.OperatingPoint, params.point)
    (detector,) = files.detector
    labels = [row for row in rows(files.labels, "trace_labels") if row["point"] == point.label]
    decisions = drawn(wrong_decisions(labels), params.number, params.seed)
    settings = digest(dict(params.items()) | {"dtype": reader.settings.dtype})
    journal = Journal(params.journal, fingerprint(settings, [*files.reader, detector]))
    table = replays(
        reader,
        [ask(reader, document) for document in rows(files.documents, "documents")],
        point.label,
        method_of(point, {}),
        load_detector(detector),
        decisions,
        journal,
        together=params.together,
    )
    made_from = [files.documents, files.labels, detector]
    write(snakemake.output[0], "replays", table, config=settings, made_from=made_from)
