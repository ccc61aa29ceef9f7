"""InfiniteBench (∞Bench): summaries of whole books, and questions about them.

The repository has sets of prompts for several models. Here it is that of yarn-mistral, with which all open models were
run: it is meant for models as ours, and it has something behind the book in both tasks, whereas GPT-4's prompt of a
summary ends with the book. The prompt is what a user says in the reader's chat template.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from utaca.tasks import metrics
from utaca.tasks.rows import Rows


class _Book(Rows):
    benchmark = "InfiniteBench"
    id_key = "id"
    answers_key = "answer"


class Summary(_Book):
    """En.Sum: the summary of a book."""

    name = "longbook_sum_eng"
    new_tokens = 1200
    files: ClassVar[Mapping[str, str]] = {"rows": "InfiniteBench/longbook_sum_eng.jsonl"}
    rows = 103
    metric = "rougeLsum"
    score = staticmethod(metrics.rouge_lsum)
    packages = ("rouge-score",)
    template = "Summarize the book below.\n\n{context}\n\nSummary:"


class Questions(_Book):
    """En.QA: questions about a book, several to some."""

    name = "longbook_qa_eng"
    new_tokens = 40
    files: ClassVar[Mapping[str, str]] = {"rows": "InfiniteBench/longbook_qa_eng.jsonl"}
    rows = 351
    metric = "F1"
    score = staticmethod(metrics.token_f1)
    template = (
        "Read the book and answer the question. Be very concise in your answer.\n\n"
        "{context}\n\n"
        "Question: {input}\nAnswer:"
    )
