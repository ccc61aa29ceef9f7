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
    """An answer under InfLLM-V2. Per layer, ``kernels`` [1, G, kernels, D] are the kernels of all tokens so far, and
    ``blocks`` [G, k] the ids of the blocks that the latest sparse pass chose."""

    def __init__(self, reading: Dense, repeated: int, room: int) -> None:
        super().__init__(reading, repeated, room)
        self.kernels = [pairs.keys[:, :, :0] for pairs in reading.layers]
        self.blocks: dict[int, Tensor] = {}

    def look(self, layer: int, query: Tensor, scaling: float) -> Tensor:
        m = self.method
        n = self.start + len(self.later[layer])
        blocks = -(-n // m.block)
        local = m.window // m.block
        count = (self.budget + m.window) // m.block
        if query.shape[2] > 1 or n < m.dense_below or blocks <= count:
            return self.everything(layer, query, scaling)
        kernels = self._extend(layer, n)
        shares = (products(query, kernels)[0, :, 0] * scaling).softmax(-1)
        scores = m.rank(shares.unflatten(0, (kernels.shape[1], -1)).sum(1), blocks)
        # A step's budget may be too small for all first blocks; the latest blocks are chosen under any budget.
        scores[:, : min(m.initial, count - local)] = torch.inf
        scores[:, blocks - local :] = torch.inf
        self.blocks[layer] = best(scores, count)
        tokens = self.blocks[layer][..., None] * m.block + torch.arange(m.block, device=query.device)
        tokens = tokens.flatten(1)
        self.attended.append(tokens.shape[1] - (blocks * m.block - n))
        return self.attend_to(layer, query, tokens.where(tokens < n, -1), scaling)

    def _extend(self, layer: int, n: int) -> Tensor:
        """All kernels of a layer, after adding those that the first ``n`` tokens have completed."""
        m = self.method
        have = self.kernels[layer].shape[2]
        if n >= have * m.stride + m.kernel:
            keys = self.since(layer, have * m.stride).keys
            new = keys.unfold(2, m.kernel, m.stride).mean(-1, dtype=torch.float32).to(keys.dtype)
            self.kernels[layer] = torch.cat((self.kernels[layer], new), 2)
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
        room = self.budget // self.block
        self.require(0 <= self.initial <= room, f"initial={self.initial} must be within the budget's {room} blocks")

    def nominal(self, state: MethodState) -> float:
        return min(state.budget // self.block * self.block, state.length)

    def rank(self, kernels: Tensor, blocks: int) -> Tensor:
        """Scores [G, blocks] of blocks from ``kernels`` [G, kernels], each kernel's softmax summed over query heads."""
        # In strides: the length of a block and of a kernel, and the kernels that overlap a block.
        per_block = self.block // self.stride
        wide = self.kernel // self.stride
        size = per_block + wide - 1
        behind = max(0, (blocks - 1) * per_block + size - (wide - 1) - kernels.shape[1])
        padded = pad(kernels, (wide - 1, behind), value=-torch.inf)
        return padded.unfold(1, size, per_block).amax(-1)[:, :blocks]
