"""LongBench: questions about stories, and queries to meetings. Prompts are the official ones, their misspelling too."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from utaca.tasks import metrics
from utaca.tasks.rows import Rows


class _LongBench(Rows):
    benchmark = "LongBench"
    rows = 200
    id_key = "_id"
    answers_key = "answers"


class NarrativeQA(_LongBench):
    """Questions about a novel or the script of a film."""

    name = "narrativeqa"
    new_tokens = 128
    files: ClassVar[Mapping[str, str]] = {"rows": "LongBench/narrativeqa.jsonl"}
    metric = "F1"
    score = staticmethod(metrics.token_f1)
    template = (
        "You are given a story, which can be either a novel or a movie script, and a question. Answer the question "
        "asconcisely as you can, using a single phrase if possible. Do not provide any explanation.\n\n"
        "Story: {context}\n\n"
        "Now, answer the question based on the story asconcisely as you can, using a single phrase if possible. Do not "
        "provide any explanation.\n\nQuestion: {input}\n\nAnswer:"
    )


class QMSum(_LongBench):
    """Queries to the transcript of a meeting."""

    name = "qmsum"
    new_tokens = 512
    files: ClassVar[Mapping[str, str]] = {"rows": "LongBench/qmsum.jsonl"}
    metric = "ROUGE-L (rouge)"
    score = staticmethod(metrics.rouge_l)
    packages = ("rouge",)
    template = (
        "You are given a meeting transcript and a query containing a question or instruction. Answer the query in one "
        "or more sentences.\n\nTranscript:\n{context}\n\n"
        "Now, answer the query based on the above meeting transcript in one or more sentences.\n\n"
        "Query: {input}\nAnswer:"
    )
