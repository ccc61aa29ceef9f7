"""Shorter forms of parts of transformers' layers: the same results by fewer operations.

A decoding step computes little but starts many operations, and on a GPU their number decides how long the step takes.
Passes outside block memory, such as full attention to compare with, still use transformers' own attention.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from utaca.readers.families import Parts
from utaca.readers.many_rows import CONVERTS, linear


def shorten(parts: Parts, *, joins: bool = True) -> None:
    """Give the layers of a model whose family is ``like_llama`` their shorter form.

    On a CPU the rotation is left out, because block memory rotates queries and keys itself. Projections in bfloat16
    multiply many rows in the type that is fastest there (:mod:`utaca.readers.many_rows`), so that rounding may differ
    from transformers' form.

    On a GPU, projections of one input also become one product and a norm becomes one operation, so that rounding may
    differ too. Weights and biases of these projections must then be changed in place, and hooks on them are not called.
    Unless it ``joins``, projections stay as they are: joined ones would be copies of weights that are another model's
    too.
    """
    on_gpu = parts.norm.weight.is_cuda
    joins = joins and on_gpu
    scale = float(parts.rotary.attention_scaling)
    for layer in parts.layers:
        attention = layer.self_attn
        mlp = layer.mlp
        joined = Joined.of([attention.q_proj, attention.k_proj, attention.v_proj]) if joins else None
        # A partial follows its module when the model is copied; a function around the module would not.
        attention.forward = partial(_attention, attention, joined, scale)
        if joins:
            mlp.forward = partial(_mlp, mlp, Joined.of([mlp.gate_proj, mlp.up_proj]))
    if CONVERTS and not on_gpu:
        for module in parts.body.modules():
            if type(module) is nn.Linear and module.weight.dtype == torch.bfloat16:
                module.forward = partial(linear, module)
    if on_gpu:
        for module in parts.body.modules():
            if hasattr(module, "variance_epsilon"):
                module.forward = partial(_norm, module)
    if joins:
        # The memory of the weights that became parts of others is of no use to later tensors.
        torch.cuda.empty_cache()


@dataclass
class Joined:
    """Several projections of one input as one product, whose outputs follow each other.

    ``weight`` is [sum of n, D], ``bias`` [sum of n], None if the projections have none.
    """

    weight: Tensor
    bias: Tensor | None

    @classmethod
    def of(cls, projections: list[nn.Linear]) -> "Joined":
        """Join projections [..., D] to [..., n]; their weights and biases become parts of the joined ones."""
        sizes = [projection.out_features for projection in projections]
        weight = torch.cat([projection.weight.detach() for projection in projections])
        for projection, part in zip(projections, weight.split(sizes), strict=True):
            projection.weight = nn.Parameter(part, requires_grad=False)
        if projections[0].bias is None:
            return cls(weight, None)
        bias = torch.cat([projection.bias.detach() for projection in projections])
        for projection, part in zip(projections, bias.split(sizes), strict=True):
            projection.bias = nn.Parameter(part, requires_grad=False)
        return cls(weight, bias)

    def __call__(self, hidden: Tensor) -> Tensor:
        return functional.linear(hidden, self.weight, self.bias)


def _attention(
    attention: nn.Module,
    joined: Joined | None,
    scale: float,
    hidden_states: Tensor,
    *args: Any,
    attending: Any = None,
    **others: Any,
) -> tuple[Tensor, Any]:
    """Forward of an attention sub-layer without its rotation.

    Block memory runs a model at position zero, where the rotation only multiplies queries and keys by ``scale``. Passes
    without ``attending`` do not come from block memory, and use transformers' own forward.
    """
    if attending is None:
        return type(attention).forward(attention, hidden_states, *args, **others)
    if getattr(attention, "sliding_window", None) is not None:
        # Block memory does not support layers with a sliding window; transformers' own forward calls utaca's attention
        # function, which raises the error that says so.
        return type(attention).forward(attention, hidden_states, *args, attending=attending, **others)
    query, key, value = _projected(attention, joined, hidden_states)
    if hasattr(attention, "q_norm"):
        query = attention.q_norm(query)
        key = attention.k_norm(key)
    if scale != 1:
        factor = torch.tensor(scale, dtype=query.dtype)
        query = query * factor
        key = key * factor
    out = attending.attend(attention.layer_idx, query, key, value, attention.scaling)
    return attention.o_proj(out.transpose(1, 2).flatten(2)), None


def _projected(attention: nn.Module, joined: Joined | None, hidden: Tensor) -> tuple[Tensor, ...]:
    """Queries [B, H, T, D], keys and values [B, G, T, D] of hidden states [B, T, width]."""
    width = attention.head_dim
    projections = [attention.q_proj, attention.k_proj, attention.v_proj]
    if joined is None:
        return tuple(each(hidden).unflatten(-1, (-1, width)).transpose(1, 2) for each in projections)
    heads = [projection.out_features // width for projection in projections]
    return joined(hidden).unflatten(-1, (-1, width)).transpose(1, 2).split(heads, 1)


def _mlp(mlp: nn.Module, joined: Joined, hidden: Tensor) -> Tensor:
    """Forward of a gated multilayer perceptron, whose first two products are one."""
    gate, up = joined(hidden).chunk(2, -1)
    return mlp.down_proj(mlp.act_fn(gate) * up)


def _norm(norm: nn.Module, hidden: Tensor) -> Tensor:
    """Forward of a root mean square norm, as one operation."""
    return functional.rms_norm(hidden, norm.weight.shape, norm.weight, norm.variance_epsilon)
