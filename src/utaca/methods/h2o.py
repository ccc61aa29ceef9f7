"""H2O: the cache keeps the tokens with the most attention so far, and the latest tokens."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from utaca.memory.attention import best, causal_mask, mixed, probabilities
from utaca.methods.bases.method import MethodReading, MethodState, Pairs
from utaca.methods.bases.streaming import StreamingMethod
from utaca.readers.load import Reader


class HeavyHitters(MethodState):
    """The cache of H2O. Per layer: the unrotated pairs ``kept`` [1, G, n, D], and for each of them the position of its
    token (``tokens`` [G, n]) and the attention that it has received so far (``mass`` [G, n])."""

    def __init__(self, reading: MethodReading, length: int = 0) -> None:
        super().__init__(reading, length)
        self.kept: list[Pairs | None] = [None] * self.reader.shape[0]
        self.tokens: list[Tensor | None] = [None] * self.reader.shape[0]
        self.mass: list[Tensor | None] = [None] * self.reader.shape[0]

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        """Attend to the cache and the pass's own tokens, then evict; see :class:`utaca.readers.attention.Attending`."""
        n_new = query.shape[2]
        kv_heads = key.shape[1]
        rotary = self.reader.rotary
        pairs = Pairs(key, value)
        tokens = torch.arange(self.length, self.length + n_new, device=key.device).expand(kv_heads, -1)
        mass = torch.zeros(tokens.shape, device=key.device)
        if self.length:
            pairs = self.kept[layer].then(pairs)
            tokens = torch.cat((self.tokens[layer], tokens), 1)
            mass = torch.cat((self.mass[layer], mass), 1)
        n = len(pairs)
        rotary.reserve(n)
        # Positions are indices in the cache.
        rotated = Pairs(rotary(pairs.keys, range(n)), pairs.values)
        seen = causal_mask(n_new, n, key.device)
        segments = [rotated.under(rotary(query, range(n - n_new, n)), seen)]
        weights = probabilities(segments, scaling)
        # Summed over the pass's queries, and over the query heads of each key-value head.
        mass = mass + weights[0].sum(1).unflatten(0, (kv_heads, -1)).sum(1)
        self.attended.append(n)
        if n > self.method.budget:
            # ``best`` gives ascending indices, so the cache stays in the order of the text.
            n_earlier = n - self.method.recent
            recent = torch.arange(n_earlier, n, device=key.device)
            heavy = best(mass[:, :n_earlier], self.method.budget - self.method.recent)
            remaining = torch.cat((heavy, recent.expand(kv_heads, -1)), 1)
            pairs = pairs.at(remaining)
            tokens = tokens.gather(1, remaining)
            mass = mass.gather(1, remaining)
        self.kept[layer] = pairs
        self.tokens[layer] = tokens
        self.mass[layer] = mass
        return mixed(weights, segments)


@dataclass(frozen=True)
class H2O(StreamingMethod):
    """After every pass each key-value head evicts, for good, all but ``budget`` tokens.

    Zhang et al., arXiv 2306.14048; FMInference/H2O (written from its description). A head keeps the latest tokens and,
    among earlier ones, the heavy hitters: the tokens with most attention from all queries so far; ``heavy`` is their
    share of the budget. The attention of a group's query heads is added up (the released code has no grouped queries).
    Positions are indices in the cache (the code's streaming variant), so the reader can read a text of any length. A
    pass is a chunk of the document, the question or one answer token, and attends to the cache and itself. The released
    code reads the prompt in one pass, which needs [N, N] logits; here ``chunk`` changes which tokens are evicted.
    """

    name: ClassVar[str] = "h2o"
    positions: ClassVar[str] = "rolling"
    last_alone: ClassVar[bool] = False
    cache = HeavyHitters

    # The paper's budget; half of it for heavy hitters, as in the source's runs by ratios.
    budget: int = 1024
    heavy: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        within = 0 <= self.heavy < 1
        self.require(within, f"heavy={self.heavy} must be at least 0 and below 1: a token attends to itself")

    def check(self, reader: Reader) -> None:
        longest = reader.positions
        pass_ = self.budget + self.chunk
        self.require(pass_ <= longest, f"budget and chunk, {pass_}, exceed the {longest} positions of the reader")

    @property
    def recent(self) -> int:
        """Number of latest tokens, which are always kept."""
        return self.budget - int(self.budget * self.heavy)
