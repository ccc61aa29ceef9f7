"""The page on which people score what the judge scored."""

from utaca.judging.review import score_page
from utaca.records import atomic_path
from utaca.records.logs import stage_log
from utaca.records.tables import rows
from utaca.reporting.words import run_in_words
from utaca.settings.checks import load

with stage_log(snakemake.log[0]):
    scores = rows(snakemake.input.scores, "scores")
    documents = rows(snakemake.input.documents, "documents", ["id", "person", "facts", "text", "spans", "evidence"])
    html = score_page(scores, documents, f"{run_in_words(load(snakemake.config), 'judge')}.")
    with atomic_path(snakemake.output[0]) as scratch:
        scratch.write_text(html, encoding="ascii")
