"""The page that shows the answers of a split token by token."""

from utaca.readers.tokenizer import load_tokenizer
from utaca.records import atomic_path
from utaca.records.logs import stage_log
from utaca.records.tables import rows
from utaca.reporting.traces import encoder, page
from utaca.settings.checks import load

with stage_log(snakemake.log[0]):
    config = load(snakemake.config)
    tokenizer = load_tokenizer(config.reader.path, config.reader.revision)
    files = snakemake.input
    html = page(
        documents=rows(files.documents, "documents"),
        answers=files.answers,
        traces=files.traces,
        scores=[files.scores],
        labels=files.labels,
        encode=encoder(tokenizer),
        config=config,
    )
    with atomic_path(snakemake.output[0]) as scratch:
        scratch.write_text(html, encoding="ascii")
