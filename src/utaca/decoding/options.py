"""Inputs of decoding: a document that was read, a question, and the options of its answer."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor

from utaca.decoding.policies import Policy
from utaca.decoding.triggers import Trigger
from utaca.errors import UserError, whole
from utaca.readers.attention import Step
from utaca.readers.load import Reader


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
class Sampling:
    """Nucleus sampling: softmax at ``temperature``, the fewest best tokens that hold ``top_p`` of it.

    Every step draws one number from the seed's stream and applies it to each of its passes, so a rollback that changes
    nothing in the logits changes no token, and paired and sequential decoding draw alike.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not all(isinstance(number, int | float) for number in (self.temperature, self.top_p)):
            raise UserError("sampling: temperature and top_p must be numbers, as in utaca.Sampling(0.7, top_p=0.9)")
        whole("sampling: seed", self.seed)
        if not self.temperature > 0:
            raise UserError("sampling: temperature must be above 0; leave sampling out for greedy decoding")
        if not 0 < self.top_p <= 1:
            raise UserError("sampling: top_p must be above 0 and at most 1")

    def draws(self) -> Iterator[Callable[[Tensor], Tensor]]:
        """Choosers, one a step, without end; a chooser maps logits [V] to the token's id []."""
        generator = torch.Generator().manual_seed(self.seed)
        while True:
            yield partial(self._choose, torch.rand((), generator=generator, dtype=torch.float64).item())

    def _choose(self, number: float, logits: Tensor) -> Tensor:
        best = (logits.double() / self.temperature).softmax(-1).sort(descending=True, stable=True)
        before = best.values.cumsum(-1) - best.values
        kept = torch.where(before < self.top_p, best.values, 0.0)
        reached = kept.cumsum(-1)
        # The last kept token at the latest, whatever rounding does to the sum.
        place = (reached <= number * reached[-1]).sum().clamp(max=(kept > 0).sum() - 1)
        return best.indices[place]


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
        if self.budget is None and self.reading.budget is None:
            raise UserError("decoding from block memory needs a budget, in blocks; give one, as in budget=32")
        budgets, adaptive = self.budgets, self.policy is not None
        if (self.budget is not None and min(budgets, default=0) < 1) or self.max_new_tokens < 1:
            raise UserError("budget and max_new_tokens must be at least 1")
        if adaptive != (self.trigger is not None):
            raise UserError(
                "adaptive decoding needs both a policy and a trigger, as in policy=utaca.Sub(16), "
                "trigger=utaca.Detected(detector); give both, or neither for a fixed budget"
            )
        if adaptive and self.expanded:
            raise UserError("expanded is for fixed budgets; with a policy, expansion is the trigger's choice")
        if adaptive and len(budgets) > 1:
            raise UserError("a budget for every step leaves nothing to a policy; give one budget, K_max, or no policy")
        if not self.reading.adjustable and (adaptive or self.expanded or len(set(budgets)) > 1):
            raise UserError("this method cannot give a step another budget than the last one; give one budget alone")
        if adaptive and self.trigger.detector is not None:
            self.trigger.detector.check(self.reading.reader)

    @property
    def budgets(self) -> list[int]:
        """The budget of each step; the last one serves all further steps."""
        budget = self.reading.budget if self.budget is None else self.budget
        if (isinstance(budget, Sequence) and not isinstance(budget, str | bytes)) or getattr(budget, "ndim", 0):
            return [whole("budget", each) for each in budget]
        return [whole("budget", budget)]
