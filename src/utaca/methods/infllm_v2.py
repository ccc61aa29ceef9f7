"""InfLLM-V2: blocks chosen in two stages, by semantic kernels."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from utaca.memory.attention import best, products
from utaca.methods.bases.dense import Continuation, Dense, DenseMethod
from utaca.methods.bases.method import MethodState


class _Blocks(Continuation):
    """An answer under InfLLM-V2.

    Per layer, ``kernels`` [1, G, kernels, D] are the kernels that the tokens so far have completed (the means of keys;
    see :class:`InfLLMV2`), and ``blocks`` [G, k] the indices of the blocks that the latest sparse pass chose.
    """

    def __init__(self, reading: Dense, repeated: int, room: int) -> None:
        super().__init__(reading, repeated, room)
        self.kernels = [pairs.keys[:, :, :0] for pairs in reading.layers]
        self.blocks: dict[int, Tensor] = {}

    def look(self, layer: int, query: Tensor, scaling: float) -> Tensor:
        """Attend to everything in a prompt or a short context, else to the first, the latest and the best blocks."""
        m = self.method
        n = self.start + len(self.later[layer])
        n_blocks = -(-n // m.block)  # the last one may not be full
        n_local = m.window // m.block
        n_chosen = (self.budget + m.window) // m.block
        if query.shape[2] > 1 or n < m.dense_below or n_blocks <= n_chosen:
            return self.everything(layer, query, scaling)
        kernels = self._completed(layer, n)
        by_query_head = (products(query, kernels)[0, :, 0] * scaling).softmax(-1)
        by_kv_head = by_query_head.unflatten(0, (kernels.shape[1], -1)).sum(1)
        scores = m.rank(by_kv_head, n_blocks)
        # A step's budget may be too small for all first blocks; the latest blocks are chosen under any budget.
        scores[:, : min(m.initial, n_chosen - n_local)] = torch.inf
        scores[:, n_blocks - n_local :] = torch.inf
        self.blocks[layer] = best(scores, n_chosen)
        tokens = self.blocks[layer][..., None] * m.block + torch.arange(m.block, device=query.device)
        tokens = tokens.flatten(1)
        # The last block is always chosen; what it lacks to a full one is marked -1.
        n_lacking = n_blocks * m.block - n
        self.attended.append(tokens.shape[1] - n_lacking)
        return self.attend_to(layer, query, tokens.where(tokens < n, -1), scaling)

    def _completed(self, layer: int, n: int) -> Tensor:
        """The kernels [1, G, kernels, D] that the first ``n`` tokens complete in a layer; missing ones are computed."""
        m = self.method
        n_known = self.kernels[layer].shape[2]
        if n >= n_known * m.stride + m.kernel:  # the next kernel's last token is there
            keys = self.since(layer, n_known * m.stride).keys
            further = keys.unfold(2, m.kernel, m.stride).mean(-1, dtype=torch.float32).to(keys.dtype)
            self.kernels[layer] = torch.cat((self.kernels[layer], further), 2)
        return self.kernels[layer]


@dataclass(frozen=True)
class InfLLMV2(DenseMethod):
    """Each key-value head attends to the first blocks, to the latest, and to those whose kernels suit its queries.

    MiniCPM4, arXiv 2506.07900; OpenBMB/infllmv2_cuda_impl, Apache-2.0; here applied without its training. A kernel is
    the mean of ``kernel`` rotated keys, one every ``stride`` tokens. While decoding, each query head's softmax over all
    kernels is summed over the query heads of a key-value head; a block's score is the largest sum among the kernels
    that overlap it. The first ``initial`` blocks and the blocks of the ``window``, with the present one, are always
    attended to. A step attends to ``budget`` + ``window`` tokens; the first blocks count into the budget. Positions are
    true ones. Prompts are read by full attention (the trained model reads them sparsely too), and so are contexts below
    ``dense_below`` tokens while decoding. The softmax's normaliser is exact, not computed from coarser kernels.
    """

    name: ClassVar[str] = "infllm_v2"
    adjustable: ClassVar[bool] = True
    state = _Blocks

    # The paper's budget of 16 blocks; the rest as MiniCPM4 is configured.
    budget: int = 1024
    window: int = 2048
    initial: int = 1
    block: int = 64
    kernel: int = 32
    stride: int = 16
    dense_below: int = 8192

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("window", "block", "kernel", "stride"):
            self.require(getattr(self, name) >= 1, f"{name} must be at least 1")
        for name, part in (("budget", "block"), ("window", "block"), ("block", "stride"), ("kernel", "stride")):
            whole = getattr(self, name)
            unit = getattr(self, part)
            self.require(whole % unit == 0, f"{name}={whole} must be a multiple of {part}={unit}")
        n_blocks = self.budget // self.block
        within = 0 <= self.initial <= n_blocks
        self.require(within, f"initial={self.initial} must be within the budget's {n_blocks} blocks")

    def nominal(self, state: MethodState) -> float:
        """The budget in whole blocks, without the window."""
        return min(state.budget // self.block * self.block, state.length)

    def rank(self, shares: Tensor, n_blocks: int) -> Tensor:
        """Scores [G, n_blocks] of blocks: the largest share of the kernels that overlap a block.

        ``shares`` [G, kernels] are the softmax over kernels, summed over the query heads of each key-value head.
        """
        # Lengths of a block and of a kernel in strides. A kernel begins at each stride, so as many overlap a block as
        # begin within it, and those that begin before it and reach into it.
        block = self.block // self.stride
        kernel = self.kernel // self.stride
        n_overlapping = block + kernel - 1
        # The first block has no kernels before it, and the last one may have none after it: the score there is -inf.
        lacking_before = kernel - 1
        lacking_behind = max(0, (n_blocks - 1) * block + n_overlapping - lacking_before - shares.shape[1])
        padded = pad(shares, (lacking_before, lacking_behind), value=-torch.inf)
        return padded.unfold(1, n_overlapping, block).amax(-1)[:, :n_blocks]
