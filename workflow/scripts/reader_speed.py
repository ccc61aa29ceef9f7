"""How fast the reader reads and decodes on this machine."""

import json
from typing import TYPE_CHECKING

import torch

from utaca.biographies.padding import counter
from utaca.card.material import Material, blocks_cell
from utaca.card.speed import measure
from utaca.readers.load import load as load_reader
from utaca.records.logs import stage_log
from utaca.records.tables import atomic_path, rows
from utaca.settings import schema
from utaca.settings.checks import build

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

with stage_log(snakemake.log[0]):
    # As in every stage that decodes.
    torch.set_num_threads(1)
    params = snakemake.params
    reader = load_reader(build(schema.Reader, snakemake.config["reader"], "reader"))
    articles = rows(snakemake.input.corpus, "corpus")
    material = Material(articles, params.corpus, counter(reader.tokenizer), reader.before, params.seed)
    (document,) = material.documents(blocks_cell(params.length), questions=1)
    speed = measure(reader, document)
    with atomic_path(snakemake.output[0]) as scratch:
        scratch.write_text(json.dumps(speed, indent=2) + "\n", encoding="utf-8")
