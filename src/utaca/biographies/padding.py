"""Long documents: a biography between whole paragraphs of padding prose (paper, appendix on data construction)."""

from __future__ import annotations

import random
import re
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain
from typing import Any

from utaca.biographies.corpora.text import paragraphs
from utaca.biographies.crowd import crowd
from utaca.biographies.telling import Passage, Subject, joined, passages
from utaca.errors import UserError
from utaca.settings import schema

SEPARATOR = "\n\n"
TOLERANCE = 0.01
"""Largest deviation of a document's length from the length asked for."""

_BLOCK = 16
_NUMBERS = range(1000, 10000)
_ATTEMPTS = 60
_SENTENCE_END = re.compile(r"[.!?][\"'”’)\]]*(?=\s|$)")
_WORD_END = re.compile(r"\S(?=\s|$)")


def counter(tokenizer: Any) -> Callable[[str], int]:
    """Token counts, special tokens left out, of a ``tokenizers.Tokenizer`` or a fast tokenizer of transformers."""
    backend = getattr(tokenizer, "backend_tokenizer", tokenizer)
    return lambda text: len(backend.encode(text, add_special_tokens=False))


@dataclass(frozen=True)
class _Piece:
    title: str
    text: str
    size: int


@dataclass(frozen=True)
class _Part:
    """A part of a document between blank lines."""

    told: Passage | _Piece

    @property
    def text(self) -> str:
        return self.told.text


class Padder:
    """Pads biographies with the prose of a corpus.

    ``articles`` are rows of schema ``corpus``, ``count`` gives a text's length in the reader's tokens (see
    :func:`counter`), ``corpus`` is the name recorded in the documents, ``options`` say how documents tell of people. A
    paragraph that occurs twice in the corpus is used once. Paragraphs are counted when first needed and never again.
    Raises :class:`UserError` for a corpus without usable paragraphs.
    """

    def __init__(
        self,
        articles: Sequence[Mapping[str, Any]],
        count: Callable[[str], int],
        corpus: str,
        options: schema.Documents | None = None,
    ) -> None:
        seen: set[str] = set()
        self._articles: list[tuple[str, list[str]]] = []
        for article in articles:
            fresh = []
            for paragraph in paragraphs(article["text"]):
                if paragraph not in seen:
                    seen.add(paragraph)
                    fresh.append(paragraph)
            if fresh:
                self._articles.append((article["title"], fresh))
        if not self._articles:
            raise UserError(f"corpus {corpus!r} has no usable paragraph to pad documents with; choose another corpus")
        self._sizes: list[list[int] | None] = [None] * len(self._articles)
        self._count = count
        self._corpus = corpus
        self._options = options or schema.Documents()

    def document(self, biography: Mapping[str, Any], n_tokens: int, rng: random.Random) -> dict[str, Any]:
        """A row of schema ``documents``: the biography in a text of ``n_tokens`` tokens, to within 1 %.

        The biography's sentences stay whole and in order. With several facts they are dealt into two to four groups
        at increasing random depths; with one fact they stay together. What else ``options`` ask for is told in
        :mod:`utaca.biographies.telling`: each of a crowd is dealt and placed as the person is. Padding takes articles
        in random order without replacement, their paragraphs whole and in order; of the last article a run from a
        random paragraph is taken, and the last paragraph may be cut at a sentence end, else at a word end. A passage
        that is to stand some blocks after the sentence that names its person parts a paragraph at a sentence end.
        No paragraph comes twice before all were used. Raises :class:`UserError` where what is to be told is longer
        than ``n_tokens`` or leaves too little padding, or where no cut comes within 1 %.
        """
        threads = self._threads(biography, rng)
        alone = len(threads) == 1 and not self._options.apart
        told = [text for passage in chain(*threads) for text in (passage.naming, passage.text) if text]
        size = self._count((" " if alone else SEPARATOR).join(told))
        slack = int(n_tokens * TOLERANCE)
        if size > n_tokens:
            crowd = self._options.crowd
            raise UserError(
                f"biography {biography['id']} {f'and its crowd of {crowd} have' if crowd else 'has'} {size} tokens and "
                f"{'do' if crowd else 'does'} not fit into a document of {n_tokens}; "
                f"raise scale.{biography['split']}.tokens{' or lower documents.crowd' if crowd else ''}"
            )
        if alone and size >= n_tokens - slack:
            return self._row(biography, [_Part(joined(threads[0]))], size)
        # How far the whole text's count is off the sum of its parts' counts, learnt from the attempt before.
        surplus = 0
        for _ in range(_ATTEMPTS):
            pieces = self._pieces(n_tokens - size - surplus, slack, rng)
            gaps = self._gaps(pieces, biography["split"], n_tokens)
            if self._options.spread == "groups":
                threads = [_fitting(thread, gaps) for thread in threads]
            parts = _arranged(self._placed(threads, pieces, gaps, alone, rng), pieces)
            row = self._row(biography, parts)
            if abs(row["n_tokens"] - n_tokens) <= slack:
                return row
            surplus = row["n_tokens"] - size - sum(piece.size for piece in pieces)
        raise UserError(
            f"no cut brings the document of biography {biography['id']} to {n_tokens} tokens within 1 %; "
            f"raise scale.{biography['split']}.tokens"
        )

    def _threads(self, biography: Mapping[str, Any], rng: random.Random) -> list[list[Passage]]:
        """The passages of the person, then of each of the crowd."""
        facts = tuple((fact["attribute"], fact["value"]) for fact in biography["facts"])
        if len(dict(facts)) < len(facts):
            raise ValueError(f"biography {biography['id']} has an attribute twice")
        options = self._options
        # The locale serves the values that are drawn here.
        locale = biography.get("locale", "")
        own = random.Random(0 if options == schema.Documents(name=options.name) else rng.getrandbits(64))
        # Whatever the options, the same one of the crowd says the same.
        people, *seeds = (random.Random(own.getrandbits(64)) for _ in range(options.crowd + 2))
        others = crowd(biography, options.crowd, people) if options.crowd else []
        numbers = own.sample(_NUMBERS, options.crowd + 1)
        subjects = [
            Subject(biography["person"], locale, facts, tuple(biography["sentences"]), "biography",
                    biography["id"], numbers[0]),
            *(Subject(other.name, locale, other.facts, other.sentences, "crowd", other.name, number)
              for other, number in zip(others, numbers[1:], strict=True)),
        ]  # fmt: skip
        taken = dict(facts)
        return [
            passages(subject, taken, options, seed if place else rng, seed)
            for place, (subject, seed) in enumerate(zip(subjects, seeds, strict=True))
        ]

    def _gaps(self, pieces: list[_Piece], split: str, n_tokens: int) -> int:
        """How many places there are before, between and after the pieces, those alone that leave room for ``apart``."""
        apart = self._options.apart * _BLOCK
        left = list(accumulate((piece.size for piece in reversed(pieces)), initial=0))
        if left[-1] < apart:
            raise UserError(
                f"a document of {n_tokens} tokens leaves no {apart} tokens of padding between a name and its value; "
                f"raise scale.{split}.tokens or lower documents.apart"
            )
        return sum(room >= apart for room in left)

    def _placed(
        self, threads: list[list[Passage]], pieces: list[_Piece], gaps: int, alone: bool, rng: random.Random
    ) -> list[tuple[tuple[int, int], _Part]]:
        """What is told and where, in order: before which piece, or after which character of it."""
        found: list[tuple[tuple[int, int], float, _Part]] = []
        for thread in threads:
            if self._options.spread == "groups":
                chosen = sorted(rng.sample(range(gaps), len(thread)))
            else:
                chosen = sorted(rng.choices(range(gaps), k=len(thread)))
            # Those of one place stand in random order, but each person's own in theirs.
            ties = [0.0] * len(thread) if alone else sorted(rng.random() for _ in thread)
            for gap, tie, passage in zip(chosen, ties, thread, strict=True):
                if passage.naming:
                    found.append(((gap, 0), tie, _Part(replace(passage, parts=(passage.naming,)))))
                found.append((_further(pieces, gap, self._options.apart * _BLOCK), tie, _Part(passage)))
        found.sort(key=lambda each: each[:2])
        return [(place, part) for place, _, part in found]

    def _row(self, biography: Mapping[str, Any], parts: list[_Part], n_tokens: int | None = None) -> dict[str, Any]:
        row = {key: biography[key] for key in ("id", "split", "person", "facts")}
        text = SEPARATOR.join(part.text for part in parts)
        spans: list[dict[str, Any]] = []
        stated: dict[str, dict[str, Any]] = {}
        end = 0
        for part in parts:
            start = end + len(SEPARATOR) if spans else 0
            end = start + len(part.text)
            told = part.told
            kind, source = (told.kind, told.source) if isinstance(told, Passage) else ("article", told.title)
            if spans and kind == "article" and (spans[-1]["kind"], spans[-1]["source"]) == (kind, source):
                spans[-1]["end"] = end
            else:
                spans.append({"kind": kind, "source": source, "start": start, "end": end})
            if isinstance(told, Passage) and kind == "biography":
                for attribute, value, first, last in told.values:
                    place = {"attribute": attribute, "text": value, "start": start + first, "end": start + last}
                    stated.setdefault(attribute, place)
        return {
            **row,
            "text": text,
            "n_tokens": self._count(text) if n_tokens is None else n_tokens,
            "spans": spans,
            "evidence": [stated[fact["attribute"]] for fact in row["facts"] if fact["attribute"] in stated],
            "corpus": self._corpus,
        }

    def _size(self, text: str) -> int:
        return self._count(text + SEPARATOR)

    def _sizes_of(self, article: int) -> list[int]:
        sizes = self._sizes[article]
        if sizes is None:
            sizes = self._sizes[article] = [self._size(text) for text in self._articles[article][1]]
        return sizes

    def _pieces(self, needed: int, slack: int, rng: random.Random) -> list[_Piece]:
        """Paragraphs of ``needed`` tokens together, at most ``slack`` fewer where a cut allows it."""
        pieces: list[_Piece] = []
        order: list[int] = []
        while needed > slack:
            if not order:
                order = rng.sample(range(len(self._articles)), len(self._articles))
            article = order.pop()
            title, texts = self._articles[article]
            sizes = self._sizes_of(article)
            first = 0
            if sum(sizes) > needed:
                # A run that is long enough may begin at any paragraph that leaves enough behind it.
                first, rest = len(sizes), 0
                while rest < needed:
                    first -= 1
                    rest += sizes[first]
                first = rng.randint(0, first)
            for text, size in zip(texts[first:], sizes[first:], strict=True):
                if size > needed:
                    if needed > slack:
                        pieces.extend(self._cut(title, text, needed, slack))
                    return pieces
                pieces.append(_Piece(title, text, size))
                needed -= size
        return pieces

    def _cut(self, title: str, text: str, needed: int, slack: int) -> list[_Piece]:
        for pattern, least in ((_SENTENCE_END, needed - slack), (_WORD_END, 1)):
            ends = [match.end() for match in pattern.finditer(text)]
            low, high = 0, len(ends)
            while low < high:
                middle = (low + high) // 2
                if self._size(text[: ends[middle]]) <= needed:
                    low = middle + 1
                else:
                    high = middle
            if low:
                piece = _Piece(title, text[: ends[low - 1]], self._size(text[: ends[low - 1]]))
                if piece.size >= least:
                    return [piece]
        return []


def _fitting(thread: list[Passage], places: int) -> list[Passage]:
    """The passages, the last ones joined where there are more than places for them."""
    kept = min(len(thread), places)
    return [*thread[: kept - 1], joined(thread[kept - 1 :])]


def _further(pieces: list[_Piece], gap: int, tokens: int) -> tuple[int, int]:
    """The first place at a sentence end that at least so many tokens of padding part from a gap."""
    place = gap
    while tokens > 0 and place < len(pieces):
        piece = pieces[place]
        if piece.size > tokens:
            # Tokens are taken to be spread evenly over a paragraph.
            ends = (match.end() for match in _SENTENCE_END.finditer(piece.text))
            within = (end for end in ends if end * piece.size >= tokens * len(piece.text))
            end = next(within, len(piece.text))
            return (place, end) if end < len(piece.text) else (place + 1, 0)
        tokens -= piece.size
        place += 1
    return place, 0


def _arranged(told: list[tuple[tuple[int, int], _Part]], pieces: list[_Piece]) -> list[_Part]:
    """The parts of a document: the pieces with what is told between and within them."""
    parts: list[_Part] = []
    waiting = deque(told)
    for place, piece in enumerate(pieces):
        start = 0
        while waiting and waiting[0][0][0] == place:
            (_, end), part = waiting.popleft()
            if end > start:
                parts.append(_Part(replace(piece, text=piece.text[start:end].strip())))
                start = end
            parts.append(part)
        parts.append(_Part(replace(piece, text=piece.text[start:].strip()) if start else piece))
    return [*parts, *(part for _, part in waiting)]
