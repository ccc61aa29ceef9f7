"""Drafts: guesses of the next tokens, which one pass verifies by Algorithm 1 (speculative decoding).

The guesses come from one of three places:

* :class:`PromptLookup`. An answer about a document often repeats the document and the question, so that the next tokens
  can be looked up: they are guessed to be those that followed the last tokens where these occurred before (Saxena,
  2023).
* :class:`CompactPasses`. The model itself guesses: it decodes the next tokens under a few blocks, a pass for each
  (MagicDec, arXiv 2408.11049; TriForce, arXiv 2404.11912).
* :class:`GivenAnswer`. The answer is given and only scored, so that every guess is right.

A pass then decodes the present token and, in further rows, each guess. Each row has its own query, retrieves its own
blocks under the budget that the policy would give its token, and sees the tokens of the rows before it. The rows are
then read in order, exactly as if each had been a pass of its own, up to the first that Algorithm 1 would not have
decoded: its guess is another token than the row before it chose, its budget is another one, or the token before it is
rolled back.
So the answer is the same as without drafts, up to rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from utaca.readers.attention import Step, on_device
from utaca.trace import Generation, Rejected

if TYPE_CHECKING:
    from utaca.decoding.options import State

LONGEST_MATCH = 3
"""Most last tokens that are looked up; the more of them a place has in common, the likelier is its next token."""
MEMORY = 0.15
"""Weight of the newest guess in the accuracy of the guesses so far."""
FIRST_ACCURACY = 0.6
"""Share of right guesses that is assumed before the first one."""


class PromptLookup:
    """Guesses of an answer's next tokens, looked up in document, question and answer; at most ``most`` together.

    How many are worth verifying follows from how often guesses were right, and from how many answers share the passes:
    after many wrong guesses, none is. They are compared with the answer all the same, so that guessing starts again
    once they are right.
    """

    def __init__(
        self, tokens: Iterable[Tensor], most: int, longest: int, row_cost: float, together: Callable[[], int]
    ) -> None:
        """``tokens`` are the ids of the document and of all that follows it; the answer has ``longest`` at most.

        ``row_cost`` is what a row of a pass costs (:attr:`utaca.readers.load.Reader.row_cost`). ``together`` counts the
        answers that share the passes at present.
        """
        known = torch.cat(list(tokens)).cpu().numpy()
        self._tokens = np.concatenate((known, np.zeros(longest, dtype=known.dtype)))
        self._length = len(known)
        self._most = most
        self._row_cost = row_cost
        self._together = together
        self._accuracy = FIRST_ACCURACY
        # The guess of the next token, so that it can be compared; None without one.
        self._next: int | None = None

    def add(self, token: int) -> None:
        """Append a token of the answer, and note whether it was guessed."""
        if self._next is not None:
            self._accuracy += MEMORY * ((token == self._next) - self._accuracy)
        self._tokens[self._length] = token
        self._length += 1
        found = self._following(self._tokens[: self._length], 1)
        self._next = found[0] if found else None

    def guesses(self, also: int | None = None) -> list[int]:
        """The guessed next tokens, as many as are worth verifying; the first is the token ``also``, if given."""
        tokens = self._tokens[: self._length]
        count = self._worthwhile
        if also is None or not count:
            return self._following(tokens, count)
        return [also, *self._following(np.append(tokens, also), count - 1)]

    @property
    def _worthwhile(self) -> int:
        """The number of guesses with the most tokens for a pass's time, if each is right with the accuracy so far.

        The other answers that share the pass are taken to guess as much.
        """
        # Below 1, because of the division.
        accuracy = min(self._accuracy, 0.99)
        # A pass of n rows has n - 1 guesses. A row counts only if all guesses up to it are right, so the pass decodes
        # 1 + accuracy + ... + accuracy^(n - 1) tokens on average.
        rows = np.arange(1, self._most + 2)
        tokens = (1 - accuracy**rows) / (1 - accuracy)
        # A pass takes the time 1 + row_cost for each row. The index of the best number of rows is that of its guesses.
        return int((tokens / (1 + self._row_cost * rows * self._together())).argmax())

    @staticmethod
    def _following(tokens: np.ndarray, count: int) -> list[int]:
        """The ``count`` tokens after the place where most of the last tokens occurred before; of several, the last.

        Fewer at the end of the text, and none if the last token did not occur before.
        """
        if not count:
            return []
        # Indices before the end at which the last token occurs, then those at which the last two do, and so on.
        places = np.flatnonzero(tokens[:-1] == tokens[-1])
        for back in range(1, LONGEST_MATCH):
            longer = places[places >= back]
            if not len(longer):
                break
            longer = longer[tokens[longer - back] == tokens[-1 - back]]
            if not len(longer):
                break
            places = longer
        if not len(places):
            return []
        first = int(places[-1]) + 1
        return tokens[first : first + count].tolist()


class GivenAnswer:
    """Guesses of the next tokens of an answer that is given, at most ``most`` together."""

    def __init__(self, tokens: list[int], most: int) -> None:
        """``tokens`` are the ids of the whole answer."""
        self._tokens = tokens
        self._most = most
        self._length = 0

    def add(self, token: int) -> None:
        """Continue after a token of the answer."""
        self._length += 1

    def guesses(self, also: int | None = None) -> list[int]:
        """The next tokens; ``also``, if given, is the first of them."""
        return self._tokens[self._length : self._length + self._most]


Guesser = PromptLookup | GivenAnswer
"""What guesses without a pass of the model."""


@dataclass(frozen=True)
class CompactPasses:
    """Guesses of the next tokens by passes under a few blocks, ``budget``; ``most`` passes for each verification.

    Guessing ends at one of the ``end_tokens``.
    """

    budget: int
    most: int
    end_tokens: frozenset[int]

    def guess(self, state: State, tokens: Tensor) -> Generator[list[Step], None, tuple[list[int], list[Step]]]:
        """Guess what follows ``tokens`` [1] after a state: yield each step for the caller to run.

        Return the guesses, and the steps that gave them.
        """
        guesses: list[int] = []
        steps: list[Step] = []
        for _ in range(min(self.most, state.longest_chain - 1)):
            step = state.plan(tokens, self.budget, steps[-1] if steps else None)
            yield [step]
            steps.append(step)
            tokens = step.logits.argmax()[None]
            guesses.append(int(tokens))
            if guesses[-1] in self.end_tokens:
                break
        return guesses, steps


@dataclass
class Row:
    """The planned decoding of one token: the step under ``k``, and under the ``second_budget`` if it is not 0.

    ``guess`` is the token that the row passes, if it was guessed. ``in_pass`` counts the steps of the pass that this
    row is the first of, and those that guessed its further rows; 0 for a further row.
    """

    guess: int | None
    k: int
    second_budget: int
    steps: list[Step]
    in_pass: int = 0

    def follows(self, token: int, k: int, second_budget: int) -> bool:
        """Whether this row passes ``token`` under these budgets, which is what decoding does next."""
        return (self.guess, self.k, self.second_budget) == (token, k, second_budget)


class Drafts:
    """The rows of an answer's passes: a first one that is wanted, and those of guesses after it.

    ``guesser`` is None if nothing is guessed; each pass then has one row.
    """

    def __init__(self, state: State, generation: Generation, guesser: Guesser | CompactPasses | None) -> None:
        self._state = state
        self._generation = generation
        self._guesser = guesser
        # Rows of the last pass after the one that was read last.
        self._rows: list[Row] = []

    def take(self, token: int | None, k: int, second_budget: int) -> Row | None:
        """The next row of the last pass, if it is what decoding does now; None if a pass must be planned.

        ``token`` is the last one of the answer, None before the first.
        """
        if self._rows and token is not None and self._rows[0].follows(token, k, second_budget):
            return self._rows.pop(0)
        # The next row has a wrong guess or another budget, and the rows after it saw its token.
        self.reject()
        return None

    def run(
        self,
        tokens: Tensor,
        k: int,
        second_budget: int,
        upcoming: Iterator[tuple[int, int]],
        also: int | None = None,
    ) -> Generator[list[Step], None, Row]:
        """Yield the steps that must run in a pass: those of ``tokens`` [T], and of guesses under ``upcoming`` budgets.

        Return the row of ``tokens``. ``also`` is a guess of the first token after them, in addition to guesses that are
        looked up. The steps of earlier passes, with which :class:`CompactPasses` makes its guesses, are yielded first.
        """
        self.reject()
        guesses: list[int] = []
        compact: list[Step] = []
        # Rows of a chain have one token each, so nothing is guessed after a longer step.
        if len(tokens) == 1 and isinstance(self._guesser, Guesser):
            guesses = self._guesser.guesses(also)[: self._state.longest_chain - 1]
        elif len(tokens) == 1 and self._guesser is not None:
            guesses, compact = yield from self._guesser.guess(self._state, tokens)
            self._generation.passes += len(compact)
            self._generation.rejected += [Rejected(step.retrieved, step.attended) for step in compact]
        steps = [self._state.plan(tokens, k)]
        if second_budget:
            steps.append(self._state.plan(tokens, second_budget))
        self._rows = [Row(None, k, second_budget, steps)]
        for guess, (budget, second) in zip(guesses, upcoming, strict=False):
            passed = on_device([guess], tokens.device)
            # Both steps of a row follow the first step of the row before it: only rows before the first rollback are
            # used, and their first steps are the accepted ones.
            before = self._rows[-1].steps[0]
            steps = [self._state.plan(passed, budget, before)]
            if second:
                steps.append(self._state.plan(passed, second, before))
            self._rows.append(Row(guess, budget, second, steps))
        planned = [step for row in self._rows for step in row.steps]
        self._rows[0].in_pass = len(planned) + len(compact)
        self._generation.passes += 1
        yield planned
        return self._rows.pop(0)

    def reject(self) -> None:
        """Drop the rows that are left of the last pass: Algorithm 1 does not decode them."""
        rejected = [Rejected(step.retrieved, step.attended) for row in self._rows for step in row.steps]
        self._generation.rejected += rejected
        self._rows = []

    def add(self, token: int) -> None:
        """Note a token of the answer."""
        if isinstance(self._guesser, Guesser):
            self._guesser.add(token)
