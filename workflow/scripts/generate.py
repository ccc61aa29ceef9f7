"""Answers of a shard of documents at every operating point of a suite."""

from typing import TYPE_CHECKING

import torch

from utaca.decoding.suites import decode_suite
from utaca.detection.detector import load as load_detector
from utaca.readers.load import load as load_reader
from utaca.records.fingerprint import fingerprint
from utaca.records.journal import Journal
from utaca.records.logs import stage_log
from utaca.records.tables import rows, write
from utaca.settings import schema
from utaca.settings.checks import build, digest

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

with stage_log(snakemake.log[0]):
    torch.set_num_threads(snakemake.threads)
    params, output = snakemake.params, snakemake.output
    reader = load_reader(build(schema.Reader, snakemake.config["reader"], "reader"))
    points = [build(schema.Point, point) for point in params.points]
    detector = load_detector(snakemake.input.detector) if snakemake.input.detector else None
    documents = rows(snakemake.input.documents, "documents")[int(snakemake.wildcards.shard) :: params.shards]
    # Operating points that are added or asked for again find the others in the journal.
    common = digest({"reader": params.reader, "suite": params.suite, "paired": params.paired})
    journal = Journal(params.journal, fingerprint(common, snakemake.input))
    results = decode_suite(reader, documents, params.suite, points, detector, journal, paired=params.paired)
    settings = digest(dict(params.items()))
    for point, answers_path, traces_path in zip(points, output.answers, output.traces, strict=True):
        answers, traces = results[point.label]
        write(answers_path, "answers", answers, config=settings)
        write(traces_path, "traces", traces, config=settings)
