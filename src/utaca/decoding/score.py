"""Scores of a given answer: how likely each of its tokens is under a budget, and whether a detector distrusts it.

The answer is decoded as any other, but its tokens are the given ones (:class:`utaca.decoding.choosing.Given`). They are
also the guesses of further rows, so a pass scores several tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from utaca.decoding.choosing import Given
from utaca.decoding.loop import generate_together
from utaca.decoding.options import Decoding, Reading
from utaca.decoding.policies import Policy, Set
from utaca.decoding.triggers import Agreement, Detected, Trigger
from utaca.detection.detector import Detector
from utaca.errors import UserError, whole
from utaca.readers.load import Reader
from utaca.settings.budgets import Budget, resolve
from utaca.trace import Token

ROWS = 8
"""Most tokens that a pass scores, by default."""


@dataclass(frozen=True)
class AnswerScores:
    """The scores of an answer's ``tokens``: each has its text, margin, log-probability and, with a detector, GDM.

    ``entropies`` are those of the distributions over the next token, in nats. ``doubted`` says which tokens
    the detector distrusts or, without a detector, which have a margin below the reader's ``margin``. ``passes`` counts
    the passes of the model. ``budget`` is K, or K_max with a policy.
    """

    tokens: list[Token]
    entropies: list[float]
    doubted: list[bool]
    passes: int
    budget: int

    @property
    def text(self) -> str:
        """The answer."""
        return "".join(token.text for token in self.tokens)

    @property
    def logprob(self) -> float:
        """The natural log-probability of the whole answer."""
        return sum(token.logprob for token in self.tokens)

    @property
    def spans(self) -> list[range]:
        """Runs of doubted tokens, by their numbers from 0."""
        spans: list[range] = []
        for number, doubted in enumerate(self.doubted):
            if doubted and spans and spans[-1].stop == number:
                spans[-1] = range(spans[-1].start, number + 1)
            elif doubted:
                spans.append(range(number, number + 1))
        return spans

    def span_text(self, span: range) -> str:
        """The text of one of the ``spans``."""
        return "".join(self.tokens[number].text for number in span)


def score(
    reading: Reading,
    question: str | tuple[int, ...],
    answer: str | Sequence[int] | Tensor,
    *,
    budget: Budget | None = None,
    detector: Detector | None = None,
    policy: Policy | None = None,
    trigger: Trigger | None = None,
    rows: int = ROWS,
) -> AnswerScores:
    """Score each token of a given ``answer`` to a question about a document that was read.

    Every token is scored after the answer's tokens before it. ``question`` and ``budget`` are as in
    :class:`utaca.Decoding`; the default budget is the reader's. ``answer`` is a text, or token ids, which may end with
    an end token. With a ``detector`` every token gets its GDM. With a ``policy`` and a ``trigger`` the budget adapts to
    the given tokens as it would to generated ones; without them it is fixed. A pass scores up to ``rows`` tokens; the
    scores equal those of one token in each pass, up to rounding.

    Raises :class:`UserError` as :class:`utaca.Decoding` does, if the answer is empty or continues after an end token,
    and if the trigger is :class:`utaca.Agreement`.
    """
    if not hasattr(reading, "begin"):
        raise UserError("the first argument must be a document that was read, such as utaca.prefill(reader, text)")
    if whole("rows", rows) < 1:
        raise UserError(f"rows must be at least 1, not {rows}")
    if detector is not None and trigger is not None:
        raise UserError("give utaca.score a detector or a trigger, not both; a trigger has its own detector")
    reader = reading.reader
    if isinstance(trigger, Agreement):
        raise UserError(
            "Agreement cannot score a given answer, because it compares tokens that the reader chooses; use another "
            "trigger"
        )
    tokens = _tokens(reader, question, answer)
    if reader.stop_tokens.intersection(tokens[:-1]):
        raise UserError("the answer has tokens after its first end token; leave them out")
    if budget is None and reading.budget is None:
        budget = reader.settings.budget
    if detector is not None:
        # This policy keeps to its budget, and the trigger is asked below it only: the budget is fixed.
        trigger = Detected(detector)
        policy = policy or Set(reading.budget if budget is None else resolve(budget, reading.blocks))
    given = Given(tokens)
    decoding = Decoding(
        reading,
        question,
        budget,
        policy,
        trigger,
        max_new_tokens=len(tokens),
        sampling=given,
        drafts=rows - 1 if reading.chains else 0,
    )
    (generation,) = generate_together([decoding])
    trace = generation.trace
    if trigger is not None and trigger.detector is not None:
        # The verdict on the first pass of each token, as its GDM.
        doubted = [(token.tentative or token).distrusted for token in trace]
    else:
        doubted = [token.margin < reader.settings.margin for token in trace]
    entropies = [given.note(number, token).item() for number, token in enumerate(trace)]
    return AnswerScores(trace, entropies, doubted, generation.passes, decoding.budgets[0])


def _tokens(reader: Reader, question: str | tuple[int, ...], answer: str | Sequence[int] | Tensor) -> list[int]:
    """The ids of an answer; a text is encoded after its question, as the reader would write it."""
    if not isinstance(answer, str):
        return reader.document(answer, "answer").tolist()
    ids = reader.prompts.text(answer)
    if isinstance(question, str):
        asked = reader.prompts.question(question)
        both = reader.prompts.question(question, answer)
        # Unless the tokenizer joins the answer's beginning to what the chat template writes before it.
        if both[: len(asked)] == asked:
            ids = both[len(asked) :]
    return reader.document(ids, "answer").tolist()
