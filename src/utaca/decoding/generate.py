"""Decoding from a block memory, with UT-ACA's rollback where a detector distrusts a token.

One token can be followed from here through :mod:`utaca.memory.branch` (retrieval, attention, commit) to
:mod:`utaca.detection.detector` (verdict) and back. An answer is a generator that asks for steps and is resumed once
they have run (:func:`_decode`), so that any number of answers may share the model's passes.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypedDict, Unpack

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from utaca.decoding.policies import Policy
from utaca.decoding.sampling import Sampling
from utaca.decoding.signals import SIGNALS
from utaca.detection.detector import Detector, State
from utaca.errors import UserError
from utaca.memory import BlockMemory, Branch, Step, compute, run
from utaca.readers.load import Reader
from utaca.readers.onednn import onednn

TOP = 10
"""Best tokens whose logits are kept of every pass."""


@dataclass
class Token:
    """A generated token and everything known of it.

    All but ``tentative``, the pass that was tried first and rolled back, is of the accepted pass; it is None where
    nothing was rolled back. ``probe`` is an expanded pass that was compared with and not committed: the oracle's, or
    the one that a fixed budget was asked for. ``gdm`` is the detector's (hallucinated, correct, unknown) for the
    tentative pass, or None; ``intervened`` says that an intervention stood in for its decision. ``top_tokens`` are the
    ids of the ten best tokens, ``top10`` [10] their logits; ``embeddings`` are [D] a site; ``selected`` and ``scores``
    the retrieved blocks and what they scored, a tensor a layer; ``retrieval`` is :attr:`utaca.memory.Step.retrieval`,
    None where it was not measured.
    """

    token: int
    k: int
    margin: float
    logprob: float
    top_tokens: list[int]
    top10: Tensor
    embeddings: dict[str, Tensor]
    selected: list[Tensor]
    scores: list[Tensor]
    attended: float
    retrieval: float | None = None
    gdm: tuple[float, float, float] | None = None
    tentative: Token | None = None
    probe: Token | None = None
    intervened: bool = False
    text: str = ""

    @property
    def rolled_back(self) -> bool:
        return self.tentative is not None

    @property
    def passes(self) -> list[Token]:
        """Every pass that the token took, the accepted one first."""
        return [self, *(other for other in (self.tentative, self.probe) if other is not None)]


@dataclass
class Generation:
    """An answer with its trace, one :class:`Token` a decoding step, the end token included."""

    block_size: int
    trace: list[Token] = field(default_factory=list)
    finish: str = ""
    seconds: float = 0.0

    @property
    def text(self) -> str:
        return "".join(token.text for token in self.trace)

    @property
    def rollbacks(self) -> int:
        return sum(token.rolled_back for token in self.trace)

    @property
    def mean_selected_tokens(self) -> float:
        """Retrieved tokens a step in the accepted passes: the paper's mTokens."""
        return self._mean([t.k * self.block_size for t in self.trace])

    @property
    def mean_attended_tokens(self) -> float:
        """Keys attended to a step in the accepted passes."""
        return self._mean([t.attended for t in self.trace])

    @property
    def mean_selected_with_tentative(self) -> float:
        """As :attr:`mean_selected_tokens`, passes counted too that were not accepted."""
        return self._mean([sum(p.k for p in t.passes) * self.block_size for t in self.trace])

    @property
    def mean_attended_with_tentative(self) -> float:
        """As :attr:`mean_attended_tokens`, passes counted too that were not accepted."""
        return self._mean([sum(p.attended for p in t.passes) for t in self.trace])

    def _mean(self, values: list[float]) -> float:
        return sum(values) / len(values) if values else 0.0


class NotFiniteError(UserError):
    """A model gave logits that are no numbers; ``trace`` holds the tokens accepted before."""

    def __init__(self, message: str, trace: list[Token]) -> None:
        super().__init__(message)
        self.trace = trace


@dataclass(frozen=True)
class Decoding:
    """How one question about a memory's document is answered; see :func:`generate`."""

    memory: BlockMemory
    question: str
    budget: int | Sequence[int]
    policy: Policy | None = None
    detector: Detector | None = None
    oracle: bool = False
    max_new_tokens: int = 64
    sampling: Sampling | None = None
    interventions: Mapping[int, bool] = field(default_factory=dict)
    paired: bool = False
    expanded: int = 0
    measured: bool = False

    def __post_init__(self) -> None:
        budgets = [self.budget] if isinstance(self.budget, int) else list(self.budget)
        if not budgets or min(budgets) < 1 or self.max_new_tokens < 1:
            raise UserError("budget and max_new_tokens must be at least 1")
        if self.detector is not None and self.oracle:
            raise UserError("the oracle stands in the detector's place; give one of the two")
        triggered = self.detector is not None or self.oracle or bool(self.interventions)
        if self.policy is None and triggered:
            raise UserError(
                "a detector, the oracle or interventions need a policy too; give one, as in policy=utaca.Sub(16)"
            )
        if self.policy is not None and not triggered:
            raise UserError(
                "adaptive decoding needs both a policy and a detector; give both, or neither for a fixed budget"
            )
        if self.policy is not None and self.expanded:
            raise UserError("expanded is for fixed budgets; with a policy, expansion is the detector's choice")
        if self.policy is not None and not isinstance(self.budget, int):
            raise UserError("a budget for every step leaves nothing to a policy; give one budget, K_max, or no policy")


class Options(TypedDict, total=False):
    """The fields of :class:`Decoding` that may be left out."""

    policy: Policy | None
    detector: Detector | None
    oracle: bool
    max_new_tokens: int
    sampling: Sampling | None
    interventions: Mapping[int, bool]
    paired: bool
    expanded: int
    measured: bool


def generate(
    memory: BlockMemory, question: str, *, budget: int | Sequence[int], **options: Unpack[Options]
) -> Generation:
    """Answer ``question`` about the memory's document.

    Options are those of :class:`Decoding`:

    * ``budget``: blocks that every step retrieves (InfLLM), or a budget for each step, the last one for all further
      steps; with a policy, K_max.
    * ``policy`` and ``detector``: UT-ACA. The first token is decoded under K_max, the policy shrinks the budget after
      each accepted token, and a token that the detector distrusts below K_max is rolled back and regenerated under
      K_max (paper, algorithm 1).
    * ``oracle``: in the detector's place, the trigger that no detector can know: it expands exactly where the token
      under the compact budget is another than under K_max. It runs both passes of every token below K_max.
    * ``max_new_tokens``: the longest answer, the end token included.
    * ``sampling``: how tokens are drawn; greedy without.
    * ``interventions``: decisions by step (from 0) that replace the detector's or the oracle's: True expands, False
      does not.
    * ``paired``: run every tentative pass and its expansion in one pass of the model, which pays where reading the
      weights costs more than a second row. The same tokens, up to rounding.
    * ``expanded``: of a fixed budget, try every token under so many blocks too, in the same pass and uncommitted
      (:attr:`Token.probe`).
    * ``measured``: measure the retrieval of every step, as a detector with this signal makes it too.

    Raises :class:`UserError` for options that contradict each other or are out of range, for a question longer than
    the window, and :class:`NotFiniteError`, with the trace so far, where the model's logits are no numbers.
    """
    return generate_together([Decoding(memory, question, budget, **options)])[0]


def stream(
    memory: BlockMemory, question: str, *, budget: int | Sequence[int], **options: Unpack[Options]
) -> Iterator[Token]:
    """As :func:`generate`, yielding each token as it is accepted."""
    answer = _decode(Decoding(memory, question, budget, **options))
    for event in answer:
        if isinstance(event, Token):
            yield event
        else:
            run(event)


def generate_together(decodings: Sequence[Decoding]) -> list[Generation]:
    """Answers to several questions, of one document or several of one reader, their steps in shared passes.

    ``seconds`` of each counts the passes that it shared in full. As the rows of a pass round alike only up to the size
    of a matrix product, low bits depend on what is decoded together.
    """
    found = [Generation(decoding.memory.settings.block_size) for decoding in decodings]
    answers = [_decode(decoding) for decoding in decodings]
    started = time.perf_counter()
    waiting: dict[int, list[Step]] = {number: [] for number in range(len(answers))}
    while waiting:
        for number in list(waiting):
            for event in answers[number]:
                if not isinstance(event, Token):
                    waiting[number] = event
                    break
                found[number].trace.append(event)
            else:
                del waiting[number]
                result, reader = found[number], decodings[number].memory.reader
                result.seconds = time.perf_counter() - started
                result.finish = "eos" if result.trace[-1].token in reader.stop_tokens else "length"
        steps = [step for wanted in waiting.values() for step in wanted]
        for size in dict.fromkeys(step.size for step in steps):
            run([step for step in steps if step.size == size])
    return found


def _decode(given: Decoding) -> Generator[list[Step] | Token, None, None]:
    """The steps that an answer wants run, each time all that may share a pass, and its tokens as they are accepted."""
    memory, reader, policy, detector = given.memory, given.memory.reader, given.policy, given.detector
    prompt = reader.encode_question(given.question)
    if len(prompt) > memory.settings.n_local:
        raise UserError(
            f"the question has {len(prompt)} tokens, but the window holds {memory.settings.n_local}; ask a shorter one "
            "or raise reader.memory.n_local"
        )
    measured = given.measured or (detector is not None and "retrieval" in detector.settings.signals)
    branch = Branch(memory, len(prompt) + given.max_new_tokens, measured)
    if len(prompt) > 1:
        asked = Step(branch, prompt[:-1], memory.settings.prefill_budget)
        yield [asked]
        branch.commit(asked)
    draw = given.sampling.draws() if given.sampling else None
    budgets = [given.budget] if isinstance(given.budget, int) else list(given.budget)
    k_max, k = budgets[0], budgets[0]
    state = detector.initial_state(1) if detector else None
    previous, trace, text = prompt[-1:], [], ""
    for number in range(given.max_new_tokens):
        choose = draw() if draw else _best
        if policy is None:
            k = budgets[min(number, len(budgets) - 1)]
        step = Step(branch, previous, k)
        wider = Step(branch, previous, k_max) if policy is not None and k < k_max else None
        beyond = Step(branch, previous, given.expanded) if given.expanded else None
        beside = beyond or (wider if given.paired else None)
        yield [step, beside] if beside else [step]
        token = _token(step, choose, trace)
        advanced = state
        distrusted, probe = False, None
        if given.oracle and wider:
            if not given.paired:
                yield [wider]
            probe = _token(wider, choose, trace)
            distrusted = probe.token != token.token
        if detector is not None:
            token.gdm, advanced, distrusted = _judge(detector, token, state)
        if number in given.interventions:
            token.intervened, distrusted = True, given.interventions[number]
        if wider and distrusted:
            # Nothing was committed, so the rejected pass is undone by running another one in its place. The detector
            # too goes on from the state before it: it sees each committed token once.
            if not (given.paired or probe):
                yield [wider]
            tentative, step, k = token, wider, k_max
            token = probe or _token(step, choose, trace)
            token.gdm, token.intervened, token.tentative = tentative.gdm, tentative.intervened, tentative
            if detector is not None:
                _, advanced, _ = _judge(detector, token, state)
        elif policy is not None:
            token.probe = probe
            k = policy.update(k, k_max)
        if beyond:
            token.probe = _token(beyond, choose, trace)
        branch.commit(step)
        state = advanced
        trace.append(token)
        stop = token.token in reader.stop_tokens
        if not stop:
            token.text, text = piece(reader.tokenizer, [t.token for t in trace], text)
        yield token
        if stop:
            return
        previous = previous.new_tensor([token.token])


def _best(logits: Tensor) -> Tensor:
    return logits.argmax()


def predicted(
    reader: Reader, hidden: Tensor, choose: Callable[[Tensor], Tensor] = _best, retrieval: Tensor | None = None
) -> dict[str, Any]:
    """What a last hidden state [D] says of the token that follows: fields of :class:`Token`.

    ``token`` is -1 where the logits are no numbers.
    """
    logits = reader.logits(hidden)
    top = logits.topk(TOP)
    chosen = choose(logits)
    # One transfer from the device a pass.
    measured = [] if retrieval is None else [retrieval[None].double()]
    margin, logprob, token, *rest = torch.cat(
        (
            torch.stack((top.values[0] - top.values[1], logits[chosen] - logits.logsumexp(-1), chosen.double())),
            top.indices.double(),
            *measured,
        )
    ).tolist()
    finite = math.isfinite(margin) and math.isfinite(logprob)
    return {
        "token": int(token) if finite else -1,
        "margin": margin,
        "logprob": logprob,
        "top_tokens": [int(i) for i in rest[:TOP]],
        "top10": top.values,
        "retrieval": rest[TOP] if measured else None,
    }


def _token(step: Step, choose: Callable[[Tensor], Tensor], trace: list[Token]) -> Token:
    """The token that follows a step that was run."""
    reader = step.branch.memory.reader
    known = predicted(reader, step.hidden[-1], choose, step.retrieval)
    if known["token"] < 0:
        raise NotFiniteError(
            f"reader {reader.settings.name} gave logits that are no numbers at step {len(trace)} of an answer, first "
            f"in layer {_first_not_finite(reader, step)}; try reader.dtype=float32, or check the weights",
            trace,
        )
    return Token(
        **known,
        k=step.k,
        embeddings=step.embeddings,
        selected=step.selected,
        scores=step.scores,
        attended=step.attended,
    )


def _first_not_finite(reader: Reader, step: Step) -> int:
    """The first layer whose output is not finite when the step runs again; the number of layers if none is."""
    faulty: list[int] = []
    layers = reader.layers

    def note(layer: int) -> Callable[[Any, Any, Tensor], None]:
        return lambda module, inputs, output: None if output.isfinite().all() else faulty.append(layer)

    hooks = [layer.register_forward_hook(note(number)) for number, layer in enumerate(layers)]
    try:
        compute([Step(step.branch, step.tokens, step.budget)])
    finally:
        for hook in hooks:
            hook.remove()
    return min(faulty, default=len(layers))


def _judge(detector: Detector, token: Token, state: State | None) -> tuple[tuple[float, float, float], State, bool]:
    """The detector's probabilities for a token, its next state, and whether it distrusts the token."""
    embedding, names = token.embeddings[detector.settings.site], detector.settings.signals
    signals = embedding.new_tensor([[SIGNALS[name](token) for name in names]], dtype=torch.float32)
    with onednn(False):
        gdm, advanced = detector.step(signals, embedding[None].float(), state)
    return tuple(gdm[0].tolist()), advanced, bool(detector.distrusts(gdm)[0])


def piece(tokenizer: PreTrainedTokenizerBase, ids: list[int], before: str) -> tuple[str, str]:
    """What the last of ``ids`` adds to the text ``before``, that of the others, and the text of all; pieces concatenate
    to the whole. A character that is not yet complete belongs to the token that completes it."""
    whole = tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    return "" if whole.endswith("�") else whole[len(before.rstrip("�")) :], whole
