"""Record of decoding: one :class:`Token` per step, one :class:`Generation` per answer."""

from __future__ import annotations

import html
from dataclasses import dataclass, field

from torch import Tensor

from utaca.errors import UserError


@dataclass(repr=False)
class Token:
    """A generated token, with the results of the pass that it was read from.

    ``k`` is the budget that the pass used, in blocks, or in nominal tokens of a method without blocks. ``retrieved`` is
    how much of it was retrieved, a mean over layers: all, unless ``block_top_p`` leaves blocks out. ``margin``
    is the best logit minus the second best; ``top_tokens`` and ``top_logits`` are the ten best tokens and their logits.
    ``signals`` are the signals that were measured, by name. ``embeddings`` maps each site in the last layer to its
    vector [D]. ``selected`` and ``scores`` [layers, k] are the retrieved blocks, ascending, and their retrieval scores;
    None without blocks, and -1 for a block that was left out (:attr:`blocks`). ``attended`` is the number of keys that
    the pass attended to, a mean over layers and heads.

    ``rows`` counts the rows of the passes that were run for this token and for the guesses after it; 0 for a token that
    was itself a guess and had its row in the pass of an earlier token.

    ``gdm`` is the detector's (hallucinated, correct, unknown) for the first pass of the token; ``distrusted`` is the
    detector's verdict on this pass; ``intervened``: an intervention replaced the trigger's decision. ``tentative`` is
    the compact pass that was rolled back, None if the first pass was accepted. ``probe`` is another pass for
    comparison, which was not committed.
    """

    token: int
    k: int
    margin: float
    logprob: float
    top_tokens: list[int]
    top_logits: list[float]
    embeddings: dict[str, Tensor]
    retrieved: float
    attended: float
    signals: dict[str, float] = field(default_factory=dict)
    selected: Tensor | None = None
    scores: Tensor | None = None
    gdm: tuple[float, float, float] | None = None
    tentative: Token | None = None
    probe: Token | None = None
    distrusted: bool = False
    intervened: bool = False
    text: str = ""
    rows: int = 1

    def __repr__(self) -> str:
        """The token in a few words; its vectors would fill the screen."""
        again = ", rolled_back=True" if self.rolled_back else ""
        return f"Token({self.text!r}, k={self.k}, margin={self.margin:.2f}{again})"

    @property
    def rolled_back(self) -> bool:
        """Whether the first pass was not accepted, and the token was decoded again."""
        return self.tentative is not None

    @property
    def effective(self) -> bool:
        """Whether the token was rolled back and decoded again under another budget.

        A document may have so few blocks that the first pass already had all of them.
        """
        return self.tentative is not None and self.tentative.k != self.k

    @property
    def blocks(self) -> list[list[int]]:
        """The retrieved blocks of each layer, ascending; an empty list without blocks."""
        if self.selected is None:
            return []
        return [[block for block in layer if block >= 0] for layer in self.selected.tolist()]

    @property
    def block_scores(self) -> list[list[float]]:
        """The retrieval scores of :attr:`blocks`."""
        if self.selected is None:
            return []
        scores = self.scores.tolist()
        return [layer[len(layer) - len(kept) :] for layer, kept in zip(scores, self.blocks, strict=True)]

    @property
    def passes(self) -> list[Token]:
        """Every pass that the token took, the accepted one first."""
        return [self, *(other for other in (self.tentative, self.probe) if other is not None)]


@dataclass(frozen=True)
class Rejected:
    """A row that was run and whose result belongs to no token: blocks ``retrieved``, and the keys ``attended`` to.

    It verified a guess and was not used, or it only guessed (:class:`utaca.decoding.drafts.CompactPasses`).
    """

    retrieved: float
    attended: float


FINISHES = {
    "eos": "the model ended the answer",
    "length": "cut at max_new_tokens",
    "sentences": "ended after the sentences asked for",
}
"""What each ``finish`` of a :class:`Generation` means."""


@dataclass(repr=False)
class Generation:
    """An answer: its tokens in order, the end token included.

    ``passes`` counts the passes of the model that decoded its tokens or guessed them. ``rejected`` are rows of passes
    that belong to no token: the guess was wrong, its token needed a different budget, or the row only guessed.
    ``block_size`` is 1 for methods whose budget counts tokens. ``finish`` is "eos", "length", "sentences" (the answer
    had as many as were asked for), or a method's own word.
    """

    block_size: int
    trace: list[Token] = field(default_factory=list)
    finish: str = ""
    seconds: float = 0.0
    passes: int = 0
    rejected: list[Rejected] = field(default_factory=list)

    def __repr__(self) -> str:
        """The answer and its sums in a line; its trace is thousands of characters."""
        sums = ", ".join(f"{name}={value!r}" for name, value in self._sums().items())
        return f"Generation({self.text!r}, {sums})"

    def __str__(self) -> str:
        """The answer's text, and a line of its sums."""
        return f"{self.text}\n[{self._in_words()}]"

    def _repr_html_(self) -> str:
        """As :meth:`__str__`, for a cell of a notebook."""
        text = html.escape(self.text)
        return f'<p style="white-space: pre-wrap">{text}</p><p><small>{html.escape(self._in_words())}</small></p>'

    def _sums(self) -> dict[str, int | float | str]:
        """The sums that describe an answer in short, by name."""
        return {
            "tokens": len(self.trace),
            "mean_selected_tokens": round(self.mean_selected_tokens, 1),
            "rollbacks": self.rollbacks,
            "finish": self.finish,
        }

    def _in_words(self) -> str:
        """The sums as a text."""
        sums = self._sums()
        finish = FINISHES.get(self.finish, self.finish or "not finished")
        return (
            f"{sums['tokens']} tokens; {sums['mean_selected_tokens']} tokens of the document selected on average; "
            f"{sums['rollbacks']} rolled back; {finish}"
        )

    def reject_last(self) -> None:
        """Take the last token back; its passes are counted as rejected rows."""
        token = self.trace.pop()
        self.rejected += [Rejected(one_pass.retrieved, one_pass.attended) for one_pass in token.passes]

    @property
    def text(self) -> str:
        return "".join(token.text for token in self.trace)

    @property
    def rollbacks(self) -> int:
        return sum(token.rolled_back for token in self.trace)

    @property
    def effective_rollbacks(self) -> int:
        """Rollbacks that led to another set of blocks."""
        return sum(token.effective for token in self.trace)

    @property
    def mean_selected_tokens(self) -> float:
        """Mean number of retrieved tokens per step in the accepted passes: the paper's mTokens."""
        return self._mean([token.retrieved * self.block_size for token in self.trace])

    @property
    def mean_attended_tokens(self) -> float:
        """Mean number of keys that a step attends to in the accepted passes."""
        return self._mean([token.attended for token in self.trace])

    @property
    def mean_selected_with_tentative(self) -> float:
        """As :attr:`mean_selected_tokens`, but counting also the passes that were not accepted, and rejected rows."""
        blocks = sum(one_pass.retrieved for token in self.trace for one_pass in token.passes)
        blocks_of_rejected = sum(row.retrieved for row in self.rejected)
        return self._for_each_token((blocks + blocks_of_rejected) * self.block_size)

    @property
    def mean_attended_with_tentative(self) -> float:
        """As :attr:`mean_attended_tokens`, but counting also the passes that were not accepted, and rejected rows."""
        keys = sum(one_pass.attended for token in self.trace for one_pass in token.passes)
        return self._for_each_token(keys + sum(row.attended for row in self.rejected))

    def _mean(self, values: list[float]) -> float:
        return self._for_each_token(sum(values))

    def _for_each_token(self, total: float) -> float:
        """A total divided by the number of the answer's tokens; 0 without tokens."""
        return total / len(self.trace) if self.trace else 0.0


class NotFiniteError(UserError):
    """The reader's logits are not finite; ``trace`` holds the tokens accepted before."""

    def __init__(self, message: str, trace: list[Token]) -> None:
        super().__init__(message)
        self.trace = trace
