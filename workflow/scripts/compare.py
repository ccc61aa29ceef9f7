"""Answers of a shard of documents by context-management methods, at the operating points of the test split's suites."""

from typing import TYPE_CHECKING

import torch

from utaca.methods.suites import decode_methods
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
    params, files, output = snakemake.params, snakemake.input, snakemake.output
    reader = load_reader(build(schema.Reader, snakemake.config["reader"], "reader"))
    suites = {suite: [build(schema.Point, point) for point in own] for suite, own in params.suites.items()}
    documents = rows(files.documents, "documents")[int(snakemake.wildcards.shard) :: params.shards]
    # Operating points that are added or asked for again find the others in the journal.
    journal = Journal(
        params.journal,
        fingerprint(digest({"reader": params.reader}), [files.documents, *files.reader, *files.modules]),
    )
    found = decode_methods(reader, documents, suites, params.methods, journal)
    settings = digest({key: value for key, value in params.items() if key not in ("suites", "methods")})
    points = [(suite, point.label) for suite, own in suites.items() for point in own]
    for point, answers_path, traces_path in zip(points, output.answers, output.traces, strict=True):
        write(answers_path, "answers", found.answers[point], config=settings, made_from=[files.documents])
        write(traces_path, "traces", found.traces[point], config=settings, made_from=[files.documents])
