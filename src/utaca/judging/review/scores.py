"""The page on which people score predictions as the judge does (paper, appendix "Evaluation Metrics Details")."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from utaca.biographies.source import sentence
from utaca.endpoints import prompts
from utaca.errors import UserError
from utaca.judging import cas
from utaca.judging.review.page import Item, Page, Unit, draw, render
from utaca.judging.sheets import SCORE_COLUMNS

# The paper's human study has 30 samples. Here 30 documents, the same under every operating point, which keeps the
# points comparable.
N_DOCUMENTS = 30


def page(scores: Iterable[Mapping[str, Any]], documents: Iterable[Mapping[str, Any]], run: str) -> str:
    """The page for human scores of the sampled answers, as HTML.

    ``scores`` has rows of schema "scores", ``documents`` id, person, facts, text and spans; ``run`` says in words what
    made them. A question is a document's attribute. Its predictions stand without judge's score and operating point,
    shuffled; what several points predicted alike is asked once and exported for each. Raises :class:`UserError` where
    a judged document is missing.
    """
    by_id = {document["id"]: document for document in documents}
    by_document: dict[str, list[Mapping[str, Any]]] = {}
    for row in scores:
        by_document.setdefault(row["document"], []).append(row)
    drawn = sorted(by_document, key=draw)[:N_DOCUMENTS]
    if missing := [name for name in drawn if name not in by_id]:
        raise UserError(f"document {missing[0]!r} has scores but is not in the documents file; make both again")
    items = [item for name in drawn for item in _items(by_document[name], by_id[name])]
    return render(
        Page(
            kind="scores",
            title="Conceptual accuracy",
            about=f"{len(items)} questions about {len(drawn)} of {len(by_document)} documents. {run}",
            instruction=prompts.load(cas.__name__).instruction,
            file="cas_scores.csv",
            columns=SCORE_COLUMNS,
            items=items,
        )
    )


def _items(rows: Iterable[Mapping[str, Any]], document: Mapping[str, Any]) -> list[Item]:
    """A question for each attribute, in the order asked; its predictions in an order that tells nothing."""
    questions: dict[tuple[str, str], dict[str, list[Mapping[str, Any]]]] = {}
    for row in rows:
        predictions = questions.setdefault((row["attribute"], row["reference"]), {})
        predictions.setdefault(row["prediction"], []).append(row)
    columns = [name for name in SCORE_COLUMNS if name not in ("human", "annotator")]
    return [
        Item(
            section=document["person"],
            entry=attribute,
            heading=f"What is the {attribute} of {document['person']}?",
            place="",
            facts=[(attribute, reference, sentence(document, reference))],
            units=[
                Unit(text=text, rows=[[row[name] for name in columns] for row in alike])
                for text, alike in sorted(predictions.items(), key=lambda pair: draw(f"{document['id']}/{pair[0]}"))
            ],
        )
        for (attribute, reference), predictions in questions.items()
    ]
