"""The config of a reader's model, made from its ``config.json``; the one way in which checks and loading make it.

A ``config.json`` is written by other programs, for other ones: it may ask for an attention of its own, for tuples as
outputs, or for a type of the weights. Such keys are of no account here, because utaca decides these things. Keys that a
model computes by are kept, and a value that block memory does not compute by is refused.
"""

import math
from dataclasses import fields
from pathlib import Path
from typing import Any

from transformers import AutoConfig, PretrainedConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from utaca.errors import UserError
from utaca.readers.files import check_config

_OURS = (
    "add_cross_attention", "attn_config", "attn_implementation", "decoder", "distributed_config", "encoder",
    "experts_implementation", "fusion_config", "generator", "gradient_checkpointing", "is_causal", "is_decoder",
    "pruned_heads", "text_config", "text_encoder", "torchscript", "use_cache",
)  # fmt: skip
"""Keys that transformers reads for a model of any family, in addition to the attributes of all configs."""
_OLD = ("rope_scaling",)
"""Such attributes that models compute by nevertheless: names of earlier versions."""


def model_config(path: Path) -> PretrainedConfig:
    """The config that the ``config.json`` at ``path`` holds, without the keys that are of no account here.

    Raises :class:`UserError` as :func:`utaca.readers.files.check_config` does, and if a number is not finite or too
    small. The library raises errors of every class for values that make no config.
    """
    content = check_config(path)
    family = content["model_type"]
    kept = {key: value for key, value in content.items() if _computes(family, key)}
    if faulty := next((key for key, value in kept.items() if _is_endless(value)), ""):
        raise UserError(f"{path} has a number that is not finite in {faulty}; copy or download it again")
    if isinstance(epsilon := kept.get("rms_norm_eps"), int | float) and epsilon < 0:
        raise UserError(f"{path} has rms_norm_eps={epsilon}, which must be at least 0; copy or download it again")
    return AutoConfig.for_model(family, **kept)


def _computes(family: str, key: str) -> bool:
    """Whether models of a family may compute by a key: no key that utaca decides, or that all configs have.

    What all configs have are outputs, labels, types and names, and the methods of the class, which no key may replace.
    """
    # Keys that the family declares in addition to those of all configs.
    own = {field.name for field in fields(CONFIG_MAPPING[family])} - {field.name for field in fields(PretrainedConfig)}
    if key in _OURS or key.startswith("_"):
        return False
    return key in own or key in _OLD or not hasattr(CONFIG_MAPPING[family], key)


def _is_endless(value: Any) -> bool:
    """Whether a value of JSON is or holds NaN or an infinite number."""
    if isinstance(value, dict):
        return any(map(_is_endless, value.values()))
    if isinstance(value, list):
        return any(map(_is_endless, value))
    return isinstance(value, float) and not math.isfinite(value)
