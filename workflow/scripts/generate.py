"""Answers of a shard of documents at every operating point of a suite."""

from typing import TYPE_CHECKING

import torch
from utaca.decoding.suites import decode_suite

from utaca import detection
from utaca.readers.load import load
from utaca.records.logs import stage_log
from utaca.records.tables import rows, write
from utaca.settings import schema
from utaca.settings.checks import build, digest

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

with stage_log(snakemake.log[0]):
    torch.set_num_threads(snakemake.threads)
    params, output = snakemake.params, snakemake.output
    reader = load(build(schema.Reader, snakemake.config["reader"], "reader"))
    points = [build(schema.Point, point) for point in params.points]
    detector = detection.load(snakemake.input.detector) if snakemake.input.detector else None
    documents = rows(snakemake.input.documents, "documents")[int(snakemake.wildcards.shard) :: params.shards]
    results = decode_suite(reader, documents, params.suite, points, detector)
    settings = digest(dict(params.items()))
    for (answers, traces), answers_path, traces_path in zip(results, output.answers, output.traces, strict=True):
        write(answers_path, "answers", answers, config=settings)
        write(traces_path, "traces", traces, config=settings)
