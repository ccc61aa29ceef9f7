"""A reader's layers in float64 under any attention, query by query and head by head: InfLLM's and other methods'."""

import random
from collections.abc import Callable, Sequence
from copy import deepcopy
from math import exp

import torch
from small import make_reader
from torch import Tensor
from transformers import PreTrainedModel

from utaca.methods import Method
from utaca.methods.snapkv import SnapKV
from utaca.readers.load import Reader
from utaca.settings.schema import MemorySettings

Look = Callable[[int, int, Tensor], Tensor]
"""Of a layer, the position of its first query and the queries [T, H, D], unrotated: the outputs [T, H, D]."""


def turned(x: Tensor, places: Sequence[int], kind: torch.dtype = torch.float32) -> Tensor:
    """Rotary embedding of x [..., n, D] or [D]: pairs (i, i + D / 2) turned by place * 10,000 ** (-2 i / D).

    The frequencies are rounded to float32 and the angle, its sine and its cosine to ``kind``; transformers computes all
    in float32.
    """
    half = x.shape[-1] // 2
    frequencies = 1 / 10_000.0 ** (torch.arange(half, dtype=torch.float32) / half)
    angle = torch.tensor(places, dtype=kind)[:, None] * frequencies
    a, b, cos, sin = x[..., :half], x[..., half:], angle.cos().double(), angle.sin().double()
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


class Loop:
    """``keys`` and ``values``: unrotated, [G, D] a token, a list a layer, of all tokens that have passed.

    ``kind`` is that of angles, see :func:`turned`.
    """

    def __init__(self, model: PreTrainedModel, kind: torch.dtype = torch.float32) -> None:
        self._model, self.kind = deepcopy(model).double(), kind
        config = model.config
        self.heads, self.groups = config.num_attention_heads, config.num_key_value_heads
        self.size = config.hidden_size // self.heads
        self.keys: list[list[Tensor]] = [[] for _ in self._model.model.layers]
        self.values: list[list[Tensor]] = [[] for _ in self._model.model.layers]

    def group(self, head: int) -> int:
        """The key-value head of a query head."""
        return head // (self.heads // self.groups)

    def run(self, tokens: Tensor, look: Look, going_on: Callable[[int], Sequence[int] | slice] | None = None) -> Tensor:
        """Logits [T, V] of the tokens, see :meth:`hidden`."""
        return self._model.lm_head(self.hidden(tokens, look, going_on))

    def hidden(
        self, tokens: Tensor, look: Look, going_on: Callable[[int], Sequence[int] | slice] | None = None
    ) -> Tensor:
        """Last hidden states of the tokens, which pass together: a layer knows the keys of all when it looks.

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
        return core.norm(hidden)

    def given(self, layer: int, head: int, query: Tensor, place: int, keys: Sequence[tuple[int, int]]) -> Tensor:
        """Probabilities of ``keys``, each a token and the place that it is rotated to, for a query at its place."""
        raw = torch.stack([self.keys[layer][token][self.group(head)] for token, _ in keys])
        query = turned(query, [place], self.kind)[0]
        return (turned(raw, [at for _, at in keys], self.kind) @ query / self.size**0.5).softmax(0)

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
    method: Method, reader: Reader, document: Tensor, prompt: Tensor, answer: Tensor, budget: int = 0
) -> tuple[Tensor, list[float]]:
    """Logits [1 + len(answer), V] of the prompt's last token and of those of a given answer, and the keys that each
    attended to. A ``budget`` replaces the method's."""
    reading = method.read(reader, document, len(prompt) + len(answer))
    budget = budget or method.budget
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
    """A reader of random shape with its loop; a subclass adds a document, a prompt, an answer and their logits.

    ``quiet`` scales its queries.
    """

    def __init__(self, number: int, quiet: float = 1.0) -> None:
        self.rng = random.Random(number)
        self.reader = make_reader(["llama", "llama-wide", "qwen2-wide"][number % 3], seed=number)
        for layer in self.reader.model.model.layers:
            layer.self_attn.q_proj.weight.data *= quiet
        self.loop = Loop(self.reader.model)

    def attended(self, method: Method, look: Look, budget: int = 0, **how: int) -> list[float]:
        """The keys that each step attends to, whose logits are those :meth:`expected` of an attention."""
        expected = self.expected(look, **how)
        found, attended = steps(method, self.reader, self.document, self.prompt, self.answer, budget)
        assert (found - expected).abs().max() < 1e-4
        return attended


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


def infllm(
    model: PreTrainedModel,
    m: MemorySettings,
    document: Tensor,
    continuation: list[tuple[int, int]],
    top_p: float = 1.0,
) -> list[tuple[Tensor, list[list[int]]]]:
    """Last hidden state and selected blocks a layer of each (token, budget) that is decoded behind a document.

    The tokens behind the document go on making blocks. A block is represented when it leaves the window. With a
    ``top_p`` below 1, a token behind the document takes only the first of its best blocks that reach it together.
    """
    loop = Loop(model, torch.float64)
    mass: list[list[Tensor]] = [[] for _ in loop.keys]  # attention to a token, [G]
    represented: list[dict[int, Tensor]] = [{} for _ in loop.keys]

    def tokens_of(block: int) -> range:
        return range(m.n_init + block * m.block_size, m.n_init + (block + 1) * m.block_size)

    def far_blocks(position: int) -> int:
        return sum(tokens_of(b)[-1] <= position - m.n_local for b in range(position // m.block_size + 1))

    def represent(layer: int, block: int) -> None:
        chosen = []
        for group in range(loop.groups):
            best = sorted(tokens_of(block), key=lambda t: -float(mass[layer][t][group]))[: m.n_representatives]
            chosen.append(sum(loop.keys[layer][t][group] for t in best) / len(best))
        represented[layer][block] = torch.stack(chosen)

    def select(layer: int, queries: Tensor, far: int, budget: int, p: float) -> list[int]:
        edge, score = turned(queries, [m.n_local - 1], loop.kind), dict.fromkeys(range(far), 0.0)
        for h in range(loop.heads if far else 0):
            g = loop.group(h)
            if m.representatives != "tokens":
                for block in score:
                    score[block] += float(edge.mean(0)[h] @ represented[layer][block][g])
                continue
            keys = torch.stack([loop.keys[layer][t][g] for block in score for t in tokens_of(block)])
            for query in edge[:, h]:
                for block, share in enumerate((keys @ query / loop.size**0.5).softmax(0).split(m.block_size)):
                    score[block] += float(share.sum())
        in_order = sorted(score, key=lambda b: (-score[b], b))
        if p < 1 and far:
            # Summed shares are probabilities already, but for their sum.
            weight = {
                b: s if m.representatives == "tokens" else exp(s / loop.heads / loop.size**0.5)
                for b, s in score.items()
            }
            reached, count = 0.0, 0
            while reached < p and count < far:
                reached += weight[in_order[count]] / sum(weight.values())
                count += 1
            budget = min(budget, count)
        return sorted(in_order[:budget])

    def run(tokens: Tensor, budget: int, *, packed: bool = False, p: float = 1.0) -> tuple[Tensor, list[list[int]]]:
        far, selected = far_blocks(len(mass[0])), []
        window = tokens_of(far - 1)[-1] + 1 if far else 0
        for layer, blocks in enumerate(represented):
            for block in range(len(blocks), far):
                represent(layer, block)

        def look(layer: int, first: int, queries: Tensor) -> Tensor:
            mass[layer] += [torch.zeros(loop.groups, dtype=torch.float64) for _ in queries]
            chosen = select(layer, queries, far, budget, p)
            selected.append(chosen)
            distant = [t for t in range(m.n_init) if far] + [t for b in chosen for t in tokens_of(b)]
            outputs = []
            for place, query in enumerate(queries, first - window):
                near = [(window + at, at) for at in range(place + 1)]
                edge = range(-len(distant), 0) if packed else [place + 1 - m.n_local] * len(distant)
                keys = [*zip(distant, edge, strict=True), *near]
                for h in range(loop.heads):
                    g, given = loop.group(h), loop.given(layer, h, query[h], place, keys)
                    outputs.append(given @ torch.stack([loop.values[layer][t][g] for t, _ in keys]))
                    for share, (t, _) in zip(given[len(distant) :], near, strict=True):
                        mass[layer][t][g] += share
            return torch.stack(outputs).view(queries.shape)

        return loop.hidden(tokens, look)[-1], selected

    for chunk in document.split(m.prefill_chunk):
        run(chunk, m.prefill_budget)
    packed = m.far_positions == "packed"
    return [run(torch.tensor([token]), budget, packed=packed, p=top_p) for token, budget in continuation]
