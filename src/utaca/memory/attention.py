"""Attention over segments of keys under one softmax, and the choice of the best blocks.

Each segment has its queries, because InfLLM rotates a query differently for far keys than for near keys. Each segment
goes through the device's fused attention, which also returns the log-sum-exp of the logits; from the log-sum-exps the
outputs of all segments are merged exactly. If a segment has a mask, all go through materialised logits instead.
"""

import math
from collections.abc import Sequence
from functools import reduce
from typing import NamedTuple

import torch
from torch import Tensor

from utaca.settings.schema import MemorySettings

_FLASH = torch.ops.aten._scaled_dot_product_flash_attention
_FLASH_CPU = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_EFFICIENT = torch.ops.aten._scaled_dot_product_efficient_attention
_FEW = 64
"""Parts of at most this many queries (B times T) are merged by few, larger operations; for so few queries the number
of operations decides the cost."""
_TOGETHER = 1 << 26
"""Most logits to materialise at once if every token represents its block."""
_PAD = 8
"""Fused kernels on a GPU need the width of a head to be a multiple of this."""


class Segment(NamedTuple):
    """Queries [B, H, T, D], rotated for the keys [B, G, n, D] of the segment, with these keys and their values.

    ``seen`` is a bool tensor that broadcasts to [B, H, T, n]: which keys each query sees. ``causal``: the last T keys
    belong to the same tokens as the queries, and each token sees itself and all tokens before it. G divides H.
    """

    query: Tensor
    keys: Tensor
    values: Tensor
    seen: Tensor | None = None
    causal: bool = False


def attention(segments: Sequence[Segment], scaling: float) -> tuple[Tensor, Tensor]:
    """Attention output [B, H, T, D], and the log-sum-exp [B, H, T] of the scaled logits in float32 at least.

    One softmax spans the keys of all ``segments``; those without keys count for nothing.
    """
    segments = [segment for segment in segments if segment.keys.shape[2]]
    # Of masks, the fused kernels are given only the causal one.
    if any(segment.seen is not None for segment in segments):
        logits = _logits(segments, scaling)
        return mixed(logits.softmax(-1), segments), logits.logsumexp(-1)
    return merged([fused(segment, scaling) for segment in segments])


def merged(parts: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Attention over the keys of all ``parts``; each part is an output [B, ..., T, D] and a log-sum-exp [B, ..., T]."""
    out, lses = mixture(parts)
    return out, lses[0] if len(lses) == 1 else lses.logsumexp(0)


def mixture(parts: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """As :func:`merged`, but instead of one log-sum-exp return several, [n, B, ..., T], whose log-sum-exp it is.

    The caller can then sum those of all layers in one operation.
    """
    if len(parts) == 1:
        out, lse = parts[0]
        return out, lse[None]
    first = parts[0][0]
    dtype = first.dtype
    if len(first) * first.shape[-2] <= _FEW:
        outs, lses = (torch.stack(column) for column in zip(*parts, strict=True))
        # exp(lse) is the sum that the part's own softmax was divided by, hence the part's weight.
        return (outs * lses.softmax(0)[..., None]).sum(0).to(dtype), lses
    # The same weights, part by part, without a copy of all outputs.
    total = reduce(torch.logaddexp, (lse for _, lse in parts))
    return sum(out * (lse - total).exp()[..., None] for out, lse in parts).to(dtype), total[None]


def fused(segment: Segment, scaling: float) -> tuple[Tensor, Tensor]:
    """:func:`attention` over one segment without a mask.

    Without keys, the output is zeros and the log-sum-exp is -inf, so that :func:`merged` gives the part weight 0.
    """
    query, keys, values = segment[:3]
    out, lse = grouped(query, keys, values, scaling, causal=segment.causal)
    return out.flatten(1, 2), lse.flatten(1, 2)


def grouped(
    query: Tensor, keys: Tensor, values: Tensor, scaling: float, *, causal: bool = False
) -> tuple[Tensor, Tensor]:
    """As :func:`fused`, with the H query heads apart by key-value head: [B, G, H / G, T, D] and [B, G, H / G, T].

    The kernels return their output in another order in memory; to join its heads costs a copy.
    """
    b, h, t, d = query.shape
    groups = keys.shape[1]
    shared = h // groups
    if not keys.shape[2]:
        # The CPU's kernel would divide by the number of keys, which ends the process.
        out = query.new_zeros(b, groups, shared, t, d)
        return out, torch.full_like(out[..., 0], -math.inf, dtype=torch.float32)
    if causal and t > 1:
        # The kernel's causal mask takes the queries of a head for consecutive tokens, so that query heads cannot be
        # joined as below; each gets a copy of its keys. (A single token sees all keys and needs no mask.)
        keys, values = (x[:, :, None].expand(-1, -1, shared, -1, -1).flatten(1, 2) for x in (keys, values))
        out, lse = _kernel(query, keys, values, True, scaling)
        return out.unflatten(1, (groups, shared)), lse.unflatten(1, (groups, shared))
    # Without a mask, query heads that share keys can be treated as further queries of one head.
    out, lse = _kernel(query.reshape(b, groups, shared * t, d), keys, values, False, scaling)
    return out.unflatten(2, (shared, t)), lse.unflatten(2, (shared, t))


def received(query: Tensor, keys: Tensor, lse: Tensor, scaling: float, *, causal: bool = False) -> Tensor:
    """Attention mass [B, G, n] that each key [B, G, n, D] gets from all queries [B, H, T, D] together (InfLLM).

    ``lse`` [B, H, T] is the log-sum-exp of :func:`attention`. The mass of a key is the sum over queries of
    exp(q·k scaling - lse). To compute it, the roles are swapped: the keys become queries, and the queries, with
    -lse / scaling as one more coordinate, become keys. The softmax denominator of this attention is the sum. The
    additional coordinate is split into three, whose sum keeps float32's precision in any type. With ``causal``, keys
    and queries belong to the same tokens; time is then reversed, so that the later tokens, whose queries see a key,
    come before that key. If T is 1, none of this is needed: the products are computed directly.
    """
    g = keys.shape[1]
    shared = query.shape[1] // keys.shape[1]
    remainder = -lse / scaling
    coordinates = []
    if query.shape[2] == 1:
        return (products(query, keys, scaling) - lse[..., None]).exp()[:, :, 0].unflatten(1, (g, shared)).sum(2)
    for _ in range(3):
        # The part of the number that the type can hold; what it rounds away goes into the next coordinate.
        coordinates.append(remainder.to(query.dtype))
        remainder = remainder - coordinates[-1]
    # The keys have 1 in the places of the three; zeros fill the width up to a multiple of _PAD.
    query = torch.cat((query, torch.stack(coordinates, -1), query.new_zeros(*query.shape[:3], _PAD - 3)), -1)
    keys = torch.cat((keys, keys.new_ones(*keys.shape[:3], 3), keys.new_zeros(*keys.shape[:3], _PAD - 3)), -1)
    if not causal:
        # The queries of all heads that share a key's head, as the keys of that one head: the kernel sums over them.
        query = query.reshape(len(query), g, -1, query.shape[-1])
        return _kernel(keys, query, query, False, scaling, only_lse=True)[1].exp()
    query = query.flip(2)
    keys = keys.repeat_interleave(shared, 1).flip(2)
    mass = _kernel(keys, query, query, True, scaling, only_lse=True)[1].exp()
    return mass.flip(2).unflatten(1, (g, shared)).sum(2)


def probabilities(segments: Sequence[Segment], scaling: float) -> Tensor:
    """Attention probabilities [B, H, T, sum of n] of the keys of all segments per query, in float32 at least."""
    logits = _logits(segments, scaling)
    return torch.softmax(logits, -1, out=logits)


def mixed(p: Tensor, segments: Sequence[Segment]) -> Tensor:
    """Sum [B, H, T, D] of the values of all segments, weighted by the probabilities ``p`` [B, H, T, sum of n]."""
    shares = p.to(segments[0].query.dtype).split([segment.keys.shape[2] for segment in segments], -1)
    return sum(
        (_by_group(share, segment.values) @ segment.values).view(segment.query.shape)
        for share, segment in zip(shares, segments, strict=True)
    )


def products(query: Tensor, keys: Tensor, scaling: float = 1.0) -> Tensor:
    """Scaled dot products [B, H, T, n] of queries [B, H, T, D] and keys [B, G, n, D], in float32 at least.

    Biases of keys make products so large (128 and more) that bfloat16 would round them to whole numbers.
    """
    grouped = _by_group(query, keys)
    if grouped.is_cuda and grouped.dtype in (torch.bfloat16, torch.float16):
        result = torch.bmm(grouped.flatten(0, 1), keys.flatten(0, 1).mT, out_dtype=torch.float32) * scaling
    else:
        precise = torch.promote_types(grouped.dtype, torch.float32)
        result = (grouped.to(precise) * scaling) @ keys.to(precise).mT
    return result.view(*query.shape[:3], keys.shape[2])


def causal_mask(new: int, total: int, device: torch.device) -> Tensor:
    """Bool mask [new, total]: which of ``total`` keys each of the last ``new`` tokens sees, itself and earlier ones."""
    return torch.ones(new, total, dtype=torch.bool, device=device).tril(total - new)


def best(scores: Tensor, count: int) -> Tensor:
    """Indices [..., count] of the highest ``scores`` [..., n], ascending; lower indices win ties; at most n of them.

    NaN scores rank first on purpose: they propagate to the logits, for which ``NotFiniteError`` is raised. No shape
    depends on the value of a score, so that the host never waits for the device.
    """
    count = min(count, scores.shape[-1])
    if count == 0:
        return scores.new_empty(*scores.shape[:-1], 0, dtype=torch.long)
    values, places = scores.topk(count)
    # topk may return any of the indices that tie at the lowest chosen score. The first ones are wanted: the i-th is
    # where the running count of tied indices reaches i. A full sort of a long document's blocks would cost far more.
    least = values[..., -1:]
    tied = values == least
    first = torch.searchsorted((scores == least).cumsum(-1), tied.cumsum(-1))
    return torch.where(tied, first, places).sort(-1).values


def represented(m: MemorySettings, keys: Tensor, mass: Tensor) -> Tensor:
    """Representative keys [..., blocks, D], in float32 at least, of blocks with ``keys`` [..., blocks, size, D].

    Each is the mean of the block's ``n_representatives`` keys with the most attention ``mass`` [..., blocks, size].
    """
    chosen = mass.topk(min(m.n_representatives, m.block_size), -1).indices
    keys = keys.gather(-2, chosen[..., None].expand(*chosen.shape, keys.shape[-1]))
    return keys.to(torch.promote_types(keys.dtype, torch.float32)).mean(-2)


def block_scores(query: Tensor, *representatives: Tensor) -> Tensor:
    """Retrieval scores [R, blocks] of R mean queries [R, H, 1, D], at the clipped distance (InfLLM, section 3.2).

    A block's score is the sum, over all H query heads, of the dot product of the head's query with the block's
    representative for that head's key-value head (G heads). ``representatives`` are parts, joined along blocks: each
    is [G * D, blocks] for all queries, or [R, G * D, blocks] with one matrix per query; the first is for all queries.
    """
    groups = len(representatives[0]) // query.shape[-1]
    summed = query.unflatten(1, (groups, -1)).sum(2, dtype=representatives[0].dtype).flatten(1)
    parts = [summed @ part if part.ndim == 2 else (summed[:, None] @ part)[:, 0] for part in representatives]
    return torch.cat(parts, 1) if len(parts) > 1 else parts[0]


def token_scores(query: Tensor, size: int, *keys: Tensor) -> Tensor:
    """Retrieval scores [R, blocks] for queries [R, H, T, D], by the probability mass of each block's tokens.

    Each query of each head gives a softmax over all tokens of the blocks, so a token that one head looks for outweighs
    a block that all heads ignore. TokenSelect (arXiv 2411.02886) votes so for single tokens, by the mean query instead
    of each query. A block's score is the logarithm of its ``size`` tokens' summed probability (mean over queries and
    heads) times H sqrt(D), to have the units of :func:`block_scores`. ``keys`` [G, blocks * size, D] may be in parts.
    """
    rows, heads, length, width = query.shape
    groups = len(keys[0])
    total = sum(part.shape[1] for part in keys)
    # Summed probability [R, blocks] of each block's tokens, over all heads and the queries so far.
    share: Tensor | float = 0.0
    for tile in query.split(max(1, _TOGETHER // (rows * heads * total)), 2):
        grouped = tile.unflatten(1, (groups, -1)).transpose(0, 1).reshape(groups, -1, width).to(keys[0].dtype)
        # The products are in the keys' type: a step reads all keys, and widening them would cost more than the product.
        # They are computed head by head, because a batched product would copy keys that are a slice of a document's.
        logits = [torch.stack([head @ each.mT for head, each in zip(grouped, part, strict=True)]) for part in keys]
        logits = (logits[0] if len(logits) == 1 else torch.cat(logits, -1)) * width**-0.5
        # [G, queries, tokens]; the queries are those of the first row, head by head, then those of the next row.
        p = logits.softmax(-1, dtype=torch.promote_types(logits.dtype, torch.float32))
        share = share + p.unflatten(-1, (-1, size)).sum(-1).view(groups, rows, -1, total // size).sum((0, 2))
    share = share / (heads * length)
    # The least positive number keeps the logarithm finite where a block's probability is rounded to 0.
    return share.clamp(min=torch.finfo(share.dtype).tiny).log() * (heads * width**0.5)


def _logits(segments: Sequence[Segment], scaling: float) -> Tensor:
    """Scaled logits [B, H, T, sum of n], -inf where a query does not see a key."""
    query = segments[0].query
    start = 0
    total = sum(segment.keys.shape[2] for segment in segments)
    precise = torch.promote_types(query.dtype, torch.float32)
    logits = torch.empty(*query.shape[:3], total, dtype=precise, device=query.device)
    for segment in segments:
        part = logits[..., start : start + segment.keys.shape[2]]
        part.copy_(products(segment.query, segment.keys, scaling))
        seen = causal_mask(*part.shape[2:], part.device) if segment.causal else segment.seen
        if seen is not None:
            part.masked_fill_(~seen, -math.inf)
        start += part.shape[-1]
    return logits


def _by_group(rows: Tensor, keys: Tensor) -> Tensor:
    """Rows [B, H, T, x] as [B, G, H / G * T, x], for products with keys or values of G heads."""
    return rows.reshape(len(rows), keys.shape[1], -1, rows.shape[-1])


def _kernel(
    query: Tensor, keys: Tensor, values: Tensor, causal: bool, scaling: float, *, only_lse: bool = False
) -> tuple[Tensor, Tensor]:
    """Output [B, H, T, D] and log-sum-exp [B, H, T] of the device's fused attention.

    There must be as many key heads as query heads. With ``only_lse`` the caller does not use the output, and its width
    may differ.
    """
    if not query.is_cuda:
        return _FLASH_CPU(query, keys, values, 0.0, causal, scale=scaling)
    if query.dtype in (torch.bfloat16, torch.float16):
        return _FLASH(query, keys, values, 0.0, causal, scale=scaling)[:2]
    # This kernel accepts float32, and values of another width than the keys. It pads the log-sum-exp, cut off below.
    out, lse = _EFFICIENT(
        query, keys, values[..., :_PAD] if only_lse else values, None, True, 0.0, causal, scale=scaling
    )[:2]
    return out, lse[..., : query.shape[2]]
