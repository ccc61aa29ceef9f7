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


def plainly(segments: list[Segment]) -> tuple[Tensor, Tensor, Tensor]:
    """Output, log-sum-exp and probabilities of a softmax over all keys at once, in float64."""
    logits, values = [], []
    for query, keys, own, seen, causal in segments:
        keys, own = (x.double().repeat_interleave(query.shape[1] // x.shape[1], 1) for x in (keys, own))
        scores = query.double() @ keys.mT * SCALING
        if causal:
            seen = torch.ones(scores.shape[-2:], dtype=torch.bool).tril(scores.shape[-1] - scores.shape[-2])
        logits.append(scores if seen is None else scores.where(seen, -torch.inf))
        values.append(own)
    joint = torch.cat(logits, -1)
    return joint.softmax(-1) @ torch.cat(values, 2), joint.logsumexp(-1), joint.softmax(-1)


@pytest.mark.parametrize("hidden", [False, True])
@pytest.mark.parametrize("queries", [1, 5, 70])
@pytest.mark.parametrize("keys", [[9, 4], [3], [], [9, 0, 2]], ids=str)
def test_segments_are_attended_to_under_one_softmax(queries: int, keys: list[int], hidden: bool) -> None:
    segments = segments_of(queries, keys)
    if hidden and keys:
        seen = torch.rand(2, 1, queries, keys[0], generator=torch.Generator().manual_seed(0)) < 0.5
        segments[0] = segments[0]._replace(seen=seen)
    if hidden and keys[1:]:
        segments[-2] = segments[-2]._replace(seen=torch.tensor(False))
    expected, lse, _ = plainly([segment for segment in segments if segment.keys.shape[2]])
    found = attention(segments, SCALING)
    torch.testing.assert_close(found[0].double(), expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(found[1].double(), lse, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("queries", "dtype"), [(1, "float32"), (5, "float32"), (300, "float32"), (300, "bfloat16")])
def test_the_mass_is_what_all_queries_give_a_key(queries: int, dtype: str) -> None:
    """bfloat16 has 8 bits: sums of 300 queries would be off by a hundredth if they were rounded."""
    segments = segments_of(queries, [7, 40], getattr(torch, dtype))
    by_key = plainly(segments)[2].unflatten(1, (2, -1)).sum((2, 3))[..., 7:].split([40, queries], -1)
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
    assert exact.mean() > 256
    assert (found - exact).abs().max() < 1e-2
    assert (rounded - exact).abs().max() > 0.5
