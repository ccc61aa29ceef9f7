"""Rows of RULER's thirteen tasks, equal to those that its own generator makes of a seed, a tokenizer and files.

That generator is ``scripts/data/synthetic`` of github.com/NVIDIA/RULER at commit c3f5e3b. Equal rows need equal draws:
every number is drawn where it draws one, in the same order. So searching for the size of a prompt draws whole samples
that no row uses, and a row that came out too long is drawn again.
"""

import math
import random
import string
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from utaca.tasks.ruler_texts import Essays, shuffled

SMALL = 4096
"""Prompts of fewer tokens than this are made in smaller steps, and of shorter lists of words."""
_TRIES = 100
"""How often a row of the smallest size is drawn until one fits; the official code tries for ever."""
_NOISE = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."
# The places of needles among an essay's sentences, in percent.
_DEPTHS = [round(100 * number / 39) for number in range(40)]
_HOPS = 4
_EXAMPLE_LENGTH = 500
_EXAMPLE_VALUE = "12345"
_N_COMMON = 10
_CODED_LETTERS = 6
_ALPHA = 2.0
# Riemann's zeta function of _ALPHA.
_ZETA = math.pi**2 / 6


class TooShortError(Exception):
    """The length has no room for a row."""


@dataclass(frozen=True)
class Sample:
    """A row: its prompt is ``text + question + prefix``, where the question begins with the line break before it.

    ``answers`` are the right ones, ``query`` is the question without instructions. ``document`` names what rows may
    share; "" if this row shares nothing.
    """

    text: str
    question: str
    prefix: str
    answers: tuple[str, ...]
    query: str
    document: str = ""

    @property
    def prompt(self) -> str:
        """The whole prompt."""
        return self.text + self.question + self.prefix


@dataclass(frozen=True)
class Room:
    """How long a prompt may be: ``length`` tokens, the chat template's (``template``) and the ``answer``'s included.

    ``tokens`` counts the tokens of a text.
    """

    length: int
    template: int
    answer: int
    tokens: Callable[[str], int]

    @property
    def most(self) -> int:
        """The largest number of tokens of prompt and answer together, without the template."""
        return self.length - self.template

    def holds(self, text: str, more: int = 0) -> bool:
        """Whether a prompt of ``text`` and ``more`` further tokens leaves room for the answer."""
        return self.tokens(text) + more + self.answer <= self.most


class Generator(ABC):
    """The rows of one task, from a ``seed``. The numbers are those of Python's and NumPy's own global generators."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = random.Random(seed)
        self.numpy = np.random.RandomState(seed)

    @abstractmethod
    def rows(self, count: int, room: Room) -> list[Sample]:
        """Make the first ``count`` rows. Raises :class:`TooShortError` if one does not fit."""


class Searched(Generator):
    """A generator that searches for the largest size that fits, and then makes all rows of that size.

    What a size counts is the task's: words of essays, sentences, words of a list, or documents.
    """

    step: int
    """The smallest size, and by how much the size of a row shrinks that is too long."""

    @property
    def probe(self) -> int:
        """The size of the sample from which the search estimates how many tokens a size takes."""
        return self.step

    @abstractmethod
    def sample(self, size: int, number: int) -> Sample:
        """Draw a sample; ``number`` counts rows. Raises :class:`ValueError` if the size is too small to draw from."""

    def largest(self, length: int, tokens: float) -> int:
        """The largest size that is tried, if a size of 1 takes so many ``tokens``."""
        return int(length / tokens * 3)

    def completed(self, sample: Sample, room: Room) -> Sample:
        """A sample with what stands before it in the row."""
        return sample

    def before(self, room: Room) -> int:
        """Tokens of what :meth:`completed` adds."""
        return 0

    def rows(self, count: int, room: Room) -> list[Sample]:
        """See :meth:`Generator.rows`."""
        size = self._size(room)
        return [self._row(size, number, room) for number in range(count)]

    def _size(self, room: Room) -> int:
        """The largest size whose sample fits, found by bisection; the smallest size if none does."""
        tokens = room.tokens(self.sample(self.probe, 0).prompt) / self.probe
        before = self.before(room)
        low = self.step
        high = max(self.largest(room.most, tokens), 2 * self.step)
        size = self.step
        while low <= high:
            middle = (low + high) // 2
            if room.holds(self.sample(middle, 0).prompt, before):
                size = middle
                low = middle + 1
            else:
                high = middle - 1
        return size

    def _row(self, size: int, number: int, room: Room) -> Sample:
        """Draw a row, of a smaller size as long as it does not fit."""
        tries = 0
        while tries < _TRIES:
            try:
                sample = self.completed(self.sample(size, number), room)
                if room.holds(sample.prompt):
                    return sample
            except ValueError:
                # The official code tries again here as well.
                pass
            if size > self.step:
                size -= self.step
            else:
                tries += 1
        raise TooShortError


@dataclass(frozen=True)
class Needles:
    """What is hidden in a haystack: ``keys`` with ``values`` each. So many of the keys as ``queries`` are asked for.

    ``haystack`` is "noise" (one text again and again), "essays", or "needles" like those that are asked for. The kinds
    of a key and of a value are "words", "numbers" or "uuids".
    """

    haystack: str
    key_kind: str = "words"
    value_kind: str = "numbers"
    keys: int = 1
    values: int = 1
    queries: int = 1


class Haystack(Searched):
    """The eight tasks of needles in a haystack.

    Words are drawn from ``pairs``; ``essays`` are the haystack if it is one of essays.
    """

    def __init__(
        self, seed: int, length: int, needles: Needles, pairs: Sequence[str], essays: Essays | None = None
    ) -> None:
        super().__init__(seed)
        self.needles = needles
        self.pairs = pairs
        self.essays = essays
        if essays:
            self.step = 500
        else:
            self.step = 5 if length < SMALL else 25

    def sample(self, size: int, number: int) -> Sample:
        """See :meth:`Searched.sample`."""
        about = self.needles
        keys = []
        values = []
        hidden = []
        for _ in range(max(about.keys, about.queries)):
            keys.append(self._drawn(about.key_kind))
            values.append([])
            for _ in range(about.values):
                values[-1].append(self._drawn(about.value_kind))
                hidden.append(self._needle(keys[-1], values[-1][-1]))
        hidden = shuffled(hidden, self.seed)
        context = self._among_sentences(hidden, size) if self.essays else self._among_lines(hidden, size)
        asked = self.random.sample(range(len(keys)), about.queries)
        *others, last = [keys[place] for place in asked]
        query = f"{', '.join(others)}, and {last}" if others else last
        answers = tuple(value for place in asked for value in values[place])
        return _in_words(context, query, about.value_kind, answers)

    def _drawn(self, kind: str) -> str:
        """Draw a key or a value."""
        if kind == "numbers":
            return str(self.random.randint(10**6, 10**7 - 1))
        if kind == "words":
            return self.random.choice(self.pairs)
        return str(uuid.UUID(int=self.random.getrandbits(128), version=4))

    def _needle(self, key: str, value: str) -> str:
        return f"One of the special magic {self.needles.value_kind} for {key} is: {value}."

    def _among_sentences(self, hidden: Sequence[str], size: int) -> str:
        """Put the needles between the sentences of the first ``size`` words of the essays."""
        sentences = self.essays.sentences(size)
        depths = self.random.sample(_DEPTHS, len(hidden))
        places = sorted(int(len(sentences) * (depth / 100)) for depth in depths)
        parts = []
        for (start, end), needle in zip(pairwise([0, *places]), hidden, strict=True):
            parts += [" ".join(sentences[start:end]), needle]
        # An empty part leaves two spaces, as officially.
        return " ".join([*parts, " ".join(sentences[places[-1] :])])

    def _among_lines(self, hidden: Sequence[str], size: int) -> str:
        """Put the needles between ``size`` lines of noise, or of other needles."""
        about = self.needles
        lines = []
        for _ in range(size):
            if about.haystack == "noise":
                lines.append(_NOISE)
            else:
                key = self._drawn(about.key_kind)
                lines.append(self._needle(key, self._drawn(about.value_kind)))
        # From the last place on, so that those before it stay.
        places = sorted(self.random.sample(range(size), len(hidden)), reverse=True)
        for place, needle in zip(places, hidden, strict=True):
            lines.insert(place, needle)
        return "\n".join(lines)


class Chains(Searched):
    """Chains of variables: a value is assigned to the first, and each further one gets its value from the one before.

    Numbers are drawn from another generator's stream (``source``). ``example`` is an example with its answer, which
    stands before each row under other names; without it, the rows are such examples.
    """

    def __init__(self, source: Generator, step: int, example: str = "") -> None:
        super().__init__(source.seed)
        self.random = source.random
        self.numpy = source.numpy
        self.step = step
        self.example = example

    def before(self, room: Room) -> int:
        """Tokens of the example."""
        return room.tokens(self.example) if self.example else 0

    def completed(self, sample: Sample, room: Room) -> Sample:
        """The sample, with the example before it if there is one."""
        return replace(sample, text=f"{self._renamed()}\n{sample.text}") if self.example else sample

    def sample(self, size: int, number: int) -> Sample:
        """See :meth:`Searched.sample`."""
        n_letters = 5 if self.example else 3
        names = [self._name(n_letters) for _ in range(_HOPS + 1)]
        while len(set(names)) <= _HOPS:
            names.append(self._name(n_letters))
        value = self._value() if self.example else _EXAMPLE_VALUE
        if len(names) > _HOPS + 1:
            # A name came twice: officially, the names that are left over are no whole chain, which is an error.
            raise ValueError("more names than a chain has")
        chain = [f"VAR {names[0]} = {value}"]
        chain += [f"VAR {name} = VAR {former} " for former, name in pairwise(names)]
        lines = [_NOISE] * size
        places = sorted(self.random.sample(range(size), len(chain)))
        for number_before, (place, statement) in enumerate(zip(places, chain, strict=True)):
            lines.insert(place + number_before, statement)
        context = "\n".join(lines)
        query = f"Find all variables that are assigned the value {value} in the text above."
        return Sample(
            f"Memorize and track the chain(s) of variable assignment hidden in the following text.\n\n{context}",
            f"\nQuestion: {query}",
            f" Answer: According to the chain(s) of variable assignment in the text above, {len(names)} variables are "
            f"assigned the value {value}, they are: ",
            tuple(names),
            query,
        )

    def _renamed(self) -> str:
        """The example with other names and another value."""
        text = self.example
        # The example ends with its answer, the names.
        for name in self.example.split()[-_HOPS - 1 :]:
            text = text.replace(name, self._name(len(name)))
        return text.replace(_EXAMPLE_VALUE, self._value())

    def _name(self, n_letters: int) -> str:
        return "".join(self.random.choices(string.ascii_uppercase, k=n_letters))

    def _value(self) -> str:
        return str(self.numpy.randint(10_000, 99_999))


class Variables(Generator):
    """The task ``vt``: rows of :class:`Chains`, each with the same example before it."""

    def rows(self, count: int, room: Room) -> list[Sample]:
        """See :meth:`Generator.rows`."""
        short = replace(room, length=_EXAMPLE_LENGTH, answer=0)
        (example,) = Chains(self, 5).rows(1, short)
        shown = f"{example.prompt} {' '.join(example.answers)}\n"
        return Chains(self, 5 if room.length < SMALL else 10, shown).rows(count, room)


class CommonWords(Searched):
    """The task ``cwe``: a numbered list of words. Some of them are common.

    ``words`` are drawn from, and what ``further`` returns if a list has more words than these.
    """

    step = 10
    probe = 4096

    def __init__(self, seed: int, length: int, words: Iterable[str], further: Callable[[], Sequence[str]]) -> None:
        super().__init__(seed)
        self.words = shuffled(sorted(set(words)), seed)
        self.further = further
        self.is_short = length < SMALL

    def largest(self, length: int, tokens: float) -> int:
        """See :meth:`Searched.largest`."""
        return int(length // tokens) * 2

    def sample(self, size: int, number: int) -> Sample:
        """See :meth:`Searched.sample`."""
        example = self._list(20, 3, 1) if self.is_short else self._list(40, 10, 3)
        row = self._list(size, 6, 1) if self.is_short else self._list(size, 30, 3)
        shown = f"{example.prompt} {_numbered(example.answers)}"
        return replace(row, text=f"{shown}\n{row.text}")

    def _list(self, size: int, often: int, seldom: int) -> Sample:
        """Draw a list of ``size`` words; the first ones are common and occur ``often``, the others ``seldom`` times."""
        drawn = self.random.sample(self.words if size <= len(self.words) else self.further(), size)
        common = drawn[:_N_COMMON]
        listed = shuffled(common * often + drawn[_N_COMMON:] * seldom, self.seed)
        query = f"What are the {_N_COMMON} most common words in the above list?"
        return Sample(
            "Below is a numbered list of words. In these words, some appear more often than others. Memorize the ones "
            f"that appear most often.\n{_numbered(listed)}",
            f"\nQuestion: {query}",
            f" Answer: The top {_N_COMMON} words that appear most often in the list are:",
            tuple(common),
            query,
        )


class FrequentWords(Generator):
    """The task ``fwe``: coded words; the one of rank k occurs in proportion to 1 / k ** 2."""

    def rows(self, count: int, room: Room) -> list[Sample]:
        """See :meth:`Generator.rows`."""
        most = room.most - room.answer
        size = most // 50
        step = most // 32
        if size < 4:
            # One word is noise, and three are asked for.
            raise TooShortError
        vocabulary = self._vocabulary(size)
        n_words = most // _CODED_LETTERS
        while room.tokens(self._sample(vocabulary, n_words).prompt) < most:
            n_words += step
        n_words -= step
        return [self._row(self._vocabulary(size), n_words, step, most, room) for _ in range(count)]

    def _row(self, vocabulary: Sequence[str], n_words: int, step: int, most: int, room: Room) -> Sample:
        """The row of a vocabulary, with as many words as fit."""
        while n_words > 0:
            sample = self._sample(vocabulary, n_words)
            if room.tokens(sample.prompt) <= most:
                return sample
            n_words -= step
        raise TooShortError

    def _vocabulary(self, size: int) -> list[str]:
        """Draw ``size`` coded words, in the order of their ranks; the first is the noise."""
        words = [self._word() for _ in range(size)]
        while len(set(words)) < size:
            words.append(self._word())
        return ["...", *shuffled(sorted(set(words)), self.seed)[1:]]

    def _word(self) -> str:
        return "".join(self.random.choices(string.ascii_lowercase, k=_CODED_LETTERS))

    def _sample(self, vocabulary: Sequence[str], n_words: int) -> Sample:
        """The row of a vocabulary with about ``n_words`` words."""
        ranks = np.arange(1, len(vocabulary) + 1)
        counts = (n_words * (ranks**-_ALPHA) / _ZETA).astype(int)
        words = [word for word, times in zip(vocabulary, counts, strict=True) for _ in range(times)]
        query = "What are the three most frequently appeared words in the above coded text?"
        return Sample(
            "Read the following coded text and track the frequency of each coded word. Find the three most frequently "
            f"appeared coded words. {' '.join(shuffled(words, self.seed))}",
            f"\nQuestion: Do not provide any explanation. Please ignore the dots '....'. {query}",
            " Answer: According to the coded text above, the three most frequently appeared words are:",
            tuple(vocabulary[1:4]),
            query,
        )


@dataclass(frozen=True)
class Question:
    """A question to documents, given by their places in a list: ``own`` answer it, ``near`` are of the same article."""

    query: str
    answers: tuple[str, ...]
    own: Sequence[int]
    near: Sequence[int] = ()


class Questions(Searched):
    """The tasks ``qa_1`` and ``qa_2``: row number i asks question number i about its documents among others."""

    step = 10
    instruction = (
        "Answer the question based on the given documents. Only give me the answer and do not output any other words."
    )

    def __init__(self, seed: int, questions: Sequence[Question], documents: Sequence[str]) -> None:
        super().__init__(seed)
        self.questions = questions
        self.documents = documents

    def sample(self, size: int, number: int) -> Sample:
        """See :meth:`Searched.sample`."""
        question = self.questions[number]
        documents = shuffled(self._documents(question, size), self.seed)
        context = "\n\n".join(f"Document {place}:\n{text}" for place, text in enumerate(documents, start=1))
        return Sample(
            f"{self.instruction}\n\nThe following are given documents.\n\n{context}",
            f"\n\n{self.instruction}\n\nQuestion: {question.query}",
            " Answer:",
            question.answers,
            question.query,
            # Questions of SQuAD have one document of their own, which others may ask about; HotpotQA's have ten.
            f"paragraph {question.own[0]}" if len(question.own) == 1 else "",
        )

    def _documents(self, question: Question, size: int) -> Sequence[str]:
        """Draw ``size`` documents for a question, its own first; if there are fewer, they are repeated."""
        if size >= len(self.documents):
            times = -(-size // len(self.documents))  # rounded up
            return (list(self.documents) * times)[:size]
        n_further = size - len(question.own)
        if n_further > len(question.near):
            known = {*question.own, *question.near}
            others = [place for place in range(len(self.documents)) if place not in known]
            drawn = self.random.sample(others, max(0, n_further - len(question.near)))
            places = [*question.own, *question.near, *drawn]
        else:
            places = [*question.own, *self.random.sample(question.near, n_further)]
        return [self.documents[place] for place in places]


def _in_words(context: str, query: str, kind: str, answers: tuple[str, ...]) -> Sample:
    """The row of a haystack, in the plural if several values are asked for."""
    if len(answers) == 1:
        some, is_are, which, kind_asked = "A", "is", "is", kind[:-1]
    else:
        some, is_are, which, kind_asked = "Some", "are", "are all", kind
    asked = f"What {which} the special magic {kind_asked} for {query} mentioned in the provided text?"
    return Sample(
        f"{some} special magic {kind_asked} {is_are} hidden within the following text. Make sure to memorize it. "
        f"I will quiz you about the {kind_asked} afterwards.\n{context}",
        f"\n{asked}",
        f" The special magic {kind_asked} for {query} mentioned in the provided text {is_are}",
        answers,
        asked,
    )


def _numbered(words: Sequence[str]) -> str:
    """Words as a numbered list in one line."""
    return " ".join(f"{number}. {word}" for number, word in enumerate(words, start=1))
