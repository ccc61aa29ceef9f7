"""Decoding: Algorithm 1 of the paper, and fixed budgets, for every method that an answer can be decoded from.

One token can be followed from :func:`_decode`, which is the algorithm, through :mod:`utaca.memory.passes` (retrieval)
and :mod:`utaca.memory.attention` to :mod:`utaca.detection.token_reader` (signals, verdict), and to
:mod:`utaca.memory.branch` (commit). An answer plans steps and goes on once they have run, so that a :class:`Batch` of
answers shares the model's passes.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from utaca.decoding.policies import Policy
from utaca.decoding.sampling import Sampling
from utaca.decoding.triggers import Trigger
from utaca.detection.signals import SIGNALS
from utaca.detection.token_reader import TokenReader
from utaca.errors import UserError, whole
from utaca.readers.load import Reader
from utaca.settings.machine import in_turn
from utaca.trace import Generation, Token


class Step(Protocol):
    """A pass of ``tokens`` [T] behind a ``state``; nothing is committed. The results are there once it has run."""

    state: State
    tokens: Tensor
    budget: int
    size: int  # T
    hidden: Tensor  # last hidden states [T, D]
    logits: Tensor  # the last token's, [V]
    embeddings: dict[str, Tensor]  # the last token's, [D] a site
    k: int  # the budget that was used
    attended: float  # keys that the last token attended to, the mean over layers and heads
    selected: Tensor | None  # retrieved blocks [layers, k], ascending
    scores: Tensor | None  # their retrieval scores [layers, k]
    captured: dict[str, Tensor]  # by signal, [layers]


class State(Protocol):
    """What an answer is decoded from: a document that was read, and the tokens committed so far."""

    def plan(self, tokens: Tensor, budget: int) -> Step:
        """A step that passes ``tokens`` [T] under a ``budget``, not yet run."""

    def run(self, steps: Sequence[Any]) -> None:
        """Run steps of one size, of states of this kind, together if they can be."""

    def commit(self, step: Any) -> None:
        """Make a step that has run part of the state."""


class Reading(Protocol):
    """A document that was read by a method.

    ``adjustable``: a step may have another budget than the last one, so that a trigger can widen it. ``block_size`` is
    1 if budgets count tokens. ``budget`` is that of decodings that name none; None: each must name one.
    """

    reader: Reader
    block_size: int
    adjustable: bool
    budget: int | None

    def begin(
        self, prompt: Tensor, new: int, budget: int, captures: Mapping[str, Any]
    ) -> tuple[State, list[tuple[Tensor, int]], Tensor]:
        """A state for a ``prompt`` [T] and ``new`` tokens after it, under ``budget`` blocks at most.

        Also the pieces of the prompt that must be committed first, each with its budget, and the tokens that the first
        step of decoding passes.
        """


@dataclass(frozen=True)
class Decoding:
    """How one question about a document is answered.

    * ``reading``: the document, as :func:`utaca.prefill` or another method read it.
    * ``question``: any text, or the token ids of all that follows the document, the template's closing with them, as
      a tuple. It is read in chunks, each under the ``question_budget`` of the reader's memory, which may be the
      answer's budget; if it is 0, and the ``prefill_budget`` too, only its last token retrieves blocks.
    * ``budget``: blocks that every step retrieves (InfLLM), or a budget for each step, the last one for all further
      steps; with a policy, K_max. A method of another kind counts tokens, and has a default.
    * ``policy`` and ``trigger``: UT-ACA. The first token is decoded under K_max, the policy sets the budget after each
      accepted token, and a token below K_max that the trigger expands is rolled back and decoded again under K_max, or
      the budget that the policy expands to; it is then accepted (paper, algorithm 1). The paper's trigger is
      :class:`utaca.Detected`.
    * ``max_new_tokens``: the longest answer, the end token included.
    * ``sampling``: how tokens are drawn; greedy without.
    * ``expanded``: with a fixed budget, decode every token under so many blocks too, in the same pass and uncommitted
      (:attr:`Token.probe`).
    * ``measured``: measure every signal of every token, as a detector makes it measure those that it looks at.
    * ``prefix``: what the answer begins with; it is read with the question, and is no part of the result.

    Raises :class:`UserError` for options that contradict each other or are out of range, and for a detector that was
    not trained for this reader.
    """

    reading: Reading
    question: str | tuple[int, ...]
    budget: int | Sequence[int] | None = None
    policy: Policy | None = None
    trigger: Trigger | None = None
    max_new_tokens: int = 64
    sampling: Sampling | None = None
    expanded: int = 0
    measured: bool = False
    prefix: str = ""

    def __post_init__(self) -> None:
        self._check_types()
        if self.budget is None and self.reading.budget is None:
            raise UserError("decoding from block memory needs a budget, in blocks; give one, as in budget=32")
        if (self.budget is not None and min(self.budgets, default=0) < 1) or self.max_new_tokens < 1:
            raise UserError("budget and max_new_tokens must be at least 1")
        if (self.policy is None) != (self.trigger is None):
            raise UserError(
                "adaptive decoding needs both a policy and a trigger, as in policy=utaca.Sub(16), "
                "trigger=utaca.Detected(detector); give both, or neither for a fixed budget"
            )
        if self.policy is not None and self.expanded:
            raise UserError("expanded is for fixed budgets; with a policy, expansion is the trigger's choice")
        if self.policy is not None and len(self.budgets) > 1:
            raise UserError("a budget for every step leaves nothing to a policy; give one budget, K_max, or no policy")
        if not self.reading.adjustable and (self.policy is not None or self.expanded or len(set(self.budgets)) > 1):
            raise UserError("this method cannot give a step another budget than the last one; give one budget alone")
        if self.trigger is not None and self.trigger.detector is not None:
            self.trigger.detector.check(self.reading.reader)

    def _check_types(self) -> None:
        if not hasattr(self.reading, "begin"):
            raise UserError("a question is asked of a document that was read, as memory = utaca.prefill(reader, text)")
        for name, kind, example in (
            ("question", str | tuple, "a text"),
            ("prefix", str, "a text"),
            ("policy", Policy | None, "a utaca.Policy, as utaca.Sub(16)"),
            ("trigger", Trigger | None, "a utaca.Trigger, as utaca.Detected(detector)"),
            ("sampling", Sampling | None, "a utaca.Sampling, as utaca.Sampling(0.7)"),
        ):
            if not isinstance(getattr(self, name), kind):
                raise UserError(f"{name} must be {example}, not {getattr(self, name)!r}")
        for name in ("max_new_tokens", "expanded"):
            whole(name, getattr(self, name))

    @property
    def budgets(self) -> list[int]:
        """The budget of each step; the last one serves all further steps."""
        budget = self.reading.budget if self.budget is None else self.budget
        if (isinstance(budget, Sequence) and not isinstance(budget, str | bytes)) or getattr(budget, "ndim", 0):
            return [whole("budget", each) for each in budget]
        return [whole("budget", budget)]

    @property
    def signals(self) -> list[str]:
        """The signals that are measured."""
        detector = self.trigger and self.trigger.detector
        return list(SIGNALS) if self.measured else list(detector.settings.signals if detector else [])

    @property
    def captures(self) -> dict[str, Any]:
        """What the signals keep of a layer's retrieval, by name."""
        return {name: SIGNALS[name].capture for name in self.signals if SIGNALS[name].capture}


def generate(reading: Reading, question: str, **options: Any) -> Generation:
    """Answer ``question`` about the document. Options, ``budget`` among them, are the fields of :class:`Decoding`.

    Raises :class:`UserError` as that does, and :class:`NotFiniteError`, with the tokens so far, if the model's logits
    are not finite.
    """
    return generate_together([Decoding(reading, question, **options)])[0]


def stream(reading: Reading, question: str, **options: Any) -> Iterator[Token]:
    """As :func:`generate`, yielding each token as it is committed."""
    batch = Batch()
    answer = batch.add(Decoding(reading, question, **options))
    while batch:
        for _, token in batch.step():
            yield token
    answer.result()


@in_turn
def generate_together(decodings: Sequence[Decoding]) -> list[Generation]:
    """Answers to several questions, of one document or several of one reader, their steps in shared passes.

    Raises :class:`UserError` for documents of several readers. ``seconds`` of each counts the passes that it shared in
    full. As the rows of a pass round alike only up to the size of a matrix product, low bits depend on what is decoded
    together.
    """
    if not decodings or not all(isinstance(each, Decoding) for each in decodings):
        raise UserError("several questions are a list of utaca.Decoding(memory, question, budget); give one at least")
    batch = Batch()
    answers = [batch.add(decoding) for decoding in decodings]
    while batch:
        batch.step()
    return [answer.result() for answer in answers]


class Batch:
    """Answers under way that share the model's passes (continuous batching).

    Answers are added and dropped at any time between passes; documents may differ, the reader is one. A program drives
    any number of them so::

        batch = Batch()
        answer = batch.add(Decoding(memory, question, budget=32))
        while batch:
            for answer, token in batch.step():
                print(token.text, token.k, token.rolled_back, token.selected)
            ...  # batch.add and batch.drop as requests come and go
        answer.result()  # the Generation, or the error that ended it

    Methods may be called from any thread: one works at a time, and takes turns with :func:`generate` and
    :func:`utaca.prefill`. An error of one answer (:attr:`OpenAnswer.error`) ends that answer alone. An error of a pass,
    such as a lack of memory, is raised by :meth:`step` and changes no answer: drop some and step again.
    """

    def __init__(self) -> None:
        self.answers: list[OpenAnswer] = []

    def __len__(self) -> int:
        """Number of answers under way."""
        return len(self.answers)

    @in_turn
    def add(self, decoding: Decoding) -> OpenAnswer:
        """Begin an answer; its question is read by the next passes.

        Raises :class:`UserError` for another reader than that of the answers under way.
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
        """End an answer as it is; no effect if it is not under way. Its ``generation`` has the tokens so far."""
        if answer in self.answers:
            self.answers.remove(answer)
            answer.close()

    @in_turn
    def step(self) -> list[tuple[OpenAnswer, Token]]:
        """Run the planned steps of all answers in shared passes; the tokens that were committed, with their answers.

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

    ``generation`` has the tokens committed so far; its ``finish`` is "" until the answer ends. ``error`` is what ended
    it, if not its last token. ``planned`` are the steps that it wants run next; none once it has ended.
    """

    def __init__(self, decoding: Decoding) -> None:
        self.decoding = decoding
        self.generation = Generation(decoding.reading.block_size)
        self.error: Exception | None = None
        self.planned: list[Step] = []
        self._started = time.perf_counter()
        self._events = _decode(decoding, self.generation)

    def advance(self) -> list[Token]:
        """Go on from the planned steps, which have run, to the next ones; the tokens committed meanwhile."""
        tokens: list[Token] = []
        self.planned = []
        try:
            while isinstance(event := next(self._events), Token):
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

    def close(self) -> None:
        """Free what the answer is decoded from."""
        self.planned = []
        self._events.close()

    def result(self) -> Generation:
        """The generation; raises the error that ended it, if one did."""
        if self.error:
            raise self.error
        return self.generation


def _decode(d: Decoding, generation: Generation) -> Iterator[list[Step] | Token]:
    """Algorithm 1: yields steps to be run, all that may share a pass, and each token once it is committed."""
    reader, q = d.reading.reader, d.question
    prompt = reader.encode_question(q, d.prefix) if isinstance(q, str) else reader.document(q)
    state, pieces, tokens = d.reading.begin(prompt, d.max_new_tokens, max(d.budgets), d.captures)
    for piece, budget in pieces:
        steps = [state.plan(piece, budget)]
        yield steps
        state.commit(steps[0])
    detector = d.trigger.detector if d.trigger else None
    answer = TokenReader(d.reading.reader, generation, detector, d.signals)
    draw, budgets = d.sampling.draws() if d.sampling else lambda: torch.argmax, d.budgets
    k = k_max = budgets[0]
    for n in range(d.max_new_tokens):
        if d.policy is None:
            k = budgets[min(n, len(budgets) - 1)]
        compact = d.policy is not None and k < k_max
        other = _checked(d.trigger, d.trigger.second_budget(k, k_max), 0, k_max) if compact else d.expanded
        steps = [state.plan(tokens, budget) for budget in ([k, other] if other else [k])]
        yield steps
        choose = draw()
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
            # Nothing was committed, so that committing the other pass is all that the rollback is.
            token.tentative, token.gdm, token.intervened = first, first.gdm, first.intervened
        elif d.policy is not None:
            k = _checked(d.policy, d.policy.update(k, k_max, first), 1, k_max)
        token.probe = second if second is not token else None
        state.commit(step)
        yield answer.accept(token)
        if generation.finish:
            return
        tokens = tokens.new_tensor([token.token])
    generation.finish = "length"


def _checked(source: Policy | Trigger, budget: int, least: int, most: int) -> int:
    """The budget of a policy or trigger; raises :class:`UserError` if a step cannot have it."""
    if not isinstance(budget, int) or not least <= budget <= most:
        kind = "policy" if isinstance(source, Policy) else "trigger"
        raise UserError(f"{kind} {source} gave budget {budget!r}, but it must be a whole number from {least} to {most}")
    return budget
