"""Decoding: Algorithm 1 of the paper, and fixed budgets, for every method that an answer can be decoded from.

One token can be followed from :func:`_decode` through :mod:`utaca.memory.branch` (retrieval, attention, commit) and
:mod:`utaca.memory.attention` to :mod:`utaca.detection.detector` (verdict) and back. An answer is a generator that asks
for steps and is resumed once they have run, so that any number of answers may share the model's passes.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from utaca.decoding.policies import Policy
from utaca.decoding.sampling import Sampling
from utaca.detection.detector import Detector
from utaca.detection.signal import Seen
from utaca.detection.signals import SIGNALS
from utaca.errors import UserError, whole
from utaca.readers.load import Reader
from utaca.settings.machine import in_turn
from utaca.trace import Generation, NotFiniteError, Token

TOP = 10
"""Best tokens whose logits are kept of every pass."""


class Step(Protocol):
    """A pass of ``tokens`` [T] behind a state, not committed; what it gives is there once it has run."""

    tokens: Tensor
    budget: int
    size: int
    hidden: Tensor  # last hidden states [T, D]
    logits: Tensor  # the last token's, [V], set by who runs it
    embeddings: dict[str, Tensor]  # the last token's, [D] a site
    k: int  # budget that it used
    attended: float  # keys that the last token attended to, the mean over layers and heads
    selected: Tensor | None  # [layers, k], retrieved blocks, ascending
    scores: Tensor | None
    captured: dict[str, Tensor]  # by signal, [layers]


class State(Protocol):
    """What an answer is decoded from: a document that was read and the tokens committed so far."""

    def plan(self, tokens: Tensor, budget: int) -> Step: ...

    def run(self, steps: Sequence[Any]) -> None:
        """Run steps of one size and of states of this kind, together where they can be."""

    def commit(self, step: Any) -> None: ...

    def fork(self) -> State:
        """A state that goes on from here by itself and leaves this one as it is."""


class Reading(Protocol):
    """A document that was read by a method.

    ``adjustable``: a step may have another budget than the last one, so that a detector can widen it. ``block_size`` is
    1 where budgets count tokens. ``budget`` is that of steps that ask for none; None: each must ask.
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


T = TypeVar("T")
Event = tuple[State, list[Step]] | Token
"""What an answer being decoded gives: steps to be run, all of one state, or a token that was accepted."""


@dataclass(frozen=True)
class Decoding:
    """How one question about a document is answered.

    * ``reading``: the document, as :func:`utaca.prefill` or another method read it.
    * ``question``: any text, or the token ids of all that follows the document, the template's closing with them, as
      a tuple. It is read in chunks, each under the ``question_budget`` of the reader's memory, which
      may be the answer's own; where it is 0, and the ``prefill_budget`` too, only its last token retrieves blocks.
    * ``prefix``: what the answer begins with; it is read with the question, and is no part of the result.
    * ``budget``: blocks that every step retrieves (InfLLM), or a budget for each step, the last one for all further
      steps; with a policy, K_max. A method of another kind counts tokens, and has a budget of its own.
    * ``policy`` and ``detector``: UT-ACA. The first token is decoded under K_max, the policy sets the budget after each
      accepted token, and a token that the detector distrusts below K_max is rolled back and generated again under
      K_max, or the budget that the policy expands to; it is then accepted (paper, algorithm 1).
    * ``agreement``: token agreement, in the detector's place, which no detector can know: it expands exactly where the
      token under the compact budget is another than under the expanded one. It runs both passes below K_max. With a
      ``witness``, it expands where the token is another under so many blocks, which is tried in the same pass.
    * ``every``: in the detector's place too: of the tokens below K_max, those whose step (from 0) it divides are
      expanded, whatever they are; 0: none.
    * ``max_new_tokens``: the longest answer, the end token included.
    * ``sampling``: how tokens are drawn; greedy without.
    * ``interventions``: decisions by step (from 0) that replace those of what triggers: True
      expands, False does not. At K_max there is nothing to decide.
    * ``paired``: run every tentative pass and its expansion to K_max in one pass of the model, which pays where reading
      the weights costs more than a second row. The same tokens, up to rounding. With a witness, an
      expansion has a pass of its own.
    * ``expanded``: with a fixed budget, try every token under so many blocks too, in the same pass and uncommitted
      (:attr:`Token.probe`).
    * ``measured``: measure every signal of every token, as a detector makes it measure those that it looks at.

    Raises :class:`UserError` for options that contradict each other or are out of range, and for a detector that was
    not trained for this reader.
    """

    reading: Reading
    question: str | tuple[int, ...]
    budget: int | Sequence[int] | None = None
    policy: Policy | None = None
    detector: Detector | None = None
    agreement: bool = False
    witness: int = 0
    every: int | None = None
    max_new_tokens: int = 64
    sampling: Sampling | None = None
    interventions: Mapping[int, bool] = field(default_factory=dict)
    paired: bool = False
    expanded: int = 0
    measured: bool = False
    prefix: str = ""

    def __post_init__(self) -> None:
        self._check_types()
        if self.budget is None and self.reading.budget is None:
            raise UserError("decoding from block memory needs a budget, in blocks; give one, as in budget=32")
        if (self.budget is not None and min(self.budgets, default=0) < 1) or self.max_new_tokens < 1:
            raise UserError("budget and max_new_tokens must be at least 1")
        triggers = self.detector is not None, self.agreement, self.every is not None
        if sum(triggers) > 1:
            raise UserError("a detector, token agreement and every stand in each other's place; give one of them")
        if self.witness and not (self.agreement and 0 < self.witness < max(self.budgets)):
            raise UserError("witness is for token agreement, and must be at least 1 and below the budget, K_max")
        if self.every is not None and self.every < 0:
            raise UserError("every must be at least 1, or 0 for never")
        triggered = any(triggers) or bool(self.interventions)
        if self.policy is None and triggered:
            raise UserError(
                "a detector, token agreement, every and interventions need a policy too; give one, as in "
                "policy=utaca.Sub(16)"
            )
        if self.policy is not None and not triggered:
            raise UserError(
                "adaptive decoding needs both a policy and a detector; give both, or neither for a fixed budget"
            )
        if self.policy is not None and self.expanded:
            raise UserError("expanded is for fixed budgets; with a policy, expansion is the detector's choice")
        if self.policy is not None and len(self.budgets) > 1:
            raise UserError("a budget for every step leaves nothing to a policy; give one budget, K_max, or no policy")
        if not self.reading.adjustable and (self.policy is not None or self.expanded or len(set(self.budgets)) > 1):
            raise UserError("this method cannot give a step another budget than the last one; give one budget alone")
        if self.detector is not None:
            self.detector.check(self.reading.reader)

    def _check_types(self) -> None:
        if not hasattr(self.reading, "begin"):
            raise UserError("a question is asked of a document that was read, as memory = utaca.prefill(reader, text)")
        if self.detector is not None and not hasattr(self.detector, "step"):
            raise UserError("detector must be a utaca.Detector, as utaca.load_detector(path) gives")
        for name, kind, example in (
            ("question", str | tuple, "a text"),
            ("prefix", str, "a text"),
            ("policy", Policy | None, "a utaca.Policy, as utaca.Sub(16)"),
            ("sampling", Sampling | None, "a utaca.Sampling, as utaca.Sampling(0.7)"),
            ("interventions", Mapping, "a mapping of steps to decisions, as {3: True}"),
        ):
            if not isinstance(getattr(self, name), kind):
                raise UserError(f"{name} must be {example}, not {getattr(self, name)!r}")
        for name in ("max_new_tokens", "witness", "expanded") + (("every",) if self.every is not None else ()):
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
        return list(SIGNALS) if self.measured else list(self.detector.settings.signals if self.detector else [])

    @property
    def captures(self) -> dict[str, Any]:
        """What the signals keep of a layer's retrieval, by name."""
        return {name: SIGNALS[name].capture for name in self.signals if SIGNALS[name].capture}


def generate(reading: Reading, question: str, **options: Any) -> Generation:
    """Answer ``question`` about the document. Options, ``budget`` among them, are the fields of :class:`Decoding`.

    Raises :class:`UserError` as that does, and :class:`NotFiniteError`, with the tokens so far, where the model's
    logits are not finite.
    """
    return generate_together([Decoding(reading, question, **options)])[0]


def stream(reading: Reading, question: str, **options: Any) -> Iterator[Token]:
    """As :func:`generate`, yielding each token as it is accepted."""
    decoding = Decoding(reading, question, **options)
    next_token = in_turn(partial(next, _tokens(decoding), None))
    while (token := next_token()) is not None:
        yield token


def _tokens(decoding: Decoding) -> Iterator[Token]:
    for event in _decode(decoding, *_read([decoding])):
        if isinstance(event, Token):
            yield event
        else:
            _run(decoding.reading.reader, *event)


@in_turn
def generate_together(decodings: Sequence[Decoding]) -> list[Generation]:
    """Answers to several questions, of one document or several of one reader, their steps in shared passes.

    Those that read one question under one budget read it once. Raises :class:`UserError` for documents of several
    readers. ``seconds`` of each counts the passes that it shared in full. As the rows of a pass round alike only up to
    the size of a matrix product, low bits depend on what is decoded together.
    """
    if not decodings or not all(isinstance(each, Decoding) for each in decodings):
        raise UserError("several questions are a list of utaca.Decoding(memory, question, budget); give one at least")
    if len({id(decoding.reading.reader) for decoding in decodings}) > 1:
        raise UserError("answers of several readers cannot share passes; decode those of each reader by themselves")
    generations = [Generation(decoding.reading.block_size) for decoding in decodings]
    started = time.perf_counter()

    def accept(number: int, token: Token) -> None:
        generations[number].trace.append(token)

    def close(number: int, _: None) -> None:
        generation = generations[number]
        generation.seconds = time.perf_counter() - started
        stopped = generation.trace[-1].token in decodings[number].reading.reader.stop_tokens
        generation.finish = "eos" if stopped else "length"

    answers = {number: _decode(*pair) for number, pair in enumerate(zip(decodings, _read(decodings), strict=True))}
    _share_passes(decodings[0].reading.reader, answers, accept, close)
    return generations


def _read(decodings: Sequence[Decoding]) -> list[tuple[State, Tensor]]:
    """The states behind the questions, each with the tokens that its first step passes."""
    alike: dict[Hashable, list[int]] = {}
    for number, d in enumerate(decodings):
        key = id(d.reading), d.question, d.prefix, max(d.budgets), d.expanded, d.max_new_tokens, tuple(d.captures)
        alike.setdefault(key, []).append(number)
    found: dict[int, tuple[State, Tensor]] = {}
    questions = {first: _begin(decodings[first]) for first, *_ in alike.values()}
    _share_passes(decodings[0].reading.reader, questions, None, found.__setitem__)
    for first, *others in alike.values():
        state, tokens = found[first]
        found.update((number, (state.fork(), tokens)) for number in others)
    return [found[number] for number in range(len(decodings))]


def _share_passes(
    reader: Reader,
    running: Mapping[int, Generator[Event, None, T]],
    accept: Callable[[int, Token], None] | None,
    close: Callable[[int, T], None],
) -> None:
    """Run generators of one reader to their ends, the steps that they want in shared passes.

    ``close`` is given what each returns, and ``accept`` its tokens as they come; None where there are none.
    """
    waiting: dict[int, tuple[State, list[Step]] | None] = dict.fromkeys(running)
    while waiting:
        for number in list(waiting):
            try:
                while isinstance(event := next(running[number]), Token):
                    accept(number, event)
                waiting[number] = event
            except StopIteration as end:
                del waiting[number]
                close(number, end.value)
        alike: dict[tuple[type, int], tuple[State, list[Step]]] = {}
        for state, steps in waiting.values():
            alike.setdefault((type(state), steps[0].size), (state, []))[1].extend(steps)
        for state, steps in alike.values():
            _run(reader, state, steps)


def _run(reader: Reader, state: State, steps: Sequence[Step]) -> None:
    """Run steps together, and give each the logits of its last token: the head is read once for all of them."""
    state.run(steps)
    # Steps that shared a row of the pass have one of the head too.
    hidden = {id(step.hidden): step.hidden[-1] for step in steps}
    logits = dict(zip(hidden, reader.logits(torch.stack([*hidden.values()])), strict=True))
    for step in steps:
        step.logits = logits[id(step.hidden)]


def _begin(d: Decoding) -> Generator[tuple[State, list[Step]], None, tuple[State, Tensor]]:
    """The steps that read a question; the state behind it, and the tokens that the first step of its answer passes."""
    reader = d.reading.reader
    if isinstance(d.question, str):
        prompt = reader.encode_question(d.question, d.prefix)
    else:
        prompt = reader.document(d.question)
    state, pieces, rest = d.reading.begin(prompt, d.max_new_tokens, max(d.budgets), d.captures)
    for piece, budget in pieces:
        step = state.plan(piece, budget)
        yield state, [step]
        state.commit(step)
    return state, rest


def _decode(d: Decoding, begun: tuple[State, Tensor]) -> Generator[Event, None, None]:
    """The steps that an answer wants run, each time all that may share a pass, and its tokens as they are accepted.

    It has ``begun`` with a state of its own behind the question, and the tokens that its first step passes.
    """
    reader, policy, budgets = d.reading.reader, d.policy, d.budgets
    state, previous = begun
    judge, draw = _Judge(d), d.sampling.draws() if d.sampling else None
    k_max = k = budgets[0]
    trace: list[Token] = []
    text = ""
    for number in range(d.max_new_tokens):
        choose = draw() if draw else torch.argmax
        if policy is None:
            k = budgets[min(number, len(budgets) - 1)]
        step = state.plan(previous, k)
        # What shares the pass: the expanded try of a fixed budget, the witness of token agreement, or the expansion,
        # before it is known to be needed.
        witness = d.witness if policy and k < k_max and k != d.witness else 0
        beside = d.expanded or witness or (k_max if d.paired and policy and k < k_max else 0)
        wider = state.plan(previous, beside) if beside else None
        yield state, [step, wider] if wider else [step]
        token = judge.read(state, step, choose, trace)
        if d.expanded or witness:
            token.probe = judge.read(state, wider, choose, trace)
        if policy:
            distrusted = token.distrusted
            if d.every is not None:
                distrusted = d.every > 0 and number % d.every == 0
            elif witness:
                distrusted = token.probe.token != token.token
            compares = d.agreement and not d.witness
            if k < k_max and number in d.interventions:
                distrusted, token.intervened = d.interventions[number], True
            if k < k_max and (distrusted or compares):
                target = _checked(policy, policy.expand(k, k_max, token), k + 1, k_max)
                if wider is None or wider.budget != target:
                    wider = state.plan(previous, target)
                    yield state, [wider]
                expanded = judge.read(state, wider, choose, trace)
                if compares and not token.intervened:
                    distrusted = expanded.token != token.token
                if distrusted:
                    # Nothing was committed, so that the rejected pass is undone by committing the other in its place.
                    expanded.gdm, expanded.intervened, expanded.tentative = token.gdm, token.intervened, token
                    expanded.probe = token.probe
                    step, token, k = wider, expanded, target
                else:
                    token.probe = expanded
            if not token.rolled_back:
                k = _checked(policy, policy.update(k, k_max, token), 1, k_max)
        state.commit(step)
        judge.accept(token)
        trace.append(token)
        stop = token.token in reader.stop_tokens
        if not stop:
            token.text, text = piece_of_text(reader.tokenizer, [t.token for t in trace], text)
        yield token
        if stop:
            return
        previous = previous.new_tensor([token.token])


def _checked(policy: Policy, budget: int, least: int, most: int) -> int:
    """A budget that a policy gave; raises :class:`UserError` where it is none that the step may have."""
    if not isinstance(budget, int) or not least <= budget <= most:
        raise UserError(f"policy {policy} gave budget {budget!r}, but it must be a whole number from {least} to {most}")
    return budget


class _Judge:
    """Reads tokens out of steps, each with one transfer from the device, and has the detector see committed ones."""

    def __init__(self, decoding: Decoding) -> None:
        self.reader, self.detector = decoding.reading.reader, decoding.detector
        self.names = list(dict.fromkeys(["margin", *decoding.signals]))
        if self.detector is not None:
            self.detector = self.detector.to(self.reader.device)
            self.before = self.detector.initial_state(1)
            self.after: dict[int, Any] = {}

    def read(self, state: State, step: Step, choose: Callable[[Tensor], Tensor], trace: list[Token]) -> Token:
        """The token that follows a step that has run. The detector judges it from the state before it."""
        hidden, logits = step.hidden[-1], step.logits
        top, chosen = logits.topk(TOP), choose(logits)
        signals = {name: SIGNALS[name].value(Seen(top.values, hidden, step.captured.get(name))) for name in self.names}
        parts = [chosen, logits[chosen] - logits.logsumexp(-1), *signals.values(), top.indices, top.values]
        if self.detector is not None:
            looked = [signals[name].float() for name in self.detector.settings.signals]
            seen = torch.stack(looked) if looked else hidden.new_zeros(0, dtype=torch.float32)
            embedding = step.embeddings[self.detector.settings.site]
            p, after = self.detector.step(seen[None], embedding[None].float(), self.before)
            parts += [p[0], self.detector.distrusts(p)]
        numbers = iter(torch.cat([part.double().flatten() for part in parts]).tolist())
        take = lambda count: [next(numbers) for _ in range(count)]  # noqa: E731
        token, logprob = take(2)
        measured = dict(zip(signals, take(len(signals)), strict=True))
        if not (math.isfinite(logprob) and math.isfinite(measured["margin"])):
            layer = self.reader.first_not_finite(lambda: state.run([state.plan(step.tokens, step.budget)]))
            raise NotFiniteError(
                f"reader {self.reader.settings.name} gave logits that are not finite at step {len(trace)} of an "
                f"answer, first in layer {layer}; try reader.dtype=float32, or check the weights",
                trace,
            )
        result = Token(
            token=int(token),
            k=step.k,
            margin=measured["margin"],
            logprob=logprob,
            top_tokens=[int(number) for number in take(TOP)],
            top_logits=take(TOP),
            embeddings=step.embeddings,
            attended=step.attended,
            signals=measured,
            selected=step.selected,
            scores=step.scores,
        )
        if self.detector is not None:
            result.gdm, result.distrusted = tuple(take(3)), bool(take(1)[0])
            self.after[id(result)] = after
        return result

    def accept(self, token: Token) -> None:
        """A token was committed; the detector goes on from it and never from a rejected one."""
        if self.detector is not None:
            self.before = self.after[id(token)]
            self.after.clear()


def piece_of_text(tokenizer: PreTrainedTokenizerBase, ids: list[int], before: str) -> tuple[str, str]:
    """What the last of ``ids`` adds to ``before``, the text that the others gave, and the two together.

    A character that is not yet complete belongs to the token that completes it, with the space that its first byte
    shares a token with.
    """
    whole = tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    return ("", before) if whole.endswith("\ufffd") else (whole[len(before) :], whole)
