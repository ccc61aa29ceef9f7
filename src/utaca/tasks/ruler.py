"""RULER's questions: qa_1 about SQuAD's paragraphs, qa_2 about HotpotQA's, among distracting paragraphs.

Prompts follow the official generator (``scripts/data/synthetic/qa.py`` of github.com/NVIDIA/RULER). A prompt has N
documents: those that a question was written about (SQuAD one, HotpotQA ten), then the others of the same article, then
random ones. N is determined once, on the first question, as the most that fit into ``length``; longer samples have
fewer. The official generator takes the first questions of a file, and shuffles all samples under one seed, so that
samples of N documents are permuted alike. With ``shuffled``, questions are drawn at random from the whole file, and
each sample has a seed of its own.

Where these prompts differ from the official code's:

- The code draws distractors from the global generator, which the search for N has advanced by as many prompts as the
  search tried, so that prompts depend on the tokenizer. Here every question has a generator of its own.
- The code repeats documents if a file has fewer than N. Here each document of the file occurs once.
- The code never ends if ten documents do not fit. Here a prompt may shrink to the documents of its question.
"""

import random
import re
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from utaca.biographies.evidence import named
from utaca.errors import UserError
from utaca.readers.prompts import SEPARATOR, Prompts
from utaca.records.texts import read_json, records
from utaca.settings.schema import EVIDENCE, TaskSetSettings
from utaca.tasks import metrics
from utaca.tasks.rows import REMEDY, identity, objects, text
from utaca.tasks.task import Example, Task

SEED = 42
"""Seed of the official generator's shuffles; here every draw's seed begins with it."""
STEP = 10
"""Number of documents that are removed at a time while a prompt is too long."""

_COMPLETE, _PARTIAL, _MISSING = EVIDENCE
_INSTRUCTION = (
    "Answer the question based on the given documents. Only give me the answer and do not output any other words."
)
_HEAD = f"{_INSTRUCTION}\n\nThe following are given documents.\n\n"
# Between sentences of an encyclopedia: what follows an abbreviation there is seldom a capital.
_BREAK = re.compile(r"(?<=[.!?])[\"')\]]*\s+(?=[\"'(\[]?[A-Z0-9])")


@dataclass(frozen=True)
class _Question:
    """A question and its documents, as texts.

    ``kept`` has, by condition of evidence, the documents that the question was written about; conditions that leave
    evidence out have fewer or shorter ones. ``near`` are the other documents of the same article. ``document`` is the
    id of what questions may share, ``references`` are the right answers.
    """

    id: str
    document: str
    text: str
    references: tuple[str, ...]
    kept: Mapping[str, Sequence[str]]
    near: Sequence[str] = ()


@dataclass
class _Source:
    """Content of a file: questions and documents of the articles that a set asks about, titles and texts of all.

    ``texts`` are the paragraphs with white space collapsed (:func:`_plain`).
    """

    questions: list[_Question] = field(default_factory=list)
    documents: set[str] = field(default_factory=set)
    titles: set[str] = field(default_factory=set)
    texts: set[str] = field(default_factory=set)


@dataclass(frozen=True)
class _Sample:
    """The documents that a question's prompt can be made of, in three groups.

    ``gold`` are those that the question was written about. ``near`` are others of the same article in the file's order,
    ``drawn_near`` the same ones in a random order. ``far`` are those of other articles in a random order. ``seed``
    shuffles the documents of the prompt.
    """

    gold: Sequence[str]
    near: Sequence[str]
    drawn_near: Sequence[str]
    far: Sequence[str]
    seed: int | str

    @property
    def least(self) -> int:
        """The smallest number of documents in the prompt."""
        return max(1, len(self.gold))

    @property
    def most(self) -> int:
        """The largest number of documents in the prompt."""
        return len(self.gold) + len(self.near) + len(self.far)

    def text(self, count: int) -> str:
        """The prompt up to the question, with ``count`` documents: the gold ones, then near ones, then far ones."""
        distractors = count - len(self.gold)
        if count >= self.most:
            # All there are: the official code then shuffles the whole file's sorted list.
            documents = sorted([*self.gold, *self.near, *self.far])
        elif distractors > len(self.near):
            documents = [*self.gold, *self.near, *self.far[: distractors - len(self.near)]]
        else:
            documents = [*self.gold, *self.drawn_near[:distractors]]
        random.Random(self.seed).shuffle(documents)
        return _HEAD + SEPARATOR.join(f"Document {n}:\n{document}" for n, document in enumerate(documents, 1))


class _Ruler(Task):
    """Base of RULER's two tasks.

    ``files`` of :meth:`examples` also has the files of ``settings.pool``, whose paragraphs distract, by their paths.
    """

    benchmark = "RULER"
    new_tokens = 32
    prefix: ClassVar[str] = " Answer:"
    """Text with which answers begin."""
    metric = "string match"
    document: ClassVar[str]
    """Format of a document: how the ``title`` and ``text`` of a paragraph are written in the prompt."""
    purged: ClassVar[bool]
    """Which distractors may not state the answer where evidence is left out: those of all articles (True), or only
    those of the question's article (False)."""

    def check(self, settings: TaskSetSettings) -> None:
        """Raise :class:`UserError` also if the set's length has no room for more than an answer."""
        super().check(settings)
        check_length(self, settings.length)

    def examples(self, settings: TaskSetSettings, files: Mapping[str, Path], prompts: Prompts) -> list[Example]:
        """See :meth:`Task.examples`; each question gives one example for each condition of evidence."""
        self.check(settings)
        path = files["questions"]
        source = self._source(path, settings.articles)
        documents = sorted(source.documents | self._pooled(source, [files[name] for name in settings.pool]))
        answer_tokens = len(prompts.text(self.prefix)) + self.new_tokens
        # N of the official generator: the first question determines it for all.
        n_documents = 0
        examples = []
        for question in self._selected(path, source.questions, settings):
            asking = f"{_INSTRUCTION}\n\nQuestion: {question.text}"
            room = settings.length - len(prompts.question(asking)) - answer_tokens
            samples = self._samples(question, documents, settings)
            n_documents = n_documents or _most(samples[_COMPLETE], prompts, room)
            for evidence in settings.evidence:
                body = _fitted(samples[evidence], n_documents, prompts, room)
                if body is None:
                    raise UserError(
                        f"{path}: question {question.id} with its paragraphs and its answer does not fit into "
                        f"length={settings.length}; raise the set's length"
                    )
                name = named(question.id, evidence)
                examples.append(
                    Example(name, question.document, body, asking, question.references, question.text, self.prefix)
                )
        return examples

    def score(self, prediction: str, references: Sequence[str]) -> float:
        return metrics.string_match_part(prediction, references)

    def is_official(self, files: Mapping[str, Path]) -> bool:
        return len(self._source(files["questions"], []).questions) == self.rows

    @abstractmethod
    def _source(self, path: Path, articles: Sequence[str]) -> _Source:
        """Read a file of questions; the result has those about ``articles``, or about all if none is named."""

    def _pooled(self, source: _Source, paths: Sequence[Path]) -> set[str]:
        """Further documents that distract, from the files of the set's pool.

        Paragraphs that the file of questions has are left out, also those of articles without questions in this set: a
        reader may have been trained on them, or another set may ask about them.
        """
        documents = set()
        for title, paragraph in _pool(paths):
            if title not in source.titles and _plain(paragraph) not in source.texts:
                documents.add(self.document.format(title=title, text=paragraph))
        return documents

    def _selected(self, path: Path, questions: Sequence[_Question], settings: TaskSetSettings) -> Sequence[_Question]:
        """The questions that a set asks: the first of the file's ``questions``, or with ``shuffled`` a random draw.

        Raises :class:`UserError`, which names the file ``path``, if two have one id or there are too few.
        """
        if len({question.id for question in questions}) < len(questions):
            raise UserError(f"{path} has two questions with the same id; give each question its own")
        if not questions or settings.examples > len(questions):
            raise UserError(
                f"{path} has {len(questions)} questions for task {self.name}, but its set asks for "
                f"{settings.examples or 'all'}; ask for fewer, or name a larger file"
            )
        if settings.shuffled:
            questions = random.Random(SEED).sample(questions, len(questions))
        return questions[: settings.examples or None]

    def _samples(self, question: _Question, documents: Sequence[str], settings: TaskSetSettings) -> dict[str, _Sample]:
        """A question's sample under each condition of evidence that the set asks for, and under complete evidence.

        ``documents`` are all that may distract. The order of distractors is the same under each condition; where gold
        documents are left out, more distractors fill the prompt.
        """
        rng = random.Random(f"{SEED}:{question.id}")
        near = rng.sample(question.near, len(question.near))
        near_or_gold = {*question.kept[_COMPLETE], *near}
        others = [document for document in documents if document not in near_or_gold]
        far = rng.sample(others, len(others))
        seed = f"{SEED}:shuffle:{question.id}" if settings.shuffled else SEED
        samples = {}
        for evidence in {_COMPLETE, *settings.evidence}:
            # A distractor must not state the evidence that was left out. For SQuAD only the same article is searched,
            # as short answers occur elsewhere by chance; for HotpotQA all distractors are.
            searched: list[str] = []
            if evidence != _COMPLETE:
                searched = [*near, *far] if self.purged else near
            stating = {document for document in searched if _holds(document, question.references)}
            samples[evidence] = _Sample(
                gold=question.kept[evidence],
                near=[document for document in question.near if document not in stating],
                drawn_near=[document for document in near if document not in stating],
                far=[document for document in far if document not in stating],
                seed=seed,
            )
        return samples


class QA1(_Ruler):
    """qa_1: answerable questions of SQuAD 2.0's development set, with all answers of its annotators.

    Partial evidence is the paragraph's sentences before the one in which an answer first stands; for an answer in the
    first sentence, the first half of the words before it, and for an answer that the paragraph begins with, nothing.
    """

    name = "qa_1"
    files: ClassVar[Mapping[str, str]] = {"questions": "RULER/dev-v2.0.json"}
    rows = 5928
    document = "{text}"
    articles = 35
    purged = False

    def is_official(self, files: Mapping[str, Path]) -> bool:
        source = self._source(files["questions"], [])
        return len(source.questions) == self.rows and len(source.titles) == self.articles

    def _source(self, path: Path, articles: Sequence[str]) -> _Source:
        """Read a file of SQuAD's; unanswerable questions are left out. See :meth:`_Ruler._source`."""
        source = _Source()
        # A title's paragraphs, each an object with its text ("context") and its questions ("qas").
        by_title = dict[str, list[dict[str, Any]]]()
        for where, article in rows_of(path):
            paragraphs = objects(article, "paragraphs", where)
            by_title.setdefault(text(article, "title", where), []).extend(paragraphs)
            source.texts |= {_plain(text(paragraph, "context", where)) for paragraph in paragraphs}
        source.titles |= by_title.keys()
        unknown = [title for title in articles if title not in by_title]
        if unknown:
            raise UserError(f"{path} has no article {unknown[0]!r}; correct articles")
        for title in dict.fromkeys(articles or by_title):
            paragraphs = by_title[title]
            texts = list(dict.fromkeys(paragraph["context"] for paragraph in paragraphs))
            source.documents |= set(texts)
            for number, paragraph in enumerate(paragraphs, start=1):
                near = [other for other in texts if other != paragraph["context"]]
                for row in objects(paragraph, "qas", f"{path}, article {title}, paragraph {number},"):
                    if not row.get("is_impossible", False):
                        source.questions.append(self._question(path, f"{title}/{number}", paragraph, row, near))
        return source

    def _question(
        self, path: Path, document_id: str, paragraph: Mapping[str, Any], row: Mapping[str, Any], near: Sequence[str]
    ) -> _Question:
        """Read the question that a SQuAD ``row`` asks about a ``paragraph``, whose name is ``document_id``.

        ``near`` are the other paragraphs of its article. Raises :class:`UserError`, which names the file ``path``, if
        the row has no answer.
        """
        question_id = identity(row, "id", f"{path}, a question of {document_id},")
        where = f"{path}, question {question_id},"
        whole = paragraph["context"]
        answers = [text(answer, "text", where) for answer in objects(row, "answers", where)]
        references = tuple(dict.fromkeys(answers))
        if not references:
            raise UserError(f"{where} has no answer; {REMEDY}")
        text_before = _before(whole, references)
        kept = {_COMPLETE: (whole,), _PARTIAL: (text_before,) if text_before else (), _MISSING: ()}
        return _Question(question_id, document_id, text(row, "question", where), references, kept, near)


class QA2(_Ruler):
    """qa_2: HotpotQA's questions of the distractor setting, each with its ten paragraphs.

    Partial evidence has the first of the supporting paragraphs and not the others. The rows may name
    ``supporting_titles`` in place of ``supporting_facts``, ``index`` in place of ``_id``, and have whole paragraphs.
    """

    name = "qa_2"
    files: ClassVar[Mapping[str, str]] = {"questions": "RULER/hotpot_dev_distractor_v1.json"}
    rows = 7405
    document = "{title}\n{text}"
    purged = True

    def check(self, settings: TaskSetSettings) -> None:
        """Raise :class:`UserError` also if the set names articles: its questions are about several."""
        super().check(settings)
        if settings.articles:
            raise UserError("articles is only for qa_1; leave it out of a set of qa_2")

    def _source(self, path: Path, articles: Sequence[str]) -> _Source:
        """Read a file of HotpotQA's; ``articles`` is empty (:meth:`check`). See :meth:`_Ruler._source`."""
        source = _Source()
        for where, row in rows_of(path):
            paragraphs = titled(row, where)
            source.titles |= {title for title, _ in paragraphs}
            source.texts |= {_plain(paragraph) for _, paragraph in paragraphs}
            documents = [(title, self.document.format(title=title, text=paragraph)) for title, paragraph in paragraphs]
            source.documents |= {document for _, document in documents}
            question_id = identity(row, "_id" if "_id" in row else "index", where)
            references = (text(row, "answer", where),)
            kept = _kept(documents, _supporting(row, where), references)
            question = text(row, "question", where)
            # No two questions share their ten paragraphs, so that each question is resampled on its own.
            source.questions.append(_Question(question_id, question_id, question, references, kept))
        return source


def check_length(task: Task, length: int) -> None:
    """Raise :class:`UserError` if a ``length``, in tokens, has no room for more than an answer."""
    if length <= task.new_tokens:
        raise UserError(
            f"task {task.name} needs a length above {task.new_tokens}, the tokens of an answer, but its set has "
            f"length={length}; raise length"
        )


def _kept(
    documents: Sequence[tuple[str, str]], supporting: Sequence[str], references: Sequence[str]
) -> dict[str, tuple[str, ...]]:
    """What each condition of evidence keeps of a HotpotQA question's ``documents``, given as (title, document).

    ``supporting`` are the titles of the paragraphs that answer the question. Partial evidence keeps the first of them.
    Without complete evidence, other documents that state the answer are left out as well.
    """
    titles = {title for title, _ in documents}
    supporting = [title for title in supporting if title in titles]
    others = []  # Neither supporting nor stating the answer.
    for title, document in documents:
        if title not in supporting and not _holds(document, references):
            others.append(document)
    partial = []
    for title, document in documents:
        if title in supporting[:1] or document in others:
            partial.append(document)
    complete = [document for _, document in documents]
    return {_COMPLETE: tuple(complete), _PARTIAL: tuple(partial), _MISSING: tuple(others)}


def _most(sample: _Sample, prompts: Prompts, room: int) -> int:
    """The largest number of documents with which a prompt's text has at most ``room`` tokens, found by bisection.

    As in the official code. It is ``sample.least`` if even that many do not fit.
    """
    # A document has at least one token, so that ``room`` limits the number of documents.
    low = sample.least
    high = max(sample.least, min(sample.most, room)) + 1
    # `low` documents fit (or are the least), `high` ones do not.
    while high - low > 1:
        middle = (low + high) // 2
        if len(prompts.document(sample.text(middle))) <= room:
            low = middle
        else:
            high = middle
    return low


def _fitted(sample: _Sample, count: int, prompts: Prompts, room: int) -> str | None:
    """The prompt's text with ``count`` documents, or with fewer if they exceed ``room`` tokens.

    Documents are removed :data:`STEP` at a time, then one at a time. None if even ``sample.least`` do not fit.
    """
    count = min(count, sample.most)
    while len(prompts.document(text := sample.text(count))) > room:
        if count <= sample.least:
            return None
        count -= STEP if count > STEP and count - STEP >= sample.least else 1
    return text


def _holds(text: str, references: Sequence[str]) -> bool:
    """Whether a text contains one of the answers ``references``, letter case aside.

    Yes and no are not searched for: as parts of other words they are in almost any text.
    """
    text = text.lower()
    searched = {reference.lower() for reference in references} - {"yes", "no"}
    return any(reference in text for reference in searched)


def _before(text: str, references: Sequence[str]) -> str:
    """What partial evidence keeps of a SQuAD paragraph: the part before the first answer, as :class:`QA1` says.

    "" if the paragraph begins with an answer, or has none of them.
    """
    matches = [re.search(re.escape(reference), text, re.IGNORECASE) for reference in references]
    start = min([match.start() for match in matches if match], default=0)
    sentence_starts = [match.end() for match in _BREAK.finditer(text) if match.end() <= start]
    if sentence_starts:
        return text[: sentence_starts[-1]].rstrip()
    words = text[:start].split()
    return " ".join(words[: (len(words) + 1) // 2])


def rows_of(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each row of a file, with its place in words for error messages.

    Rows are the articles of a file in SQuAD's layout, the items of a JSON list, or the lines of a JSONL file.
    """
    try:
        content = read_json(path, REMEDY)
    except UserError:
        # Not one JSON value: a JSONL file, or `records` says what is wrong with it.
        yield from records(path, REMEDY)
        return
    if isinstance(content, dict):
        # SQuAD has its articles under "data"; any other object is a JSONL file of a single line.
        content = content.get("data", [content])
    if not isinstance(content, list) or not all(isinstance(row, dict) for row in content):
        raise UserError(f"{path} is not a list of rows; {REMEDY}")
    for number, row in enumerate(content, start=1):
        yield f"{path}, row {number},", row


def titled(row: Mapping[str, Any], where: str) -> list[tuple[str, str]]:
    """The paragraphs of a HotpotQA row as (title, text); a title may occur more than once.

    Raises :class:`UserError`, which begins with ``where``, if there is none.
    """
    try:
        # A paragraph is a list of sentences, or one text, whose letters join to the same text.
        paragraphs = [(title, "".join(sentences)) for title, sentences in row["context"]]
    except (KeyError, TypeError, ValueError):
        paragraphs = []
    if not paragraphs or not all(isinstance(title, str) for title, _ in paragraphs):
        raise UserError(f"{where} has no titled paragraphs under 'context'; {REMEDY}")
    return list(dict.fromkeys(paragraphs))


def _supporting(row: Mapping[str, Any], where: str) -> list[str]:
    """The titles of a HotpotQA row's supporting paragraphs, each once.

    Raises :class:`UserError`, which begins with ``where``, if there is no list of them.
    """
    try:
        if "supporting_titles" in row:
            titles = row["supporting_titles"]
        else:
            titles = [title for title, _ in row["supporting_facts"]]
        return list(dict.fromkeys(titles))
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"{where} has no titles under 'supporting_facts'; {REMEDY}") from error


def _pool(paths: Iterable[Path]) -> Iterator[tuple[str, str]]:
    """Yield (title, text) of every paragraph of files in SQuAD's or HotpotQA's layout, or with keys title and text."""
    for path in paths:
        for where, row in rows_of(path):
            if "paragraphs" in row:
                title = text(row, "title", where)
                for paragraph in objects(row, "paragraphs", where):
                    yield title, text(paragraph, "context", where)
            elif "context" in row:
                yield from titled(row, where)
            else:
                yield text(row, "title", where), text(row, "text", where)


def _plain(text: str) -> str:
    """Collapse white space, so that texts that differ only in white space compare equal."""
    return " ".join(text.split())
