"""SnapKV: the end of the prompt votes on which of its keys are kept."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import avg_pool1d, max_pool1d

from utaca.memory.attention import Segment, attention, best, causal_mask, probabilities
from utaca.methods.bases.dense import Continuation, Dense, DenseMethod
from utaca.methods.bases.method import Pairs


class Compressed(Continuation):
    """An answer under SnapKV.

    ``kept`` and ``chosen`` get an entry per layer while the prompt passes: the prompt's pairs that the layer keeps, and
    the positions [R, k] of their tokens (-1 fills up shorter rows). ``counts`` are the numbers of kept tokens, means
    over the R rows (heads); ``prompt`` is the number of ``later`` tokens of the prompt.
    """

    def __init__(self, reading: Dense, repeated: int, room: int) -> None:
        super().__init__(reading, repeated, room)
        self.prompt = 0
        self.kept: list[Pairs] = []
        self.chosen: list[Tensor] = []
        self.counts: list[float] = []

    def look(self, layer: int, query: Tensor, scaling: float) -> Tensor:
        """Attend to everything while the prompt passes, then to the kept pairs and the answer's tokens."""
        if layer == len(self.kept):  # The prompt passes this layer.
            self.prompt = len(self.later[layer])
            self.compress(self.since(layer, 0), query, scaling)
            return self.everything(layer, query, scaling)
        answer = self.later[layer][self.prompt :]
        chosen = self.chosen[layer]
        self.attended.append(self.counts[layer] + len(answer))
        heads_per_row = query.shape[1] // len(chosen)
        seen = (chosen >= 0).repeat_interleave(heads_per_row, 0)[:, None]
        return attention([self.kept[layer].under(query, seen), answer.under(query)], scaling)[0]

    def compress(self, prompt: Pairs, query: Tensor, scaling: float) -> None:
        """Choose the pairs of ``prompt`` that a layer keeps, and append them to ``kept``, ``chosen`` and ``counts``.

        ``query`` [1, H, T, D] are the queries of the prompt's last T tokens.
        """
        if len(prompt) > self.method.budget:
            chosen = self.method.keep(query[:, :, -self.method.window :], prompt.keys, scaling)
        else:
            chosen = torch.arange(len(prompt), device=query.device)[None]
        self.chosen.append(chosen)
        self.kept.append(prompt.at(chosen.clamp(min=0)))
        self.counts.append(float((chosen >= 0).sum(1).double().mean()))


@dataclass(frozen=True)
class SnapKV(DenseMethod):
    """Once, when the prompt has passed under full attention, each head keeps ``budget`` of its keys.

    Li et al., arXiv 2404.14469; FasterDecoding/SnapKV, Apache-2.0. A head keeps the last ``window`` tokens and the
    tokens that got most attention from these, pooled over ``kernel`` neighbours. ``heads`` query: each query head
    chooses (official; under grouped queries this stores a key several times); kv: each key-value head chooses, by the
    mean over its query heads (kvpress). Positions are true ones. The answer's tokens are all kept, outside the budget.
    The prompt's pass, which gives the first token, is dense.
    """

    name: ClassVar[str] = "snapkv"
    last_alone: ClassVar[bool] = False
    state = Compressed

    # The paper's budget; the other settings are those of the official LongBench runs.
    budget: int = 1024
    window: int = 32
    kernel: int = 7
    pooling: str = "max"
    heads: str = "query"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require(self.window >= 1, "window must be at least 1")
        self.require(self.budget > self.window, f"budget={self.budget} must exceed window={self.window}")
        self.require(self.kernel > 0 and self.kernel % 2 == 1, f"kernel={self.kernel} must be odd and above 0")
        self.require(self.pooling in ("avg", "max"), f"pooling={self.pooling} must be avg or max")
        self.require(self.heads in ("query", "kv"), f"heads={self.heads} must be query or kv")

    @property
    def observation(self) -> int:
        return self.window

    def votes(self, query: Tensor, keys: Tensor, scaling: float) -> Tensor:
        """Attention [H or G, n - window] that the window's queries [1, H, window, D] give each key before the window.

        It is summed over the queries and pooled over neighbouring keys. There is a row for each query head, or for each
        key-value head if ``heads`` is kv. The window's tokens are the last of all ``keys`` [1, G, n, D].
        """
        window = query.shape[2]
        seen = causal_mask(window, keys.shape[2], query.device)
        # Only the weights are wanted: the keys stand in for the segment's values, which are not used.
        mass = probabilities([Segment(query, keys, keys, seen)], scaling)[0, ..., :-window].sum(1)
        if self.heads == "kv":
            mass = mass.unflatten(0, (keys.shape[1], -1)).mean(1)
        pool = {"avg": avg_pool1d, "max": max_pool1d}[self.pooling]
        return pool(mass[None], self.kernel, stride=1, padding=self.kernel // 2)[0]

    def keep(self, query: Tensor, keys: Tensor, scaling: float) -> Tensor:
        """Positions [H or G, k] of the tokens that each head keeps, ascending; arguments and rows as for :meth:`votes`.

        If heads keep different numbers of tokens, -1 fills up the shorter rows.
        """
        chosen = best(self.votes(query, keys, scaling), self.budget - query.shape[2])
        return before_window(chosen, query, keys)


def before_window(chosen: Tensor, query: Tensor, keys: Tensor) -> Tensor:
    """Positions [R, k + T]: ``chosen`` [R, k], followed in each row by the window (the last T positions of ``keys``).

    ``query`` [1, H, T, D] are the window's queries; only their number counts.
    """
    n = keys.shape[2]
    window = torch.arange(n - query.shape[2], n, device=keys.device)
    return torch.cat((chosen, window.expand(len(chosen), -1)), 1)
