"""Compute the log-probabilities of a prompt's tokens from the passes that read the prompt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from utaca.detection.token_reader import TOP
from utaca.readers.load import Reader
from utaca.readers.turns import in_turn
from utaca.trace import Token

ROWS = 128
"""Positions whose logits are in memory at once."""


class Scored(NamedTuple):
    """A token id, the text that the token adds, its natural log-probability, and the most likely tokens (``best``).

    ``best`` has pairs of id and log-probability. The first token of a prompt has no log-probability and no ``best``.
    """

    token: int
    text: str
    logprob: float | None
    best: Sequence[tuple[int, float]]

    @classmethod
    def of(cls, token: Token) -> Scored:
        """The scores of a generated token; ``best`` is empty if the token itself is not among ``token.top_tokens``.

        Log-probabilities are logits plus one constant for all tokens at a position. For this token both are known,
        which gives the constant.
        """
        best = []
        if token.token in token.top_tokens:
            place = token.top_tokens.index(token.token)
            constant = token.logprob - token.top_logits[place]
            pairs = zip(token.top_tokens, token.top_logits, strict=True)
            best = [(number, logit + constant) for number, logit in pairs]
        return cls(token.token, token.text, token.logprob, best)


class Scores:
    """Scores of a text's ``tokens`` [N], each given the text before; the passes that read the text add them in order.

    ``numbers`` [n, 1 + 2 * TOP] has a row for each token scored so far, from the second token on: its log-probability,
    then the log-probabilities of the TOP most likely tokens at its position, then the ids of these tokens.
    """

    def __init__(self, reader: Reader, tokens: Tensor, numbers: Tensor | None = None) -> None:
        self._reader = reader
        self._tokens = tokens
        self.numbers = torch.zeros(0, 1 + 2 * TOP, dtype=torch.float64) if numbers is None else numbers
        # Hidden states [n, D] at the end of the text: those that no token follows yet.
        self._behind: Tensor | None = None

    @property
    def complete(self) -> bool:
        """Whether all tokens are scored."""
        return len(self.numbers) == len(self._tokens) - 1

    @in_turn
    @torch.inference_mode()
    def add(self, hidden: Tensor) -> None:
        """Score the tokens that follow those of a pass, from the pass's last hidden states ``hidden`` [T, D].

        Passes are added in the order of the text.
        """
        # As many as the pass has tokens; one fewer at the end of the text, whose last token has no follower.
        followers = self._tokens[len(self.numbers) + 1 :][: len(hidden)]
        for first in range(0, len(followers), ROWS):
            scored = followers[first : first + ROWS, None]
            logprobs = self._reader.logits(hidden[first : first + len(scored)]).log_softmax(-1)
            columns = (logprobs.gather(1, scored), *logprobs.topk(TOP))
            numbers = torch.cat([column.double() for column in columns], 1).cpu()
            self.numbers = torch.cat((self.numbers, numbers))
        self._behind = hidden[len(followers) :].clone()

    def followed(self, question: Tensor) -> Scores:
        """Make the scores of this text followed by a question; the text must be complete.

        The question's first token is scored at once, from the text's last hidden state.
        """
        scores = Scores(self._reader, torch.cat((self._tokens, question)), self.numbers)
        scores.add(self._behind)  # has one position left: that of the text's last token
        return scores

    def listed(self, texts: Sequence[str]) -> list[Scored]:
        """All tokens with their scores; ``texts`` has the text that each token adds, one per token."""
        (first, first_text), *others = zip(self._tokens.tolist(), texts, strict=True)
        scored = [Scored(first, first_text, None, ())]
        for (token, text), (logprob, *numbers) in zip(others, self.numbers.tolist(), strict=True):
            ids = map(int, numbers[TOP:])
            best = zip(ids, numbers[:TOP], strict=True)
            scored.append(Scored(token, text, logprob, list(best)))
        return scored
