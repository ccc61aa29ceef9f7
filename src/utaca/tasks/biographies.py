"""Handwritten biographies with the pipeline's questions: how well a reader reads.

Questions are about the attributes that a biography states, one or several at once, and about single attributes that it
lacks. A document is a biography only or, if documents have a set length, biographies between paragraphs of the run's
corpus, at random depths.
"""

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from utaca.biographies.handwritten import MEND, Biography, biographies
from utaca.biographies.padding import Padder
from utaca.data_files import root
from utaca.errors import UserError
from utaca.judging.alignment import about
from utaca.judging.cas import extract
from utaca.judging.rules.statements import in_free_words
from utaca.judging.strings import normalise
from utaca.readers.prompts import Prompts, question
from utaca.records.tables import rows as rows_of
from utaca.records.texts import records
from utaca.settings.schema import TaskSetSettings
from utaca.tasks.rows import check_count
from utaca.tasks.task import Example, Task

COMPLETE = "complete"
MISSING = "missing"
TOKENS_A_PERSON = 2048
"""Tokens of a document's length for each person that it describes."""
MOST_PEOPLE = 4
"""The largest number of people in a document."""
FURTHER_WORDS = 4
"""The most words that an answer may have beyond the value, if it is in the requested pattern or only a value."""
FREE_WORDS = 16
"""The most words that an answer may have beyond the value, if it states the attribute in free words."""


class Biographies(Task):
    """Questions about the rows of a JSONL file (:class:`Biography`); ``also`` are other ways to write a value.

    A score is the percentage of the requested values that an answer gives; for an attribute that the biography lacks,
    the answer must say that the value is unknown.
    """

    benchmark = "the project's own"
    name = "biographies"
    new_tokens = 48
    files: ClassVar[Mapping[str, str]] = {"rows": str(root() / "data" / "biographies" / "handwritten.jsonl")}
    rows = 66
    metric = "values found"
    padded = True

    def check(self, settings: TaskSetSettings) -> None:
        unknown = sorted({*settings.evidence} - {COMPLETE, MISSING})
        if unknown:
            raise UserError(f"evidence names {unknown[0]!r}; of task biographies it is complete or missing")

    def examples(self, settings: TaskSetSettings, files: Mapping[str, Path], prompts: Prompts) -> list[Example]:
        self.check(settings)
        rows = biographies(files["rows"])
        check_count(files["rows"], len(rows), "biographies", settings.examples)
        rows = rows[: settings.examples or None]
        texts = self._texts(rows, settings.length, files.get("corpus"), prompts)
        examples: list[Example] = []
        for row in rows:
            document, text = texts[row["id"]]
            examples += _examples(row, document, text, settings, prompts.style)
        return examples

    def longest(self, references: Sequence[str]) -> int:
        return self.new_tokens * len(references)

    def score(self, prediction: str, references: Sequence[str]) -> float:
        n_right = 0
        for reference in references:
            fact = json.loads(reference)
            if fact["values"]:
                n_right += gives(prediction, **fact)
            else:
                n_right += abstains(prediction, fact["attribute"], fact["person"])
        return 100 * n_right / len(references)

    def is_official(self, files: Mapping[str, Path]) -> bool:
        return sum(1 for _ in records(files["rows"], MEND)) == self.rows

    def _texts(
        self, rows: Sequence[Biography], length: int, corpus: Path | None, prompts: Prompts
    ) -> dict[str, tuple[str, str]]:
        """Name and text of a document by row id; with a ``length``, several rows share a document."""
        documents: dict[str, tuple[str, str]] = {}
        if not length:
            # A text that several rows share is called by the id of its first row.
            first_ids: dict[str, str] = {}
            for row in rows:
                name = first_ids.setdefault(row["text"], row["id"])
                documents[row["id"]] = name, row["text"]
            return documents
        padder = Padder(rows_of(corpus, "corpus"), lambda text: len(prompts.text(text)), "of the run")
        people = max(1, min(MOST_PEOPLE, length // TOKENS_A_PERSON))
        for first in range(0, len(rows), people):
            group = rows[first : first + people]
            name = f"written-{length}-{group[0]['id']}"
            # The padder gets each biography as one sentence; ids keep apart attributes that biographies have in common.
            facts = []
            for row in group:
                for fact in row["facts"]:
                    facts.append({"attribute": f"{row['id']} {fact['attribute']}", "value": fact["value"]})
            joint = {
                "id": name,
                "split": "",
                "person": group[0]["person"],
                "facts": facts,
                "sentences": [row["text"] for row in group],
            }
            # The seed keeps the form that names of documents had at first, so that the documents stay the same.
            rng = random.Random(random.Random(f"0:card:{name}").getrandbits(64))
            text = padder.document(joint, length, rng)["text"]
            for row in group:
                documents[row["id"]] = name, text
        return documents


def _examples(row: Biography, document: str, text: str, settings: TaskSetSettings, style: str) -> Iterator[Example]:
    """The questions about a biography: about groups of its attributes, and about each attribute that it lacks."""
    values = {fact["attribute"]: [fact["value"], *fact["also"]] for fact in row["facts"]}
    groups: list[list[str]] = []
    if COMPLETE in settings.evidence:
        names = list(values)
        groups += [names[first : first + settings.asked] for first in range(0, len(names), settings.asked)]
    if MISSING in settings.evidence:
        groups += [[name] for name in row["absent"]]
    for number, group in enumerate(groups):
        references = []
        for attribute in group:
            reference = {"attribute": attribute, "person": row["person"], "values": values.get(attribute, [])}
            references.append(json.dumps(reference, ensure_ascii=False))
        asking = question(group, row["person"], style)
        yield Example(f"{row['id']}/{number}", document, text, asking, tuple(references), asking)


def abstains(answer: str, attribute: str, person: str) -> bool:
    """Whether an answer says that the value is unknown."""
    return " ".join(normalise(extract(answer, attribute, person))).startswith("unknown")


def gives(answer: str, attribute: str, person: str, values: Sequence[str]) -> bool:
    """Whether an answer gives one of the values, in SQuAD's normal form, in one piece and with few further words."""
    said = extract(answer, attribute, person).rstrip(". ")
    is_free = not about(answer, attribute, person) and in_free_words(answer, attribute)
    most = FREE_WORDS if is_free else FURTHER_WORDS
    for value in values:
        # SQuAD's normal form leaves nothing of a grade such as A or A+.
        form = normalise if normalise(value) else str.split
        words = form(said)
        wanted = form(value)
        if len(words) > len(wanted) + most:
            continue
        for start in range(len(words) - len(wanted) + 1):
            if words[start : start + len(wanted)] == wanted:
                return True
    return False
