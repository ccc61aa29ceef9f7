"""Handwritten biographies with the pipeline's questions: how well a reader reads.

Questions are about the attributes that a biography states, one or several at once, and about single ones that it lacks.
A biography stands alone or, in documents of a set length, between paragraphs of the run's corpus, at a random depth.
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
TOKENS_A_PERSON, MOST_PEOPLE = 2048, 4
"""Tokens of a document's length per person that it describes, and the largest number of people in a document."""
FURTHER_WORDS, FREE_WORDS = 4, 16
"""The most further words of an answer that gives a value: if the value is in the requested pattern or stands alone, and
if it is in free words that state the attribute."""


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
        if unknown := sorted({*settings.evidence} - {COMPLETE, MISSING}):
            raise UserError(f"evidence names {unknown[0]!r}; of task biographies it is complete or missing")

    def examples(self, settings: TaskSetSettings, files: Mapping[str, Path], prompts: Prompts) -> list[Example]:
        self.check(settings)
        rows = biographies(files["rows"])
        check_count(files["rows"], len(rows), "biographies", settings.examples)
        rows = rows[: settings.examples or None]
        texts = self._texts(rows, settings.length, files.get("corpus"), prompts)
        return [example for row in rows for example in _examples(row, *texts[row["id"]], settings, prompts.style)]

    def longest(self, references: Sequence[str]) -> int:
        return self.new_tokens * len(references)

    def score(self, prediction: str, references: Sequence[str]) -> float:
        facts = list(map(json.loads, references))
        right = [
            gives(prediction, **fact) if fact["values"] else abstains(prediction, fact["attribute"], fact["person"])
            for fact in facts
        ]
        return 100 * sum(right) / len(facts)

    def is_official(self, files: Mapping[str, Path]) -> bool:
        return sum(1 for _ in records(files["rows"], MEND)) == self.rows

    def _texts(
        self, rows: Sequence[Biography], length: int, corpus: Path | None, prompts: Prompts
    ) -> dict[str, tuple[str, str]]:
        """Name and text of a document by row id; with a ``length``, several rows share a document."""
        if not length:
            first: dict[str, str] = {}
            return {row["id"]: (first.setdefault(row["text"], row["id"]), row["text"]) for row in rows}
        padder = Padder(rows_of(corpus, "corpus"), lambda text: len(prompts.text(text)), "of the run")
        people = max(1, min(MOST_PEOPLE, length // TOKENS_A_PERSON))
        documents = {}
        for group in (rows[first : first + people] for first in range(0, len(rows), people)):
            name = f"written-{length}-{group[0]['id']}"
            # The padder gets each biography as one sentence; ids keep apart attributes that biographies have in common.
            facts = [
                {"attribute": f"{row['id']} {fact['attribute']}", "value": fact["value"]}
                for row in group
                for fact in row["facts"]
            ]
            joint = {"id": name, "split": "", "person": group[0]["person"], "facts": facts}
            # The seed keeps the form that names of documents had at first, so that the documents stay the same.
            rng = random.Random(random.Random(f"0:card:{name}").getrandbits(64))
            text = padder.document(joint | {"sentences": [row["text"] for row in group]}, length, rng)["text"]
            documents |= {row["id"]: (name, text) for row in group}
        return documents


def _examples(row: Biography, document: str, text: str, settings: TaskSetSettings, style: str) -> Iterator[Example]:
    values = {fact["attribute"]: [fact["value"], *fact["also"]] for fact in row["facts"]}
    names = list(values)
    most = settings.asked
    groups = [names[first : first + most] for first in range(0, len(names), most)] * (COMPLETE in settings.evidence)
    groups += [[name] for name in row["absent"]] * (MISSING in settings.evidence)
    for number, group in enumerate(groups):
        references = [{"attribute": x, "person": row["person"], "values": values.get(x, [])} for x in group]
        encoded = tuple(json.dumps(one, ensure_ascii=False) for one in references)
        asking = question(group, row["person"], style)
        yield Example(f"{row['id']}/{number}", document, text, asking, encoded, asking)


def abstains(answer: str, attribute: str, person: str) -> bool:
    """Whether an answer says that the value is unknown."""
    return " ".join(normalise(extract(answer, attribute, person))).startswith("unknown")


def gives(answer: str, attribute: str, person: str, values: Sequence[str]) -> bool:
    """Whether an answer gives one of the values, in SQuAD's normal form, in one piece and with few further words."""
    said = extract(answer, attribute, person).rstrip(". ")
    free = not about(answer, attribute, person) and in_free_words(answer, attribute)
    most = FREE_WORDS if free else FURTHER_WORDS
    for value in values:
        # SQuAD's normal form leaves nothing of a grade such as A or A+.
        form = normalise if normalise(value) else str.split
        words = form(said)
        wanted = form(value)
        places = range(len(words) - len(wanted) + 1)
        if len(words) <= len(wanted) + most and any(words[n : n + len(wanted)] == wanted for n in places):
            return True
    return False
