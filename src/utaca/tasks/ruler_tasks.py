"""RULER's thirteen tasks with its own rows: what it makes of seed 42, the reader's tokenizer and its files.

A prompt is the user's message in the reader's chat template, and the answer goes on from RULER's beginning of it, as
with ``prepare.py --prepare_for_ns``: the template counts towards the length. :mod:`utaca.tasks.ruler` has the two
tasks of questions with other draws, which conditions of evidence and calibration need.
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from utaca.errors import UserError
from utaca.readers.prompts import SEPARATOR, Prompts
from utaca.settings.schema import TaskSetSettings
from utaca.tasks import metrics, ruler_texts
from utaca.tasks.rows import REMEDY, objects, text
from utaca.tasks.ruler import QA1, QA2, SEED, check_length, rows_of, titled
from utaca.tasks.ruler_rows import (
    CommonWords,
    FrequentWords,
    Generator,
    Haystack,
    Needles,
    Question,
    Questions,
    Room,
    TooShortError,
    Variables,
)
from utaca.tasks.task import Example, Task

ESSAYS = {"essays": "RULER/PaulGrahamEssays.json", "sentences": "RULER/punkt_tab.zip"}
"""Files of the tasks with a haystack of essays: the essays, and NLTK's rules that split them into sentences."""
FURTHER_WORDS = "RULER/english_words.json"
"""File of ``cwe``, for lists of more words than ``wonderwords`` has."""
_OFFICIAL_FILE = {
    "essays": ruler_texts.are_official_essays,
    "sentences": ruler_texts.are_official_sentences,
    "words": ruler_texts.are_official_words,
}


class Official(Task):
    """A task of RULER's, whose rows are the official ones."""

    benchmark = "RULER"
    files: ClassVar[Mapping[str, str]] = {}
    rows = 500
    metric = "string match"

    def check(self, settings: TaskSetSettings) -> None:
        """Raise :class:`UserError` also for keys of sets that make other rows, and a length without room."""
        super().check(settings)
        own = {"shuffled": settings.shuffled, "pool": settings.pool, "articles": settings.articles}
        own["evidence"] = settings.evidence != ["complete"]
        for key, is_set in own.items():
            if is_set:
                raise UserError(f"task {self.name} has the official rows, which {key} would change; leave it out")
        check_length(self, settings.length)

    @abstractmethod
    def generator(self, files: Mapping[str, Path], length: int, count: int, seed: int) -> Generator:
        """What makes the first ``count`` rows of up to ``length`` tokens from files and a seed."""

    def examples(self, settings: TaskSetSettings, files: Mapping[str, Path], prompts: Prompts) -> list[Example]:
        """See :meth:`Task.examples`."""
        self.check(settings)
        count = settings.examples or self.rows
        try:
            generator = self.generator(files, settings.length, count, SEED)
            samples = generator.rows(count, self.room(settings.length, prompts))
        except TooShortError:
            raise UserError(
                f"a prompt of task {self.name} does not fit into length={settings.length} with the reader's chat "
                "template and its answer; raise the set's length"
            ) from None
        examples = []
        for number, sample in enumerate(samples):
            document = sample.document or str(number)
            examples.append(
                Example(
                    str(number), document, sample.text, sample.question, sample.answers, sample.query, sample.prefix
                )
            )
        return examples

    def room(self, length: int, prompts: Prompts) -> Room:
        """The room that a prompt of up to ``length`` tokens has in the chat template of ``prompts``."""
        # The tokens before and after the user's message.
        template = len(prompts.document("")) + len(prompts.question("")) - len(prompts.behind_text(SEPARATOR))
        return Room(length, template, self.new_tokens, lambda text: len(prompts.text(text)))

    def score(self, prediction: str, references: Sequence[str]) -> float:
        return metrics.string_match_all(prediction, references)

    def is_official(self, files: Mapping[str, Path]) -> bool:
        return all(_OFFICIAL_FILE[name](path) for name, path in files.items() if name in _OFFICIAL_FILE)


class NeedleTask(Official):
    """One of the eight tasks of needles in a haystack."""

    new_tokens = 128
    needles: ClassVar[Needles]

    def generator(self, files: Mapping[str, Path], length: int, count: int, seed: int) -> Generator:
        """See :meth:`Official.generator`."""
        kinds = {self.needles.key_kind, self.needles.value_kind}
        pairs: Sequence[str] = ()
        if "words" in kinds:
            pairs = ruler_texts.Pairs(ruler_texts.words("adjective"), ruler_texts.words("noun"))
        essays = None
        if self.needles.haystack == "essays":
            essays = ruler_texts.Essays(files["essays"], files["sentences"])
        return Haystack(seed, length, self.needles, pairs, essays)


class VariableTask(Official):
    """``vt``: the variables to which a value is assigned, also by way of others."""

    name = "vt"
    new_tokens = 30

    def generator(self, files: Mapping[str, Path], length: int, count: int, seed: int) -> Generator:
        """See :meth:`Official.generator`."""
        return Variables(seed)


class CommonWordTask(Official):
    """``cwe``: the ten most common words of a list.

    Lists of more than some 8,100 different words need a file of further words.
    """

    name = "cwe"
    new_tokens = 120
    files: ClassVar[Mapping[str, str]] = {"words": FURTHER_WORDS}
    spare = ("words",)
    packages = ("wonderwords",)

    def generator(self, files: Mapping[str, Path], length: int, count: int, seed: int) -> Generator:
        """See :meth:`Official.generator`."""
        words = ruler_texts.words("noun", "adjective", "verb")
        return CommonWords(seed, length, words, partial(self._further, files))

    def _further(self, files: Mapping[str, Path]) -> list[str]:
        """The words of the file; raises :class:`UserError` if it is not there."""
        if "words" not in files:
            raise UserError(
                f"task {self.name} needs {FURTHER_WORDS}, below tasks.path, for so long a list of words; run "
                "utaca fetch-tasks ruler_words, or lower the set's length"
            )
        return ruler_texts.english_words(files["words"])


class FrequentWordTask(Official):
    """``fwe``: the three most frequent words of a coded text."""

    name = "fwe"
    new_tokens = 50

    def generator(self, files: Mapping[str, Path], length: int, count: int, seed: int) -> Generator:
        """See :meth:`Official.generator`."""
        return FrequentWords(seed)


class _QuestionTask(Official):
    """Questions about documents: those of a file, from the first."""

    new_tokens = 32

    def generator(self, files: Mapping[str, Path], length: int, count: int, seed: int) -> Generator:
        """See :meth:`Official.generator`."""
        path = files["questions"]
        questions, documents = self.read(path)
        if count > len(questions):
            raise UserError(
                f"{path} has {len(questions)} questions for task {self.name}, its set wants {count}; ask for fewer or "
                "name a larger file"
            )
        return Questions(seed, questions, documents)

    @abstractmethod
    def read(self, path: Path) -> tuple[list[Question], list[str]]:
        """Read a file's questions, in its order, and all documents, in alphabetical order."""

    def score(self, prediction: str, references: Sequence[str]) -> float:
        return metrics.string_match_part(prediction, references)


class SquadTask(_QuestionTask):
    """``qa_1`` with RULER's own rows: the answerable questions of SQuAD 2.0's development set."""

    name = "ruler_qa_1"
    files: ClassVar[Mapping[str, str]] = QA1.files

    def is_official(self, files: Mapping[str, Path]) -> bool:
        return QA1().is_official(files)

    def read(self, path: Path) -> tuple[list[Question], list[str]]:
        """See :meth:`_QuestionTask.read`."""
        # The paragraphs of each article, each with its text and its questions.
        articles = []
        for where, article in rows_of(path):
            paragraphs = objects(article, "paragraphs", where)
            articles.append([(text(item, "context", where), objects(item, "qas", where)) for item in paragraphs])
        documents = sorted({context for article in articles for context, _ in article})
        places = {context: place for place, context in enumerate(documents)}
        questions = []
        for article in articles:
            of_article = [places[context] for context, _ in article]
            for context, rows in article:
                own = places[context]
                near = [place for place in of_article if place != own]
                for row in rows:
                    if not row.get("is_impossible", False):
                        questions.append(Question(*_asked(row, path), [own], near))
        return questions, documents


class HotpotTask(_QuestionTask):
    """``qa_2`` with RULER's own rows: the questions of HotpotQA's development set, each about its ten paragraphs."""

    name = "ruler_qa_2"
    files: ClassVar[Mapping[str, str]] = QA2.files

    def is_official(self, files: Mapping[str, Path]) -> bool:
        return QA2().is_official(files)

    def read(self, path: Path) -> tuple[list[Question], list[str]]:
        """See :meth:`_QuestionTask.read`."""
        # The question, the answer and the documents of each row.
        rows = []
        for where, row in rows_of(path):
            own = [QA2.document.format(title=title, text=paragraph) for title, paragraph in titled(row, where)]
            rows.append((text(row, "question", where), text(row, "answer", where), own))
        documents = sorted({document for _, _, own in rows for document in own})
        places = {document: place for place, document in enumerate(documents)}
        questions = []
        for query, answer, own in rows:
            questions.append(Question(query, (answer,), [places[document] for document in own]))
        return questions, documents


def _asked(row: Mapping[str, Any], path: Path) -> tuple[str, tuple[str, ...]]:
    """A question of SQuAD's and its answers; raises :class:`UserError` if it has none."""
    query = text(row, "question", f"{path}, a question,")
    where = f"{path}, question {query!r},"
    answers = tuple(text(answer, "text", where) for answer in objects(row, "answers", where))
    if not answers:
        raise UserError(f"{where} has no answer; {REMEDY}")
    return query, answers


NEEDLES = {
    "niah_single_1": Needles("noise"),
    "niah_single_2": Needles("essays"),
    "niah_single_3": Needles("essays", value_kind="uuids"),
    "niah_multikey_1": Needles("essays", keys=4),
    "niah_multikey_2": Needles("needles"),
    "niah_multikey_3": Needles("needles", key_kind="uuids", value_kind="uuids"),
    "niah_multivalue": Needles("essays", values=4),
    "niah_multiquery": Needles("essays", queries=4),
}
"""The tasks of needles in a haystack, by name."""


def _needle_task(name: str, needles: Needles) -> type[Official]:
    """The class of a task of needles in a haystack."""
    is_in_essays = needles.haystack == "essays"
    packages = ("nltk",) if is_in_essays else ()
    if needles.key_kind == "words":
        packages = (*packages, "wonderwords")
    files = ESSAYS if is_in_essays else {}
    return type(name, (NeedleTask,), {"name": name, "needles": needles, "files": files, "packages": packages})


OFFICIAL: dict[str, type[Official]] = {
    **{name: _needle_task(name, needles) for name, needles in NEEDLES.items()},
    **{task.name: task for task in (VariableTask, CommonWordTask, FrequentWordTask, SquadTask, HotpotTask)},
}
"""RULER's thirteen tasks, by name."""
