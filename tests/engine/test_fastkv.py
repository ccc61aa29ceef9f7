"""FastKV against a loop over queries, heads and keys."""

import pytest
import torch
from brute_methods import Case, steps, votes
from small import make_reader, some_tokens
from torch import Tensor

from utaca.errors import UserError
from utaca.generation.answers import Answers
from utaca.methods import build


@pytest.mark.parametrize("case", range(12))
def test_kept_and_propagated_tokens_and_logits_equal_a_loop(case: int) -> None:
    shape = Case(case)
    rng, reader, loop = shape.rng, shape.reader, shape.loop
    window, n_prompt, half = rng.randint(1, 8), rng.randint(1, 12), rng.choice([0, 1, 3])
    budget, full, pooling = window + rng.randint(1, 12), rng.choice([1, 2]), rng.choice(["avg", "max"])
    length = budget + rng.randint(0, 12)
    settings = {"budget": budget, "window": window, "kernel": 2 * half + 1, "pooling": pooling, "tsp_length": length}
    method = build("fastkv", settings | {"tsp_layer": full - 1, "depth": 3})
    tokens, answer = some_tokens(rng.randint(30, 60) + n_prompt, seed=case), some_tokens(4, seed=case + 100)
    found, attended = steps(method, reader, tokens[:-n_prompt], tokens[-n_prompt:], answer)

    n = len(tokens)
    places = [list(range(n)) for _ in range(3)]  # of each layer's keys
    kept: list[list[list[int]]] = []

    def best(scores: list[float], count: int) -> list[int]:
        order = sorted(range(len(scores)), key=lambda j: (-scores[j], j))[: count - window]
        return [*sorted(order), *range(len(scores), len(scores) + window)]

    def look(layer: int, first: int, queries: Tensor) -> Tensor:
        if first == 0:
            scores = votes(loop, method, layer, queries, places[layer])
            everything = list(range(len(queries)))
            kept.append([best(s, budget) if len(queries) > budget else everything for s in scores])
            if layer == full - 1 and n > length:
                for later in range(full, 3):
                    places[later] = best([sum(row) for row in zip(*scores, strict=True)], length)
            seen = [[list(range(i + 1))] * loop.groups for i in range(len(queries))]
        else:
            places[layer].append(first)
            after = range(min(n, length) if layer >= full else n, len(places[layer]))
            seen = [[[*row, *after] for row in kept[layer]]]
        outputs = []
        for i, query in enumerate(queries):
            at = places[layer][i if first == 0 else -1]
            for head in range(loop.heads):
                keys = [(j, places[layer][j]) for j in seen[i][loop.group(head)]]
                outputs.append(loop.row(layer, head, query[head], at, keys))
        return torch.stack(outputs).view(queries.shape)

    def going_on(layer: int) -> list[int]:
        return places[full] if layer == full - 1 else list(range(len(places[layer])))

    expected = [loop.run(tokens, look, going_on)[-1]]
    expected += [loop.run(token[None], look)[0] for token in answer]
    assert (found - torch.stack(expected)).abs().max() < 1e-4
    assert attended[0] == pytest.approx((full * n + (3 - full) * min(n, length)) / 3)
    assert attended[1:] == [min(n, budget) + 1 + i for i in range(4)]


def test_layers_scale_with_the_reader_and_one_reading_serves_all_budgets() -> None:
    method = build("fastkv", {})
    assert [method.full(layers) for layers in (32, 28, 6, 3)] == [16, 14, 3, 2]
    assert method.reading == build("fastkv", {"budget": 128, "tsp_length": 256}).reading
    assert method.reading != build("fastkv", {"tsp_layer": 7}).reading
    with pytest.raises(UserError, match="no layer of a reader with 3 comes after the full ones"):
        Answers(make_reader(), some_tokens(50)).answer(build("fastkv", {"tsp_layer": 29}), "what is it", 5)
