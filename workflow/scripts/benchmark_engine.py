"""Speed and memory of the engine beside bars and floors, and their figure over the context."""

from pathlib import Path
from typing import TYPE_CHECKING

import torch

from utaca.benchmarks.engine import paper, report, shape
from utaca.benchmarks.engine.floors import probe
from utaca.benchmarks.engine.measure import Plan, measure
from utaca.readers.load import load as load_reader
from utaca.records.logs import stage_log
from utaca.reporting.tables import save
from utaca.settings import schema
from utaca.settings.checks import build

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

with stage_log(snakemake.log[0]):
    torch.set_num_threads(snakemake.threads)
    params, folder = snakemake.params, Path(snakemake.output[0]).parent
    reader = load_reader(build(schema.Reader, snakemake.config["reader"], "reader"))
    machine = probe(reader.device, reader.dtype)
    rows, contexts = measure(reader, Plan(**params.plan), machine)
    about, title = report.caption(reader, machine), f"{reader.settings.name}, {report.machine_in_words(reader)}"
    tokenizer, big = reader.tokenizer, shape.Plan(**params.shape)
    memories = {storage: schema.Memory(storage=storage) for storage in shape.PEAKS}
    del reader
    if torch.cuda.is_available():
        rows += shape.measure(shape.llama31_8b(), torch.device("cuda"), tokenizer, memories, big)
    else:
        rows += shape.not_measured(memories, big, "no CUDA device")
    rows += paper.rows(tokenizer, big.length)
    save(report.table(rows, about), folder)
    save(report.contexts(contexts, about), folder)
    report.plot(contexts, folder, title)
