"""Answers of a shard of documents at the operating points of a split."""

from pathlib import Path

import pyarrow as pa
import torch

from utaca.generation.answers import ask
from utaca.generation.kept import Kept
from utaca.generation.points import PointDetector, decode_points
from utaca.methods import method_of
from utaca.readers.load import load as load_reader
from utaca.records.journal import Journal, fingerprint
from utaca.records.logs import stage_log
from utaca.records.tables import Origin, rows, write
from utaca.settings import schema
from utaca.settings.checks import build, digest

with stage_log(snakemake.log[0]):
    torch.set_num_threads(snakemake.threads)
    params, files, output, wildcards = snakemake.params, snakemake.input, snakemake.output, snakemake.wildcards
    reader = load_reader(build(schema.ReaderSettings, snakemake.config["reader"], "reader"))
    points = [build(schema.OperatingPoint, point) for point in params.points]
    methods = {point.label: method_of(point, params.methods) for point in points}
    detectors = {label: PointDetector.read(*about) for label, about in params.triggers.items()}
    for detector, (variant, _, path) in zip(detectors.values(), params.triggers.values(), strict=True):
        if variant in params.taken:
            taken = build(schema.DetectorSettings, params.taken[variant])
            detector.detector.check_taken(taken, Origin(reader.settings.name, reader.identity), path)
    documents = rows(files.documents, "documents")[int(wildcards.shard) :: params.shards]
    # Operating points that are added or asked for again find the others in the journal.
    how = {"code": params.code, "reader": params.reader, "dtype": reader.settings.dtype, "together": params.together}
    journal = Journal(params.journal, fingerprint(digest(how), files.reader))
    asked = [ask(reader, document) for document in documents]
    # Those that the trajectories' stage has read.
    kept = Kept(Path(params.journal).with_name("memories") / f"{wildcards.split}-{wildcards.shard}", room=0)
    found = decode_points(
        reader,
        asked,
        points,
        methods,
        detectors,
        journal,
        split=wildcards.split,
        together=params.together,
        kept=kept,
    )
    if wildcards.kind == "blocks":
        kept.clear()
    changing = ("points", "methods", "triggers", "taken")
    settings = digest({key: value for key, value in params.items() if key not in changing})
    made_from = [files.documents, *files.detectors]
    tables = {
        "answers": pa.concat_tables(found.answers.values()),
        "traces": pa.concat_tables(found.traces.values()),
    }
    for kind, table in tables.items():
        write(output[kind], kind, table, config=settings, made_from=made_from)
