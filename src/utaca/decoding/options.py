"""Inputs of decoding: a document that was read, a question, and the options of its answer."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor

from utaca.decoding.choosing import Choosing
from utaca.decoding.policies import Policy
from utaca.decoding.triggers import Trigger
from utaca.errors import UserError, whole
from utaca.readers.attention import Step
from utaca.readers.load import Reader
from utaca.settings.budgets import Budget, resolve


class State(Protocol):
    """What an answer is decoded from: a document that was read, and the tokens committed so far."""

    def plan(self, tokens: Tensor, budget: int, after: Any = None) -> Step:
        """A step that passes ``tokens`` [T] under a ``budget``, not yet run.

        ``after`` is a step, not committed, that the tokens follow, if the reading is of those that ``chains``.
        """

    @property
    def longest_chain(self) -> int:
        """Most steps that can follow each other before one is committed."""

    def run(self, steps: Sequence[Any]) -> None:
        """Run steps of one size, all on states of this class, in one pass of the model if possible."""

    def commit(self, step: Any) -> None:
        """Add the tokens of a ``step`` that has run to the state."""


class Reading(Protocol):
    """A document that was read by a method.

    ``tokens`` [N] are the document's. ``chains``: steps that follow each other can share a pass.
    ``adjustable``: the budget may change from step to step, so that a trigger can expand it. ``block_size`` is 1 if
    budgets count tokens. ``blocks`` is what a share of the document is a share of: the document's whole blocks, or its
    tokens if budgets count these. ``budget`` is the budget of decodings that name none; None: each decoding must name
    one.
    """

    reader: Reader
    tokens: Tensor
    block_size: int
    blocks: int
    chains: bool
    adjustable: bool
    budget: int | None

    def begin(
        self, prompt: Tensor, new: int, budget: int, captures: Mapping[str, Any]
    ) -> tuple[State, list[tuple[Tensor, int]], Tensor]:
        """Return a state with room for a ``prompt`` [T] and ``new`` tokens, under a budget of ``budget`` at most.

        Return also the pieces of the prompt that must be committed first, each with its budget, and the tokens that the
        first step of decoding passes.
        """


@dataclass(frozen=True)
class Sampling(Choosing):
    """Nucleus sampling at ``temperature``: from the fewest best tokens whose probabilities sum to at least ``top_p``.

    Every step draws one number from the seed's stream and applies it to each of its passes, so a rollback that leaves
    the logits as they are changes no token, and expanding in the same pass or in a further one draws the same token.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not all(isinstance(number, int | float) for number in (self.temperature, self.top_p)):
            raise UserError("sampling: temperature and top_p must be numbers, such as utaca.Sampling(0.7, top_p=0.9)")
        if not -(2**63) <= whole("sampling: seed", self.seed) < 2**64:
            raise UserError("sampling: seed must be at least -2**63 and below 2**64; give a smaller one")
        if not self.temperature > 0:
            raise UserError("sampling: temperature must be above 0; leave sampling out for greedy decoding")
        if not 0 < self.top_p <= 1:
            raise UserError("sampling: top_p must be above 0 and at most 1")

    def draws(self) -> Iterator[Callable[[Tensor], Tensor]]:
        """See :class:`utaca.decoding.choosing.Choosing`."""
        generator = torch.Generator().manual_seed(int(self.seed) % 2**64)
        while True:
            yield partial(self.drawn, torch.rand((), generator=generator, dtype=torch.float64).item())

    def drawn(self, number: float, logits: Tensor) -> Tensor:
        """The id [] of the token that ``number``, from 0 to below 1, samples from the nucleus of ``logits`` [V].

        The number is looked up in the cumulative probabilities of the nucleus's tokens, the best first.
        """
        # The maximum is subtracted first, so that a small temperature cannot overflow.
        best = ((logits.double() - logits.max()) / self.temperature).softmax(-1).sort(descending=True, stable=True)
        # A token is in the nucleus if the better ones do not reach top_p without it.
        before = best.values.cumsum(-1) - best.values
        kept = torch.where(before < self.top_p, best.values, 0.0)
        reached = kept.cumsum(-1)
        # Rounding of the sums must not lead beyond the last kept token.
        place = (reached <= number * reached[-1]).sum().clamp(max=(kept > 0).sum() - 1)
        return best.indices.gather(0, place[None])[0]


@dataclass(frozen=True)
class Decoding:
    """A question about a document, and the options of its answer.

    * ``reading``: the document, as :func:`utaca.prefill` or another method read it.
    * ``question``: a text, or a tuple of the token ids of all that follows the document, including the chat template's
      closing. The question is read in chunks under the ``question_budget`` of the reader's memory (-1: the answer's
      budget); if that and the ``prefill_budget`` are 0, only the question's last token retrieves blocks.
    * ``budget``: number of blocks that every step retrieves (InfLLM), or one budget per step, the last one for all
      further steps; with a policy, K_max. Methods without blocks count tokens, and have a default. A text such as "5%"
      is a share of the document's blocks (:mod:`utaca.settings.budgets`), as it may be for ``expanded`` and
      ``draft_budget``; the field then holds the number that the share means for this document.
    * ``policy`` and ``trigger``: UT-ACA (paper, algorithm 1). The first token is decoded under K_max. If the trigger
      expands a token that was decoded below K_max, the token is rolled back, decoded again under the budget that the
      policy expands to (K_max unless it says otherwise), and accepted; the next token starts from this budget. After
      any other token, the policy sets the next budget. The paper's trigger is :class:`utaca.Detected`.
    * ``max_new_tokens``: most tokens of the answer, the end token included.
    * ``most_sentences``: sentences after which the answer ends, although the model continues; 0: any number. The token
      that begins a further sentence is not part of the answer.
    * ``sampling``: how tokens are chosen, drawn as by :class:`Sampling` or by a
      :class:`utaca.decoding.choosing.Choosing` of your own; None: greedily.
    * ``expanded``: with a fixed budget, also decode every token under this many blocks, in the same pass and without
      committing (:attr:`Token.probe`); 0: do not.
    * ``measured``: names of further signals to measure for every token; True: all signals.
    * ``drafts``: largest number of tokens that are guessed together and checked in one pass
      (:mod:`utaca.decoding.drafts`); 0: none. The answer stays the same, up to rounding. Only for documents in block
      memory.
    * ``draft_budget``: with a fixed budget, who guesses: 0 looks the tokens up in document, question and answer; N lets
      the model decode them under N blocks, so that every token is tried under N blocks and verified under ``budget``.
    * ``prefix``: text that the answer begins with; it is read with the question, and is not part of the result.

    Raises :class:`UserError` if options contradict each other or are out of range, or if the detector was not trained
    for this reader.
    """

    reading: Reading
    question: str | tuple[int, ...]
    budget: Budget | Sequence[int] | None = None
    policy: Policy | None = None
    trigger: Trigger | None = None
    max_new_tokens: int = 64
    sampling: Choosing | None = None
    expanded: Budget = 0
    measured: bool | Sequence[str] = False
    prefix: str = ""
    drafts: int = 0
    draft_budget: Budget = 0
    most_sentences: int = 0

    def __post_init__(self) -> None:
        if not hasattr(self.reading, "begin"):
            raise UserError("the first argument must be a document that was read, such as utaca.prefill(reader, text)")
        for name, kind, example in (
            ("question", str | tuple, "a string"),
            ("prefix", str, "a string"),
            ("policy", Policy | None, "a utaca.Policy such as utaca.Sub(16)"),
            ("trigger", Trigger | None, "a utaca.Trigger such as utaca.Detected(detector)"),
            ("sampling", Choosing | None, "a utaca.Sampling such as utaca.Sampling(0.7)"),
        ):
            if not isinstance(getattr(self, name), kind):
                raise UserError(f"{name} must be {example}, not {getattr(self, name)!r}")
        for name in ("budget", "expanded", "draft_budget"):
            if isinstance(getattr(self, name), str):
                object.__setattr__(self, name, resolve(getattr(self, name), self.reading.blocks, name))
        for name in ("max_new_tokens", "most_sentences", "expanded", "drafts", "draft_budget"):
            whole(name, getattr(self, name))
        if self.budget is None and self.reading.budget is None:
            raise UserError("block memory needs a budget in blocks; give one, such as budget=32")
        budgets = self.budgets
        adaptive = self.policy is not None
        if (self.budget is not None and min(budgets, default=0) < 1) or self.max_new_tokens < 1:
            raise UserError("budget and max_new_tokens must be at least 1")
        if min(self.most_sentences, self.expanded, self.drafts, self.draft_budget) < 0:
            raise UserError("most_sentences, expanded, drafts and draft_budget must be at least 0")
        if self.drafts and not self.reading.chains:
            raise UserError("this method generates one token per pass, and drafts need block memory; set drafts=0")
        if self.draft_budget and not self.drafts:
            raise UserError(
                "draft_budget is set, but there are no drafts; also set drafts, for example to 7, or set draft_budget=0"
            )
        if self.draft_budget and adaptive:
            raise UserError("draft_budget is only for fixed budgets; set it to 0 for adaptive decoding")
        if self.draft_budget >= min(budgets) and self.draft_budget:
            raise UserError(f"draft_budget is {self.draft_budget}, but must be less than the budget, {min(budgets)}")
        if adaptive != (self.trigger is not None):
            raise UserError(
                "adaptive decoding needs a policy and a trigger, such as policy=utaca.Sub(16) and "
                "trigger=utaca.Detected(detector); give both, or neither for a fixed budget"
            )
        if adaptive and self.expanded:
            raise UserError(
                "expanded is only for fixed budgets; leave it out with a policy, because then the trigger decides "
                "what to expand"
            )
        if adaptive and len(budgets) > 1:
            raise UserError(
                "a list of budgets cannot be combined with a policy; give one budget (K_max), or leave the policy out"
            )
        # Such a method has used its one budget in reading.
        if not self.reading.adjustable and (adaptive or self.expanded or {*budgets} != {self.reading.budget}):
            raise UserError("this method keeps the budget that it read the document with; leave budget out")
        if adaptive and self.trigger.detector is not None:
            self.trigger.detector.check(self.reading.reader)

    @property
    def budgets(self) -> list[int]:
        """The budget of each step; the last one serves all further steps. A single budget serves all steps."""
        budget = self.reading.budget if self.budget is None else self.budget
        if (isinstance(budget, Sequence) and not isinstance(budget, bytes)) or getattr(budget, "ndim", 0):
            return [whole("budget", each) for each in budget]
        return [whole("budget", budget)]
