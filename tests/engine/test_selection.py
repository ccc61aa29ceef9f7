"""The methods that choose again for every token: RetrievalAttention, OmniKV, InfLLM-V2, against loops."""

import pytest
import torch
from brute_methods import Case, turned
from small import make_reader, some_tokens
from torch import Tensor

from utaca.errors import UserError
from utaca.methods import build

ANSWER = 5


class Choosing(Case):
    """A prompt of several tokens, of which the last passes alone."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        prompt = self.rng.randint(3, 10)
        self.tokens = some_tokens(self.rng.randint(40, 80) + prompt + ANSWER, seed=number)
        self.asked = len(self.tokens) - ANSWER - 1
        """Position of the first token that passes alone."""
        self.document, self.prompt, self.answer = self.tokens.split([self.asked + 1 - prompt, prompt, ANSWER])

    def expected(self, look: object) -> Tensor:
        """Logits of the tokens that pass alone, the others passing under full attention."""
        self.loop.run(self.tokens[: self.asked], self.loop.full)
        return torch.cat([self.loop.run(token[None], look) for token in self.tokens[self.asked :]])

    def rotated(self, layer: int, head: int, query: Tensor, at: int) -> tuple[Tensor, Tensor]:
        """The query of a head and all keys [n, D] of its key-value head, at their true positions."""
        keys = torch.stack(self.loop.keys[layer])[:, self.loop.group(head)]
        return turned(query, [at])[0], turned(keys, range(len(keys)))


@pytest.mark.parametrize("number", range(8))
def test_retrieval_attention_equals_a_loop(number: int) -> None:
    case = Choosing(number)
    initial, recent, budget = case.rng.randint(0, 6), case.rng.randint(1, 9), case.rng.randint(1, 20)
    method = build("retrieval_attention", {"budget": budget, "initial": initial, "recent": recent})
    counts: list[list[int]] = []

    def look(layer: int, first: int, queries: Tensor) -> Tensor:
        def tokens(at: int, head: int) -> list[int]:
            query, keys = case.rotated(layer, head, queries[0, head], at)
            between = sorted(range(initial, at + 1 - recent), key=lambda t: -float(query @ keys[t]))
            chosen = {*range(initial), *between[:budget], *range(at + 1 - recent, at + 1)}
            counts.append([at, len(chosen)])
            return sorted(chosen)

        return case.loop.over(layer, first, queries, tokens)

    attended = case.attended(method, look)
    assert attended == [budget + initial + recent] * (ANSWER + 1)
    assert {count for _, count in counts} == {budget + initial + recent}


@pytest.mark.parametrize("number", range(8))
def test_omnikv_equals_a_loop(number: int) -> None:
    case = Choosing(number)
    filters, wait = [((0,), 0), ((1,), 0), ((0, 2), 0), ((0,), 1)][number % 4]
    settings = {"filters": filters, "wait": wait, "depth": 3, **({"budget": 9} if number < 4 else {"share": 0.21})}
    method = build("omnikv", settings)
    k = 9 if number < 4 else int(0.21 * case.asked)
    dense = {(0,): {0, 1} if wait else {0}, (1,): {0, 1}, (0, 2): {0, 2}}[filters]
    chosen: list[int] = []

    def look(layer: int, first: int, queries: Tensor) -> Tensor:
        if layer in filters:
            score = [-1e9] * case.asked
            for head in range(case.loop.heads):
                query, keys = case.rotated(layer, head, queries[0, head], first)
                score = [max(old, float(query @ key)) for old, key in zip(score, keys[: case.asked], strict=True)]
            chosen[:] = sorted(range(case.asked), key=lambda t: -score[t])[:k]
        sparse = sorted([*chosen, *range(case.asked, first + 1)])
        return case.loop.over(layer, first, queries, lambda at, head: range(at + 1) if layer in dense else sparse)

    attended = case.attended(method, look)
    expected_counts = [len(dense) * (case.asked + 1 + i) + (3 - len(dense)) * (k + 1 + i) for i in range(ANSWER + 1)]
    assert attended == pytest.approx([count / 3 for count in expected_counts])


def test_omnikv_scales_its_layers_and_refuses_a_reader_without_sparse_ones() -> None:
    method = build("omnikv", {})
    dense = set(range(32)) - method.sparse(32)
    assert dense == {0, 1, 2, 3, 8, 9, 18, 19}
    assert method.filtering(6) == {1, 2, 4}
    assert method.sparse(6) == {3, 5}
    with pytest.raises(UserError, match="a reader with 3 layers has no sparse layer left"):
        method.check(make_reader())
    build("omnikv", {"filters": [0], "wait": 1, "depth": 3}).check(make_reader())


@pytest.mark.parametrize("number", range(9))
def test_infllm_v2_equals_a_loop(number: int) -> None:
    """A step's budget may be below the first blocks', which are then left out, and not the latest."""
    case = Choosing(number)
    stride = case.rng.choice([1, 2])
    kernel, block = stride * case.rng.choice([1, 2, 3]), stride * case.rng.choice([2, 4])
    local, top, initial = case.rng.randint(1, 3), case.rng.randint(0, 4), number % 3
    dense = case.rng.choice([0, case.asked + 4])
    sizes = {"block": block, "kernel": kernel, "stride": stride, "initial": initial, "dense_below": dense}
    method = build("infllm_v2", {"budget": max(top, initial, 1) * block, "window": local * block, **sizes})

    def choose(layer: int, at: int, queries: Tensor, group: int) -> list[int]:
        blocks = at // block + 1
        given = [0.0] * ((at + 1 - kernel) // stride + 1)
        for head in (head for head in range(case.loop.heads) if case.loop.group(head) == group):
            query, keys = case.rotated(layer, head, queries[head], at)
            means = [keys[j * stride : j * stride + kernel].mean(0) for j in range(len(given))]
            shares = (torch.stack([query @ mean for mean in means]) / case.loop.size**0.5).softmax(0)
            given = [old + float(share) for old, share in zip(given, shares, strict=True)]

        def score(b: int) -> float:
            touching = [
                g for j, g in enumerate(given) if j * stride < (b + 1) * block and j * stride + kernel > b * block
            ]
            return max(touching, default=-1.0)

        early, latest = range(max(0, blocks - local)), range(max(0, blocks - local), blocks)
        others = sorted(early[initial:], key=lambda b: (-score(b), b))
        return sorted([*latest, *early[:initial], *others][: top + local])

    def look(layer: int, first: int, queries: Tensor) -> Tensor:
        if first + 1 < dense:
            return case.loop.full(layer, first, queries)
        chosen = [choose(layer, first, queries[0], group) for group in range(case.loop.groups)]

        def tokens(at: int, head: int) -> list[int]:
            blocks = chosen[case.loop.group(head)]
            return [t for b in blocks for t in range(b * block, (b + 1) * block) if t <= at]

        return case.loop.over(layer, first, queries, tokens)

    attended = case.attended(method, look, max(1, top * block))
    seen = range(case.asked + 1, len(case.tokens) + 1)
    assert attended == [n if n < dense else min(n, (top + local) * block - -n % block) for n in seen]
