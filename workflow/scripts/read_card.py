"""A reader's answers to the questions of one cell of its card."""

from typing import TYPE_CHECKING

import torch

from utaca.readers.load import load as load_reader
from utaca.records.journal import Journal, fingerprint
from utaca.records.logs import stage_log
from utaca.records.tables import rows, write
from utaca.settings import schema
from utaca.settings.checks import build, digest
from utaca.tasks.card.answers import answers
from utaca.tasks.card.cells import cell_of

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

with stage_log(snakemake.log[0]):
    torch.set_num_threads(snakemake.threads)
    params, cell = snakemake.params, snakemake.wildcards.cell
    reader = load_reader(build(schema.Reader, snakemake.config["reader"], "reader"))
    card = build(schema.Card, snakemake.config["card"], "card")
    articles = rows(snakemake.input.corpus, "corpus")
    asked = cell_of(cell, card, reader, articles, params.corpus, params.seed)
    # More questions or budgets find what was asked before in the journal.
    common = digest({"reader": params.reader, "seed": params.seed, "corpus": params.corpus})
    journal = Journal(params.journal, fingerprint(common, snakemake.input))
    readings = answers(reader, cell, asked.documents, asked.budgets, journal, asked.prefill_budgets)
    write(snakemake.output[0], "readings", readings, config=digest(dict(params.items())))
