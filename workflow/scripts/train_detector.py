"""A variant of the uncertainty detector, all seeds side by side."""

import csv
from functools import reduce

import torch

from utaca.detection.detector import load_for
from utaca.detection.training.data import Sequences, about, columns, joined, sequences
from utaca.detection.training.training import train
from utaca.records.logs import stage_log
from utaca.records.tables import atomic_path, read, reader_of, rows
from utaca.settings import schema
from utaca.settings.checks import build, identity
from utaca.tasks.questions import learned


def paths(name: str) -> list[str]:
    """The input files of a name."""
    files = snakemake.input.get(name, [])
    return [files] if isinstance(files, str) else list(files)


def biographies(split: str) -> list[Sequences]:
    """The trajectories of a split as the detector is shown them; empty if it learns only from benchmarks."""
    if not (files := paths(split)):
        return []
    labels = paths(f"{split}_labels")
    table = read(files, "trajectories", columns(settings))
    return [sequences(table, read(labels, "labels") if labels else None, settings)]


def tasks(half: int) -> list[Sequences]:
    """Those of each set of tasks: of the rows to learn from (0), or to validate on (1)."""
    found = []
    for number, (path, examples) in enumerate(zip(paths("tasks"), paths("examples"), strict=True)):
        ids = learned(rows(examples, "examples"))[half]
        labels = [about(read(one, "labels"), ids) for one in paths("task_labels")[number : number + 1]]
        table = about(read(path, "trajectories", columns(settings)), ids)
        found.append(sequences(table, *(labels or [None]), settings))
    return found


with stage_log(snakemake.log[0]):
    torch.set_num_threads(snakemake.threads)
    output = snakemake.output
    settings = build(schema.DetectorSettings, snakemake.params.detector, "detector")
    reader = reader_of([*paths("train"), *paths("validation"), *paths("tasks")])
    first, *second = [reduce(joined, own) for own in (tasks(0), biographies("train")) if own]
    trained = train(
        settings,
        first,
        reduce(joined, tasks(1) + biographies("validation")),
        second=second[0] if second else None,
        steps=snakemake.params.steps,
        seeds=range(len(output.models)),
        initial=[load_for(reader, path, snakemake.params.taken) for path in paths("start")] or None,
        reader=reader,
        description=snakemake.rule,
    )
    # A change of the block memory decodes other trajectories, so that no rule need depend on it here.
    memory = identity(build(schema.ReaderSettings, snakemake.config["reader"], "reader").memory)
    for (detector, curve), model_path, curve_path in zip(trained, output.models, output.curves, strict=True):
        detector.facts["memory"] = memory
        detector.save(model_path)
        with atomic_path(curve_path) as scratch, open(scratch, "w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, curve[0])
            writer.writeheader()
            writer.writerows(curve)
