"""The interface of every task of a benchmark."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from utaca.errors import UserError, check_overrides
from utaca.readers.prompts import SEPARATOR, Prompts
from utaca.settings.schema import TaskSetSettings
from utaca.tasks import metrics


@dataclass(frozen=True)
class Example:
    """A row of a task as a prompt to a reader.

    The prompt is ``text``, an empty line and ``question``. No empty line stands before a question that begins with a
    line break. The answer continues from ``prefix``, which stands after the assistant's header. ``references`` are the
    right answers; the task's score says whether an answer must match one of them or all. ``document`` is the name of
    the paragraph or meeting that rows may share; confidence intervals resample documents. ``query`` is the question
    without instructions.
    """

    id: str
    document: str
    text: str
    question: str
    references: tuple[str, ...]
    query: str = ""
    prefix: str = ""


class Task(ABC):
    """A task of a benchmark under its official protocol.

    Answers end at a stop token or at ``new_tokens``: no task here has another stop rule.
    """

    benchmark: ClassVar[str]
    """Name of the benchmark."""
    name: ClassVar[str]
    """Name of the task."""
    new_tokens: ClassVar[int]
    """Most tokens of an answer."""
    files: ClassVar[Mapping[str, str]]
    """Path of each of the task's files, by a name for it; below ``tasks.path``, unless the set has another path."""
    spare: ClassVar[tuple[str, ...]] = ()
    """Names of files that few sets need: one that is not there is left out of what :meth:`examples` gets."""
    rows: ClassVar[int]
    """Number of rows of the official files."""
    unit: ClassVar[str] = "rows"
    """What ``rows`` counts, as messages call it."""
    metric: ClassVar[str]
    """Name of the metric in results."""
    packages: ClassVar[tuple[str, ...]] = ()
    """Packages of :data:`utaca.tasks.metrics.VERSIONS` that the task needs."""
    padded: ClassVar[bool] = False
    """Whether documents are padded with the run's corpus."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        check_overrides(cls)

    def check(self, settings: TaskSetSettings) -> None:
        """Raise :class:`UserError` if a package is missing, or if the task cannot do what a set asks."""
        metrics.require(*self.packages)

    @abstractmethod
    def examples(self, settings: TaskSetSettings, files: Mapping[str, Path], prompts: Prompts) -> list[Example]:
        """Read the rows of a set of this task, and write each as a prompt to the reader that ``prompts`` belong to.

        ``settings`` are the set's. ``files`` has the path of each of the class's files that exists, and under "corpus"
        the path of the run's corpus (schema "corpus") if the task is padded and the set has a length. Raises
        :class:`UserError` as :meth:`check` does, and if a file has another layout, a row has no answer or the shortest
        prompt is longer than ``settings.length``.
        """

    @abstractmethod
    def score(self, prediction: str, references: Sequence[str]) -> float:
        """The official score of an answer, 0 to 100."""

    def longest(self, references: Sequence[str]) -> int:
        """The largest number of tokens of an answer to a row with these ``references``."""
        return self.new_tokens

    @abstractmethod
    def is_official(self, files: Mapping[str, Path]) -> bool:
        """Whether the files, given by name, have as many rows as the official files.

        If not, tables say of the set that only its protocol is the benchmark's.
        """


def cut(prompts: Prompts, text: str, question: str, length: int) -> str:
    """Cut the middle out of ``text``, so that a prompt of text and ``question`` has at most ``length`` tokens.

    As InfiniteBench and LongBench cut: the first and last ``length // 2`` tokens of the prompt stay. The chat template
    is not counted; ``length`` 0 removes nothing. Raises :class:`UserError` if the question does not fit into the last
    half.
    """
    if not length:
        return text
    prompt = text + SEPARATOR + question
    # Where each token begins and ends in the prompt.
    offsets = prompts.with_offsets(prompt)[1]
    if len(offsets) <= length:
        return text
    half = length // 2
    head_end = offsets[half - 1][1]
    tail_start = offsets[-half][0]
    # The question follows the text, so the removed part may not reach beyond the text.
    if not half or tail_start > len(text):
        raise UserError(
            f"the question {question[:60]!r} does not fit into half of a prompt of {length} tokens; raise the set's "
            "length"
        )
    return text[:head_end] + text[tail_start:]
