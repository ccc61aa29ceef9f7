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

    The prompt is ``text``, an empty line and ``question``, and the answer goes on from the task's ``prefix``.
    ``references`` are the right answers: an answer need only match one of them. ``document`` names what rows may share
    (a paragraph, a meeting); intervals resample documents. ``query`` is the question without instructions.
    """

    id: str
    document: str
    text: str
    question: str
    references: tuple[str, ...]
    query: str = ""


class Task(ABC):
    """A task of a benchmark under its official protocol.

    Class constants are the names of benchmark and task, the most tokens of an answer, the text with which answers begin
    after the assistant's header, the task's files (a name for each, and its path below ``tasks.path`` unless the set
    has another), the number of rows of the official files, the metric, the packages of
    :data:`utaca.tasks.metrics.VERSIONS` that the metric needs, and whether documents are padded with the run's corpus.
    Answers end at a stop token or at ``new_tokens``: no task here has another stop rule.
    """

    benchmark: ClassVar[str]
    name: ClassVar[str]
    new_tokens: ClassVar[int]
    prefix: ClassVar[str] = ""
    files: ClassVar[Mapping[str, str]]
    rows: ClassVar[int]
    metric: ClassVar[str]
    packages: ClassVar[tuple[str, ...]] = ()
    padded: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        check_overrides(cls)

    def check(self, settings: TaskSetSettings) -> None:
        """Raise :class:`UserError` if a package of the metric is missing, or if the task lacks an option of the set."""
        metrics.require(*self.packages)

    @abstractmethod
    def examples(self, settings: TaskSetSettings, files: Mapping[str, Path], prompts: Prompts) -> list[Example]:
        """The rows of a set as examples under a reader's prompts.

        ``files`` has the path of each of the class's files, which exist, and under "corpus" the path of the run's
        corpus (schema "corpus") if the task is padded and the set has a length. Raises :class:`UserError` as
        :meth:`check` does, and if a file has another layout, a row has no answer or the shortest prompt is longer than
        ``settings.length``.
        """

    @abstractmethod
    def score(self, prediction: str, references: Sequence[str]) -> float:
        """The official score of an answer, 0 to 100."""

    def longest(self, references: Sequence[str]) -> int:
        """The largest number of tokens of an answer to a row with these references."""
        return self.new_tokens

    @abstractmethod
    def is_official(self, files: Mapping[str, Path]) -> bool:
        """Whether the files have as many rows as the official files; else tables call the set's source "protocol"."""


def cut(prompts: Prompts, text: str, question: str, length: int) -> str:
    """The text of a prompt of at most ``length`` tokens, chat template not counted, with a part in the middle removed.

    As InfiniteBench and LongBench cut: the first and last ``length // 2`` tokens of the prompt stay; 0 removes nothing.
    Raises :class:`UserError` if the question does not fit into the last half.
    """
    if not length:
        return text
    prompt = text + SEPARATOR + question
    offsets = prompts.with_offsets(prompt)[1]
    if len(offsets) <= length:
        return text
    half = length // 2
    head = offsets[half - 1][1]
    tail = offsets[-half][0]
    if not half or tail > len(text):
        raise UserError(
            f"the question {question[:60]!r} does not fit into half of a prompt of {length} tokens; raise the set's "
            "length"
        )
    return text[:head] + text[tail:]
