"""Rows of a task of a benchmark, as the reader is asked them."""

from dataclasses import asdict
from pathlib import Path

from utaca.readers.prompts import Prompts
from utaca.readers.tokenizer import load_tokenizer
from utaca.records.logs import stage_log
from utaca.records.tables import write
from utaca.settings import schema
from utaca.settings.checks import build, digest
from utaca.tasks.registry import files_of, task_of

with stage_log(snakemake.log[0]):
    params = snakemake.params
    settings = build(schema.TaskSetSettings, params.set, "tasks.sets")
    task = task_of(settings)
    files = files_of(settings, params.path)
    # One file or none.
    files["corpus"] = Path(str(snakemake.input.corpus))
    prompts = Prompts(load_tokenizer(params.reader["path"], params.reader["revision"]), params.reader["prompt"])
    official = task.is_official(files)
    examples = [asdict(example) | {"official": official} for example in task.examples(settings, files, prompts)]
    write(snakemake.output[0], "examples", examples, config=digest(dict(params.items())))
