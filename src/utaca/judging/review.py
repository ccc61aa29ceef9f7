"""Pages on which people verify token labels and score predictions as the judge does (paper, appendix "Evaluation
Metrics Details" and "Uncertainty Label Construction and Verification").

A page is one HTML file that needs no network: ``review.html``, filled by :mod:`utaca.pages` with items. An item has a
heading, facts (attribute, value and the biography's sentence that states the value), and units: the tokens of an
answer, or predictions. The person gives each unit a value. A unit has the rows that it adds to the exported sheet,
without the person's value and name, and the labeller's value if there is one.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
_LabelledAnswer = tuple[Sequence[Row], Row]
"""The tokens of an answer, by step, and the document that it is about."""


def label_page(tables: Mapping[str, pa.Table], documents: Mapping[str, Iterable[Row]], run: str) -> str:
    """Make the HTML page on which people review a run's token labels, as the labeller gave them.

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
        tokens_by_key = labels.answers_of(table)
        shuffled = sorted(tokens_by_key, key=lambda key: draw(f"{split}/{key}"))
        answers: list[_LabelledAnswer] = []
        for key in shuffled:
            name, _ = key
            if original(name) not in by_id:
                raise UserError(
                    f"document {name!r} has labels, but the documents file of {split} does not have it; remove the "
                    "files of labels and documents, and run again"
                )
            answers.append((tokens_by_key[key], by_id[original(name)]))
        total += len(answers)
        n_random = min(N_RANDOM, (len(answers) + 1) // 2)
        for tokens, document in answers[:n_random]:
            # Without doubts: a person who read them would look closer at a part of the random sample.
            items[RANDOM].append(_answer(split, RANDOM, tokens, document, []))
        # Answers with a token that the labeller left without a label come first (False before True); the sort keeps the
        # shuffled order among the others.
        rest = sorted(answers[n_random:], key=_all_labelled)
        items[DOUBTFUL] += islice(_doubtful(split, rest), N_DOUBTFUL)
    both: list[dict[str, Any]] = []
    for of_sample in items.values():
        both += sorted(of_sample, key=lambda item: draw(item["place"]))
    about = f"{len(both)} of {total} answers, {len(items[DOUBTFUL])} in doubt first. {run}"
    return _page("labels", "Token labels", about, labels.__name__, "label_corrections.csv", Correction, both)


def _all_labelled(answer: _LabelledAnswer) -> bool:
    """Whether each token of an answer has a label."""
    tokens, _ = answer
    return all(token["label"] is not None for token in tokens)


def _doubtful(split: str, answers: Sequence[_LabelledAnswer]) -> Iterator[dict[str, Any]]:
    """The items of those answers whose labels there is a reason to doubt."""
    for tokens, document in answers:
        reasons = doubts(tokens, document)
        if reasons:
            yield _answer(split, DOUBTFUL, tokens, document, reasons)


def doubts(tokens: Sequence[Row], document: Row) -> list[str]:
    """Reasons to doubt the labels of an answer; ``tokens`` are in the order of their steps.

    A value is compared with its reference by its letters, without regard to other notations. Many doubts are therefore
    unfounded, and no doubt changes a label.
    """
    reasons: list[str] = []
    n_missing = sum(token["label"] is None for token in tokens)
    if n_missing:
        reasons.append(f"the labeller failed; tokens without a label: {n_missing}")
    answer = "".join(token["text"] for token in tokens)
    values = {fact["attribute"]: fact["value"] for fact in document["facts"]}
    ends = list(accumulate(len(token["text"]) for token in tokens))
    for part in align(answer, document["person"], list(values)).parts:
        attribute = part.attribute
        value = values[part.attribute]
        inside = []  # the tokens that overlap this part of the answer
        for token, end in zip(tokens, ends, strict=True):
            start = end - len(token["text"])
            if token["text"] and start < part.end and part.start < end:
                inside.append(token)
        given = {token["label"] for token in inside} - {None}
        if normalise(answer[part.start : part.end]) == normalise(value) and given - {CORRECT}:
            reasons.append(f"the {attribute} is right, but not all of its tokens are labelled correct")
        labelled_correct = [token["text"].strip() for token in inside if token["label"] == CORRECT]
        not_in_value = [f"“{text}”" for text in labelled_correct if bare(text) not in bare(value)]
        if not_in_value:
            reasons.append(f"labelled correct, but not in the {attribute}: {', '.join(not_in_value)}")
        elif len(given) > 1:
            reasons.append(f"the tokens of the {attribute} have different labels")
    return list(dict.fromkeys(reasons))


def _answer(split: str, sample: str, tokens: Sequence[Row], document: Row, reasons: list[str]) -> dict[str, Any]:
    """Make a page's item of an answer in a ``sample`` (:data:`DOUBTFUL` or :data:`RANDOM`); a unit is a token."""
    first = tokens[0]
    facts = document["facts"]
    units = []
    for token in tokens:
        # The columns of a sheet (:class:`Correction`) except the person's label and name, in their order.
        cells = [token[name] for name in ("document", "budget", "step", "text", "label")]
        units.append(
            {
                "text": token["text"],
                "rows": [[split, *cells, sample]],
                "given": token["label"],
                "source": token["source"],
                "reason": token["reason"],
            }
        )
    attributes = ", ".join(fact["attribute"] for fact in facts)
    return {
        "section": _SECTIONS[sample],
        "entry": f"{attributes} · {document['person']}",
        "heading": document["person"],
        "place": f"{split} · {first['document']} · budget {first['budget']}",
        "facts": [(fact["attribute"], fact["value"], sentence(document, fact["value"])) for fact in facts],
        "units": units,
        "doubts": reasons,
    }


def score_page(scores: Iterable[Row], documents: Iterable[Row], run: str) -> str:
    """Make the HTML page on which people score the answers of :func:`sample`.

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
    items: list[dict[str, Any]] = []
    for name in drawn:
        if name not in by_id:
            raise UserError(
                f"document {name!r} has scores, but the documents file does not have it; remove the files of scores "
                "and documents, and run again"
            )
        items += _questions(by_document[name], by_id[name])
    about = f"{len(items)} questions about {len(drawn)} of {len(by_document)} documents. {run}"
    return _page("scores", "Conceptual accuracy", about, cas.__name__, "cas_scores.csv", HumanScore, items)


def _questions(rows: Iterable[Row], document: Row) -> list[dict[str, Any]]:
    """Make a page's item for each attribute, in the order of ``rows``; its units are the predictions, shuffled.

    ``rows`` are a document's rows of schema "scores". A unit has a row for the sheet for each row with its prediction.
    """
    # The rows by attribute and reference, and then by prediction.
    questions: dict[tuple[str, str], dict[str, list[Row]]] = {}
    for row in rows:
        predictions = questions.setdefault((row["attribute"], row["reference"]), {})
        predictions.setdefault(row["prediction"], []).append(row)
    exported = [name for name in columns(HumanScore) if name not in ("human", "annotator")]
    items = []
    for (attribute, reference), predictions in questions.items():
        units = []
        for text in sorted(predictions, key=lambda text: draw(f"{document['id']}/{text}")):
            sheet_rows = [[row[name] for name in exported] for row in predictions[text]]
            units.append({"text": text, "rows": sheet_rows, "given": None})
        items.append(
            {
                "section": document["person"],
                "entry": attribute,
                "heading": f"What is the {attribute} of {document['person']}?",
                "place": "",
                "facts": [(attribute, reference, sentence(document, reference))],
                "units": units,
                "doubts": [],
            }
        )
    return items


def sample(documents: Iterable[str]) -> list[str]:
    """The documents whose answers a person is asked to score, in the order of the page."""
    return sorted(set(documents), key=draw)[:N_DOCUMENTS]


def draw(name: str) -> str:
    """A sort key that shuffles names in the same way in every run."""
    return hashlib.sha256(name.encode()).hexdigest()


def _page(kind: str, title: str, about: str, module: str, file: str, entry: type, items: list[dict[str, Any]]) -> str:
    """Fill the HTML page with ``items`` and the instruction of a module's prompt.

    The page exports rows of the type ``entry`` as the sheet ``file``. What a person enters is kept by the browser under
    the page's ``key``, a digest of all its content.
    """
    page: dict[str, Any] = {
        "kind": kind,
        "title": title,
        "about": about,
        "file": file,
        "columns": columns(entry),
        "instruction": prompts.load(module).instruction,
        "items": items,
    }
    content = json.dumps(page, sort_keys=True)
    page["key"] = hashlib.sha256(content.encode()).hexdigest()[:16]
    return fill(__package__, "review.html", page)
