"""Long documents: a biography between whole paragraphs of padding prose (paper, appendix on data construction)."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from utaca.biographies.corpora.text import paragraphs
from utaca.errors import UserError

SEPARATOR = "\n\n"
TOLERANCE = 0.01
"""Largest deviation of a document's length from the length asked for."""

_GROUPS = (2, 4)
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


class Padder:
    """Pads biographies with the prose of a corpus.

    ``articles`` are rows of schema ``corpus``, ``count`` gives a text's length in the reader's tokens (see
    :func:`counter`), ``corpus`` is the name recorded in the documents. A paragraph that occurs twice in the corpus is
    used once. Paragraphs are counted when first needed and never again. Raises :class:`UserError` for a corpus
    without usable paragraphs.
    """

    def __init__(self, articles: Sequence[Mapping[str, Any]], count: Callable[[str], int], corpus: str) -> None:
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

    def document(self, biography: Mapping[str, Any], n_tokens: int, rng: random.Random) -> dict[str, Any]:
        """A row of schema ``documents``: the biography in a text of ``n_tokens`` tokens, to within 1 %.

        The biography's sentences stay whole and in order. With several facts they are dealt into two to four groups
        at increasing random depths; with one fact they stay together. Padding takes articles in random order without
        replacement, their paragraphs whole and in order; of the last article a run from a random paragraph is taken,
        and the last paragraph may be cut at a sentence end, else at a word end. No paragraph comes twice before all
        were used. Raises :class:`UserError` where the biography alone is longer than ``n_tokens``, or where no cut
        comes within 1 %.
        """
        sentences = list(biography["sentences"])
        whole = " ".join(sentences)
        size = self._count(whole)
        slack = int(n_tokens * TOLERANCE)
        if size > n_tokens:
            raise UserError(
                f"biography {biography['id']} has {size} tokens and does not fit into a document of {n_tokens}; "
                f"raise scale.{biography['split']}.tokens"
            )
        if size >= n_tokens - slack:
            return self._row(biography, *_assemble([whole], [], [0], biography["id"]), size)
        groups = _deal(sentences, len(biography["facts"]) > 1, rng)
        # How far the whole text's count is off the sum of its parts' counts, learnt from the attempt before.
        surplus = 0
        for _ in range(_ATTEMPTS):
            pieces = self._pieces(n_tokens - size - surplus, slack, rng)
            while len(groups) > len(pieces) + 1:
                groups = [*groups[:-2], f"{groups[-2]} {groups[-1]}"]
            gaps = sorted(rng.sample(range(len(pieces) + 1), len(groups)))
            text, spans = _assemble(groups, pieces, gaps, biography["id"])
            found = self._count(text)
            if abs(found - n_tokens) <= slack:
                return self._row(biography, text, spans, found)
            surplus = found - size - sum(piece.size for piece in pieces)
        raise UserError(
            f"no cut brings the document of biography {biography['id']} to {n_tokens} tokens within 1 %; "
            f"raise scale.{biography['split']}.tokens"
        )

    def _row(
        self, biography: Mapping[str, Any], text: str, spans: list[dict[str, Any]], n_tokens: int
    ) -> dict[str, Any]:
        row = {key: biography[key] for key in ("id", "split", "person", "facts")}
        evidence = _evidence(biography["facts"], text, spans)
        return {**row, "text": text, "n_tokens": n_tokens, "spans": spans, "evidence": evidence, "corpus": self._corpus}

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


def _evidence(facts: Sequence[Mapping[str, str]], text: str, spans: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Where the biography states each fact, in the facts' order; those that it does not hold verbatim are left out.

    A value is looked for as whole words. Places are given to longer values first and to one fact each, so that a major
    such as "Law" is not found in the name of a law school.
    """
    found: dict[str, dict[str, Any]] = {}
    for fact in sorted(facts, key=lambda fact: -len(fact["value"])):
        pattern = re.compile(rf"(?<!\w){re.escape(fact['value'])}(?!\w)")
        places = (
            match.span()
            for span in spans
            if span["kind"] == "biography"
            for match in pattern.finditer(text, span["start"], span["end"])
        )
        free = (
            (start, end)
            for start, end in places
            if all(end <= other["start"] or other["end"] <= start for other in found.values())
        )
        for start, end in free:
            found[fact["attribute"]] = {
                "attribute": fact["attribute"],
                "text": fact["value"],
                "start": start,
                "end": end,
            }
            break
    return [found[fact["attribute"]] for fact in facts if fact["attribute"] in found]


def _deal(sentences: list[str], apart: bool, rng: random.Random) -> list[str]:
    least, most = _GROUPS
    if not apart or len(sentences) < least:
        return [" ".join(sentences)]
    number = rng.randint(least, min(most, len(sentences)))
    cuts = [0, *sorted(rng.sample(range(1, len(sentences)), number - 1)), len(sentences)]
    return [" ".join(sentences[a:b]) for a, b in pairwise(cuts)]


def _assemble(
    groups: list[str], pieces: list[_Piece], gaps: list[int], source: str
) -> tuple[str, list[dict[str, Any]]]:
    """The text with group ``i`` before piece ``gaps[i]``, and its spans; neighbours of one article share a span."""
    parts: list[tuple[str, str, str]] = []
    waiting = list(zip(gaps, groups, strict=True))
    for position in range(len(pieces) + 1):
        if waiting and waiting[0][0] == position:
            parts.append(("biography", source, waiting.pop(0)[1]))
        if position < len(pieces):
            parts.append(("article", pieces[position].title, pieces[position].text))
    spans: list[dict[str, Any]] = []
    end = 0
    for kind, origin, text in parts:
        start = end + len(SEPARATOR) if spans else 0
        end = start + len(text)
        if spans and kind == "article" and (spans[-1]["kind"], spans[-1]["source"]) == (kind, origin):
            spans[-1]["end"] = end
        else:
            spans.append({"kind": kind, "source": origin, "start": start, "end": end})
    return SEPARATOR.join(text for _, _, text in parts), spans
