"""What names a model: its sizes and some of its weights."""

from __future__ import annotations

import hashlib
import json
from typing import NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedModel

from utaca.readers.families import FAMILIES


class Shape(NamedTuple):
    """How many layers, query heads and key-value heads a model has, and how wide a head is."""

    layers: int
    heads: int
    kv_heads: int
    head_size: int


def shape_of(model: PreTrainedModel) -> Shape:
    config = model.config
    heads: int = config.num_attention_heads
    return Shape(
        layers=len(FAMILIES[config.model_type].parts(model).layers),
        heads=heads,
        kv_heads=getattr(config, "num_key_value_heads", None) or heads,
        head_size=getattr(config, "head_dim", None) or config.hidden_size // heads,
    )


def _rows(weight: Tensor) -> Tensor:
    """First, middle and last rows of a weight."""
    flat = weight.reshape(-1, weight.shape[-1])
    return flat[:: max(1, len(flat) // 2)]


def identity_of(model: PreTrainedModel) -> str:
    """Return 16 hex digits that name model and weights, independent of their folder and compute type.

    Three rows of every weight count, rounded to bfloat16: enough to tell any training from another, and no more than
    some megabytes of a large model.
    """
    config = model.config
    sizes = {
        "type": config.model_type,
        "width": config.hidden_size,
        "vocabulary": config.vocab_size,
        **shape_of(model)._asdict(),
    }
    digest = hashlib.sha256(json.dumps(sizes, sort_keys=True).encode())
    with torch.no_grad():
        some = [_rows(weight).to(torch.bfloat16).flatten() for weight in model.parameters()]
    digest.update(torch.cat(some).cpu().view(torch.int16).numpy().tobytes())
    return digest.hexdigest()[:16]
