"""The reader card."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

from utaca.biographies.padding import counter
from utaca.card import figures
from utaca.card.write import write_csv, write_markdown
from utaca.readers.tokenizer import load_tokenizer
from utaca.records.logs import stage_log
from utaca.records.tables import read, rows
from utaca.settings.checks import load

if TYPE_CHECKING:
    from snakemake.iocontainers import snakemake

with stage_log(snakemake.log[0]):
    params, files = snakemake.params, snakemake.input
    config = load(snakemake.config)
    tokenizer = load_tokenizer(*params.tokenizer)
    found = [
        *figures.readings(read(files.readings, "readings"), config.judge, snakemake.config["answers"], config),
        *figures.labels(read(files.labels, "labels"), config),
        *figures.fertility(rows(files.corpus, "corpus"), counter(tokenizer), config.seed),
    ]
    speed = json.loads(Path(files.speed).read_text(encoding="utf-8"))
    write_csv(snakemake.output.csv, found)
    write_markdown(snakemake.output.markdown, found, speed, config)
