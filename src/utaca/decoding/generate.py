"""Greedy decoding from a block memory, with UT-ACA's rollback where a detector distrusts a token.

One token can be followed from here through :mod:`utaca.memory.branch` (retrieval, attention, commit) to
:mod:`utaca.detection.detector` (verdict) and back.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from utaca.decoding.policies import Policy
from utaca.detection.detector import Detector, State, uncertain
from utaca.errors import UserError
from utaca.memory import BlockMemory, Branch, Step
from utaca.readers.prompts import SEPARATOR


@dataclass
class Token:
    """A generated token and everything known of it.

    ``k`` and ``step`` belong to the accepted pass, ``tentative`` to the one tried first: the same unless
    ``rolled_back``. ``gdm`` is the detector's (hallucinated, correct, unknown) for the tentative pass, or None.
    """

    token: int
    k: int
    margin: float
    logprob: float
    top10: Tensor
    embedding: Tensor
    selected: list[Tensor]
    attended: int
    gdm: tuple[float, float, float] | None = None
    tentative: Token | None = None
    text: str = ""

    @property
    def rolled_back(self) -> bool:
        return self.tentative is not None


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
        """As :attr:`mean_selected_tokens`, rejected passes counted too."""
        return self._mean([(t.k + (t.tentative.k if t.tentative else 0)) * self.block_size for t in self.trace])

    @property
    def mean_attended_with_tentative(self) -> float:
        """As :attr:`mean_attended_tokens`, rejected passes counted too."""
        return self._mean([t.attended + (t.tentative.attended if t.tentative else 0) for t in self.trace])

    def _mean(self, values: list[int]) -> float:
        return sum(values) / len(values) if values else 0.0


def generate(
    memory: BlockMemory,
    question: str,
    *,
    budget: int,
    policy: Policy | None = None,
    detector: Detector | None = None,
    max_new_tokens: int = 64,
) -> Generation:
    """Answer ``question`` about the memory's document, greedily.

    Without ``policy`` every step retrieves ``budget`` blocks (InfLLM). With a policy and a detector this is UT-ACA:
    the first token is decoded under K_max = ``budget``, the policy shrinks the budget after each accepted token, and a
    token that the detector distrusts below K_max is rolled back and regenerated under K_max (paper, algorithm 1).
    Raises :class:`UserError` where only one of policy and detector is given or the budget is not positive.
    """
    result = Generation(memory.settings.block_size)
    started = time.perf_counter()
    for token in stream(
        memory, question, budget=budget, policy=policy, detector=detector, max_new_tokens=max_new_tokens
    ):
        result.trace.append(token)
    result.seconds = time.perf_counter() - started
    result.finish = "eos" if result.trace[-1].token in memory.reader.stop_tokens else "length"
    return result


def stream(
    memory: BlockMemory,
    question: str,
    *,
    budget: int,
    policy: Policy | None = None,
    detector: Detector | None = None,
    max_new_tokens: int = 64,
) -> Iterator[Token]:
    """As :func:`generate`, yielding each token as it is accepted."""
    if budget < 1 or max_new_tokens < 1:
        raise UserError("budget and max_new_tokens must be at least 1")
    if (policy is None) != (detector is None):
        raise UserError(
            "adaptive decoding needs both a policy and a detector; give both, or neither for a fixed budget"
        )
    reader = memory.reader
    prompt = reader.encode(SEPARATOR + question + reader.after)
    branch = Branch(memory, len(prompt) + max_new_tokens)
    if len(prompt) > 1:
        branch.commit(branch.step(prompt[:-1], memory.settings.prefill_budget))
    state = detector.initial_state(1) if detector else None
    previous, k, ids = prompt[-1:], budget, []
    for _ in range(max_new_tokens):
        step, token = _attempt(branch, previous, k)
        advanced = state
        if detector is not None and policy is not None:
            gdm, advanced = _judge(detector, token, state)
            token.gdm = tuple(gdm[0].tolist())
            if k < budget and bool(uncertain(gdm)[0]):
                # Nothing was committed, so the rejected pass is undone by running another one in its place. The
                # detector too goes on from the state before it: it sees each committed token once.
                k = budget
                tentative = token
                step, token = _attempt(branch, previous, k)
                _, advanced = _judge(detector, token, state)
                token.gdm, token.tentative = tentative.gdm, tentative
            else:
                k = policy.update(k, budget)
        branch.commit(step)
        state = advanced
        ids.append(token.token)
        stop = token.token in reader.stop_tokens
        token.text = "" if stop else _piece(reader.tokenizer, ids)
        yield token
        if stop:
            return
        previous = previous.new_tensor([token.token])


def _attempt(branch: Branch, previous: Tensor, k: int) -> tuple[Step, Token]:
    """One pass under budget ``k`` after the token ``previous`` [1], not committed."""
    reader = branch.memory.reader
    step = branch.step(previous, k)
    logits = reader.logits(step.hidden[-1])
    top = logits.topk(10)
    margin, logprob, best = torch.stack(
        (top.values[0] - top.values[1], top.values[0] - logits.logsumexp(-1), top.indices[0].double())
    ).tolist()
    return step, Token(
        token=int(best),
        k=step.k,
        margin=margin,
        logprob=logprob,
        top10=top.values,
        embedding=reader.embedding(),
        selected=step.selected,
        attended=step.attended,
    )


def _judge(detector: Detector, token: Token, state: State) -> tuple[Tensor, State]:
    margin = token.embedding.new_tensor([token.margin], dtype=torch.float32)
    return detector.step(margin, token.embedding[None].float(), state)


def _piece(tokenizer: object, ids: list[int]) -> str:
    """What the last of ``ids`` adds to the text; pieces concatenate to the whole. A character that is not yet complete
    belongs to the token that completes it."""

    def text(tokens: list[int]) -> str:
        return tokenizer.decode(tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False)

    whole, before = text(ids), text(ids[:-1])
    return "" if whole.endswith("�") else whole[len(before.rstrip("�")) :]
