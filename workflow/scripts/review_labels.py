"""The page on which people verify the labels of a run."""

from utaca.judging.review import label_page
from utaca.records import atomic_path
from utaca.records.logs import stage_log
from utaca.records.tables import read, rows
from utaca.reporting.words import run_in_words
from utaca.settings.checks import load

with stage_log(snakemake.log[0]):
    labels = {split: read(paths, "labels") for split, paths in snakemake.params.labels.items()}
    documents = {
        split: rows(path, "documents", ["id", "person", "facts", "text", "spans", "evidence"])
        for split, path in zip(labels, snakemake.input.documents, strict=True)
    }
    html = label_page(labels, documents, f"{run_in_words(load(snakemake.config), 'labeller')}.")
    with atomic_path(snakemake.output[0]) as scratch:
        scratch.write_text(html, encoding="ascii")
