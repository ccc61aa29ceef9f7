"""How long the training of a detector takes, its seeds side by side and one alone, on random trajectories.

``python bench/detectors.py`` prints a Markdown table. Leave the machine to it meanwhile.
"""

import argparse
import time

import numpy as np
import torch
from report import markdown, shown

from utaca.detection.training.data import Sequences
from utaca.detection.training.training import train
from utaca.settings import schema

SHORTEST, LONGEST = 3, 40
"""Tokens of a trajectory, about those of the tiny reader about one attribute."""


def step_seconds(width: int, seeds: int, steps: int) -> tuple[float, float]:
    """Seconds of a step of ``seeds`` side by side, of the wall and of the processor, validation included."""
    splits = [random_sequences(count, width, seed) for seed, count in enumerate((800, 200))]
    # The first, short run warms up.
    for length in (3, steps):
        started = time.perf_counter()
        worked = time.process_time()
        train(schema.DetectorSettings(), *splits, steps=length, seeds=range(seeds), description="training")
        took = time.perf_counter() - started
        cpu = time.process_time() - worked
    return took / steps, cpu / steps


def random_sequences(count: int, width: int, seed: int) -> Sequences:
    """Trajectories of random signals, embeddings [width] and labels."""
    generator = np.random.default_rng(seed)
    length = generator.integers(SHORTEST, LONGEST + 1, count)
    tokens = int(length.sum())
    offset = np.arange(LONGEST)
    starts = np.cumsum(length) - length
    position = np.where(offset < length[:, None], starts[:, None] + offset, tokens)
    signals = np.zeros((tokens + 1, 1), np.float32)
    embedding = np.zeros((tokens + 1, width), np.float16)
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
        logprob=np.zeros(tokens, np.float32),
        signals=torch.from_numpy(signals),
        embedding=torch.from_numpy(embedding),
        label=torch.from_numpy(label),
        needed=np.full(tokens, -1, np.int8),
        value=np.ones(tokens, bool),
    )


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python bench/detectors.py", description="Time the training of detectors.")
    parser.add_argument("--widths", type=int, nargs="+", default=[256, 4096], help="of embeddings (%(default)s)")
    parser.add_argument("--seeds", type=int, default=8, help="seeds side by side (%(default)s)")
    parser.add_argument("--steps", type=int, default=100, help="steps timed (%(default)s)")
    options = parser.parse_args(arguments)
    rows = []
    threads = sorted({1, torch.get_num_threads()})
    for width, used in ((width, used) for width in options.widths for used in threads):
        torch.set_num_threads(used)
        alone, _ = step_seconds(width, 1, options.steps)
        took, cpu = step_seconds(width, options.seeds, options.steps)
        row = (shown(alone, "s"), shown(took, "s"), shown(cpu, "s"), f"{options.seeds * alone / took:.2f}")
        rows.append((str(width), str(used), *row))
    header = ("Width", "Threads", "A step, one seed", f"{options.seeds} seeds", "Processor")
    print(markdown((*header, "Times as fast as one after another"), rows))


if __name__ == "__main__":
    main()
