"""SnapKV and its kin against a loop over queries, heads and keys."""

from __future__ import annotations

import random

import pytest
import torch
from brute_methods import Loop
from small import make_reader, some_tokens
from test_methods import steps
from torch import Tensor

from utaca.methods import build
from utaca.methods.snapkv import SnapKV


def votes(loop: Loop, method: SnapKV, layer: int, first: int, queries: Tensor) -> list[list[float]]:
    """What each token before the window is worth, a list for each head that keeps its own."""
    n, window = len(loop.keys[layer]), min(method.window, len(queries))
    mass = [[0.0] * (n - window) for _ in range(loop.heads)]
    for at in range(n - window, n):
        for head in range(loop.heads):
            given = loop.given(layer, head, queries[at - first, head], at, [(t, t) for t in range(at + 1)])
            for token in range(n - window):
                mass[head][token] += float(given[token])
    if method.heads == "kv":
        share = loop.heads // loop.groups
        mass = [
            [sum(mass[g * share + i][t] for i in range(share)) / share for t in range(n - window)]
            for g in range(loop.groups)
        ]
    half, pooled = method.kernel // 2, []
    for row in mass:
        around = [[row[t] for t in range(c - half, c + half + 1) if 0 <= t < len(row)] for c in range(len(row))]
        # avg_pool1d counts what lies beyond the ends as zeros.
        pooled.append([max(a) if method.pooling == "max" else sum(a) / method.kernel for a in around])
    return pooled


@pytest.mark.parametrize("case", range(8))
def test_snapkv_equals_a_loop(case: int) -> None:
    rng = random.Random(case)
    reader = make_reader(["llama", "llama-wide", "qwen2-wide"][case % 3], seed=case)
    window, n_prompt = rng.randint(1, 12), rng.randint(1, 12)
    settings = {"budget": window + rng.randint(1, 20), "window": window, "kernel": rng.choice([1, 3, 7])}
    method = build("snapkv", settings | {"pooling": ["avg", "max"][case % 2], "heads": ["kv", "query"][case // 2 % 2]})
    tokens = some_tokens(rng.randint(30, 60) + n_prompt, seed=case)
    answer = some_tokens(5, seed=case + 100)
    found, attended = steps(method, reader, tokens[:-n_prompt], tokens[-n_prompt:], answer)

    loop, kept = Loop(reader), []

    def look(layer: int, first: int, queries: Tensor) -> Tensor:
        if len(kept) <= layer:
            best = [
                sorted(range(len(row)), key=lambda t: (-row[t], t))[: method.budget - window]
                for row in votes(loop, method, layer, first, queries)
            ]
            kept.append([sorted(row) + list(range(len(tokens) - window, len(tokens))) for row in best])
            return loop.full(layer, first, queries)
        rows = {h: kept[layer][h * len(kept[layer]) // loop.heads] for h in range(loop.heads)}
        return loop.over(layer, first, queries, lambda at, head: [*rows[head], *range(len(tokens), at + 1)])

    expected = [loop.run(tokens, look)[-1], *(loop.run(token[None], look)[0] for token in answer)]
    assert (found - torch.stack(expected)).abs().max() < 1e-4
    assert attended == [len(tokens), *(method.budget + 1 + i for i in range(5))]
    reading = method.read(reader, tokens[:-n_prompt], n_prompt)
    again = max(0, window - n_prompt)
    state = method.state(reading, again, n_prompt + again)
    state.run(tokens[len(tokens) - n_prompt - again :])
    assert [chosen.tolist() for chosen in state.chosen] == kept


def test_a_prompt_within_the_budget_is_kept_whole() -> None:
    reader, tokens = make_reader(), some_tokens(40)
    found, attended = steps(build("snapkv", {"budget": 40, "window": 8}), reader, tokens[:30], tokens[30:], tokens[:4])
    expected, _ = steps(build("full", {}), reader, tokens[:30], tokens[30:], tokens[:4])
    assert (found - expected).abs().max() < 1e-5
    assert attended == [40, 41, 42, 43, 44]
