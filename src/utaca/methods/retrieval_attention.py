"""RetrievalAttention: every query head retrieves its own best keys."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from utaca.methods.bases.dense import Continuation, DenseMethod


class _Retrieving(Continuation):
    """An answer under RetrievalAttention."""

    def look(self, layer: int, query: Tensor, scaling: float) -> Tensor:
        """Attend to everything in a prompt or a short context, else to the ends and each head's best keys between."""
        m = self.method
        n = self.start + len(self.later[layer])
        if query.shape[2] > 1 or n <= m.initial + self.budget + m.recent:
            return self.everything(layer, query, scaling)
        between = self.scores(layer, query)[:, m.initial : n - m.recent]
        retrieved = m.initial + between.topk(self.budget).indices
        # The first and the latest tokens, which are always attended to.
        first = torch.arange(m.initial, device=retrieved.device)
        latest = torch.arange(n - m.recent, n, device=retrieved.device)
        ends = torch.cat((first, latest))
        tokens = torch.cat((retrieved, ends.expand(len(retrieved), -1)), 1)
        self.attended.append(tokens.shape[1])
        return self.attend_to(layer, query, tokens, scaling)


@dataclass(frozen=True)
class RetrievalAttention(DenseMethod):
    """Each query head of each token attends to its ``budget`` best keys, and to the first and the recent ones.

    Liu et al., arXiv 2409.10516; microsoft/MInference (retr_attn), MIT. The prompt is read by full attention. While
    decoding, the ``initial`` first and the ``recent`` latest tokens, the present one among them, are always attended
    to; among the tokens between, each query head retrieves the keys of largest dot product with its query. The search
    is exact, like the released code's flat index: an upper bound of the paper's approximate search. Positions are true
    ones. The budget counts only retrieved keys.
    """

    name: ClassVar[str] = "retrieval_attention"
    adjustable: ClassVar[bool] = True
    state = _Retrieving

    # The paper's budget; first and recent tokens as in the released code.
    budget: int = 2048
    initial: int = 128
    recent: int = 512

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require(self.initial >= 0, "initial must not be negative")
        self.require(self.recent >= 1, "recent must be at least 1: a token attends to itself")
