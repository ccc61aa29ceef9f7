"""Long documents: a biography between whole paragraphs of padding prose (paper, appendix on data construction)."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from utaca.biographies.corpora.text import paragraphs
from utaca.biographies.source import SENTENCE_END
from utaca.errors import UserError
from utaca.sizes import FACTS

SEPARATOR = "\n\n"
TOLERANCE = 0.01
"""Largest deviation of a document's length from the requested length."""

_ATTEMPTS = 60
_FEWEST_GROUPS, _MOST_GROUPS = 2, 4
_WORD_END = re.compile(r"\S(?=\s|$)")


@dataclass(frozen=True)
class Part:
    """A paragraph of an article, or sentences of the biography; ``source`` is the article's title or the biography's
    id."""

    kind: str
    source: str
    text: str
    size: int = 0  # tokens of a paragraph, separator included


def counter(tokenizer: Any) -> Callable[[str], int]:
    """Token counts, special tokens left out, of a ``tokenizers.Tokenizer`` or a fast tokenizer of transformers."""
    backend = getattr(tokenizer, "backend_tokenizer", tokenizer)
    return lambda text: len(backend.encode(text, add_special_tokens=False))


class Padder:
    """Pads biographies with the prose of a corpus.

    ``articles`` are rows of schema ``corpus``, ``count`` gives a text's length in the reader's tokens (see
    :func:`counter`), ``corpus`` is the name recorded in the documents. A paragraph that occurs twice in the corpus is
    used once. Each paragraph is counted at most once. Raises :class:`UserError` for a corpus without usable paragraphs.
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

        The biography's sentences stay whole and in order. Those of several facts are dealt into two to four groups at
        increasing random depths; those of one fact stay together. Padding takes articles in random order without
        replacement, their paragraphs whole and in order. Of the last article it takes a run from a random paragraph;
        the last paragraph may be cut at a sentence end, else at a word end. No paragraph comes twice before all were
        used. Raises :class:`UserError` if the biography is longer than ``n_tokens``, or if no cut comes within 1 %.
        """
        groups = _dealt(biography, rng)
        size = self._count(" ".join(groups))
        slack = int(n_tokens * TOLERANCE)
        # A set of tasks has documents of its own length, and no split.
        key = f"scale.{biography['split']}.tokens" if biography["split"] in FACTS else "the set's length"
        if size > n_tokens:
            raise UserError(
                f"biography {biography['id']} has {size} tokens and does not fit into a document of {n_tokens}; "
                f"raise {key}"
            )
        if size >= n_tokens - slack:
            return self._row(biography, _arranged(biography, [" ".join(groups)], [0], []), size)
        # Tokens of the whole text less the sum of its parts' tokens, learnt from the attempt before.
        surplus = 0
        for _ in range(_ATTEMPTS):
            pieces = self._pieces(n_tokens - size - surplus, slack, rng)
            groups = _fitting(groups, len(pieces) + 1)
            places = sorted(rng.sample(range(len(pieces) + 1), len(groups)))
            row = self._row(biography, _arranged(biography, groups, places, pieces))
            if abs(row["n_tokens"] - n_tokens) <= slack:
                return row
            surplus = row["n_tokens"] - size - sum(piece.size for piece in pieces)
        document = f"the document of biography {biography['id']} to {n_tokens} tokens"
        raise UserError(f"no cut brings {document} within 1 %; raise {key}")

    def _row(self, biography: Mapping[str, Any], parts: Sequence[Part], n_tokens: int | None = None) -> dict[str, Any]:
        text = SEPARATOR.join(part.text for part in parts)
        spans: list[dict[str, Any]] = []
        end = -len(SEPARATOR)
        for part in parts:
            start = end + len(SEPARATOR)
            end = start + len(part.text)
            # Paragraphs of one article that follow one another are one span.
            if (
                spans
                and part.kind == "article"
                and spans[-1]["kind"] == "article"
                and spans[-1]["source"] == part.source
            ):
                spans[-1]["end"] = end
            else:
                spans.append({"kind": part.kind, "source": part.source, "start": start, "end": end})
        return {
            **{key: biography[key] for key in ("id", "split", "person", "facts")},
            "text": text,
            "n_tokens": self._count(text) if n_tokens is None else n_tokens,
            "spans": spans,
            "evidence": _evidence(biography, text, spans),
            "corpus": self._corpus,
        }

    def _size(self, text: str) -> int:
        return self._count(text + SEPARATOR)

    def _sizes_of(self, article: int) -> list[int]:
        sizes = self._sizes[article]
        if sizes is None:
            sizes = self._sizes[article] = [self._size(text) for text in self._articles[article][1]]
        return sizes

    def _pieces(self, needed: int, slack: int, rng: random.Random) -> list[Part]:
        """Paragraphs of ``needed`` tokens together, at most ``slack`` fewer if a cut allows it."""
        pieces: list[Part] = []
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
                pieces.append(Part("article", title, text, size))
                needed -= size
        return pieces

    def _cut(self, title: str, text: str, needed: int, slack: int) -> list[Part]:
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
                piece = Part("article", title, text[: ends[low - 1]], self._size(text[: ends[low - 1]]))
                if piece.size >= least:
                    return [piece]
        return []


def _dealt(biography: Mapping[str, Any], rng: random.Random) -> list[str]:
    """The biography in two to four groups of whole sentences; in one if it states one fact."""
    sentences = biography["sentences"]
    cuts = [0, len(sentences)]
    if len(biography["facts"]) > 1 and len(sentences) >= _FEWEST_GROUPS:
        number = rng.randint(_FEWEST_GROUPS, min(_MOST_GROUPS, len(sentences)))
        cuts[1:1] = sorted(rng.sample(range(1, len(sentences)), number - 1))
    return [" ".join(sentences[start:end]) for start, end in pairwise(cuts)]


def _fitting(groups: list[str], places: int) -> list[str]:
    """The groups, the last ones joined if there are more groups than places."""
    kept = min(len(groups), places)
    return [*groups[: kept - 1], " ".join(groups[kept - 1 :])]


def _arranged(
    biography: Mapping[str, Any], groups: Sequence[str], places: Sequence[int], pieces: Sequence[Part]
) -> list[Part]:
    """The parts of a document: the pieces of padding, each group before the piece of its place (ascending)."""
    parts = list(pieces)
    for place, text in reversed([*zip(places, groups, strict=True)]):
        parts.insert(place, Part("biography", biography["id"], text))
    return parts


def _evidence(biography: Mapping[str, Any], text: str, spans: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The first place at which the biography states each fact, for facts whose value stands there verbatim.

    Longer values match first, so that "Law" does not match inside the name of a law school; nothing matches inside the
    person's name. Facts that share a value have a place each, in order; the last of them has all further places.
    """
    attributes: dict[str, list[str]] = {}
    for fact in biography["facts"]:
        attributes.setdefault(fact["value"], []).append(fact["attribute"])
    longest = sorted({*attributes, biography["person"]}, key=len, reverse=True)
    pattern = re.compile("|".join(rf"(?<!\w){re.escape(words)}(?!\w)" for words in longest))
    places: dict[str, dict[str, Any]] = {}
    for span in spans:
        if span["kind"] != "biography":
            continue
        for match in pattern.finditer(text, span["start"], span["end"]):
            if names := attributes.get(match[0]):
                attribute = names.pop(0) if len(names) > 1 else names[0]
                place = {"attribute": attribute, "text": match[0], "start": match.start(), "end": match.end()}
                places.setdefault(attribute, place)
    return [places[fact["attribute"]] for fact in biography["facts"] if fact["attribute"] in places]
