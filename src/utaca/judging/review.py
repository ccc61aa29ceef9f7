"""Pages on which people verify token labels and score predictions as the judge does (paper, appendix "Evaluation
Metrics Details" and "Uncertainty Label Construction and Verification").

A page is one HTML file that needs no network: ``review.html``, filled by :mod:`utaca.pages` with items. An item has a
heading, facts (attribute, value and the biography's sentence that states the value), and units (the tokens of an
answer, or predictions), each of which gets a value from the person. A unit has the rows that it adds to the exported
sheet, without the person's value and name, and the labeller's value if there is one.
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

# Answers shown per split. Answers in doubt serve to correct labels; answers drawn at random, whatever their labels,
# serve to estimate how good the labels are. Of few answers, at most half are drawn, so that some are left for doubts.
N_DOUBTFUL = 60
N_RANDOM = 40
# The paper's human study has 30 samples; here 30 documents, the same under every operating point.
N_DOCUMENTS = 30
_SECTIONS = {DOUBTFUL: "In doubt", RANDOM: "Drawn at random"}

Row = Mapping[str, Any]


def label_page(tables: Mapping[str, pa.Table], documents: Mapping[str, Iterable[Row]], run: str) -> str:
    """The HTML page for the review of a run's token labels, as the labeller gave them.

    ``tables`` (schema "labels") and ``documents`` (id, person, facts, text, spans, evidence) are by split; ``run``
    describes the run in words. Answers in doubt come first, then the answers drawn at random, in shuffled order:
    wherever a person stops, the reviewed answers among the latter are a random sample.

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
        # Without doubts: a person who read them would look closer at a part of the random sample.
        items[RANDOM] += [_answer(split, RANDOM, *answer, []) for answer in answers[:n_random]]
        rest = sorted(answers[n_random:], key=lambda answer: all(token["label"] is not None for token in answer[0]))
        doubtful = (_answer(split, DOUBTFUL, *answer, reasons) for answer in rest if (reasons := doubts(*answer)))
        items[DOUBTFUL] += islice(doubtful, N_DOUBTFUL)
    both = [item for sample in items.values() for item in sorted(sample, key=lambda item: draw(item["place"]))]
    about = f"{len(both)} of {total} answers, {len(items[DOUBTFUL])} in doubt first. {run}"
    return _page("labels", "Token labels", about, labels.__name__, "label_corrections.csv", Correction, both)


def doubts(tokens: Sequence[Row], document: Row) -> list[str]:
    """Reasons to doubt the labels of an answer; ``tokens`` are in the order of their steps.

    A value is compared with its reference by its letters, without regard to other notations. Many doubts are therefore
    unfounded, and no doubt changes a label.
    """
    reasons: list[str] = []
    if missing := sum(token["label"] is None for token in tokens):
        reasons.append(f"the labeller failed: {missing} without a label")
    answer = "".join(token["text"] for token in tokens)
    values = {fact["attribute"]: fact["value"] for fact in document["facts"]}
    ends = list(accumulate(len(token["text"]) for token in tokens))
    for part in align(answer, document["person"], list(values)).parts:
        attribute = part.attribute
        value = values[part.attribute]
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
    first = tokens[0]
    facts = document["facts"]
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
    """The HTML page on which people score the sampled answers.

    ``scores`` has rows of schema "scores", ``documents`` id, person, facts, text, spans and evidence; ``run``
    describes the run in words. A question is about one attribute of a document. The page shuffles the predictions and
    hides the judge's score and the operating point; a prediction of several operating points is shown once and exported
    for each.

    Raises:
        UserError: the document of a score is missing.
    """
    by_id = {document["id"]: document for document in documents}
    by_document: dict[str, list[Row]] = {}
    for row in scores:
        by_document.setdefault(row["document"], []).append(row)
    drawn = sample(by_document)
    if missing := [name for name in drawn if name not in by_id]:
        raise UserError(f"document {missing[0]!r} has scores but is not in the documents file; make both again")
    items = [item for name in drawn for item in _questions(by_document[name], by_id[name])]
    about = f"{len(items)} questions about {len(drawn)} of {len(by_document)} documents. {run}"
    return _page("scores", "Conceptual accuracy", about, cas.__name__, "cas_scores.csv", HumanScore, items)


def _questions(rows: Iterable[Row], document: Row) -> list[dict[str, Any]]:
    """One question per attribute, in the order of ``rows``, with the predictions in shuffled order."""
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


def sample(documents: Iterable[str]) -> list[str]:
    """The documents whose answers a person is asked to score, in the order of the page."""
    return sorted(set(documents), key=draw)[:N_DOCUMENTS]


def draw(name: str) -> str:
    """A sort key that shuffles names in the same way in every run."""
    return hashlib.sha256(name.encode()).hexdigest()


def _page(kind: str, title: str, about: str, module: str, file: str, entry: type, items: list[dict[str, Any]]) -> str:
    """The page of ``items`` with the instruction of a module's prompt; it exports entries as the sheet ``file``."""
    page: dict[str, Any] = {"kind": kind, "title": title, "about": about, "file": file, "columns": columns(entry)}
    page |= {"instruction": prompts.load(module).instruction, "items": items}
    page["key"] = hashlib.sha256(json.dumps(page, sort_keys=True).encode()).hexdigest()[:16]
    return fill(__package__, "review.html", page)
