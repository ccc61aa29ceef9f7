"""What names a model: its sizes and some of its weights."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
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


def sampled(rows: int) -> range:
    """The rows of a weight that count."""
    return range(0, rows, max(1, rows // 2))


def _rows(_name: str, weight: Tensor) -> Tensor:
    flat = weight.reshape(-1, weight.shape[-1])
    return flat[:: sampled(len(flat)).step]


def identity_of(model: PreTrainedModel, rows: Callable[[str, Tensor], Tensor] = _rows) -> str:
    """16 hex digits that name model and weights, wherever they lie and in whatever type they are computed with.

    Of every weight a few rows count, rounded to bfloat16: enough to tell any training from another, and no more than
    some megabytes of a large model. ``rows`` gives them by a weight's name; they are the model's own unless it says
    otherwise.
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
        some = [rows(name, weight).to(torch.bfloat16).flatten() for name, weight in model.named_parameters()]
    digest.update(torch.cat(some).cpu().view(torch.int16).numpy().tobytes())
    return digest.hexdigest()[:16]
