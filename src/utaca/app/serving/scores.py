"""Log-probabilities of a prompt's tokens, computed from the passes that read it anyway."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from utaca.detection.token_reader import TOP
from utaca.readers.load import Reader
from utaca.settings.machine import in_turn
from utaca.trace import Token

ROWS = 128
"""Positions whose logits are in memory at once."""


class Scored(NamedTuple):
    """A token, the text that it adds, its log-probability, and the best tokens in its place with theirs.

    The first token of a prompt has neither a log-probability nor others in its place.
    """

    token: int
    text: str
    logprob: float | None
    best: Sequence[tuple[int, float]]

    @classmethod
    def of(cls, token: Token) -> Scored:
        """A generated token; none is ``best`` if the token itself is not among those kept.

        Logits and log-probabilities differ by the softmax's denominator, which a token of both lists shows.
        """
        best = list(zip(token.top_tokens, token.top_logits, strict=True))
        shift = next((token.logprob - logit for number, logit in best if number == token.token), None)
        best = [] if shift is None else [(number, logit + shift) for number, logit in best]
        return cls(token.token, token.text, token.logprob, best)


class Scores:
    """Scores of a text's ``tokens`` [N], each under what the reader had read before it; passes add them in order.

    Of each token but the first, as far as they are scored, there are ``numbers`` [n, 1 + 2 * TOP]: its log-probability,
    those of the best tokens in its place, and which these are.
    """

    def __init__(self, reader: Reader, tokens: Tensor, numbers: Tensor | None = None) -> None:
        self._reader, self._tokens = reader, tokens
        self.numbers = torch.zeros(0, 1 + 2 * TOP, dtype=torch.float64) if numbers is None else numbers
        self._behind: Tensor | None = None

    @property
    def complete(self) -> bool:
        """Whether all tokens are scored."""
        return len(self.numbers) == len(self._tokens) - 1

    @in_turn
    @torch.inference_mode()
    def add(self, hidden: Tensor) -> None:
        """Score the tokens that follow those of a pass, of which these are the last hidden states [T, D]."""
        tokens = self._tokens[len(self.numbers) + 1 :][: len(hidden)]
        for first in range(0, len(tokens), ROWS):
            following = tokens[first : first + ROWS, None]
            logprobs = self._reader.logits(hidden[first : first + len(following)]).log_softmax(-1)
            columns = (logprobs.gather(1, following), *logprobs.topk(TOP))
            numbers = torch.cat([column.double() for column in columns], 1).cpu()
            self.numbers = torch.cat((self.numbers, numbers))
        self._behind = hidden[len(tokens) :].clone()

    def followed(self, question: Tensor) -> Scores:
        """Scores of this text, which is complete, and a question behind it, whose first token is scored at once."""
        scores = Scores(self._reader, torch.cat((self._tokens, question)), self.numbers)
        scores.add(self._behind)
        return scores

    def listed(self, texts: Sequence[str]) -> list[Scored]:
        """All tokens, given the text that each adds."""
        first, *others = zip(self._tokens.tolist(), texts, strict=True)
        scored = [Scored(*first, None, ())]
        for token, (logprob, *numbers) in zip(others, self.numbers.tolist(), strict=True):
            best = zip(map(int, numbers[TOP:]), numbers[:TOP], strict=True)
            scored.append(Scored(*token, logprob, list(best)))
        return scored
