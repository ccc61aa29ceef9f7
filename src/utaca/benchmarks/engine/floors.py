"""What the engine's work costs, counted from sizes alone, and how fast a machine is.

Times on this machine are held against these counts. FLOPs are those of the engine's own matrix products and
attentions, a multiplication and an addition each; bytes are the fewest that a pass can read. Neither is an estimate of
time: kernels fall short of a machine's rates, and what fits into a cache is read faster than memory allows.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from utaca.memory import Layout
from utaca.readers.identity import Shape
from utaca.readers.load import Reader
from utaca.room import TILE, chunks
from utaca.settings.schema import Memory

_TRIES = 5
_WIDENED = 8
"""Coordinates that the second attention adds to queries and keys, and the width of its values on a GPU."""


@dataclass(frozen=True)
class Machine:
    """Bytes a second of a large copy, read and written both counted, and FLOP/s of a large matrix product."""

    bandwidth: float
    rate: float


def probe(device: torch.device, dtype: torch.dtype) -> Machine:
    """Measure both rates, in about a second: the best of several tries each, products in ``dtype``."""
    large = device.type == "cuda"
    return Machine(_bandwidth(device, 2**32 if large else 2**28), _rate(device, dtype, 8192 if large else 2048))


def _bandwidth(device: torch.device, size: int) -> float:
    source = torch.ones(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * size / _fastest(device, lambda: target.copy_(source))


def _rate(device: torch.device, dtype: torch.dtype, n: int) -> float:
    left, right = torch.randn(2, n, n, device=device).to(dtype)
    return 2 * n**3 / _fastest(device, lambda: left @ right)


def now(device: torch.device) -> float:
    """Seconds of a steady clock, once the device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def _fastest(device: torch.device, work: Callable[[], object]) -> float:
    took = []
    for _ in range(_TRIES):
        started = now(device)
        work()
        took.append(now(device) - started)
    return min(took)


@dataclass(frozen=True)
class Costs:
    """Sizes of a model and its block memory, from which FLOPs and bytes follow.

    ``cuda``: it runs on a GPU, where the output projection stays in the model's type, and where the second attention of
    a prefill chunk has narrow values. Elsewhere the output projection is applied in float32.
    """

    shape: Shape
    hidden: int
    """Width of the residual stream."""
    intermediate: int
    """Width of the MLP."""
    itemsize: int
    """Bytes of a weight, a key's coordinate or a value's."""
    body: int
    """Weights of the layers."""
    linear: int
    """Weights of the layers' matrices, without biases and norms."""
    head: int
    """Weights of the output projection."""
    model: int
    """All weights; a matrix that is embedding and output projection at once counts once."""
    memory: Memory
    cuda: bool

    @staticmethod
    def of(reader: Reader) -> Costs:
        config, layers = reader.model.config, list(reader.layers.parameters())
        return Costs(
            shape=reader.shape,
            hidden=reader.width,
            intermediate=config.intermediate_size,
            itemsize=reader.dtype.itemsize,
            body=sum(weight.numel() for weight in layers),
            linear=sum(weight.numel() for weight in layers if weight.ndim == 2),
            head=reader.model.get_output_embeddings().weight.numel(),
            model=sum(weight.numel() for weight in reader.model.parameters()),
            memory=reader.settings.memory,
            cuda=reader.device.type == "cuda",
        )

    @property
    def _layout(self) -> Layout:
        return Layout(self.memory.n_init, self.memory.n_local, self.memory.block_size)

    @property
    def _token(self) -> int:
        """Bytes of one token's keys and values in all layers."""
        return 2 * self.shape.layers * self.shape.kv_heads * self.shape.head_size * self.itemsize

    @property
    def _representative(self) -> int:
        """Bytes of one block's representative keys in all layers, kept in float32 at least."""
        return self.shape.layers * self.shape.kv_heads * self.shape.head_size * max(4, self.itemsize)

    def prefill_flops(self, length: int) -> dict[str, float]:
        """FLOPs of reading a document of ``length`` tokens chunk by chunk, by kind of work.

        * "linear layers": two a weight and token.
        * "attention": of each query head to initial tokens, retrieved blocks, window and chunk; queries times keys, and
          probabilities times values. Of a chunk's attention to itself the pairs count that are seen: about a half.
        * "attention mass": the second attention, by which InfLLM's rule finds representative tokens. Window and chunk
          ask, the chunk's queries answer; head vectors are longer by eight coordinates, and values are eight
          wide. Other rules need none, nor does a CPU, where the first attention's probabilities are at hand.
        * "retrieval": the chunk's mean query times all representative keys.
        """
        m, layout = self.memory, self._layout
        layers, heads, kv_heads, width = self.shape
        near = far = scored = 0
        for start in range(0, length, m.prefill_chunk):
            size, n_far = min(m.prefill_chunk, length - start), layout.n_far(start)
            near += size * (start - layout.window_start(start)) + size * (size + 1) // 2
            if n_far:
                far += size * (m.n_init + min(m.prefill_budget, n_far) * m.block_size)
                scored += n_far if m.prefill_budget else 0
        mass = near if m.representatives == "attention_mass" and self.cuda else 0
        return {
            "linear layers": 2 * self.linear * length,
            "attention": 4 * layers * heads * width * (near + far),
            "attention mass": 2 * layers * heads * (width + 2 * _WIDENED) * mass,
            "retrieval": 2 * layers * kv_heads * width * scored,
        }

    def pass_bytes(self, length: int, attended: float) -> float:
        """Bytes that a token's pass reads behind a document of ``length`` tokens, with ``attended`` keys attended to.

        Weights of the layers and of the output projection, representative keys of the far blocks, and keys and values.
        """
        head = self.head * (self.itemsize if self.cuda else max(4, self.itemsize))
        representatives = self._layout.n_far(length) * self._representative
        return self.body * self.itemsize + head + representatives + attended * self._token

    def staying_bytes(self, length: int, *, stored: bool = True) -> dict[str, int]:
        """Bytes that stay on the device for a sealed document of ``length`` tokens, by what they hold.

        Without ``stored``, keys and values lie on the host, but for those of initial tokens and window. Off a GPU, a
        model that is not in float32 has its output projection in float32 as well.
        """
        m, layout = self.memory, self._layout
        copy = 0 if self.cuda or self.itemsize >= 4 else 4 * self.head
        window = m.n_init + length - layout.window_start(length)
        return {
            "weights": self.model * self.itemsize + copy,
            "keys and values": (length if stored else min(length, window)) * self._token,
            "representatives": layout.n_far(length) * self._representative,
        }

    def reading_bytes(self, length: int) -> int:
        """The most bytes that reading such a document holds beside those that stay; from above.

        It is what :func:`utaca.memory.prefill` asks the machine for before it starts. Of each token of a pass: three
        vectors of the residual stream's width, and three of the MLP's or what attention takes, whichever is more. That
        is six vectors of all query heads a token, keys and values of one layer's window three times over, and on a CPU
        under InfLLM's rule two floats for each pair of a tile's queries and keys. Of all layers' windows: the attention
        mass of each key, a float.
        """
        m, (layers, heads, kv_heads, width) = self.memory, self.shape
        together = chunks(m)
        passing = min(length, together * m.prefill_chunk)
        seen = m.n_init + m.n_local + passing + m.prefill_budget * m.block_size
        attention = 6 * passing * heads * width * self.itemsize + 3 * seen * self._token // layers
        if not self.cuda and m.representatives == "attention_mass":
            keys = m.n_init + m.n_local + m.prefill_chunk + (m.prefill_budget + 1) * m.block_size
            attention += 8 * heads * keys * min(passing, together * TILE)
        mlp = 3 * passing * self.intermediate * self.itemsize
        mass = layers * kv_heads * (m.n_local + passing) * 4
        return 3 * passing * self.hidden * self.itemsize + max(mlp, attention) + mass

    def branch_bytes(self, length: int, capacity: int, most: int) -> int:
        """Bytes of a branch for ``capacity`` tokens behind such a document, and of a pass under ``most`` blocks; from
        above.

        The branch keeps keys and values of the document's window and of its own tokens, these a second time where they
        will be blocks. A pass holds one layer's retrieved blocks four times: from the document, from the branch, as
        chosen of both, and joined with the initial tokens.
        """
        m, layout = self.memory, self._layout
        window = length - layout.window_start(length) + capacity
        last = layout.n_far(length + capacity - 1)
        own = max(0, last - layout.blocks(length)) * m.block_size
        represented = (last - layout.n_far(length)) * self._representative
        gathered = 4 * (m.n_init + most * m.block_size) * self._token // self.shape.layers
        return (window + own) * self._token + represented + gathered
