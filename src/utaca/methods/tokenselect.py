"""TokenSelect: the heads of a layer vote for the tokens that all of them attend to."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from utaca.memory.attention import attention
from utaca.methods.bases.dense import Continuation, Dense
from utaca.methods.bases.method import Method, Pairs
from utaca.readers.load import Reader
from utaca.readers.room import check_size


class Voting(Continuation):
    """An answer under TokenSelect; its pairs are unrotated.

    ``chosen`` [k] are, per layer, the positions of the tokens that the latest chunk attended to.
    """

    def __init__(self, reading: Dense, repeated: int, room: int) -> None:
        super().__init__(reading, repeated, room)
        self.chosen: dict[int, Tensor] = {}
        self.reader.rotary.reserve(self.method.n_local + self.method.chunk)

    def advance(self, tokens: Tensor) -> Tensor:
        """As in the base class, but ``chunk`` tokens at a time; each chunk selects what it attends to."""
        return torch.cat([super(Voting, self).advance(chunk) for chunk in tokens.split(self.method.chunk)])

    def placed(self, positions: range, kind: torch.dtype) -> Callable[[Tensor], Tensor]:
        """The identity: keys are kept unrotated, because their positions depend on what is selected with them."""
        return lambda x: x

    def look(self, layer: int, query: Tensor, scaling: float) -> Tensor:
        """Attend to the tokens that the chunk's queries elect. A token's position is its index among them."""
        later = self.later[layer]
        n_new = query.shape[2]
        tokens = self._elected(layer, query, self.start + len(later))
        self.chosen[layer] = tokens
        # They ascend, so those of the document come first; the chunk's own tokens are the last.
        of_document = tokens[tokens < self.start]
        of_later = tokens[len(of_document) :] - self.start
        pairs = self.document(layer).at(of_document[None]).then(later.at(of_later[None]))
        k = len(tokens)
        rotary = self.reader.rotary
        self.attended.append(k)
        rotated = Pairs(rotary(pairs.keys, range(k)), pairs.values)
        query = rotary(query, range(k - n_new, k))
        own = rotated[k - n_new :].under(query, causal=True)
        return attention([rotated[: k - n_new].under(query), own], scaling)[0]

    def _elected(self, layer: int, query: Tensor, n: int) -> Tensor:
        """Positions [k], ascending, of the tokens among the first ``n`` that the queries [1, H, T, D] attend to."""
        method = self.method
        every = torch.arange(n, device=query.device)
        if n <= method.n_init + self.budget + method.n_local:
            return every
        positions = range(method.n_local, method.n_local + query.shape[2])
        mean_query = self.reader.rotary(query, positions).mean(2, keepdim=True)
        # Only the tokens between the first and the latest ones are candidates.
        votes = self.scores(layer, mean_query)[:, method.n_init : n - method.n_local].softmax(-1).sum(0)
        elected = method.n_init + votes.topk(self.budget).indices.sort().values
        return torch.cat((every[: method.n_init], elected, every[n - method.n_local :]))


@dataclass(frozen=True)
class TokenSelect(Method):
    """Each chunk of the prompt and each token of the answer attends to the ``budget`` tokens that its heads elect.

    Wu et al., EMNLP 2025; pzs19/TokenSelect (written from its description). Each also attends to the first ``n_init``
    and the latest ``n_local`` tokens, the passing ones included; the tokens between are candidates. The chunk's queries
    are rotated to n_local, n_local + 1, ..., and averaged; each query head votes by a softmax over the candidates of
    unscaled dot products with unrotated keys, and the votes of all heads are added: one selection per layer. Positions
    are indices in the row of attended tokens, so the reader can read a text of any length. ``chunk`` changes what is
    selected. This class omits the released code's cache of selections (off there) and its pooling of votes over
    neighbouring tokens (set per data set there); the code's grouped queries are those of another reader. The budget
    counts only elected tokens.
    """

    name: ClassVar[str] = "tokenselect"
    prefill: ClassVar[str] = "linear"
    positions: ClassVar[str] = "rolling"
    adjustable: ClassVar[bool] = True
    last_alone: ClassVar[bool] = False
    state = Voting

    # The paper's budget; the rest as the source is configured for Llama-3 and Qwen2.
    budget: int = 1024
    n_init: int = 128
    n_local: int = 512
    chunk: int = 512

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require(self.n_init >= 0, "n_init must not be negative")
        within = 1 <= self.chunk <= self.n_local
        self.require(within, f"chunk={self.chunk} must be at least 1 and at most n_local={self.n_local}")

    def check(self, reader: Reader) -> None:
        longest = reader.positions
        attended = self.n_init + self.budget + self.n_local
        within = attended <= longest
        self.require(within, f"budget, n_init and n_local, {attended}, exceed the {longest} positions of the reader")

    @torch.inference_mode()
    def read(self, reader: Reader, document: str | Tensor, room: int) -> Dense:
        """Pass the document chunk by chunk, by the rule by which answers are decoded; all its pairs are kept."""
        tokens, dropped = self.tokens(reader, document, room)
        size = reader.sizes.cache_bytes(len(tokens), reader.dtype.itemsize)
        check_size(reader, "the document's keys and values need", size)
        # The document passes like the prompt of an answer about a document without tokens.
        layers, _, kv_heads, width = reader.shape
        no_tokens = torch.empty(1, kv_heads, 0, width, dtype=reader.dtype, device=reader.device)
        nothing = Dense(reader, tokens[:0], 0, self, [Pairs(no_tokens, no_tokens)] * layers)
        state = Voting(nothing, 0, len(tokens))
        state.advance(tokens)
        return Dense(reader, tokens, dropped, self, state.later)
