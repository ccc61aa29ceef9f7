"""The page on which people verify token labels (paper, appendix "Uncertainty Label Construction and Verification")."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import pyarrow as pa

from utaca.biographies.evidence import original
from utaca.biographies.source import sentence
from utaca.endpoints import prompts
from utaca.errors import UserError
from utaca.judging import labels as judged
from utaca.judging.alignment import align
from utaca.judging.review.page import Item, Page, Unit, draw, render
from utaca.judging.rules.names import bare
from utaca.judging.sheets import DOUBTFUL, LABEL_COLUMNS, RANDOM
from utaca.judging.strings import normalise
from utaca.judging.tokens import answers as tokens_of
from utaca.records.schemas import CORRECT

# Answers shown of a split. Those in doubt serve to mend the labels; those drawn at random, whatever their labels, to
# tell how good the labels are. Of few answers, half at most are drawn, so that doubts still come first.
N_DOUBTFUL, N_RANDOM = 60, 40
_SECTIONS = {DOUBTFUL: "In doubt", RANDOM: "Drawn at random"}

Token = Mapping[str, Any]


@dataclass(frozen=True, order=True)
class Doubt:
    """A reason to look at an answer: 0 a label is missing, 1 a check disagrees, 2 labels differ within a value.

    ``attribute`` is the one whose value is in doubt, "" where the doubt is of none.
    """

    rank: int
    text: str
    attribute: str = ""


@dataclass(frozen=True)
class _Answer:
    split: str
    tokens: Sequence[Token]
    document: Mapping[str, Any]
    doubts: Sequence[Doubt]

    @property
    def name(self) -> str:
        return f"{self.split}/{self.tokens[0]['document']}/{self.tokens[0]['budget']}"

    @property
    def urgency(self) -> tuple[int, str]:
        return self.doubts[0].rank, draw(self.name)


def page(labels: Mapping[str, pa.Table], documents: Mapping[str, Iterable[Mapping[str, Any]]], run: str) -> str:
    """The review page of a run's labels as the labeller left them, as HTML.

    ``labels`` (schema "labels") and ``documents`` (id, person, facts, text, spans) are by split; ``run`` says in words
    what made them. Answers in doubt come first, the doubtful ones of all splits by :class:`Doubt`; then those drawn at
    random, shuffled, so that however far a person gets, what was looked at is a random sample. Raises
    :class:`UserError` where a labelled document is missing.
    """
    doubtful: list[_Answer] = []
    drawn: list[_Answer] = []
    total = 0
    for split, table in labels.items():
        answers = sorted(_answers(split, table, documents[split]), key=lambda answer: draw(answer.name))
        n_drawn = min(N_RANDOM, (len(answers) + 1) // 2)
        drawn += answers[:n_drawn]
        doubtful += sorted((a for a in answers[n_drawn:] if a.doubts), key=lambda a: a.urgency)[:N_DOUBTFUL]
        total += len(answers)
    doubtful.sort(key=lambda answer: answer.urgency)
    drawn.sort(key=lambda answer: draw(answer.name))
    shown = [_item(a, sample) for sample, answers in ((DOUBTFUL, doubtful), (RANDOM, drawn)) for a in answers]
    return render(
        Page(
            kind="labels",
            title="Token labels",
            about=f"{len(shown)} of {total} answers, {len(doubtful)} in doubt first. {run}",
            instruction=prompts.load(judged.__name__).instruction,
            file="label_corrections.csv",
            columns=LABEL_COLUMNS,
            items=shown,
        )
    )


def _answers(split: str, labels: pa.Table, documents: Iterable[Mapping[str, Any]]) -> Iterator[_Answer]:
    by_id = {document["id"]: document for document in documents}
    for (name, _), tokens in tokens_of(labels).items():
        document = by_id.get(original(name))
        if document is None:
            raise UserError(f"document {name!r} has labels but is not in the documents of {split}; make both again")
        yield _Answer(split, tokens, document, doubts(tokens, document))


def doubts(tokens: Sequence[Token], document: Mapping[str, Any]) -> list[Doubt]:
    """Reasons to doubt the labels of an answer, the worst first; ``tokens`` in the order of their steps.

    The check compares a stated value with its reference letter by letter: it knows no other notation, so it is often
    wrong where it disagrees, and never decides.
    """
    found: set[Doubt] = set()
    if missing := sum(token["label"] is None for token in tokens):
        found.add(Doubt(0, f"the labeller failed: {missing} without a label"))
    answer = "".join(token["text"] for token in tokens)
    values = {fact["attribute"]: fact["value"] for fact in document["facts"]}
    ends = list(accumulate(len(token["text"]) for token in tokens))
    for part in align(answer, document["person"], list(values)).parts:
        value, stated = values[part.attribute], answer[part.start : part.end]
        own = [
            token
            for token, end in zip(tokens, ends, strict=True)
            if token["text"] and end - len(token["text"]) < part.end and part.start < end
        ]
        labels = {token["label"] for token in own} - {None}
        if normalise(stated) == normalise(value) and labels - {CORRECT}:
            found.add(
                Doubt(
                    1, f"the {part.attribute} is the reference, but is not labelled correct throughout", part.attribute
                )
            )
        right = [token["text"].strip() for token in own if token["label"] == CORRECT]
        if foreign := [text for text in right if bare(text) not in bare(value)]:
            quoted = ", ".join(f"“{text}”" for text in foreign)
            found.add(Doubt(1, f"labelled correct, but not in the {part.attribute}: {quoted}", part.attribute))
        if len(labels) > 1:
            found.add(Doubt(2, f"labels differ within the {part.attribute}", part.attribute))
    return sorted(found)


def _item(answer: _Answer, sample: str) -> Item:
    first = answer.tokens[0]
    facts = answer.document["facts"]
    # Told of those drawn at random, doubts would draw a person to a part of the sample.
    doubts = answer.doubts if sample == DOUBTFUL else ()
    named = [doubt.attribute for doubt in doubts if doubt.attribute] or [fact["attribute"] for fact in facts]
    return Item(
        section=_SECTIONS[sample],
        entry=f"{', '.join(dict.fromkeys(named))} · {answer.document['person']}",
        heading=answer.document["person"],
        place=f"{answer.split} · {first['document']} · budget {first['budget']}",
        facts=[(fact["attribute"], fact["value"], sentence(answer.document, fact["value"])) for fact in facts],
        units=[
            Unit(
                text=token["text"],
                rows=[
                    (answer.split, *(token[c] for c in ("document", "budget", "step", "text", "label")), sample),
                ],
                given=token["label"],
                source=token["source"],
                reason=token["reason"],
            )
            for token in answer.tokens
        ],
        doubts=[doubt.text for doubt in doubts],
    )
