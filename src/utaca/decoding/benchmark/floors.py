"""The least that a pass must move or compute, and how fast this machine moves and computes.

Floors count what the method itself asks for: weights, attended keys and values once, multiplications of the linear
layers and of the attention. What fits into a cache may be read faster than from memory, so a small model's pass can
come below its floor.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

import torch

from utaca.memory import Layout
from utaca.readers.load import Reader
from utaca.settings.schema import Memory

_TRIES = 5


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
    """Sizes of a reader and its memory, from which bytes and FLOPs follow."""

    layers: int
    heads: int
    kv_heads: int
    head_size: int
    itemsize: int
    body: int
    """Weights of the layers."""
    head: int
    """Weights of the output projection, which is applied in float32."""
    model: int
    """All weights of the model."""
    memory: Memory

    @staticmethod
    def of(reader: Reader) -> Costs:
        model = reader.model
        return Costs(
            **asdict(reader.shape),
            itemsize=reader.dtype.itemsize,
            body=sum(weight.numel() for weight in reader.layers.parameters()),
            head=model.get_output_embeddings().weight.numel(),
            model=sum(weight.numel() for weight in model.parameters()),
            memory=reader.settings.memory,
        )

    @property
    def _token(self) -> int:
        """Bytes of one token's keys and values."""
        return 2 * self.layers * self.kv_heads * self.head_size * self.itemsize

    @property
    def _representative(self) -> int:
        """Bytes of one block's representative keys, kept in float32 at least."""
        return self.layers * self.kv_heads * self.head_size * max(4, self.itemsize)

    def prefill_flops(self, length: int) -> float:
        """FLOPs of reading a document of ``length`` tokens, each attending to initial tokens, blocks and window."""
        m = self.memory
        most = m.n_init + m.n_local + m.prefill_budget * m.block_size
        short = min(length, most)
        attended = short * (short + 1) / 2 + (length - short) * most
        return 2 * self.body * length + 4 * self.layers * self.heads * self.head_size * attended

    def pass_bytes(self, length: int, attended: int) -> float:
        """Bytes that a token's pass reads behind a document of ``length`` tokens, with ``attended`` keys attended to.

        Weights, representative keys of all far blocks, attended keys and values, the float32 output projection.
        """
        m = self.memory
        far = Layout(length, m.n_init, m.n_local, m.block_size).far(length)
        representatives = far * self._representative
        return self.body * self.itemsize + self.head * 4 + representatives + attended * self._token

    def resident_bytes(self, length: int, stored: bool = True) -> float:
        """Bytes of the weights and of a sealed document of ``length`` tokens, its keys and values where ``stored``."""
        m = self.memory
        blocks = Layout(length, m.n_init, m.n_local, m.block_size).blocks
        tokens = length if stored else m.n_init + m.n_local
        return self.model * self.itemsize + self.head * 4 + tokens * self._token + blocks * self._representative
