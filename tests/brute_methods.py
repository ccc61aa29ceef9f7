"""A reader's layers in float64 under any attention, query by query and head by head, for the tests of the methods."""

import random
from collections.abc import Callable, Sequence
from copy import deepcopy

import torch
from small import make_reader
from torch import Tensor

from utaca.methods import Method
from utaca.methods.snapkv import SnapKV
from utaca.readers.load import Reader

Look = Callable[[int, int, Tensor], Tensor]
"""Of a layer, the position of its first query and the queries [T, H, D], unrotated: the outputs [T, H, D]."""


def turned(x: Tensor, places: Sequence[int], theta: float = 10_000.0) -> Tensor:
    """Rotary embedding of x [..., n, D] or [D]: pairs (i, i + D / 2) turned by place * theta ** (-2 i / D).

    The angle, its sine and its cosine are rounded to float32, in which transformers computes them.
    """
    half = x.shape[-1] // 2
    angle = torch.tensor(places)[:, None] * (1 / theta ** (torch.arange(half, dtype=torch.float32) / half))
    a, b, cos, sin = x[..., :half], x[..., half:], angle.cos().double(), angle.sin().double()
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


class Loop:
    """``keys`` and ``values``: unrotated, [G, D] a token, a list a layer, of all tokens that have passed."""

    def __init__(self, reader: Reader) -> None:
        self._model = deepcopy(reader.model).double()
        config = reader.model.config
        self.heads, self.groups = config.num_attention_heads, config.num_key_value_heads
        self.size = config.hidden_size // self.heads
        self.keys: list[list[Tensor]] = [[] for _ in self._model.model.layers]
        self.values: list[list[Tensor]] = [[] for _ in self._model.model.layers]

    def group(self, head: int) -> int:
        """The key-value head of a query head."""
        return head // (self.heads // self.groups)

    def run(self, tokens: Tensor, look: Look, going_on: Callable[[int], Sequence[int] | slice] | None = None) -> Tensor:
        """Logits [T, V] of the tokens, which pass together: a layer knows the keys of all when it looks.

        ``going_on`` says which of the hidden states leave a layer for the next.
        """
        core, first = self._model.model, len(self.keys[0])
        hidden = core.embed_tokens(tokens)
        for number, module in enumerate(core.layers):
            normal, own = module.input_layernorm(hidden), module.self_attn
            self.keys[number] += own.k_proj(normal).view(-1, self.groups, self.size)
            self.values[number] += own.v_proj(normal).view(-1, self.groups, self.size)
            out = look(number, first, own.q_proj(normal).view(-1, self.heads, self.size))
            hidden = hidden + own.o_proj(out.flatten(1))
            hidden = hidden + module.mlp(module.post_attention_layernorm(hidden))
            hidden = hidden[going_on(number)] if going_on else hidden
        return self._model.lm_head(core.norm(hidden))

    def given(self, layer: int, head: int, query: Tensor, place: int, keys: Sequence[tuple[int, int]]) -> Tensor:
        """Probabilities of ``keys``, each a token and the place that it is rotated to, for a query at its place."""
        raw = torch.stack([self.keys[layer][token][self.group(head)] for token, _ in keys])
        return (turned(raw, [at for _, at in keys]) @ turned(query, [place])[0] / self.size**0.5).softmax(0)

    def row(self, layer: int, head: int, query: Tensor, place: int, keys: Sequence[tuple[int, int]]) -> Tensor:
        """Attention output [D] of one query of one head."""
        values = torch.stack([self.values[layer][token][self.group(head)] for token, _ in keys])
        return self.given(layer, head, query, place, keys) @ values

    def full(self, layer: int, first: int, queries: Tensor) -> Tensor:
        """Full causal attention, a :data:`Look`."""
        return self.over(layer, first, queries, lambda at, head: range(at + 1))

    def over(self, layer: int, first: int, queries: Tensor, chosen: Callable[[int, int], Sequence[int]]) -> Tensor:
        """Attention at true positions to the tokens chosen by a query's position and head."""
        raw, values = torch.stack(self.keys[layer], 1), torch.stack(self.values[layer], 1)
        rotated = turned(raw, range(raw.shape[1]))
        outputs = []
        for i, query in enumerate(queries):
            for head in range(self.heads):
                tokens, g = list(chosen(first + i, head)), self.group(head)
                logits = rotated[g, tokens] @ turned(query[head], [first + i])[0] / self.size**0.5
                outputs.append(logits.softmax(0) @ values[g, tokens])
        return torch.stack(outputs).view(queries.shape)


def steps(
    method: Method, reader: Reader, document: Tensor, prompt: Tensor, answer: Tensor
) -> tuple[Tensor, list[float]]:
    """Logits [1 + len(answer), V] of the prompt's last token and of those of a given answer, and the keys that each
    attended to."""
    reading = method.read(reader, document, len(prompt) + len(answer))
    budget = method.budget
    state, pieces, passing = method.bind(reading).begin(prompt, len(answer), budget, {})
    for piece, own in pieces:
        step = state.plan(piece, own)
        state.run([step])
        state.commit(step)
    rows, attended = [], []
    for tokens in (passing, *answer[:, None]):
        step = state.plan(tokens, budget)
        state.run([step])
        # What another try of the same tokens does is undone by not committing it.
        state.run([state.plan(tokens.flip(0) % 90 + 3, budget)])
        rows.append(reader.logits(step.hidden[-1]))
        attended.append(step.attended)
        state.commit(step)
    return torch.stack(rows), attended


class Case:
    """A reader of random shape with its loop; a subclass adds a document, a prompt and an answer.

    ``quiet`` scales its queries.
    """

    def __init__(self, number: int, quiet: float = 1.0) -> None:
        self.rng = random.Random(number)
        self.reader = make_reader(["llama", "llama-wide", "qwen2-wide"][number % 3], seed=number)
        for layer in self.reader.model.model.layers:
            layer.self_attn.q_proj.weight.data *= quiet
        self.loop = Loop(self.reader)

    def found(self, method: Method) -> tuple[Tensor, list[float]]:
        return steps(method, self.reader, self.document, self.prompt, self.answer)


def votes(loop: Loop, method: SnapKV, layer: int, queries: Tensor, places: Sequence[int]) -> list[list[float]]:
    """What each key before the window is worth, a list for each head that keeps its own; keys and queries at places."""
    n, window = len(places), min(method.window, len(places))
    mass = [[0.0] * (n - window) for _ in range(loop.heads)]
    for at in range(n - window, n):
        for head in range(loop.heads):
            given = loop.given(layer, head, queries[at, head], places[at], [(t, places[t]) for t in range(at + 1)])
            mass[head] = [old + float(more) for old, more in zip(mass[head], given, strict=False)]
    if method.heads == "kv":
        heads = [[head for head in range(loop.heads) if loop.group(head) == group] for group in range(loop.groups)]
        mass = [[sum(mass[head][t] for head in own) / len(own) for t in range(n - window)] for own in heads]
    half, pooled = method.kernel // 2, []
    for row in mass:
        around = [row[max(0, c - half) : c + half + 1] for c in range(len(row))]
        # avg_pool1d counts what lies beyond the ends as zeros.
        pooled.append([max(a) if method.pooling == "max" else sum(a) / method.kernel for a in around])
    return pooled
