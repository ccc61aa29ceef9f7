"""Documents of the training and validation split: a fact among simple sentences (paper, appendix on data construction).

The paper's documents of these splits are "relatively simple and short"; only its test split is padded with prose of
Wikipedia.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import pairwise
from typing import Any

from utaca.biographies.evidence import evidence
from utaca.biographies.lengths import TOLERANCE
from utaca.data_files import DataFile, Entries, Sentence, read
from utaca.errors import UserError

NAME = "fillers"
"""What documents name in place of a corpus."""
_ATTEMPTS = 60


class Fillers(DataFile):
    """Simple sentences around the sentence that states a fact."""

    fillers: Entries[Sentence]


class Filler:
    """Makes documents of biographies among simple sentences; ``count`` gives a text's length in the reader's tokens."""

    def __init__(self, count: Callable[[str], int]) -> None:
        self._count = count
        self._sentences = read("biographies/fillers.yaml", Fillers).fillers
        # Number of tokens of a sentence with the space before it.
        self._size = cache(lambda sentence: count(f" {sentence}"))

    def documents(
        self, biographies: Sequence[Mapping[str, Any]], n_tokens: int, rng: random.Random
    ) -> list[dict[str, Any]]:
        """Make a text of ``n_tokens`` tokens, to within 1 %, that has the biographies; a row of "documents" for each.

        A biography's sentences stay together, before, between or after simple sentences; each of these places is
        equally likely. Simple sentences are drawn in random order, without repetition until all were used; only the
        last sentence may repeat another, because it is chosen to fit. Raises :class:`UserError` if the biographies are
        longer than ``n_tokens``, or if no sentences come within 1 %.
        """
        slack = int(n_tokens * TOLERANCE)
        n_narrative = sum(self._count(_narrative(biography)) for biography in biographies)
        # A joined text may have more or fewer tokens than its sentences one by one. Each attempt is corrected by the
        # difference that the previous one found.
        correction = 0
        for _ in range(_ATTEMPTS):
            fillers = self._fillers(n_tokens - n_narrative - correction, slack, rng)
            places = sorted(rng.randint(0, len(fillers)) for _ in biographies)
            rows = self._rows(biographies, fillers, places)
            n_found = rows[0]["n_tokens"]
            if abs(n_found - n_tokens) <= slack:
                return rows
            correction = n_found - n_narrative - sum(map(self._size, fillers))
        first = biographies[0]
        raise UserError(
            f"no simple sentences make the document of biography {first['id']} to {n_tokens} tokens within 1 %; "
            f"raise scale.{first['split']}.tokens"
        )

    def _fillers(self, needed: int, slack: int, rng: random.Random) -> list[str]:
        """Draw simple sentences of ``needed`` tokens in sum, or of at most ``slack`` fewer.

        The sum is lower if no sentence is short enough for what is left.
        """
        drawn: list[str] = []
        order: list[str] = []
        while needed > slack:
            # All sentences in a new order, once those of the order before are used.
            order = order or rng.sample(self._sentences, len(self._sentences))
            sentence = order.pop()
            if self._size(sentence) > needed:
                # The last sentence is drawn from those that fit.
                fitting = [filler for filler in self._sentences if self._size(filler) <= needed]
                if not fitting:
                    break
                sentence = rng.choice(fitting)
            drawn.append(sentence)
            needed -= self._size(sentence)
        return drawn

    def _rows(
        self, biographies: Sequence[Mapping[str, Any]], fillers: Sequence[str], places: Sequence[int]
    ) -> list[dict[str, Any]]:
        """The rows of the text in which each biography stands before the simple sentence that ``places`` numbers."""
        runs = [" ".join(fillers[start:end]) for start, end in pairwise([0, *places, len(fillers)])]
        # A run of simple sentences, a biography, a run, and so on to the last run.
        parts = [(NAME, runs[0])]
        for biography, run in zip(biographies, runs[1:], strict=True):
            parts += [(biography["id"], _narrative(biography)), (NAME, run)]
        text = ""
        spans = []
        for source, part in parts:
            if part:
                if text:
                    text += " "
                spans.append({"source": source, "start": len(text), "end": len(text) + len(part)})
                text += part
        n_tokens = self._count(text)
        rows = []
        for biography in biographies:
            row = {key: biography[key] for key in ("id", "split", "person", "facts")}
            row["text"] = text
            row["n_tokens"] = n_tokens
            row["spans"] = [{"kind": _kind(span["source"], biography["id"]), **span} for span in spans]
            row["evidence"] = evidence(row, biography["stated"])
            row["corpus"] = NAME
            rows.append(row)
        return rows


def _narrative(biography: Mapping[str, Any]) -> str:
    """A biography's sentences as one text."""
    return " ".join(biography["sentences"])


def _kind(source: str, own: str) -> str:
    """The kind of a span, in the row of the biography ``own``."""
    if source == NAME:
        return "filler"
    return "biography" if source == own else "other"
