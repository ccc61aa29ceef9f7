"""The methods that read a document chunk by chunk: window only, H2O, TokenSelect, FreqKV, against loops."""

import numpy as np
import pytest
import torch
from brute_methods import Case, turned
from torch import Tensor

from utaca.methods import build

ANSWER = 6


class Passing(Case):
    """A prompt that passes whole, and chunks of the document."""

    def __init__(self, number: int, quiet: float = 1.0) -> None:
        super().__init__(number, quiet)
        self.chunk = self.rng.randint(1, 25)
        shape = (self.rng.randint(1, 70), self.rng.randint(1, 20), ANSWER)
        # No token twice: unrotated keys of equal tokens are equal in the first layer, and tie.
        tokens = torch.randperm(96, generator=torch.Generator().manual_seed(number)) + 1
        self.document, self.prompt, self.answer = tokens[: sum(shape)].split(shape)

    def expected(self, look: object, longest: int = 1000) -> Tensor:
        """Logits of the prompt's last token and of the answer's; no pass of more than ``longest`` tokens."""
        for chunk in self.document.split(self.chunk):
            self.loop.run(chunk, look)
        for part in self.prompt.split(longest):
            last = self.loop.run(part, look)[-1:]
        return torch.cat((last, *(self.loop.run(token[None], look) for token in self.answer)))

    def row(self, layer: int, head: int, query: Tensor, tokens: list[int], seen: int) -> Tensor:
        """Attention of the token that is at place ``seen`` - 1 of a row of tokens to those up to it."""
        return self.loop.row(layer, head, query, seen - 1, [(t, at) for at, t in enumerate(tokens[:seen])])


@pytest.mark.parametrize("number", range(6))
def test_window_only_equals_a_loop_over_places_in_the_cache(number: int) -> None:
    case = Passing(number)
    n_init = case.rng.choice([0, 1, 4])
    budget = n_init + case.rng.randint(1, 30)
    method = build("window", {"budget": budget, "n_init": n_init, "chunk": case.chunk})

    def look(layer: int, first: int, queries: Tensor) -> Tensor:
        rows = []
        for at, query in enumerate(queries, first):
            cache = list(range(at + 1))
            if len(cache) > budget:
                cache = cache[:n_init] + cache[n_init - budget :]
            rows += [case.row(layer, head, query[head], cache, len(cache)) for head in range(case.loop.heads)]
        return torch.stack(rows).view(queries.shape)

    attended = case.attended(method, look)
    assert attended == [min(len(case.document) + len(case.prompt) + i, budget) for i in range(ANSWER + 1)]


@pytest.mark.parametrize("number", range(12))
def test_h2o_equals_a_loop_that_evicts(number: int) -> None:
    case = Passing(number)
    budget, part = case.rng.randint(2, 30), case.rng.choice([0.0, 0.3, 0.5, 0.9])
    method = build("h2o", {"budget": budget, "heavy": part, "chunk": case.chunk})
    recent = budget - int(budget * part)
    mass: dict[tuple[int, int], dict[int, float]] = {}
    sizes: list[int] = []

    def look(layer: int, first: int, queries: Tensor) -> Tensor:
        rows = [[None] * case.loop.heads for _ in queries]
        for group in range(case.loop.groups):
            given = mass.setdefault((layer, group), {})
            before = len(given)
            given.update({first + i: 0.0 for i in range(len(queries))})
            tokens = list(given)
            for i in range(len(queries)):
                keys = [(token, place) for place, token in enumerate(tokens[: before + i + 1])]
                for head in (head for head in range(case.loop.heads) if case.loop.group(head) == group):
                    share = case.loop.given(layer, head, queries[i, head], before + i, keys)
                    rows[i][head] = case.loop.row(layer, head, queries[i, head], before + i, keys)
                    for (token, _), more in zip(keys, share, strict=True):
                        given[token] += float(more)
            if len(tokens) > budget:
                heavy = sorted(tokens[:-recent], key=lambda t, given=given: (-given[t], t))[: budget - recent]
                mass[layer, group] = {t: given[t] for t in [*sorted(heavy), *tokens[-recent:]]}
        sizes.append(len(tokens))
        return torch.stack([torch.stack(row) for row in rows])

    attended = case.attended(method, look)
    assert attended == sizes[::3][-ANSWER - 1 :]
    assert all(size <= budget + 1 for size in attended[1:])


@pytest.mark.parametrize("number", range(12))
def test_tokenselect_equals_a_loop_that_votes(number: int) -> None:
    # Unscaled products of random weights are so large that most votes would be nothing in float32.
    case = Passing(number, quiet=0.1)
    n_init, n_local = case.rng.randint(0, 5), case.chunk + case.rng.randint(0, 6)
    budget = case.rng.randint(1, 20)
    settings = {"budget": budget, "n_init": n_init, "n_local": n_local, "chunk": case.chunk}
    method = build("tokenselect", settings)

    def look(layer: int, first: int, queries: Tensor) -> Tensor:
        n, loop = first + len(queries), case.loop
        tokens = list(range(n))
        if n > n_init + budget + n_local:
            votes = {t: 0.0 for t in tokens[n_init : n - n_local]}
            for head in range(loop.heads):
                asking = sum(turned(queries[i, head], [n_local + i])[0] for i in range(len(queries))) / len(queries)
                keys = torch.stack([loop.keys[layer][t][loop.group(head)] for t in votes])
                for t, share in zip(votes, (keys @ asking).softmax(0), strict=True):
                    votes[t] += float(share)
            best = sorted(votes, key=lambda t: -votes[t])[:budget]
            tokens = [*tokens[:n_init], *sorted(best), *tokens[n - n_local :]]
        seen = range(len(tokens) - len(queries) + 1, len(tokens) + 1)
        rows = [
            [case.row(layer, head, query[head], tokens, place) for head in range(loop.heads)]
            for query, place in zip(queries, seen, strict=True)
        ]
        return torch.stack([torch.stack(row) for row in rows])

    attended = case.attended(method, look, longest=case.chunk)
    n = len(case.document) + len(case.prompt)
    assert attended == [min(n + i, n_init + budget + n_local) for i in range(ANSWER + 1)]


@pytest.mark.parametrize("number", range(12))
def test_freqkv_equals_a_loop_token_by_token(number: int) -> None:
    case = Passing(number)
    sink, ratio = case.rng.randint(0, 4), case.rng.choice([0.25, 0.5, 0.6])
    budget = sink + case.rng.randint(3, 12)
    method = build("freqkv", {"budget": budget, "sink": sink, "ratio": ratio, "chunk": case.chunk})
    size = sink + round((budget - sink) / ratio)
    caches: dict[int, list[Tensor]] = {}

    def squeeze(signal: np.ndarray) -> np.ndarray:
        """The cosine transform by the Fourier transform of the mirrored signal; the inverse summed out."""
        n, m = len(signal), budget - sink
        spectrum = np.fft.fft(np.concatenate((signal, signal[::-1])))[:m]
        k = np.arange(m)
        low = (spectrum * np.exp(-1j * np.pi * k / (2 * n))).real * np.where(k == 0, 1 / (4 * n), 1 / (2 * n)) ** 0.5
        weights = np.where(k == 0, 1 / m, 2 / m) ** 0.5
        back = [(low * weights * np.cos(np.pi * k * (2 * t + 1) / (2 * m))).sum() for t in range(m)]
        return np.array(back) * (m / n) ** 0.5

    def look(layer: int, first: int, queries: Tensor) -> Tensor:
        loop, outputs = case.loop, []
        for i, query in enumerate(queries):
            cache = caches.setdefault(layer, [])
            if len(cache) == size:
                rest = torch.stack(cache[sink:]).numpy()
                low = torch.from_numpy(np.apply_along_axis(squeeze, 0, rest))
                cache[sink:] = list(low)
            cache.append(torch.stack((loop.keys[layer][first + i], loop.values[layer][first + i])))
            pairs, n = torch.stack(cache), len(cache)
            for head in range(loop.heads):
                keys, values = pairs[:, 0, loop.group(head)], pairs[:, 1, loop.group(head)]
                logits = turned(keys, range(n)) @ turned(query[head], [n - 1])[0] / loop.size**0.5
                outputs.append(logits.softmax(0) @ values)
        return torch.stack(outputs).view(queries.shape)

    attended = case.attended(method, look)
    state = method.state(method.read(case.reader, case.document, 99), 0, 99)
    n, sawtooth = len(case.document), []
    for part in (case.prompt, *case.answer[:, None]):
        state.advance(part)
        n += len(part)
        sawtooth.append(n if n <= size else budget + (n - size - 1) % (size - budget) + 1)
        assert method.nominal(state) == sawtooth[-1]
    assert attended == sawtooth
