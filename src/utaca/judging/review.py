"""Pages on which people verify token labels and score predictions as the judge does (paper, appendix "Evaluation
Metrics Details" and "Uncertainty Label Construction and Verification").

A page is one HTML file that needs no network: ``review.html``, filled by :mod:`utaca.pages` with items. An item has a
heading, facts (attribute, value and the biography's sentence that states the value), and units that a person gives a
value each: the tokens of an answer, or predictions. A unit has the rows of the sheet that it stands for, without the
person's value and name, and the value that it has so far.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, islice
from typing import Any

import pyarrow as pa

from utaca.biographies.evidence import original, sentence
from utaca.endpoints import prompts
from utaca.errors import UserError
from utaca.judging import cas, labels
from utaca.judging.alignment import align
from utaca.judging.rules.names import bare
from utaca.judging.sheets import DOUBTFUL, RANDOM, Correction, HumanScore, columns
from utaca.judging.strings import normalise
from utaca.pages import fill
from utaca.records.schemas import CORRECT

# Answers shown of a split. Those in doubt serve to mend the labels; those drawn at random, whatever their labels, to
# tell how good the labels are. Of few answers, half at most are drawn, so that doubts still come first.
N_DOUBTFUL, N_RANDOM = 60, 40
# The paper's human study has 30 samples; here 30 documents, the same under every operating point.
N_DOCUMENTS = 30
_SECTIONS = {DOUBTFUL: "In doubt", RANDOM: "Drawn at random"}

Row = Mapping[str, Any]


def label_page(tables: Mapping[str, pa.Table], documents: Mapping[str, Iterable[Row]], run: str) -> str:
    """The page for the token labels of a run as the labeller left them, as HTML.

    ``tables`` (schema "labels") and ``documents`` (id, person, facts, text, spans) are by split; ``run`` describes the
    run in words. Answers in doubt come first, then those drawn at random, shuffled, so that however far a person gets,
    the reviewed answers are a random sample.

    Raises:
        UserError: the document of a labelled answer is missing.
    """
    items: dict[str, list[dict[str, Any]]] = {DOUBTFUL: [], RANDOM: []}
    total = 0
    for split, table in tables.items():
        by_id = {document["id"]: document for document in documents[split]}
        drawn = sorted(labels.answers_of(table).items(), key=lambda answer: draw(f"{split}/{answer[0]}"))
        total += len(drawn)
        if missing := [name for (name, _), _ in drawn if original(name) not in by_id]:
            raise UserError(
                f"document {missing[0]!r} has labels but is not in the documents of {split}; make both again"
            )
        answers = [(tokens, by_id[original(name)]) for (name, _), tokens in drawn]
        n_random = min(N_RANDOM, (len(answers) + 1) // 2)
        # A person who knew of doubts would look closer at a part of the sample.
        items[RANDOM] += [_answer(split, RANDOM, *answer, []) for answer in answers[:n_random]]
        rest = sorted(answers[n_random:], key=lambda answer: all(token["label"] is not None for token in answer[0]))
        doubtful = (_answer(split, DOUBTFUL, *answer, reasons) for answer in rest if (reasons := doubts(*answer)))
        items[DOUBTFUL] += islice(doubtful, N_DOUBTFUL)
    both = [item for sample in items.values() for item in sorted(sample, key=lambda item: draw(item["place"]))]
    about = f"{len(both)} of {total} answers, {len(items[DOUBTFUL])} in doubt first. {run}"
    return _page("labels", "Token labels", about, labels.__name__, "label_corrections.csv", Correction, both)


def doubts(tokens: Sequence[Row], document: Row) -> list[str]:
    """Reasons to doubt the labels of an answer; ``tokens`` in the order of their steps.

    A value is compared with its reference letter by letter, without other notations: the comparison is often wrong if
    it disagrees, and never decides.
    """
    reasons: list[str] = []
    if missing := sum(token["label"] is None for token in tokens):
        reasons.append(f"the labeller failed: {missing} without a label")
    answer = "".join(token["text"] for token in tokens)
    values = {fact["attribute"]: fact["value"] for fact in document["facts"]}
    ends = list(accumulate(len(token["text"]) for token in tokens))
    for part in align(answer, document["person"], list(values)).parts:
        attribute, value = part.attribute, values[part.attribute]
        inside = [
            token
            for token, end in zip(tokens, ends, strict=True)
            if token["text"] and end - len(token["text"]) < part.end and part.start < end
        ]
        seen = {token["label"] for token in inside} - {None}
        if normalise(answer[part.start : part.end]) == normalise(value) and seen - {CORRECT}:
            reasons.append(f"the {attribute} is the reference, but is not labelled correct throughout")
        right = [token["text"].strip() for token in inside if token["label"] == CORRECT]
        if foreign := [f"“{text}”" for text in right if bare(text) not in bare(value)]:
            reasons.append(f"labelled correct, but not in the {attribute}: {', '.join(foreign)}")
        elif len(seen) > 1:
            reasons.append(f"labels differ within the {attribute}")
    return list(dict.fromkeys(reasons))


def _answer(split: str, sample: str, tokens: Sequence[Row], document: Row, reasons: list[str]) -> dict[str, Any]:
    first, facts = tokens[0], document["facts"]
    units = [
        {
            "text": token["text"],
            "rows": [[split, *(token[name] for name in ("document", "budget", "step", "text", "label")), sample]],
            "given": token["label"],
            "source": token["source"],
            "reason": token["reason"],
        }
        for token in tokens
    ]
    return {
        "section": _SECTIONS[sample],
        "entry": f"{', '.join(fact['attribute'] for fact in facts)} · {document['person']}",
        "heading": document["person"],
        "place": f"{split} · {first['document']} · budget {first['budget']}",
        "facts": [(fact["attribute"], fact["value"], sentence(document, fact["value"])) for fact in facts],
        "units": units,
        "doubts": reasons,
    }


def score_page(scores: Iterable[Row], documents: Iterable[Row], run: str) -> str:
    """The page for human scores of the sampled answers, as HTML.

    ``scores`` has rows of schema "scores", ``documents`` id, person, facts, text and spans; ``run`` describes the run
    in words. A question is a document's attribute. Its predictions stand without judge's score and operating point,
    shuffled; a prediction of several points is asked once and exported for each.

    Raises:
        UserError: the document of a score is missing.
    """
    by_id = {document["id"]: document for document in documents}
    by_document: dict[str, list[Row]] = {}
    for row in scores:
        by_document.setdefault(row["document"], []).append(row)
    drawn = sorted(by_document, key=draw)[:N_DOCUMENTS]
    if missing := [name for name in drawn if name not in by_id]:
        raise UserError(f"document {missing[0]!r} has scores but is not in the documents file; make both again")
    items = [item for name in drawn for item in _questions(by_document[name], by_id[name])]
    about = f"{len(items)} questions about {len(drawn)} of {len(by_document)} documents. {run}"
    return _page("scores", "Conceptual accuracy", about, cas.__name__, "cas_scores.csv", HumanScore, items)


def _questions(rows: Iterable[Row], document: Row) -> list[dict[str, Any]]:
    """A question for each attribute, in the order asked; its predictions in an order that tells nothing."""
    questions: dict[tuple[str, str], dict[str, list[Row]]] = {}
    for row in rows:
        predictions = questions.setdefault((row["attribute"], row["reference"]), {})
        predictions.setdefault(row["prediction"], []).append(row)
    shown = [name for name in columns(HumanScore) if name not in ("human", "annotator")]
    return [
        {
            "section": document["person"],
            "entry": attribute,
            "heading": f"What is the {attribute} of {document['person']}?",
            "place": "",
            "facts": [(attribute, reference, sentence(document, reference))],
            "units": [
                {"text": text, "rows": [[row[name] for name in shown] for row in alike], "given": None}
                for text, alike in sorted(predictions.items(), key=lambda pair: draw(f"{document['id']}/{pair[0]}"))
            ],
            "doubts": [],
        }
        for (attribute, reference), predictions in questions.items()
    ]


def draw(name: str) -> str:
    """A sort key that shuffles names in the same way in every run."""
    return hashlib.sha256(name.encode()).hexdigest()


def _page(kind: str, title: str, about: str, module: str, file: str, entry: type, items: list[dict[str, Any]]) -> str:
    """The page of some items, its sheet of entries exported as ``file``, with the instruction of a module's prompt."""
    page: dict[str, Any] = {"kind": kind, "title": title, "about": about, "file": file, "columns": columns(entry)}
    page |= {"instruction": prompts.load(module).instruction, "items": items}
    page["key"] = hashlib.sha256(json.dumps(page, sort_keys=True).encode()).hexdigest()[:16]
    return fill(__package__, "review.html", page)
