"""The same weights under Hugging Face's own ``generate`` with full attention."""

from __future__ import annotations

import time

import torch
from torch import Tensor
from transformers.generation.streamers import BaseStreamer

from utaca.readers.attention import ATTENTION
from utaca.readers.load import Reader


class _Clock(BaseStreamer):
    """Notes when ``generate`` starts and when each token is there."""

    def __init__(self) -> None:
        self.marks: list[float] = []

    def put(self, value: Tensor) -> None:
        self.marks.append(time.perf_counter())

    def end(self) -> None:
        pass


@torch.inference_mode()
def generate(reader: Reader, tokens: Tensor, new: int) -> tuple[float, list[float]]:
    """Seconds until the first token after ``tokens`` [T], and of each of the ``new - 1`` tokens after it.

    Scaled dot product attention ("sdpa"), which keeps no matrix of T x T where it has a fused kernel (CPU and CUDA have
    one), and transformers' default cache.
    """
    model, clock = reader.model, _Clock()
    longest, model.config.max_position_embeddings = model.config.max_position_embeddings, len(tokens) + new
    model.set_attn_implementation("sdpa")
    try:
        model.generate(
            tokens[None],
            attention_mask=torch.ones_like(tokens[None]),
            max_new_tokens=new,
            min_new_tokens=new,
            do_sample=False,
            streamer=clock,
        )
    finally:
        model.set_attn_implementation(ATTENTION)
        model.config.max_position_embeddings = longest
    first, *steps = (after - before for before, after in zip(clock.marks, clock.marks[1:], strict=False))
    return first, steps
