"""LoRA adapters of the package peft, merged into a model's weights when it is loaded."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn
from transformers import PreTrainedModel

from utaca.errors import UserError, in_a_sentence
from utaca.readers.files import read_object, stored
from utaca.readers.identity import identity_of, sampled

CONFIG, WEIGHTS, BASE = "adapter_config.json", "adapter_model.safetensors", "base.json"
FILES = (CONFIG, WEIGHTS, BASE)
"""Files of an adapter's folder; ``base.json`` has the ``identity`` of the model that it was trained on."""

_PAIR = re.compile(r"base_model\.model\.(.+)\.lora_([AB])\.weight")


def check_files(adapter: str) -> None:
    """Raise :class:`UserError` where an adapter is not whole, or peft is not there to merge it."""
    folder = Path(adapter)
    if not folder.is_dir():
        raise UserError(
            f"reader.adapter={adapter} is no folder; name that of a LoRA adapter of peft, or leave it empty"
        )
    for name in FILES:
        if not (folder / name).is_file():
            raise UserError(f"reader.adapter={adapter} has no {name}; an adapter's folder holds {', '.join(FILES)}")
    kind = _read(folder / CONFIG, "peft_type")
    if kind != "LORA":
        raise UserError(f"{folder / CONFIG} is of an adapter of type {kind}; use one of type LORA, which can be merged")
    _read(folder / BASE, "identity")
    if find_spec("peft") is None:
        raise UserError(
            f'reader.adapter={adapter} needs the package peft, not installed here; run: pip install "utaca[adapters]"'
        )


def check(adapter: str, path: str, model: PreTrainedModel) -> None:
    """Raise :class:`UserError` where an adapter is not one of ``model``, which is without numbers, at ``path``; of
    weights that lie in a folder a few rows are read."""
    check_shapes(adapter, path, model)
    if not Path(path).is_dir():
        # A hub model is told when it is loaded.
        return
    with ExitStack() as stack:
        places = {}
        for weights in sorted(Path(path).glob("*.safetensors")):
            file = stack.enter_context(safe_open(weights, "pt"))
            places.update(dict.fromkeys(file.keys(), file))
        if all(name in places for name, _ in model.named_parameters()):
            check_base(adapter, path, identity_of(model, partial(_stored_rows, places)))


def check_shapes(adapter: str, path: str, model: nn.Module) -> None:
    """Raise :class:`UserError` where the adapter's products are not of the model's matrices."""
    modules = dict(model.named_modules())
    mend = "choose an adapter of this model"
    pairs: dict[str, str] = {}
    for key, (_, shape) in stored([Path(adapter) / WEIGHTS]).items():
        if not (match := _PAIR.fullmatch(key)):
            continue
        name, side = match[1], "AB".index(match[2])
        pairs[name] = pairs.get(name, "") + match[2]
        weight = getattr(modules.get(name), "weight", None)
        if weight is None or weight.ndim != 2:
            raise UserError(f"reader.adapter={adapter} changes {name}, which {path} has not; {mend}")
        # A is [rank, in], B [out, rank].
        own, theirs = weight.shape[1 - side], shape[1 - side]
        if own != theirs:
            what = ("inputs", "outputs")[side]
            raise UserError(
                f"reader.adapter={adapter} is for {theirs} {what} of {name}, which has {own} in {path}; {mend}"
            )
    if not pairs:
        raise UserError(f"{Path(adapter) / WEIGHTS} holds no LoRA weights of a model; {mend}")
    for name, sides in pairs.items():
        if len(sides) < 2:
            raise UserError(f"{Path(adapter) / WEIGHTS} has half of what changes {name}; copy the adapter's files anew")


def check_base(adapter: str, path: str, identity: str) -> None:
    """Raise :class:`UserError` where the adapter was trained on another model than that of ``identity``."""
    trained_on = _read(Path(adapter) / BASE, "identity")
    if trained_on != identity:
        raise UserError(
            f"reader.adapter={adapter} is an adapter of another base model: it was trained on {trained_on} "
            f"({Path(adapter) / BASE}), but {path} is {identity}; choose the model or the adapter that belongs to it"
        )


def merged(model: PreTrainedModel, adapter: str, path: str) -> PreTrainedModel:
    """The model, in float32, with the adapter's products added to its weights; checked as :func:`check` does."""
    check_base(adapter, path, identity_of(model))
    from peft import PeftModel

    with (
        in_a_sentence(f"reader.adapter={adapter} cannot be merged", "copy the adapter's files anew"),
        warnings.catch_warnings(),
    ):
        # Where files lack a part, peft says so and takes zeros.
        warnings.filterwarnings("error", "Found missing adapter keys")
        return PeftModel.from_pretrained(model, adapter).merge_and_unload()


def _read(path: Path, key: str) -> Any:
    found = read_object(path)
    if key not in found:
        raise UserError(f"{path} has no {key!r}; copy the adapter's files anew")
    return found[key]


def _stored_rows(places: Mapping[str, Any], name: str, weight: Tensor) -> Tensor:
    """The rows of a weight that count in an identity, from the files that hold the weights."""
    stored = places[name].get_slice(name)
    if weight.ndim == 1:
        return stored[:]
    return torch.cat([stored[row : row + 1] for row in sampled(len(weight))])
