"""Long documents: the test split's biographies padded to their lengths."""

import random

from utaca.biographies.lengths import counter, draw_length
from utaca.biographies.padding import Padder
from utaca.readers.tokenizer import load_tokenizer
from utaca.records.logs import stage_log
from utaca.records.progress import progress
from utaca.records.tables import rows, write
from utaca.settings.checks import digest

with stage_log(snakemake.log[0]):
    params = snakemake.params
    tokenizer = load_tokenizer(*params.tokenizer)
    padder = Padder(rows(snakemake.input.corpus, "corpus"), counter(tokenizer), params.corpus)
    biographies = rows(snakemake.input.biographies, "biographies")
    documents = []
    for biography in progress(biographies, total=len(biographies), unit="document", desc="padding"):
        rng = random.Random(f"{params.seed}:padding:{biography['id']}")
        documents.append(padder.document(biography, draw_length(*params.tokens, params.mean_tokens, rng), rng))
    made_from = [snakemake.input.biographies, *snakemake.input.corpus]
    write(snakemake.output[0], "documents", documents, config=digest(dict(params.items())), made_from=made_from)
