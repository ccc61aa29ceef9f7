"""Answers of the first test documents, each decoded by itself, for the seconds and the memory that it takes."""

import pyarrow as pa
import torch

from utaca.generation.answers import ask
from utaca.generation.points import PointDetector, decode_points
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
    points = [build(schema.OperatingPoint, point) for point in params.points]
    methods = {point.label: method_of(point, {}) for point in points}
    detectors = {label: PointDetector.read(*about) for label, about in params.triggers.items()}
    documents = rows(files.documents, "documents")[: params.number]
    asked = [ask(reader, document) for document in documents]
    settings = digest(dict(params.items()) | {"dtype": reader.settings.dtype})
    journal = Journal(params.journal, fingerprint(settings, files.reader))
    found = decode_points(reader, asked, points, methods, detectors, journal, split="test")
    made_from = [files.documents, *files.detectors]
    table = pa.concat_tables(found.answers.values())
    write(snakemake.output[0], "answers", table, config=settings, made_from=made_from)
