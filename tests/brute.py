"""InfLLM's block memory stated once more, token by token and head by head in float64, for the tests."""

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor
from transformers import PreTrainedModel

from utaca.settings.schema import MemorySettings


@dataclass
class Layer:
    """What a layer has seen: raw keys and values by token, attention mass by token and group, block representatives."""

    keys: list[Tensor]
    values: list[Tensor]
    mass: list[Tensor]
    blocks: dict[int, Tensor]


def rotate(x: Tensor, position: int, theta: float = 10_000.0) -> Tensor:
    """Rotary embedding of x [..., D]: pairs (i, i + D / 2) turned by position * theta ** (-2 i / D).

    The frequencies are rounded to float32, as transformers has them.
    """
    half = x.shape[-1] // 2
    a, b, (cos, sin) = x[..., :half], x[..., half:], turn(half, position, theta)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


@cache
def turn(half: int, position: int, theta: float) -> tuple[Tensor, Tensor]:
    angle = position * (1 / theta ** (torch.arange(half, dtype=torch.float32) / half)).double()
    return angle.cos(), angle.sin()


def infllm(
    model: PreTrainedModel, m: MemorySettings, document: Tensor, continuation: list[tuple[int, int]]
) -> list[tuple[Tensor, list[list[int]]]]:
    """Last hidden state and selected blocks a layer of each (token, budget) that is decoded behind a document.

    The tokens behind the document go on making blocks. A block is represented when it leaves the window.
    """
    config, core = model.config, model.model
    heads, groups = config.num_attention_heads, config.num_key_value_heads
    size = config.hidden_size // heads
    layers = [Layer([], [], [], {}) for _ in core.layers]

    def tokens_of(block: int) -> range:
        return range(m.n_init + block * m.block_size, m.n_init + (block + 1) * m.block_size)

    def far_blocks(position: int) -> int:
        return sum(tokens_of(b)[-1] <= position - m.n_local for b in range(position // m.block_size + 1))

    def represent(layer: Layer, block: int) -> None:
        chosen = []
        for group in range(groups):
            best = list(tokens_of(block))
            best = sorted(best, key=lambda t: -float(layer.mass[t][group]))[: m.n_representatives]
            chosen.append(sum(layer.keys[t][group] for t in best) / len(best))
        layer.blocks[block] = torch.stack(chosen)

    def run(first: int, tokens: Tensor, budget: int, *, packed: bool = False) -> tuple[Tensor, list[list[int]]]:
        far = far_blocks(first)
        for layer in layers:
            for block in range(far):
                if block not in layer.blocks:
                    represent(layer, block)
        window = tokens_of(far - 1)[-1] + 1 if far else 0
        hidden, selected = core.embed_tokens(tokens).double(), []
        for number, layer in enumerate(layers):
            module = core.layers[number]
            normal = module.input_layernorm(hidden)
            queries = module.self_attn.q_proj(normal).view(-1, heads, size)
            layer.keys += module.self_attn.k_proj(normal).view(-1, groups, size)
            layer.values += module.self_attn.v_proj(normal).view(-1, groups, size)
            layer.mass += [torch.zeros(groups, dtype=torch.float64) for _ in tokens]
            edge = [rotate(query, m.n_local - 1) for query in queries]
            asked, score = sum(edge) / len(queries), dict.fromkeys(range(far), 0.0)
            for h in range(heads):
                g = h * groups // heads
                if m.representatives != "tokens":
                    for block in score:
                        score[block] += float(asked[h] @ layer.blocks[block][g])
                    continue
                for query in edge if far else ():
                    logits = torch.stack([query[h] @ layer.keys[t][g] for block in score for t in tokens_of(block)])
                    for block, share in enumerate((logits / size**0.5).softmax(0).split(m.block_size)):
                        score[block] += float(share.sum())
            chosen = sorted(sorted(score, key=lambda b: (-score[b], b))[:budget])
            selected.append(chosen)
            distant = [t for t in range(m.n_init) if far] + [t for b in chosen for t in tokens_of(b)]
            outputs = []
            for i, query in enumerate(queries):
                at, row = first + i, []
                near = range(window, at + 1)
                for h in range(heads):
                    g = h * groups // heads
                    far_query, near_query = rotate(query[h], m.n_local - 1), rotate(query[h], at - window)
                    if packed:
                        before = enumerate(distant, -len(distant))
                        logits = [near_query @ rotate(layer.keys[t][g], place) for place, t in before]
                    else:
                        logits = [far_query @ layer.keys[t][g] for t in distant]
                    logits += [near_query @ rotate(layer.keys[t][g], t - window) for t in near]
                    given = (torch.stack(logits) / size**0.5).softmax(0)
                    row.append(sum(p * layer.values[t][g] for p, t in zip(given, [*distant, *near], strict=True)))
                    for p, t in zip(given[len(distant) :], near, strict=True):
                        layer.mass[t][g] += p
                outputs.append(torch.cat(row))
            hidden = hidden + module.self_attn.o_proj(torch.stack(outputs))
            hidden = hidden + module.mlp(module.post_attention_layernorm(hidden))
        return core.norm(hidden), selected

    for first in range(0, len(document), m.prefill_chunk):
        run(first, document[first : first + m.prefill_chunk], m.prefill_budget)
    found = []
    for i, (token, budget) in enumerate(continuation):
        packed = m.far_positions == "packed"
        hidden, selected = run(len(document) + i, torch.tensor([token]), budget, packed=packed)
        found.append((hidden[-1], selected))
    return found
