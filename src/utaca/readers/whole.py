"""Whether a model is whole: its weights those that its config asks for, its tokenizer one that fits it."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

import torch
from torch import nn
from transformers import AutoModelForCausalLM, PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from utaca.errors import UserError
from utaca.readers import files
from utaca.readers.attention import ATTENTION
from utaca.readers.prompts import Prompts

_PLAIN = ("F64", "F32", "F16", "BF16")
_BUFFER = "inv_freq"
"""What old files hold of each layer, and transformers computes anew."""


def empty(config: PretrainedConfig) -> PreTrainedModel:
    """A model without numbers, which tells the names and shapes of its weights."""
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(
            config, dtype=torch.float32, attn_implementation=ATTENTION, trust_remote_code=False
        )


def check_stored(where: str, model: PreTrainedModel, stored: Mapping[str, files.Stored]) -> None:
    """Raise :class:`UserError` where the weights in files are not those of ``model``, by names, shapes and kinds.

    ``where`` names the reader. Of tied weights one is enough, and the name of the model's body may be left out, as
    transformers allows.
    """
    wanted = {name: tuple(weight.shape) for name, weight in model.state_dict().items()}
    body = f"{model.base_model_prefix}."
    weights = {body + name if body + name in wanted else name: weight for name, weight in stored.items()}
    tied = model.all_tied_weights_keys.items()
    present = weights.keys() | {a for a, b in tied if b in weights} | {b for a, b in tied if a in weights}
    shapes = {name: (weights[name].shape, wanted[name]) for name in wanted.keys() & weights.keys()}
    check_names(
        where,
        wanted.keys() - present,
        [name for name in weights.keys() - wanted.keys() if _BUFFER not in name],
        {
            name: f"{[*stored_shape]}, not {[*shape]}"
            for name, (stored_shape, shape) in shapes.items()
            if stored_shape != shape
        },
    )
    for name in shapes:
        if (kind := weights[name].kind) not in _PLAIN:
            raise UserError(f"{where} has {name} as {kind}: its weights are {files.QUANTISED}")


def check_names(
    where: str, missing: Collection[str], unexpected: Collection[str], mismatched: Mapping[str, str]
) -> None:
    """Raise :class:`UserError` where weights are missing, are not the model's, or have other shapes than its own."""
    faults = [f"lacks {len(missing)} of the model's weights ({files.first_few(sorted(missing))})"] if missing else []
    if unexpected:
        faults.append(f"holds {len(unexpected)} that the model has not ({files.first_few(sorted(unexpected))})")
    if mismatched:
        sizes = [f"{name} is {shapes}" for name, shapes in sorted(mismatched.items())]
        faults.append(f"holds {len(sizes)} of other sizes than config.json says ({files.first_few(sizes)})")
    if faults:
        raise UserError(f"{where} {', and '.join(faults)}; copy or convert the model anew")


def check_numbers(where: str, model: nn.Module) -> None:
    """Raise :class:`UserError` where a weight is not finite, or a matrix is all zeros, as in files whose end was never
    written."""
    for name, weight in model.named_parameters():
        low, high = (bound.item() for bound in weight.aminmax())
        if not (math.isfinite(low) and math.isfinite(high)):
            raise UserError(f"{where} has numbers that are not finite in {name}; copy or download its weights anew")
        if weight.ndim > 1 and low == high == 0:
            raise UserError(f"{where} has nothing but zeros in {name}; copy or download its weights anew")


def check_tokenizer(where: str, tokenizer: PreTrainedTokenizerBase, prompts: Prompts, rows: int) -> None:
    """Raise :class:`UserError` where texts or the chat template give tokens beyond the ``rows`` of the embedding."""
    of_texts = tokenizer.backend_tokenizer.get_vocab(with_added_tokens=False).values()
    largest = max(*of_texts, *prompts.document(""), *prompts.question(""))
    if largest >= rows:
        raise UserError(
            f"{where} has a tokenizer that gives token {largest} ({tokenizer.convert_ids_to_tokens(largest)!r}), but "
            f"its model has vocab_size={rows}; copy tokenizer and model from one source"
        )
