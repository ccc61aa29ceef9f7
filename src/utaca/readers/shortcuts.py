"""Shorter forms of parts of transformers' layers: the same results by fewer operations.

A decoding step computes little but starts many operations, and on a GPU their number decides how long the step takes.
transformers' own form of a part stays in use for passes that are not block memory's, such as full attention to compare
with.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from utaca.readers.families import Parts


def shorten(parts: Parts) -> None:
    """Give the layers of a model whose family is ``like_llama`` their shorter form.

    On a CPU only the rotation is left out. On a GPU, projections of one input become one product and a norm becomes one
    operation; rounding may differ from transformers' form there.
    """
    on_gpu = parts.norm.weight.is_cuda
    scale = float(parts.rotary.attention_scaling)
    for layer in parts.layers:
        layer.self_attn.forward = _attention(layer.self_attn, scale, on_gpu)
        if on_gpu:
            layer.mlp.forward = _mlp(layer.mlp)
    if on_gpu:
        for module in parts.body.modules():
            if hasattr(module, "variance_epsilon"):
                module.forward = _norm(module)
        # The memory of the weights that became parts of others is of no use to later tensors.
        torch.cuda.empty_cache()


def _attention(attention: nn.Module, scale: float, on_gpu: bool) -> Callable[..., tuple[Tensor, Any]]:
    """The forward function of an attention sub-layer without its rotation.

    Block memory runs a model at position zero, where the rotation only multiplies queries and keys by ``scale``.
    """
    whole = type(attention).forward.__get__(attention)
    projections = [attention.q_proj, attention.k_proj, attention.v_proj]
    width = attention.head_dim
    heads = [projection.out_features // width for projection in projections]
    joined = _joined(projections) if on_gpu else None

    def project(hidden: Tensor) -> list[Tensor] | tuple[Tensor, ...]:
        if joined:
            return joined(hidden).unflatten(-1, (-1, width)).transpose(1, 2).split(heads, 1)
        return [projection(hidden).unflatten(-1, (-1, width)).transpose(1, 2) for projection in projections]

    def forward(hidden_states: Tensor, *args: Any, attending: Any = None, **others: Any) -> tuple[Tensor, Any]:
        if attending is None:
            return whole(hidden_states, *args, **others)
        if getattr(attention, "sliding_window", None) is not None:
            # transformers' form refuses to let block memory attend to a window.
            return whole(hidden_states, *args, attending=attending, **others)
        query, key, value = project(hidden_states)
        if hasattr(attention, "q_norm"):
            query = attention.q_norm(query)
            key = attention.k_norm(key)
        if scale != 1:
            factor = torch.tensor(scale, dtype=query.dtype)
            query = query * factor
            key = key * factor
        out = attending.attend(attention.layer_idx, query, key, value, attention.scaling)
        return attention.o_proj(out.transpose(1, 2).flatten(2)), None

    return forward


def _mlp(mlp: nn.Module) -> Callable[[Tensor], Tensor]:
    """The forward function of a gated multilayer perceptron, whose first two products are one."""
    joined = _joined([mlp.gate_proj, mlp.up_proj])

    def forward(hidden: Tensor) -> Tensor:
        gate, up = joined(hidden).chunk(2, -1)
        return mlp.down_proj(mlp.act_fn(gate) * up)

    return forward


def _norm(norm: nn.Module) -> Callable[[Tensor], Tensor]:
    """The forward function of a root mean square norm, as one operation."""
    return lambda hidden: functional.rms_norm(hidden, norm.weight.shape, norm.weight, norm.variance_epsilon)


def _joined(projections: list[nn.Linear]) -> Callable[[Tensor], Tensor]:
    """Several projections [..., D] to [..., n] as one, to all outputs in turn; their weights become parts of one."""
    sizes = [projection.out_features for projection in projections]
    weight = torch.cat([projection.weight.detach() for projection in projections])
    for projection, part in zip(projections, weight.split(sizes), strict=True):
        projection.weight = nn.Parameter(part, requires_grad=False)
    bias = None
    if projections[0].bias is not None:
        bias = torch.cat([projection.bias.detach() for projection in projections])
    return lambda hidden: functional.linear(hidden, weight, bias)
