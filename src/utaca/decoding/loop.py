"""Decoding by Algorithm 1 of the paper, or under fixed budgets, for every method.

To follow one token, read :func:`_decode`, which is the algorithm, then :mod:`utaca.memory.branch` (retrieval),
:mod:`utaca.memory.attention`, :mod:`utaca.detection.token_reader` (signals, verdict) and
:meth:`utaca.memory.branch.Branch.commit`. An answer plans steps and goes on once these steps have run, so that the
answers of a :class:`Batch` share the model's passes.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from itertools import repeat
from numbers import Integral
from typing import Any

import torch

from utaca.decoding.options import Decoding, Reading
from utaca.decoding.policies import Policy
from utaca.decoding.triggers import Trigger
from utaca.detection.token_reader import TokenReader
from utaca.errors import UserError
from utaca.readers.attention import Step
from utaca.settings.machine import in_turn
from utaca.trace import Generation, Token


def generate(reading: Reading, question: str, **options: Any) -> Generation:
    """Answer ``question`` about the document. Options, ``budget`` among them, are the fields of :class:`Decoding`.

    Raises :class:`UserError` as :class:`Decoding` does, and :class:`NotFiniteError`, with the tokens so far, if the
    model's logits are not finite.
    """
    return generate_together([Decoding(reading, question, **options)])[0]


def stream(reading: Reading, question: str, **options: Any) -> Iterator[Token]:
    """As :func:`generate`, but yield each token when it is committed."""
    batch = Batch()
    answer = batch.add(Decoding(reading, question, **options))
    while batch:
        for _, token in batch.step():
            yield token
    answer.result()


@in_turn
def generate_together(decodings: Sequence[Decoding]) -> list[Generation]:
    """Answers to several questions, whose steps share the model's passes; documents may differ, the reader may not.

    Raises :class:`UserError` if the list is empty or the documents have several readers. ``seconds`` of an answer
    counts shared passes in full. Rounding depends on the size of a matrix product, so the low bits of results depend on
    which answers are decoded together.
    """
    if not (isinstance(decodings, Sequence) and decodings and all(isinstance(each, Decoding) for each in decodings)):
        raise UserError("several questions are a list of utaca.Decoding(memory, question, budget); give one at least")
    batch = Batch()
    answers = [batch.add(decoding) for decoding in decodings]
    while batch:
        batch.step()
    return [answer.result() for answer in answers]


class Batch:
    """Answers under way that share the model's passes (continuous batching).

    Answers can be added and dropped between any two passes; their documents may differ, their reader may not. A program
    drives any number of answers like this::

        batch = Batch()
        answer = batch.add(Decoding(memory, question, budget=32))
        while batch:
            for answer, token in batch.step():
                print(token.text, token.k, token.rolled_back, token.selected)
            ...  # batch.add and batch.drop as requests come and go
        answer.result()  # the Generation, or the error that ended it

    Methods may be called from any thread: one call runs at a time, and takes turns with :func:`generate` and
    :func:`utaca.prefill`. An error of one answer (:attr:`OpenAnswer.error`) ends that answer alone. An error of a pass,
    such as a lack of memory, is raised by :meth:`step` and changes no answer: drop some answers and step again.
    """

    def __init__(self) -> None:
        self.answers: list[OpenAnswer] = []

    def __len__(self) -> int:
        """Number of answers under way."""
        return len(self.answers)

    @in_turn
    def add(self, decoding: Decoding) -> OpenAnswer:
        """Begin an answer; its question is read by the next passes.

        Raises :class:`UserError` if the answers under way have another reader.
        """
        if any(answer.decoding.reading.reader is not decoding.reading.reader for answer in self.answers):
            raise UserError("answers of several readers cannot share passes; decode those of each reader by themselves")
        answer = OpenAnswer(decoding)
        answer.advance()
        if answer.error:
            raise answer.error
        self.answers.append(answer)
        return answer

    @in_turn
    def drop(self, answer: OpenAnswer) -> None:
        """End an answer early; no effect if it is not under way. ``answer.generation`` keeps the tokens so far."""
        if answer in self.answers:
            self.answers.remove(answer)
            # This frees the state that the answer is decoded from.
            answer.planned = []
            answer.events.close()

    @in_turn
    def step(self) -> list[tuple[OpenAnswer, Token]]:
        """Run the planned steps of all answers in shared passes; return each committed token with its answer.

        Steps of one size and kind share one pass. An answer commits no token while it reads its question, or if a token
        must be decoded again. Answers that end leave the batch.
        """
        passes: dict[tuple[type, int], list[Step]] = {}
        for answer in self.answers:
            for step in answer.planned:
                passes.setdefault((type(step.state), step.size), []).append(step)
        for steps in passes.values():
            steps[0].state.run(steps)
        committed = [(answer, token) for answer in self.answers for token in answer.advance()]
        self.answers = [answer for answer in self.answers if answer.planned]
        return committed


class OpenAnswer:
    """An answer under way in a :class:`Batch`.

    ``generation`` has the tokens committed so far; its ``finish`` is "" until the answer ends. ``error`` is the
    exception that ended the answer, if any. ``planned`` are the steps to run next; none once the answer has ended.
    """

    def __init__(self, decoding: Decoding) -> None:
        self.decoding = decoding
        self.generation = Generation(decoding.reading.block_size)
        self.error: Exception | None = None
        self.planned: list[Step] = []
        self._started = time.perf_counter()
        self.events = _decode(decoding, self.generation)

    def advance(self) -> list[Token]:
        """Go on after the planned steps have run, up to the next ones; return the tokens committed in between."""
        tokens: list[Token] = []
        self.planned = []
        try:
            while isinstance(event := next(self.events), Token):
                tokens.append(event)
            self.planned = event
        except StopIteration:
            pass
        except UserError as error:
            # Its traceback would hold the answer, which holds the error: a ring that keeps the document in memory.
            self.error = error.with_traceback(None)
        except Exception as error:
            self.error = error
        self.generation.seconds = time.perf_counter() - self._started
        return tokens

    def result(self) -> Generation:
        """The generation; raises the error that ended it, if one did."""
        if self.error:
            raise self.error
        return self.generation


def _decode(d: Decoding, generation: Generation) -> Iterator[list[Step] | Token]:
    """Algorithm 1: yield lists of steps for the caller to run, which may share a pass, and each committed token."""
    reader, q = d.reading.reader, d.question
    ids = () if isinstance(q, str) else (*q, *reader.prompts.behind_text(d.prefix))
    prompt = reader.encode_question(q, d.prefix) if isinstance(q, str) else reader.document(ids, "question")
    answer = TokenReader(reader, generation, d.trigger.detector if d.trigger else None, measured=d.measured)
    state, pieces, tokens = d.reading.begin(prompt, d.max_new_tokens, max(d.budgets), answer.captures)
    for piece, budget in pieces:
        steps = [state.plan(piece, budget)]
        yield steps
        state.commit(steps[0])
    draws, budgets = d.sampling.draws() if d.sampling else repeat(torch.argmax), d.budgets
    k = k_max = budgets[0]
    for n in range(d.max_new_tokens):
        if d.policy is None:
            k = budgets[min(n, len(budgets) - 1)]
        compact = d.policy is not None and k < k_max
        other = _checked(d.trigger, d.trigger.second_budget(k, k_max), 0, k_max) if compact else d.expanded
        steps = [state.plan(tokens, budget) for budget in ([k, other] if other else [k])]
        yield steps
        choose = next(draws)
        first, second = answer.read(steps[0], choose), answer.read(steps[1], choose) if other else None
        step, token = steps[0], first
        if compact and d.trigger.expands(n, first, second):
            k = _checked(d.policy, d.policy.expand(k, k_max, first), k + 1, k_max)
            if k == other:
                step, token = steps[1], second
            else:
                steps = [state.plan(tokens, k)]
                yield steps
                step, token = steps[0], answer.read(steps[0], choose)
            # The first pass was not committed, so committing the other pass completes the rollback.
            token.tentative, token.gdm, token.intervened = first, first.gdm, first.intervened
        elif d.policy is not None:
            k = _checked(d.policy, d.policy.update(k, k_max, first), 1, k_max)
        token.probe = second if second is not token else None
        state.commit(step)
        tokens = answer.accept(token)
        yield token
        if generation.finish:
            return
    generation.finish = "length"


def _checked(source: Policy | Trigger, budget: int, least: int, most: int) -> int:
    """``budget`` of a policy or trigger; raises :class:`UserError` unless it is whole, from ``least`` to ``most``."""
    if not isinstance(budget, Integral) or not least <= budget <= most:
        kind = "policy" if isinstance(source, Policy) else "trigger"
        raise UserError(f"{kind} {source} gave budget {budget!r}, but it must be a whole number from {least} to {most}")
    return int(budget)
