"""Long documents: a biography between whole paragraphs of padding prose (paper, appendix on data construction)."""

import random
import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any

from utaca.biographies.corpora.text import paragraphs
from utaca.biographies.evidence import SENTENCE_END, evidence
from utaca.biographies.lengths import TOLERANCE
from utaca.errors import UserError
from utaca.sizes import FACTS

SEPARATOR = "\n\n"
_ATTEMPTS = 60
_FEWEST_GROUPS = 2
_MOST_GROUPS = 4
_WORD_END = re.compile(r"\S(?=\s|$)|[\u3040-\u30ff\u3400-\u9fff]")  # Chinese and Japanese have no spaces.


@dataclass(frozen=True)
class _Piece:
    """A paragraph of an article or sentences of the biography; ``source`` is the article's title or biography's id."""

    kind: str
    source: str
    text: str


class Padder:
    """Pads biographies with the prose of a corpus.

    ``articles`` are rows of schema ``corpus``, ``count`` gives a text's length in the reader's tokens (see
    :func:`utaca.biographies.lengths.counter`), ``corpus`` is the name recorded in the documents. A paragraph that
    occurs twice in the corpus is used once. Each paragraph is counted at most once. Raises :class:`UserError` if the
    corpus has no usable paragraph.
    """

    def __init__(self, articles: Sequence[Mapping[str, Any]], count: Callable[[str], int], corpus: str) -> None:
        seen: set[str] = set()
        self._articles: list[tuple[str, list[str]]] = []
        for article in articles:
            distinct = dict.fromkeys(paragraphs(article["text"]))
            unseen = [text for text in distinct if text not in seen]
            seen.update(unseen)
            if unseen:
                self._articles.append((article["title"], unseen))
        if not self._articles:
            raise UserError(f"corpus {corpus!r} has no usable paragraph to fill documents with; choose another corpus")
        self._count = count
        self._corpus = corpus
        # Tokens of a paragraph, with the separator after it.
        self._size = cache(lambda text: count(text + SEPARATOR))

    def document(self, biography: Mapping[str, Any], n_tokens: int, rng: random.Random) -> dict[str, Any]:
        """Make a document of ``n_tokens`` tokens, to within 1 %, that has the biography: a row of schema ``documents``.

        The biography's sentences stay whole and in order. If they state several facts, they are divided into two to
        four groups at increasing random depths; otherwise they stay together. Padding takes articles in random order
        without replacement, their paragraphs whole and in order. Of the last article it takes a run from a random
        paragraph; the last paragraph may be cut at a sentence end, else at a word end. No paragraph comes twice before
        all were used. Raises :class:`UserError` if the biography is longer than ``n_tokens``, or if no cut comes within
        1 %.
        """
        groups = _grouped(biography, rng)
        n_biography = self._count(" ".join(groups))
        slack = int(n_tokens * TOLERANCE)
        # What an error advises to raise. A set of tasks has documents of its own length, and no split.
        key = f"scale.{biography['split']}.tokens" if biography["split"] in FACTS else "the set's length"
        if n_biography > n_tokens:
            raise UserError(
                f"biography {biography['id']} has {n_biography} tokens and does not fit into a document of {n_tokens}; "
                f"raise {key}"
            )
        if n_biography >= n_tokens - slack:
            return self._row(biography, [_Piece("biography", biography["id"], " ".join(groups))])
        # The whole text may have more or fewer tokens than its parts in sum: the difference in the previous attempt.
        surplus = 0
        for _ in range(_ATTEMPTS):
            pieces = list(self._pieces(n_tokens - n_biography - surplus, slack, rng))
            n_padding = sum(self._size(piece.text) for piece in pieces)
            # The last groups are joined if there are more groups than places: before, between and after the pieces.
            last = min(len(groups) - 1, len(pieces))
            groups = [*groups[:last], " ".join(groups[last:])]
            places = sorted(rng.sample(range(len(pieces) + 1), len(groups)))
            # The last group first, because an insertion moves the places after it.
            for place, text in reversed(list(zip(places, groups, strict=True))):
                pieces.insert(place, _Piece("biography", biography["id"], text))
            row = self._row(biography, pieces)
            if abs(row["n_tokens"] - n_tokens) <= slack:
                return row
            surplus = row["n_tokens"] - n_biography - n_padding
        document = f"the document of biography {biography['id']} to {n_tokens} tokens"
        raise UserError(f"{document} cannot be filled within 1 %; raise {key}")

    def _row(self, biography: Mapping[str, Any], pieces: Sequence[_Piece]) -> dict[str, Any]:
        """The row of the document that consists of these pieces."""
        text = SEPARATOR.join(piece.text for piece in pieces)
        spans: list[dict[str, Any]] = []
        end = -len(SEPARATOR)  # no separator before the first piece
        for piece in pieces:
            start = end + len(SEPARATOR)
            end = end + len(SEPARATOR) + len(piece.text)
            span = {"kind": piece.kind, "source": piece.source, "start": start, "end": end}
            # Paragraphs of an article that follow one another are in the same span.
            if spans and piece.kind == spans[-1]["kind"] == "article" and piece.source == spans[-1]["source"]:
                spans[-1]["end"] = end
            else:
                spans.append(span)
        row = {key: biography[key] for key in ("id", "split", "person", "facts")}
        row["text"] = text
        row["n_tokens"] = self._count(text)
        row["spans"] = spans
        row["evidence"] = evidence(row, biography.get("stated", ()))
        row["corpus"] = self._corpus
        return row

    def _pieces(self, needed: int, slack: int, rng: random.Random) -> Iterator[_Piece]:
        """Draw paragraphs of ``needed`` tokens in sum, or of at most ``slack`` fewer if the last can be cut so.

        If it cannot, more tokens are lacking, and the caller tries again.
        """
        order: list[int] = []
        while needed > slack:
            if not order:
                order = rng.sample(range(len(self._articles)), len(self._articles))
            title, texts = self._articles[order.pop()]
            sizes = [self._size(text) for text in texts]
            first = 0
            if sum(sizes) > needed:
                # The last article: a run may begin at any paragraph from which on there are enough tokens.
                latest = len(sizes)
                n_from_latest = 0
                while n_from_latest < needed:
                    latest -= 1
                    n_from_latest += sizes[latest]
                first = rng.randint(0, latest)
            for text, size in zip(texts[first:], sizes[first:], strict=True):
                if size > needed:
                    cut = self._cut(text, needed, slack) if needed > slack else ""
                    if cut:
                        yield _Piece("article", title, cut)
                    return
                yield _Piece("article", title, text)
                needed -= size

    def _cut(self, text: str, needed: int, slack: int) -> str:
        """Cut a paragraph to at most ``needed`` tokens; "" if its first word is longer.

        The cut is at the last sentence end that fits, if at most ``slack`` of the tokens are then missing. Otherwise it
        is at the last word end that fits.
        """
        # ``least``: tokens that a cut at such an end must leave.
        for pattern, least in ((SENTENCE_END, needed - slack), (_WORD_END, 1)):
            ends = [match.end() for match in pattern.finditer(text)]
            fitting = bisect_right(ends, needed, key=lambda end: self._size(text[:end]))
            if fitting:
                cut = text[: ends[fitting - 1]]
                if self._size(cut) >= least:
                    return cut
        return ""


def _grouped(biography: Mapping[str, Any], rng: random.Random) -> list[str]:
    """Divide a biography into two to four groups of whole sentences, or one group if it states only one fact."""
    sentences = biography["sentences"]
    cuts = [0, len(sentences)]  # indices of sentences at which groups begin and end
    if len(biography["facts"]) > 1 and len(sentences) >= _FEWEST_GROUPS:
        number = rng.randint(_FEWEST_GROUPS, min(_MOST_GROUPS, len(sentences)))
        cuts[1:1] = sorted(rng.sample(range(1, len(sentences)), number - 1))
    return [" ".join(sentences[start:end]) for start, end in pairwise(cuts)]
