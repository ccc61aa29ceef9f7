"""Answers to the rows of a task at its operating points."""

import pyarrow as pa
import torch

from utaca.generation.points import decode_points, prepare
from utaca.records.journal import Journal, fingerprint
from utaca.records.logs import stage_log
from utaca.records.tables import rows, write
from utaca.settings.checks import digest
from utaca.tasks.questions import ask
from utaca.tasks.registry import TASKS

with stage_log(snakemake.log[0]):
    torch.set_num_threads(snakemake.threads)
    params = snakemake.params
    files = snakemake.input
    output = snakemake.output
    settings = snakemake.config["reader"] | {"memory": params.reader["memory"]}
    prepared = prepare(settings, params.points, params.methods, params.triggers, params.taken)
    asked = ask(TASKS[params.task](), rows(files.examples, "examples"))
    # Operating points and rows that are added or asked for again find the others in the journal. It outlives an
    # edit of the code: answers take hours, and a folder that is deleted is only work to be done.
    how = {"reader": params.reader, "dtype": prepared.reader.precision, "together": params.together}
    journal = Journal(params.journal, fingerprint(digest(how), files.reader))
    found = decode_points(prepared, asked, journal, split=snakemake.wildcards.task, together=params.together)
    changing = ("points", "methods", "triggers", "taken")
    config = digest({key: value for key, value in params.items() if key not in changing})
    made_from = [files.examples, *files.detectors]
    write(output.answers, "answers", pa.concat_tables(found.answers.values()), config=config, made_from=made_from)
    write(output.traces, "traces", pa.concat_tables(found.traces.values()), config=config, made_from=made_from)
