"""Documents of the training and validation split: a fact among simple sentences (paper, appendix on data construction).

The paper's documents of these splits are "relatively simple and short"; only its test split is padded with prose of
Wikipedia.
"""

import random
from collections.abc import Callable, Mapping
from functools import cache
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
        # Tokens of a sentence, the space before it included.
        self._size = cache(lambda sentence: count(f" {sentence}"))

    def document(self, biography: Mapping[str, Any], n_tokens: int, rng: random.Random) -> dict[str, Any]:
        """Make a document of ``n_tokens`` tokens, to within 1 %, that has the biography: a row of schema ``documents``.

        The biography's sentences stay together, before, between or after simple sentences; each of these places is
        equally likely. Simple sentences are drawn in random order, without repetition until all were used; only the
        last sentence may repeat another, because it is chosen to fit. Raises :class:`UserError` if the biography is
        longer than ``n_tokens``, or if no sentences come within 1 %.
        """
        narrative = " ".join(biography["sentences"])
        slack = int(n_tokens * TOLERANCE)
        n_narrative = self._count(narrative)
        # A joined text may have more or fewer tokens than its sentences one by one. Each attempt is corrected by the
        # difference that the previous one found.
        correction = 0
        for _ in range(_ATTEMPTS):
            fillers = self._fillers(n_tokens - n_narrative - correction, slack, rng)
            place = rng.randint(0, len(fillers))
            row = self._row(biography, fillers[:place], narrative, fillers[place:])
            if abs(row["n_tokens"] - n_tokens) <= slack:
                return row
            correction = row["n_tokens"] - n_narrative - sum(map(self._size, fillers))
        raise UserError(
            f"no simple sentences bring the document of biography {biography['id']} to {n_tokens} tokens within 1 %; "
            f"raise scale.{biography['split']}.tokens"
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

    def _row(self, biography: Mapping[str, Any], before: list[str], narrative: str, after: list[str]) -> dict[str, Any]:
        """The row of a document: the biography's ``narrative`` between two lists of simple sentences."""
        parts = (
            ("filler", NAME, " ".join(before)),
            ("biography", biography["id"], narrative),
            ("filler", NAME, " ".join(after)),
        )
        text = ""
        spans = []
        for kind, source, part in parts:
            if part:
                if text:
                    text += " "
                spans.append({"kind": kind, "source": source, "start": len(text), "end": len(text) + len(part)})
                text += part
        row = {key: biography[key] for key in ("id", "split", "person", "facts")}
        row["text"] = text
        row["n_tokens"] = self._count(text)
        row["spans"] = spans
        row["evidence"] = evidence(row, biography["stated"])
        row["corpus"] = NAME
        return row
