"""How long training takes, eight seeds side by side and one alone, on random trajectories of a real length."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from utaca.detection.training.data import Sequences
from utaca.detection.training.training import train
from utaca.settings import schema

LENGTHS = (3, 40)
"""Shortest and longest trajectory in tokens, about those of the tiny reader about one attribute."""


@dataclass(frozen=True)
class Measurement:
    """Seconds of a step of ``seeds`` side by side on ``threads``, validation included."""

    width: int  # D_in
    threads: int
    seeds: int
    steps: int
    step_s: float
    cpu_s: float


def measure(widths: Sequence[int], threads: Sequence[int], seeds: int, steps: int) -> Iterator[Measurement]:
    """One seed alone and ``seeds`` side by side, a run of ``steps`` each, after a short one to warm up."""
    before = torch.get_num_threads()
    for width in widths:
        splits = [random_sequences(count, width, seed) for seed, count in enumerate((800, 200))]
        for used in threads:
            torch.set_num_threads(used)
            for together in (1, seeds):
                for length in (3, steps):
                    started, worked = time.perf_counter(), time.process_time()
                    train(schema.Detector(), *splits, steps=length, seeds=range(together), description="benchmark")
                    took, cpu = time.perf_counter() - started, time.process_time() - worked
                yield Measurement(width, used, together, steps, took / steps, cpu / steps)
    torch.set_num_threads(before)


def random_sequences(count: int, width: int, seed: int) -> Sequences:
    """Trajectories of random signals, embeddings and labels."""
    generator = np.random.default_rng(seed)
    length = generator.integers(LENGTHS[0], LENGTHS[1] + 1, count)
    tokens, offset = int(length.sum()), np.arange(LENGTHS[1])
    starts = np.cumsum(length) - length
    position = np.where(offset < length[:, None], starts[:, None] + offset, tokens)
    signals, embedding = np.zeros((tokens + 1, 1), np.float32), np.zeros((tokens + 1, width), np.float16)
    signals[:-1] = generator.standard_normal((tokens, 1))
    embedding[:-1] = generator.standard_normal((tokens, width), np.float32)
    label = np.append(generator.choice(3, tokens, p=[0.1, 0.8, 0.1]), -1)
    return Sequences(
        document=tuple(map(str, range(count))),
        budget=(1,) * count,
        length=torch.from_numpy(length),
        position=torch.from_numpy(position),
        step=(np.arange(tokens) - np.repeat(starts, length)).astype(np.int32),
        top10=np.zeros((tokens, 10), np.float32),
        signals=torch.from_numpy(signals),
        embedding=torch.from_numpy(embedding),
        label=torch.from_numpy(label),
        needed=np.full(tokens, -1, np.int8),
        value=np.ones(tokens, bool),
    )
