"""Trajectories of a task's answers under compact budgets."""

import shutil
from pathlib import Path

import torch

from utaca.generation.trajectories import trajectories
from utaca.readers.load import load as load_reader
from utaca.records.journal import Journal, fingerprint
from utaca.records.logs import stage_log
from utaca.records.schemas import trajectory_schema
from utaca.records.tables import Origin, rows, write
from utaca.settings import schema
from utaca.settings.checks import build, digest
from utaca.tasks.questions import ask
from utaca.tasks.registry import TASKS

with stage_log(snakemake.log[0]):
    torch.set_num_threads(snakemake.threads)
    params = snakemake.params
    settings = snakemake.config["reader"] | {"memory": params.reader["memory"]}
    reader = load_reader(build(schema.ReaderSettings, settings, "reader"))
    asked = ask(TASKS[params.task](), rows(snakemake.input.examples, "examples"))
    # What is journaled outlives an edit of the code, as in task_answers.py.
    common = {key: value for key, value in params.items() if key != "code"} | {"dtype": reader.precision}
    folder = Path(params.journal) / snakemake.wildcards.task
    journal = Journal(folder, fingerprint(digest(common), snakemake.input.reader))
    recorded = build(schema.TrajectorySettings, params.recorded, "trajectories")
    how = {"signals": params.signals, "together": params.together}
    table = trajectories(reader, asked, params.budgets, recorded, journal, **how)
    write(
        snakemake.output[0],
        "trajectories",
        table,
        schema=trajectory_schema(reader.width, recorded.sites, params.signals),
        config=digest(dict(params.items())),
        reader=Origin(reader.settings.name, reader.identity),
    )
    # The part holds all of it now.
    shutil.rmtree(folder)
