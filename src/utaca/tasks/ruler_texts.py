"""Words and texts that RULER's prompts are made of: lists of words, and essays as sentences.

Words come from the package ``wonderwords``, essays and sentences from files (docs/ruler.md).
"""

from __future__ import annotations

import random
import re
import zipfile
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from functools import lru_cache
from hashlib import sha256
from importlib.resources import files as resources
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING

from utaca import data_files
from utaca.errors import UserError
from utaca.records.texts import read_json

if TYPE_CHECKING:
    from nltk.tokenize.punkt import PunktSentenceTokenizer

ADVICE = "utaca fetch-tasks fetches it, see docs/ruler.md"
"""End of the error messages about a file of another layout."""
FOLDER = "punkt_tab/english/"
"""Where the archive of sentence rules has those for English."""
RULES = ("abbrev_types.txt", "collocations.tab", "ortho_context.tab", "sent_starters.txt")
"""The files of that folder."""

_N_ESSAY_WORDS = 111_876
_ESSAYS = "50213f482fb22bc02da1b2fb941d761e14b978a35f847e051b43a8494165c610"
"""SHA-256 of the first words of the official essays, one space between them. Essays after these come from web pages,
whose text changes, and only prompts of more than 140,000 tokens reach them."""
_SENTENCES = "87b7437941fb4df13edcd8cad64ff370f548f8c3e9503a795e05bef42bf34bdc"
"""SHA-256 of the rules for English, one file after another."""
_ENGLISH_WORDS = "affcd6d45fdf3cc843d585c99c97ad615094e760e6c4756b654bab6c73bc2eca"
"""SHA-256 of the official file of English words."""


def words(*kinds: str) -> list[str]:
    """The words of these kinds ("noun", "adjective" or "verb") of the package ``wonderwords``, kind by kind."""
    found = []
    for kind in kinds:
        text = resources("wonderwords.assets").joinpath(f"{kind}list.txt").read_text(encoding="utf-8")
        found += [line.rstrip() for line in text.splitlines()]
    return found


class Pairs(Sequence[str]):
    """All pairs "adjective-noun", each once, in alphabetical order, as RULER lists them; made when they are asked for.

    There are six million. A pair begins with its adjective and a hyphen. The pairs of one adjective follow each other,
    unless its beginning is also another's, as "well-" is of "well-known-". So the list has runs, one for each adjective
    or for several that begin alike, and only the runs of several are sorted.
    """

    def __init__(self, adjectives: Sequence[str], nouns: Sequence[str]) -> None:
        self._nouns = sorted(set(nouns))
        self._runs: list[list[str]] = []
        for beginning in sorted({f"{adjective}-" for adjective in adjectives}):
            # All beginnings that begin with another one stand right behind it.
            if self._runs and beginning.startswith(self._runs[-1][0]):
                self._runs[-1].append(beginning)
            else:
                self._runs.append([beginning])
        sizes = [len(self._nouns) if len(run) == 1 else len(self._run(run)) for run in self._runs]
        # The place in the list at which each run ends.
        self._ends = list(accumulate(sizes))

    def __len__(self) -> int:
        return self._ends[-1]

    def __getitem__(self, place: int) -> str:  # type: ignore[override]
        number = bisect_right(self._ends, place)
        start = self._ends[number - 1] if number else 0
        run = self._runs[number]
        if len(run) == 1:
            return run[0] + self._nouns[place - start]
        return self._run(run)[place - start]

    def _run(self, beginnings: Sequence[str]) -> list[str]:
        """The sorted pairs of a run of several adjectives, given with their hyphens."""
        return sorted({beginning + noun for beginning in beginnings for noun in self._nouns})


class Essays:
    """The essays as sentences.

    ``path`` is a JSON file whose "text" has all essays, and ``rules`` the archive with NLTK's rules of sentences.
    """

    def __init__(self, path: Path, rules: Path) -> None:
        self._words = _essay_words(path)
        self._splitter = _splitter(rules)
        # Most rows have the same number of words, and splitting takes longer than all the rest.
        self.sentences = lru_cache(maxsize=1)(self._sentences)

    def _sentences(self, count: int) -> Sequence[str]:
        """The sentences of the first ``count`` words; if there are fewer, they begin again from the first."""
        times = -(-count // len(self._words))  # rounded up
        text = " ".join((self._words * times)[:count])
        return self._splitter.tokenize(text.strip())


def english_words(path: Path) -> list[str]:
    """The words of RULER's file of English words, in its order."""
    content = read_json(path, ADVICE)
    if not isinstance(content, dict) or not all(isinstance(word, str) for word in content.values()):
        raise UserError(f"{path} is no JSON object of words; {ADVICE}")
    return list(content.values())


def are_official_essays(path: Path) -> bool:
    """Whether a file begins with the words that all copies of the official file begin with."""
    words = _essay_words(path)[:_N_ESSAY_WORDS]
    return sha256(" ".join(words).encode()).hexdigest() == _ESSAYS


def are_official_sentences(path: Path) -> bool:
    """Whether an archive has NLTK's rules for English."""
    digest = sha256("".join(_rules(path).values()).encode())
    return digest.hexdigest() == _SENTENCES


def are_official_words(path: Path) -> bool:
    """Whether a file is RULER's own of English words."""
    return data_files.sha256(path) == _ENGLISH_WORDS


def shuffled(items: Sequence[str], seed: int) -> list[str]:
    """The items in the order that a generator of its own, of this seed, puts them in."""
    result = list(items)
    random.Random(seed).shuffle(result)
    return result


def _essay_words(path: Path) -> list[str]:
    """The words of a file of essays; raises :class:`UserError` if it has no text."""
    content = read_json(path, ADVICE)
    text = content.get("text") if isinstance(content, dict) else None
    if not isinstance(text, str) or not text.strip():
        raise UserError(f"{path} has no text under 'text'; {ADVICE}")
    return re.sub(r"\s+", " ", text).split(" ")


def _rules(path: Path) -> dict[str, str]:
    """The text of each file of the rules for English, by its name; raises :class:`UserError` if one is missing."""
    try:
        with zipfile.ZipFile(path) as archive:
            return {name: archive.read(FOLDER + name).decode("utf-8") for name in RULES}
    except (zipfile.BadZipFile, KeyError, EOFError, OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is no whole archive with {FOLDER}{RULES[0]}; {ADVICE}") from error


def _splitter(path: Path) -> PunktSentenceTokenizer:
    """NLTK's splitter of English sentences, with the rules of an archive."""
    from nltk.tokenize.punkt import PunktParameters, PunktSentenceTokenizer

    lines = {name: text.splitlines() for name, text in _rules(path).items()}
    parameters = PunktParameters()
    parameters.abbrev_types = set(lines["abbrev_types.txt"])
    parameters.sent_starters = set(lines["sent_starters.txt"])
    parameters.collocations = {tuple(line.split("\t")) for line in lines["collocations.tab"]}
    contexts = (line.split("\t") for line in lines["ortho_context.tab"])
    parameters.ortho_context = defaultdict(int, {word: int(flags) for word, flags in contexts})
    return PunktSentenceTokenizer(parameters)
