"""Lengths of documents, and the share of their facts that lies outside of the reader's window."""

import random

import pytest

from utaca.biographies.lengths import draw_length, share_outside
from utaca.layout import Layout
from utaca.runs.compose import compose
from utaca.settings.checks import AIM_OUTSIDE, load, outside


@pytest.mark.parametrize("mean", [0, 75, 80, 85])
@pytest.mark.parametrize("sizes", [(4, 24, 8), (5, 24, 8), (0, 16, 1), (64, 100, 4), (2, 3, 7)])
def test_the_share_is_that_of_facts_at_every_place_of_documents_of_every_length(mean: int, sizes: tuple) -> None:
    layout, rng = Layout(*sizes), random.Random(0)
    n_init, n_local, block = sizes
    low, high = 64, 96
    lengths = [draw_length(low, high, mean, rng) for _ in range(30_000)] if mean else range(low, high + 1)
    shares = []
    for length in lengths:
        # A block is far if all of it lies before the last n_local tokens.
        window = length - n_local
        far = [p for p in range(n_init, length) if n_init + ((p - n_init) // block + 1) * block <= window]
        shares.append(len(far) / length)
    expected = sum(shares) / len(shares)
    assert share_outside(low, high, mean, layout) == pytest.approx(expected, abs=0.004 if mean else 1e-9)


def test_the_papers_lengths_have_the_papers_range_and_mean() -> None:
    rng = random.Random(1)
    lengths = [draw_length(171_000, 400_000, 252_000, rng) for _ in range(20_000)]
    assert min(lengths) >= 171_000
    assert max(lengths) <= 400_000
    assert max(lengths) > 390_000
    assert sum(lengths) / len(lengths) == pytest.approx(252_000, rel=0.005)
    again = random.Random(1)
    assert lengths[:5] == [draw_length(171_000, 400_000, 252_000, again) for _ in range(5)]
    even = [draw_length(10, 13, 0, rng) for _ in range(4000)]
    assert {*even} == {10, 11, 12, 13}
    assert all(800 < even.count(length) < 1200 for length in {*even})
    assert draw_length(50, 50, 50, rng) == 50
    assert 0 < share_outside(50, 50, 50, Layout(4, 16, 4)) < 1


@pytest.mark.parametrize(
    "run", [{"scale": "quick"}, {"scale": "paper", "reader": "llama31_8b"}, {"scale": "paper", "reader": "qwen2_7b"}]
)
def test_shipped_scales_have_most_facts_outside_of_the_window(root, run: dict) -> None:
    assert min(outside(load(compose(run, root))).values()) >= AIM_OUTSIDE
