"""Handwritten biographies with the pipeline's questions: how well a reader reads.

Questions are about the attributes that a biography states, one or several at once, and about single attributes that it
lacks. A document is one biography and nothing else or, if the set gives documents a length, several biographies between
paragraphs of the run's corpus, at random depths.
"""

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from utaca.biographies.handwritten import REMEDY, Biography, biographies
from utaca.biographies.padding import Padder
from utaca.data_files import root
from utaca.errors import UserError
from utaca.judging.alignment import about
from utaca.judging.cas import extract
from utaca.judging.rules.statements import in_free_words
from utaca.judging.strings import normalise
from utaca.readers.prompts import Prompts
from utaca.readers.questions import question
from utaca.records.tables import rows as rows_of
from utaca.records.texts import records
from utaca.settings.schema import TaskSetSettings
from utaca.tasks.rows import check_count
from utaca.tasks.task import Example, Task

COMPLETE = "complete"
"""Condition of evidence: questions ask for attributes that the biography states."""
MISSING = "missing"
"""Condition of evidence: questions ask for attributes that the biography lacks."""
TOKENS_A_PERSON = 2048
"""Tokens of a document's length for each person that it describes."""
MOST_PEOPLE = 4
"""The largest number of people in a document."""
FURTHER_WORDS = 4
"""The most words that an answer may have beyond the value, if it is in the requested pattern or only a value."""
FREE_WORDS = 16
"""The most words that an answer may have beyond the value, if it states the attribute in free words."""


class Biographies(Task):
    """Questions about biographies, the rows of a JSONL file (:class:`Biography`).

    A score is the percentage of the requested values that an answer gives; for an attribute that the biography lacks,
    the answer must say that the value is unknown. An example's references are JSON texts, one for each requested
    attribute, with the keys ``attribute``, ``person`` and ``values``: the ways to write the value, none if the
    biography lacks it.
    """

    benchmark = "the project's own"
    name = "biographies"
    new_tokens = 48
    files: ClassVar[Mapping[str, str]] = {"rows": str(root() / "data" / "biographies" / "handwritten.jsonl")}
    rows = 66
    metric = "values found"
    padded = True

    def check(self, settings: TaskSetSettings) -> None:
        """Raise :class:`UserError` if the set names another condition of evidence than the task has."""
        unknown = sorted({*settings.evidence} - {COMPLETE, MISSING})
        if unknown:
            raise UserError(f"evidence has {unknown[0]!r}; for task biographies it must be complete or missing")

    def examples(self, settings: TaskSetSettings, files: Mapping[str, Path], prompts: Prompts) -> list[Example]:
        """See :meth:`Task.examples`. A set's number of examples counts biographies, each with all its questions."""
        self.check(settings)
        rows = biographies(files["rows"])
        check_count(files["rows"], len(rows), "biographies", settings.examples)
        rows = rows[: settings.examples or None]
        documents = _documents(rows, settings.length, files.get("corpus"), prompts)
        examples: list[Example] = []
        for row in rows:
            document, text = documents[row["id"]]
            examples += _examples(row, document, text, settings, prompts.wording)
        return examples

    def longest(self, references: Sequence[str]) -> int:
        return self.new_tokens * len(references)

    def score(self, prediction: str, references: Sequence[str]) -> float:
        """The percentage of the requested attributes that are right; references are those of the class."""
        n_right = 0
        for reference in references:
            fact = json.loads(reference)
            if fact["values"]:
                n_right += gives(prediction, **fact)
            else:
                n_right += abstains(prediction, fact["attribute"], fact["person"])
        return 100 * n_right / len(references)

    def is_official(self, files: Mapping[str, Path]) -> bool:
        return sum(1 for _ in records(files["rows"], REMEDY)) == self.rows


def _documents(
    rows: Sequence[Biography], length: int, corpus: Path | None, prompts: Prompts
) -> dict[str, tuple[str, str]]:
    """The (name, text) of the document in which each biography stands, by the id of the biography's row.

    With a ``length`` of 0, each biography is a document. Otherwise a document has that many tokens of the reader whose
    ``prompts`` these are, and several biographies between paragraphs of ``corpus`` (a file of schema "corpus").
    """
    documents: dict[str, tuple[str, str]] = {}
    if not length:
        # A text that several rows share is called by the id of its first row.
        first_ids: dict[str, str] = {}
        for row in rows:
            name = first_ids.setdefault(row["text"], row["id"])
            documents[row["id"]] = name, row["text"]
        return documents
    padder = Padder(rows_of(corpus, "corpus"), lambda text: len(prompts.text(text)), "of the run")
    n_people = max(1, min(MOST_PEOPLE, length // TOKENS_A_PERSON))
    for first in range(0, len(rows), n_people):
        group = rows[first : first + n_people]
        name = f"written-{length}-{group[0]['id']}"
        # An earlier version drew its seeds in this way. Any other way would change the documents.
        rng = random.Random(random.Random(f"0:card:{name}").getrandbits(64))
        text = padder.document(_joint(name, group), length, rng)["text"]
        for row in group:
            documents[row["id"]] = name, text
    return documents


def _joint(name: str, group: Sequence[Biography]) -> dict[str, Any]:
    """Several biographies as one that the padder takes, in which each of them is one sentence."""
    facts = []
    for row in group:
        for fact in row["facts"]:
            # The row's id keeps apart attributes that biographies have in common.
            facts.append({"attribute": f"{row['id']} {fact['attribute']}", "value": fact["value"]})
    return {
        "id": name,
        "split": "",
        "person": group[0]["person"],
        "facts": facts,
        "sentences": [row["text"] for row in group],
    }


def _examples(row: Biography, document: str, text: str, settings: TaskSetSettings, wording: str) -> Iterator[Example]:
    """Yield the questions about a biography: about groups of its attributes, and about each attribute that it lacks.

    ``document`` and ``text`` are the name and text of the document in which the biography stands; ``wording`` is the
    wording of questions (:func:`utaca.readers.questions.question`).
    """
    values = {fact["attribute"]: [fact["value"], *fact["also"]] for fact in row["facts"]}
    # The attributes that each question asks for: up to `settings.asked` stated ones, or one that is lacking.
    groups: list[list[str]] = []
    if COMPLETE in settings.evidence:
        stated = list(values)
        groups += [stated[first : first + settings.asked] for first in range(0, len(stated), settings.asked)]
    if MISSING in settings.evidence:
        groups += [[attribute] for attribute in row["absent"]]
    for number, group in enumerate(groups):
        references = []
        for attribute in group:
            reference = {"attribute": attribute, "person": row["person"], "values": values.get(attribute, [])}
            references.append(json.dumps(reference, ensure_ascii=False))
        asking = question(group, row["person"], wording)
        yield Example(f"{row['id']}/{number}", document, text, asking, tuple(references), asking)


def abstains(answer: str, attribute: str, person: str) -> bool:
    """Whether an ``answer`` says that a person's value of ``attribute`` is unknown."""
    return " ".join(normalise(extract(answer, attribute, person))).startswith("unknown")


def gives(answer: str, attribute: str, person: str, values: Sequence[str]) -> bool:
    """Whether an ``answer`` gives one of the ``values`` of a person's ``attribute``.

    The value must stand in one piece, and with at most :data:`FURTHER_WORDS` further words (:data:`FREE_WORDS` if the
    answer states the attribute in free words). Texts are compared in SQuAD's normal form.
    """
    said = extract(answer, attribute, person).rstrip(". ")
    in_pattern = about(answer, attribute, person)
    is_free = not in_pattern and in_free_words(answer, attribute)
    most_further = FREE_WORDS if is_free else FURTHER_WORDS
    for value in values:
        # SQuAD's normal form leaves nothing of a grade such as A (an article) or A+, which is compared as it is.
        words_of = normalise if normalise(value) else str.split
        words = words_of(said)
        wanted = words_of(value)
        if len(words) > len(wanted) + most_further:
            continue
        for start in range(len(words) - len(wanted) + 1):
            if words[start : start + len(wanted)] == wanted:
                return True
    return False
