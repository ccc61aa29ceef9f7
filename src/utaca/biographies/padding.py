"""Long documents: a biography between whole paragraphs of padding prose (paper, appendix on data construction)."""

from __future__ import annotations

import random
import re
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any, Literal

from utaca.biographies import hard
from utaca.biographies.corpora.text import paragraphs
from utaca.biographies.passages import Passage, Piece, dealt, joined
from utaca.biographies.source import SENTENCE_END
from utaca.errors import UserError
from utaca.sizes import FACTS

SEPARATOR = "\n\n"
TOLERANCE = 0.01
"""Largest deviation of a document's length from the length asked for."""

_ATTEMPTS = 60
_WORD_END = re.compile(r"\S(?=\s|$)")


def counter(tokenizer: Any) -> Callable[[str], int]:
    """Token counts, special tokens left out, of a ``tokenizers.Tokenizer`` or a fast tokenizer of transformers."""
    backend = getattr(tokenizer, "backend_tokenizer", tokenizer)
    return lambda text: len(backend.encode(text, add_special_tokens=False))


class Padder:
    """Pads biographies with the prose of a corpus.

    ``articles`` are rows of schema ``corpus``, ``count`` gives a text's length in the reader's tokens (see
    :func:`counter`), ``corpus`` is the name recorded in the documents, ``documents`` the key of the config. A paragraph
    that occurs twice in the corpus is used once. Paragraphs are counted when first needed and never again. Raises
    :class:`UserError` for a corpus without usable paragraphs.
    """

    def __init__(
        self,
        articles: Sequence[Mapping[str, Any]],
        count: Callable[[str], int],
        corpus: str,
        documents: Literal["paper", "hard"] = "paper",
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
        self._hard = documents == "hard"

    def document(self, biography: Mapping[str, Any], n_tokens: int, rng: random.Random) -> dict[str, Any]:
        """A row of schema ``documents``: the biography in a text of ``n_tokens`` tokens, to within 1 %.

        The biography's sentences stay whole and in order. With several facts they are dealt into two to four groups
        at increasing random depths; with one fact they stay together. How hard documents differ is told in
        :mod:`utaca.biographies.hard`; theirs part a paragraph at a sentence end where a value is to stand. Padding
        takes articles in random order without replacement, their paragraphs whole and in order; of the last article a
        run from a random paragraph is taken, and the last paragraph may be cut at a sentence end, else at a word end.
        No paragraph comes twice before all were used. Raises :class:`UserError` where what is to be told is longer
        than ``n_tokens`` or leaves too little padding, or where no cut comes within 1 %.
        """
        threads = hard.threads(biography, rng) if self._hard else [dealt(biography, rng)]
        told = [text for passage in chain(*threads) for text in (passage.naming, passage.text) if text]
        size = self._count((SEPARATOR if self._hard else " ").join(told))
        slack = int(n_tokens * TOLERANCE)
        if size > n_tokens:
            crowd = f" with its crowd of {hard.CROWD}" if self._hard else ""
            what = f"biography {biography['id']} has {size} tokens{crowd} and does not fit into a document"
            raise self._too_short(f"{what} of {n_tokens}", biography["split"])
        if not self._hard and size >= n_tokens - slack:
            return self._row(biography, [joined(threads[0])], size)
        # How far the whole text's count is off the sum of its parts' counts, learnt from the attempt before.
        surplus = 0
        for _ in range(_ATTEMPTS):
            pieces = self._pieces(n_tokens - size - surplus, slack, rng)
            padding = sum(piece.size for piece in pieces)
            if self._hard:
                if padding < hard.APART:
                    between = f"{hard.APART} tokens of padding between a name and its value"
                    raise self._too_short(f"a document of {n_tokens} tokens leaves no {between}", biography["split"])
                placed = hard.placed(threads, pieces, rng)
            else:
                threads = [_fitting(threads[0], len(pieces) + 1)]
                places = sorted(rng.sample(range(len(pieces) + 1), len(threads[0])))
                placed = [((place, 0), passage) for place, passage in zip(places, threads[0], strict=True)]
            row = self._row(biography, _arranged(placed, pieces))
            if abs(row["n_tokens"] - n_tokens) <= slack:
                return row
            surplus = row["n_tokens"] - size - padding
        document = f"the document of biography {biography['id']} to {n_tokens} tokens"
        raise self._too_short(f"no cut brings {document} within 1 %", biography["split"])

    def _too_short(self, what: str, split: str) -> UserError:
        keys = f"scale.{split}.tokens" if split in FACTS else "the set's length"
        return UserError(f"{what}; raise {keys}{' or take documents=paper' if self._hard else ''}")

    def _row(
        self, biography: Mapping[str, Any], parts: Sequence[Passage | Piece], n_tokens: int | None = None
    ) -> dict[str, Any]:
        row = {key: biography[key] for key in ("id", "split", "person", "facts")}
        text = SEPARATOR.join(part.text for part in parts)
        spans: list[dict[str, Any]] = []
        stated: dict[str, dict[str, Any]] = {}
        end = 0
        for part in parts:
            start = end + len(SEPARATOR) if spans else 0
            end = start + len(part.text)
            if (
                spans
                and part.kind == "article"
                and (spans[-1]["kind"], spans[-1]["source"]) == (part.kind, part.source)
            ):
                spans[-1]["end"] = end
            else:
                spans.append({"kind": part.kind, "source": part.source, "start": start, "end": end})
            for attribute, value, first, last in part.values if part.kind == "biography" else ():
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

    def _pieces(self, needed: int, slack: int, rng: random.Random) -> list[Piece]:
        """Paragraphs of ``needed`` tokens together, at most ``slack`` fewer where a cut allows it."""
        pieces: list[Piece] = []
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
                pieces.append(Piece(title, text, size))
                needed -= size
        return pieces

    def _cut(self, title: str, text: str, needed: int, slack: int) -> list[Piece]:
        for pattern, least in ((SENTENCE_END, needed - slack), (_WORD_END, 1)):
            ends = [match.end() for match in pattern.finditer(text)]
            low, high = 0, len(ends)
            while low < high:
                middle = (low + high) // 2
                if self._size(text[: ends[middle]]) <= needed:
                    low = middle + 1
                else:
                    high = middle
            if low:
                piece = Piece(title, text[: ends[low - 1]], self._size(text[: ends[low - 1]]))
                if piece.size >= least:
                    return [piece]
        return []


def _fitting(passages: list[Passage], places: int) -> list[Passage]:
    """The passages, the last ones joined where there are more than places for them."""
    kept = min(len(passages), places)
    return [*passages[: kept - 1], joined(passages[kept - 1 :])]


def _arranged(told: Iterable[tuple[tuple[int, int], Passage]], pieces: list[Piece]) -> list[Passage | Piece]:
    """The parts of a document: the pieces with what is told between and within them, see :func:`hard.placed`."""
    parts: list[Passage | Piece] = []
    waiting = deque(told)
    for place, piece in enumerate(pieces):
        start = 0
        while waiting and waiting[0][0][0] == place:
            (_, end), passage = waiting.popleft()
            if end > start:
                parts.append(replace(piece, text=piece.text[start:end].strip()))
                start = end
            parts.append(passage)
        parts.append(replace(piece, text=piece.text[start:].strip()) if start else piece)
    return [*parts, *(passage for _, passage in waiting)]
