"""Tasks whose file has one row per line: prompts from a template, cut in the middle."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

import yaml

from utaca.errors import UserError
from utaca.readers.prompts import SEPARATOR, Prompts
from utaca.records.texts import records
from utaca.settings.schema import TaskSetSettings
from utaca.tasks.metrics import METRICS
from utaca.tasks.task import Example, Task, cut

REMEDY = "docs/benchmarks.md describes the file that the task needs"
"""End of the error messages about a file of another layout."""


@dataclass(frozen=True)
class Row:
    """A row of a task's file: ``input`` is asked about ``context``, and ``references`` are the right answers.

    ``document`` is a name of the context; rows with the same context share it.
    """

    id: str
    document: str
    context: str
    input: str
    references: tuple[str, ...]


class Rows(Task):
    """A task of one file, ``rows``, whose prompt is a template around each row's text and question.

    ``template`` is the official prompt, in which ``{context}``, followed by an empty line, stands for the row's text
    and ``{input}`` for its question. If there is no ``{input}``, the template's first paragraph asks the same of every
    row. An example's text is the template up to that empty line, its question the rest. ``id_key`` and ``answers_key``
    are the keys under which the file has a row's name and its answers.
    """

    template: ClassVar[str]
    id_key: ClassVar[str]
    answers_key: ClassVar[str]

    def examples(self, settings: TaskSetSettings, files: Mapping[str, Path], prompts: Prompts) -> list[Example]:
        """See :meth:`Task.examples`. Raises :class:`UserError` also if there are too few rows, or two of one name."""
        self.check(settings)
        path = files["rows"]
        # 0 stands for all rows.
        count = settings.examples
        rows = self.read(path)
        chosen = self.select(rows, count) if count else list(rows)
        if not chosen:
            raise UserError(f"{path} has no rows; {REMEDY}")
        check_count(path, len(chosen), "rows", count)
        name, times = Counter(row.id for row in chosen).most_common(1)[0]
        if times > 1:
            raise UserError(f"{path} has {times} rows with the {self.id_key} {name!r}; give each row its own")
        return [self._example(row, prompts, settings.length) for row in chosen]

    def is_official(self, files: Mapping[str, Path]) -> bool:
        return sum(1 for _ in self.read(files["rows"])) == self.rows

    def read(self, path: Path) -> Iterator[Row]:
        """Yield the rows of a file in its order. Raises :class:`UserError` if a row has another layout."""
        instruction = self.template.partition(SEPARATOR)[0]
        for where, record in records(path, REMEDY):
            context = text(record, "context", where)
            yield Row(
                identity(record, self.id_key, where),
                sha256(context.encode()).hexdigest()[:16],
                context,
                text(record, "input", where) if "{input}" in self.template else instruction,
                answers(record, self.answers_key, where),
            )

    def score(self, prediction: str, references: Sequence[str]) -> float:
        return METRICS[self.metric](prediction, references)

    def select(self, rows: Iterable[Row], count: int) -> list[Row]:
        """The rows that a set of ``count`` rows asks: here the first ones; all rows if there are fewer."""
        return list(islice(rows, count))

    def _example(self, row: Row, prompts: Prompts, length: int) -> Example:
        """A row as a prompt of at most ``length`` tokens, or of any length if that is 0."""
        # The empty line between context and question is not a part of either: a prompt has it between text and
        # question.
        before_context, after_context = self.template.split("{context}" + SEPARATOR)
        question = after_context.replace("{input}", row.input)
        shortened = cut(prompts, before_context + row.context, question, length)
        return Example(row.id, row.document, shortened, question, row.references, row.input)


DECLARED: dict[str, dict[str, Any]] = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
"""The entries of ``rows.yaml``: constants of a class, by the name of the task."""
SHIPPED: dict[str, type[Rows]] = {
    name: type(name, (Rows,), {"name": name, **constants}) for name, constants in DECLARED.items()
}
"""Tasks of InfiniteBench and LongBench, by name, made from ``rows.yaml``."""


def check_count(path: Path, present: int, what: str, wanted: int) -> None:
    """Raise :class:`UserError` if a file has fewer rows than a set needs; ``what`` is the message's word for rows.

    ``present`` rows are in the file at ``path``; ``wanted`` is 0 if the set needs all.
    """
    if present < wanted:
        raise UserError(
            f"{path} has {present} {what}, but the set has examples={wanted}; lower examples, or set it to 0 for all"
        )


def text(record: Mapping[str, Any], key: str, where: str, *, blank: bool = False) -> str:
    """The text of a record under ``key``; ``where``, the record's place in words, begins error messages.

    Raises :class:`UserError` if the text is missing or, unless ``blank``, only white space.
    """
    value = record.get(key)
    if not isinstance(value, str) or not (blank or value.strip()):
        raise UserError(f"{where} has no text under {key!r}; {REMEDY}")
    return value


def identity(record: Mapping[str, Any], key: str, where: str) -> str:
    """The name of a record under ``key``, a text or an integer; raises :class:`UserError` if it is neither."""
    value = record.get(key)
    return str(value) if isinstance(value, int) else text(record, key, where)


def answers(record: Mapping[str, Any], key: str, where: str) -> tuple[str, ...]:
    """The answers under ``key``, a list of texts or one text; raises :class:`UserError` for anything else."""
    value = record.get(key)
    listed = [value] if isinstance(value, str) else value
    if not isinstance(listed, list) or not all(isinstance(answer, str) for answer in listed):
        raise UserError(f"{where} has no list of texts under {key!r}; {REMEDY}")
    if not any(answer.strip() for answer in listed):
        raise UserError(f"{where} has no answer under {key!r}; {REMEDY}")
    return tuple(listed)


def objects(record: Mapping[str, Any], key: str, where: str) -> list[dict[str, Any]]:
    """The list of objects under ``key``; raises :class:`UserError` for anything else."""
    value = record.get(key)
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise UserError(f"{where} has no list of objects under {key!r}; {REMEDY}")
    return value
