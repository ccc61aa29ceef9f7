"""Short documents: a split's biographies among simple sentences."""

import random

from utaca.biographies.fillers import Filler
from utaca.biographies.lengths import counter, draw_length
from utaca.readers.tokenizer import load_tokenizer
from utaca.records.logs import stage_log
from utaca.records.progress import progress
from utaca.records.tables import rows, write
from utaca.settings.checks import digest

with stage_log(snakemake.log[0]):
    params = snakemake.params
    filler = Filler(counter(load_tokenizer(*params.tokenizer)))
    biographies = rows(snakemake.input.biographies, "biographies")
    documents = []
    size = params.people_per_document
    texts = [biographies[first : first + size] for first in range(0, len(biographies), size)]
    for people in progress(texts, total=len(texts), unit="document", desc="fillers"):
        rng = random.Random(f"{params.seed}:fillers:{people[0]['id']}")
        documents += filler.documents(people, draw_length(*params.tokens, params.mean_tokens, rng), rng)
    config = digest(dict(params.items()))
    write(snakemake.output[0], "documents", documents, config=config, made_from=[snakemake.input.biographies])
