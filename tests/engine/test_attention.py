"""Attention over segments, and its mass, against plain softmax in float64."""

import pytest
import torch
from torch import Tensor

from utaca.memory.attention import Segment, attention, products, received

SCALING = 0.3


def segments_of(queries: int, keys: list[int], dtype: torch.dtype = torch.float32, batch: int = 2) -> list[Segment]:
    """Segments of 4 query heads on 2 key-value heads of width 8, so many keys each, the last one causal."""
    drawn = torch.Generator().manual_seed(3)

    def random(heads: int, n: int) -> Tensor:
        return torch.randn(batch, heads, n, 8, generator=drawn).to(dtype)

    near = [Segment(random(4, queries), random(2, n), random(2, n)) for n in keys]
    return [*near, Segment(random(4, queries), random(2, queries), random(2, queries), causal=True)]


def plainly(segments: list[Segment]) -> Tensor:
    """Probabilities of a softmax over all keys at once, in float64."""
    logits = []
    for query, keys, _, _, causal in segments:
        scores = query.double() @ keys.double().repeat_interleave(2, 1).mT * SCALING
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        logits.append(scores.masked_fill(hidden, -torch.inf) if causal else scores)
    return torch.cat(logits, -1).softmax(-1)


@pytest.mark.parametrize(("queries", "dtype"), [(1, "float32"), (5, "float32"), (300, "float32"), (300, "bfloat16")])
def test_the_mass_is_what_all_queries_give_a_key(queries: int, dtype: str) -> None:
    """bfloat16 has 8 bits: sums of 300 queries would be off by a hundredth if they were rounded."""
    segments = segments_of(queries, [7, 40], getattr(torch, dtype))
    by_key = plainly(segments).unflatten(1, (2, -1)).sum((2, 3))[..., 7:].split([40, queries], -1)
    lse = attention(segments, SCALING)[1]
    for segment, wanted in zip(segments[-2:], by_key, strict=True):
        own = received(segment.query, segment.keys, lse, SCALING, causal=segment.causal).double()
        if dtype == "float32":
            torch.testing.assert_close(own, wanted, atol=1e-4, rtol=1e-4)
        else:
            assert ((own - wanted) / wanted).abs().median() < 2e-3


@pytest.mark.parametrize("queries", [1, 200])
def test_large_key_biases_do_not_round_products(queries: int) -> None:
    """With biases of keys, as Qwen2 has them, products rounded to bfloat16 are whole numbers at best."""
    drawn = torch.Generator().manual_seed(0)
    query, keys = (torch.randn(1, 2, n, 64, generator=drawn) for n in (queries, 50))
    query, keys = (query + 2).bfloat16(), (keys + 30).bfloat16()
    exact = query.double() @ keys.double().mT * 0.125
    rounded = ((query * 0.125) @ keys.mT).double()
    found = products(query, keys, 0.125).double()
    assert (found - exact).abs().max() < 1e-2
    assert (rounded - exact).abs().max() > 0.5
