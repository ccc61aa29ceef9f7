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

MEND = "docs/benchmarks.md says which file the task reads"


@dataclass(frozen=True)
class Row:
    """A row of a file: ``input`` is asked about ``context``, which rows of the same ``document`` share."""

    id: str
    document: str
    context: str
    input: str
    references: tuple[str, ...]


class Rows(Task):
    """A task of one file, ``rows``, whose prompt is a template around each row's text and question.

    ``template`` is the official prompt: ``{context}``, an empty line, then ``{input}``; without ``{input}``, the first
    paragraph asks the same of every row. The part before the empty line is an example's text, the part after it the
    question. ``id_key`` and ``answers_key`` are the file's keys of a row's name and answers.
    """

    template: ClassVar[str]
    id_key: ClassVar[str]
    answers_key: ClassVar[str]

    def examples(self, settings: TaskSetSettings, files: Mapping[str, Path], prompts: Prompts) -> list[Example]:
        self.check(settings)
        count = settings.examples
        rows = self.read(files["rows"])
        chosen = self.select(rows, count) if count else list(rows)
        if not chosen:
            raise UserError(f"{files['rows']} has no rows; {MEND}")
        check_count(files["rows"], len(chosen), "rows", count)
        name, times = Counter(row.id for row in chosen).most_common(1)[0]
        if times > 1:
            raise UserError(f"{files['rows']} calls {times} rows {name!r}; give each a {self.id_key!r} of its own")
        return [self._example(row, prompts, settings.length) for row in chosen]

    def is_official(self, files: Mapping[str, Path]) -> bool:
        return sum(1 for _ in self.read(files["rows"])) == self.rows

    def read(self, path: Path) -> Iterator[Row]:
        """The rows of a file in its order. Raises :class:`UserError` if a row has another layout."""
        instruction = self.template.partition(SEPARATOR)[0]
        for where, record in records(path, MEND):
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
        """The first ``count`` rows, or all rows if there are fewer."""
        return list(islice(rows, count))

    def _example(self, row: Row, prompts: Prompts, length: int) -> Example:
        head, tail = self.template.split("{context}" + SEPARATOR)
        question = tail.replace("{input}", row.input)
        kept = cut(prompts, head + row.context, question, length)
        return Example(row.id, row.document, kept, question, row.references, row.input)


DECLARED: dict[str, dict[str, Any]] = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
"""The entries of ``rows.yaml``: constants of a class, by the name of the task."""
SHIPPED: dict[str, type[Rows]] = {
    name: type(name, (Rows,), {"name": name, **constants}) for name, constants in DECLARED.items()
}
"""Tasks of InfiniteBench and LongBench, by name, made from ``rows.yaml``."""


def check_count(path: Path, there: int, what: str, wanted: int) -> None:
    """Raise :class:`UserError` if a file has fewer rows (called ``what`` in the message) than a set wants."""
    if there < wanted:
        raise UserError(
            f"{path} has {there} {what}, and the set's examples={wanted} asks for more; ask for fewer, or for 0, which "
            "is all"
        )


def text(record: Mapping[str, Any], key: str, where: str, *, blank: bool = False) -> str:
    """The text under ``key``; raises :class:`UserError` if it is missing or, unless ``blank``, white space only."""
    value = record.get(key)
    if not isinstance(value, str) or not (blank or value.strip()):
        raise UserError(f"{where} has no text under {key!r}; {MEND}")
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
        raise UserError(f"{where} has no list of texts under {key!r}; {MEND}")
    if not any(answer.strip() for answer in listed):
        raise UserError(f"{where} has no answer under {key!r}; {MEND}")
    return tuple(listed)


def objects(record: Mapping[str, Any], key: str, where: str) -> list[dict[str, Any]]:
    """The list of objects under ``key``; raises :class:`UserError` for anything else."""
    value = record.get(key)
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise UserError(f"{where} has no list of objects under {key!r}; {MEND}")
    return value
