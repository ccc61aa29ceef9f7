"""Decoding by Algorithm 1 of the paper, or under fixed budgets, for every method.

To follow one token, read :func:`_decode`, which is the algorithm, then :mod:`utaca.memory.passes` (retrieval),
:mod:`utaca.memory.attention`, :mod:`utaca.detection.token_reader` (signals, verdict) and
:meth:`utaca.memory.branch.Branch.commit`. An answer plans steps and continues once these steps have run, so that the
answers of a :class:`Batch` share the model's passes.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, repeat
from numbers import Integral
from typing import Any

import torch
from torch import Tensor

from utaca.decoding.choosing import Given
from utaca.decoding.drafts import CompactPasses, Drafts, GivenAnswer, Guesser, PromptLookup
from utaca.decoding.options import Decoding, Reading
from utaca.decoding.policies import Policy
from utaca.decoding.triggers import Trigger
from utaca.detection.token_reader import TokenReader
from utaca.errors import UserError
from utaca.readers.attention import Step
from utaca.readers.turns import in_turn
from utaca.sentences import completed
from utaca.trace import Generation, Token


def generate(reading: Reading, question: str, **options: Any) -> Generation:
    """Answer ``question`` about the document. Options, such as ``budget``, are the fields of :class:`Decoding`.

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
        raise UserError("there is no question; give a list with at least one utaca.Decoding(memory, question, budget)")
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
    :func:`utaca.prefill`. An error of one answer (:attr:`OpenAnswer.error`) ends only that answer. An error of a pass,
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
            raise UserError(
                "answers of different readers cannot share passes; generate the answers of each reader separately"
            )
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
            answer.together = len(self.answers)
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
    ``together`` counts the answers that share the passes.
    """

    def __init__(self, decoding: Decoding) -> None:
        self.decoding = decoding
        self.generation = Generation(decoding.reading.block_size)
        self.error: Exception | None = None
        self.planned: list[Step] = []
        self.together = 1
        self._started = time.perf_counter()
        # A reference to the answer itself would be a ring, which keeps the document in memory.
        answer = weakref.ref(self)
        self.events = _decode(decoding, self.generation, lambda: answer().together)

    def advance(self) -> list[Token]:
        """Continue after the planned steps have run, up to the next ones; return the tokens committed in between."""
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
            # Unexpected: its traceback stays, ring or not, to find the cause.
            self.error = error
        self.generation.seconds = time.perf_counter() - self._started
        return tokens

    def result(self) -> Generation:
        """The generation; raises the error that ended it, if one did."""
        if self.error:
            raise self.error
        return self.generation


def _decode(decoding: Decoding, generation: Generation, together: Callable[[], int]) -> Iterator[list[Step] | Token]:
    """Algorithm 1: yield lists of steps for the caller to run, which may share a pass, and each committed token.

    ``together`` counts the answers that share the passes at present.
    """
    policy = decoding.policy
    trigger = decoding.trigger
    detector = trigger.detector if trigger else None
    token_reader = TokenReader(decoding.reading.reader, generation, detector, measured=decoding.measured)
    budgets = decoding.budgets
    prompt = _prompt(decoding)
    state, pieces, tokens = decoding.reading.begin(prompt, decoding.max_new_tokens, max(budgets), token_reader.captures)
    # The question is read first, except ``tokens`` at its end, which the first step of decoding passes.
    for piece, budget in pieces:
        step = state.plan(piece, budget)
        yield [step]
        state.commit(step)
    # A function for each step that chooses a token by its logits.
    draws = decoding.sampling.draws() if decoding.sampling else repeat(torch.argmax)
    drafts = Drafts(state, generation, _guesser(decoding, prompt, together))
    k_max = budgets[0]
    k = k_max
    last: Token | None = None
    for number in range(decoding.max_new_tokens):
        if policy is None:
            k = budgets[min(number, len(budgets) - 1)]
        second_budget = _second_budget(decoding, k, k_max)
        row = drafts.take(last and last.token, k, second_budget)
        if row is None:
            row = yield from drafts.run(tokens, k, second_budget, _upcoming(decoding, number, k, last))
        choose = next(draws)
        first_step = row.steps[0]
        first = token_reader.read(first_step, choose)
        second = token_reader.read(row.steps[1], choose) if second_budget else None
        accepted = first
        accepted_step = first_step
        rows = row.in_pass
        # Only a token below K_max can be expanded. With fixed budgets there is no trigger.
        compact = policy is not None and k < k_max
        if compact and trigger.expands(number, first, second):
            # Roll back: the first pass is not committed, and one under a larger budget takes its place. Rows after the
            # first pass saw its keys, so they are dropped too.
            drafts.reject()
            k = _checked(policy, policy.expand(k, k_max, first), k + 1, k_max)
            if k == second_budget:
                accepted = second
                accepted_step = row.steps[1]
            else:
                # The next token is decoded under the same budget as the expansion. The expansion probably gives the
                # same token as the first pass, which is therefore guessed after it.
                after = chain([(k, _second_budget(decoding, k, k_max))], _upcoming(decoding, number + 1, k, first))
                row = yield from drafts.run(first_step.tokens, k, 0, after, also=first.token)
                accepted_step = row.steps[0]
                accepted = token_reader.read(accepted_step, choose)
                rows = rows + row.in_pass
            accepted.tentative = first
            # The GDM is that of the first pass, on which the trigger decided.
            accepted.gdm = first.gdm
            accepted.intervened = first.intervened
        elif policy is not None:
            k = _checked(policy, policy.update(k, k_max, first), 1, k_max)
        accepted.rows = rows
        # A second pass that was not accepted is kept for comparison.
        accepted.probe = second if second is not accepted else None
        state.commit(accepted_step)
        tokens = token_reader.accept(accepted)
        if 0 < decoding.most_sentences <= completed(generation.text):
            generation.finish = "sentences"
            if accepted.text[:1].isspace():
                # It is the first token of a further sentence.
                generation.reject_last()
                break
        drafts.add(accepted.token)
        last = accepted
        yield accepted
        if generation.finish:
            break
    drafts.reject()
    generation.finish = generation.finish or "length"


def _guesser(decoding: Decoding, prompt: Tensor, together: Callable[[], int]) -> Guesser | CompactPasses | None:
    """What guesses the answer's tokens; None without drafts. ``prompt`` [T] is the text after the document."""
    if not decoding.drafts:
        return None
    if isinstance(decoding.sampling, Given):
        return GivenAnswer(decoding.sampling.tokens, decoding.drafts)
    if decoding.draft_budget:
        return CompactPasses(decoding.draft_budget, decoding.drafts, decoding.reading.reader.stop_tokens)
    known = (decoding.reading.tokens, prompt)
    row_cost = decoding.reading.reader.row_cost
    return PromptLookup(known, decoding.drafts, decoding.max_new_tokens, row_cost, together)


def _second_budget(decoding: Decoding, k: int, k_max: int) -> int:
    """A second budget under which a token of budget ``k`` is decoded in the same pass; 0: none."""
    if decoding.policy is None:
        # With fixed budgets nothing is rolled back: the second token is measured only.
        return decoding.expanded
    if k >= k_max:
        return 0
    # If the policy expands to this budget, the second token takes the first one's place.
    return _checked(decoding.trigger, decoding.trigger.second_budget(k, k_max), 0, k_max)


def _upcoming(decoding: Decoding, number: int, k: int, token: Token | None) -> Iterator[tuple[int, int]]:
    """Budget and second budget of each token after token ``number`` of budget ``k``, as long as none is rolled back.

    A policy that looks at tokens is asked about the last ``token`` that there is; rows under other budgets than it then
    gives are decoded again. Before the first token there is none to ask about.
    """
    budgets = decoding.budgets
    k_max = budgets[0]
    if decoding.policy is not None and token is None:
        return
    while True:
        number = number + 1
        if decoding.policy is None:
            k = budgets[min(number, len(budgets) - 1)]
        else:
            k = _checked(decoding.policy, decoding.policy.update(k, k_max, token), 1, k_max)
        yield k, _second_budget(decoding, k, k_max)


def _prompt(decoding: Decoding) -> Tensor:
    """Token ids [T] of all that follows the document: the question, and the beginning of the answer."""
    reader = decoding.reading.reader
    if isinstance(decoding.question, str):
        return reader.encode_question(decoding.question, decoding.prefix)
    # A reader without a tokenizer encodes nothing.
    prefix = reader.prompts.behind_text(decoding.prefix) if decoding.prefix else []
    return reader.document((*decoding.question, *prefix), "question")


def _checked(source: Policy | Trigger, budget: int, least: int, most: int) -> int:
    """``budget`` of a policy or trigger; raises :class:`UserError` unless it is whole, from ``least`` to ``most``."""
    if not isinstance(budget, Integral) or not least <= budget <= most:
        kind = "policy" if isinstance(source, Policy) else "trigger"
        raise UserError(
            f"{kind} {source} returned the budget {budget!r}, but it must be a whole number from {least} to {most}"
        )
    return int(budget)
