"""SnapKV and its kin against a loop over queries, heads and keys."""

import pytest
import torch
from brute_methods import Case, steps, votes
from small import some_tokens
from torch import Tensor

from utaca.methods import build
from utaca.methods.adakv import AdaKV
from utaca.methods.snapkv import SnapKV


def keep(method: SnapKV, scores: list[list[float]], n: int) -> list[list[int]]:
    """The tokens that each head keeps of ``n``, by its votes."""
    window, order = n - len(scores[0]), []
    for row in scores:
        order.append(sorted(range(len(row)), key=lambda t, row=row: (-row[t], t)))
    counts = [method.budget - window] * len(scores)
    if isinstance(method, AdaKV):
        even = method.budget - window
        safe = int(method.budget * method.floor) - window if method.safeguard == "least" else 0
        entries = [(h, t) for h in range(len(scores)) for t in range(len(scores[h]))]
        entries.sort(key=lambda e: (e[1] not in order[e[0]][: max(0, safe)], -scores[e[0]][e[1]], e))
        best = [h for h, _ in entries[: even * len(scores)]]
        counts = [best.count(h) for h in range(len(scores))]
        if method.safeguard == "mixed":
            counts = [round(c * (1 - method.floor) + even * method.floor) for c in counts]
    return [sorted(row[:count]) + list(range(n - window, n)) for row, count in zip(order, counts, strict=True)]


CASES = [
    (name, pooling, heads, more)
    for pooling in ("avg", "max")
    for heads in ("kv", "query")
    for name, more in (
        ("snapkv", {}),
        ("adakv", {"floor": 0.0}),
        ("adakv", {"floor": 0.5}),
        ("adakv", {"floor": 0.7, "safeguard": "least"}),
    )
]


@pytest.mark.parametrize("case", range(len(CASES)))
def test_kept_tokens_and_logits_equal_a_loop(case: int) -> None:
    shape = Case(case)
    rng, reader, loop = shape.rng, shape.reader, shape.loop
    name, pooling, heads, more = CASES[case]
    window, n_prompt = rng.randint(1, 12), rng.randint(1, 12)
    settings = {"budget": window + rng.randint(1, 20), "window": window, "kernel": rng.choice([1, 3, 7])}
    method = build(name, settings | {"pooling": pooling, "heads": heads} | more)
    tokens = some_tokens(rng.randint(33, 60) + n_prompt, seed=case)
    answer = some_tokens(4, seed=case + 100)
    found, attended = steps(method, reader, tokens[:-n_prompt], tokens[-n_prompt:], answer)

    kept: list[list[list[int]]] = []

    def look(layer: int, first: int, queries: Tensor) -> Tensor:
        if len(kept) <= layer:
            kept.append(keep(method, votes(loop, method, layer, queries, range(len(tokens))), len(tokens)))
            return loop.full(layer, first, queries)
        rows = {h: kept[layer][h * len(kept[layer]) // loop.heads] for h in range(loop.heads)}
        return loop.over(layer, first, queries, lambda at, head: [*rows[head], *range(len(tokens), at + 1)])

    expected = [loop.run(tokens, look)[-1], *(loop.run(token[None], look)[0] for token in answer)]
    assert (found - torch.stack(expected)).abs().max() < 1e-4
    mean = sum(len(row) for rows in kept for row in rows) / sum(len(rows) for rows in kept)
    assert attended == pytest.approx([len(tokens), *(mean + 1 + i for i in range(4))])
    if name == "snapkv" or more["floor"] == 0 or "safeguard" in more:
        assert mean == method.budget
