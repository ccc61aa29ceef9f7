"""Checks of a reader: of files, config, tokenizer and chat template before loading, and of weights after loading."""

import math
import os
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    GenerationConfig,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import cached_file

from utaca.data_files import root
from utaca.errors import UserError, in_a_sentence
from utaca.machine import gib, natural_dtype, promised_gpu
from utaca.readers import files, gguf, hub, packed, public
from utaca.readers.attention import ATTENTION
from utaca.readers.families import FAMILIES
from utaca.readers.model_config import model_config
from utaca.readers.prompts import Prompts
from utaca.readers.tokenizer import load_tokenizer
from utaca.settings.schema import ReaderSettings
from utaca.sizes import Sizes

# Rotary types whose frequencies do not depend on the input's length, so that keys can be rotated to any position.
FIXED_ROTARY = ("default", "linear", "llama3", "yarn")
_PLAIN = ("F64", "F32", "F16", "BF16")
_BUFFER = "inv_freq"
"""Name of buffers that old weight files hold for each layer, although transformers computes the values itself."""


def check_settings(settings: ReaderSettings) -> None:
    """Raise :class:`UserError` if torch sees no GPU, but the settings need one.

    They do if the device is ``cuda``, if it is ``auto`` in a Slurm GPU job, and if ``graphs`` asks for recorded steps.
    """
    if torch.cuda.is_available():
        return
    fault = "no CUDA device is visible"
    otherwise = "set reader.device=cpu"
    if settings.device == "cuda":
        wish = "reader.device=cuda"
        if settings.graphs:
            otherwise = "leave reader.graphs and reader.device out"
    elif settings.device == "auto" and promised_gpu():
        # On a CPU, the reader would be so slow that Slurm stops the job at its time limit.
        wish = "Slurm gave this job a GPU"
        fault = "torch sees no CUDA device"
    elif settings.graphs:
        wish = "reader.graphs=true"
        otherwise = "leave reader.graphs out"
    else:
        return
    way = "Check the driver (nvidia-smi) and CUDA_VISIBLE_DEVICES"
    if torch.version.cuda is None:
        fault += f": torch {torch.__version__} is built without CUDA"
        way = "Install torch with CUDA (docs/install.md#another-torch)"
    raise UserError(f"{wish}, but {fault}. {way}, or {otherwise}")


def resolved(settings: ReaderSettings) -> ReaderSettings:
    """Replace ``auto`` in device, dtype and weights by the values for this machine."""
    # Each value depends on those before it.
    device = ("cuda" if torch.cuda.is_available() else "cpu") if settings.device == "auto" else settings.device
    dtype = natural_dtype(device) if settings.dtype == "auto" else settings.dtype
    settings = replace(settings, device=device, dtype=dtype)
    return replace(settings, weights="packed" if gguf.is_packed(settings) else "plain")


def _check_packed(settings: ReaderSettings) -> None:
    """Raise :class:`UserError` if resolved settings ask for packed weights that cannot be read."""
    if settings.weights != "packed":
        return
    where = files.where(settings)
    otherwise = "leave reader.weights out"
    if not gguf.is_gguf(settings.path):
        raise UserError(f"reader.weights=packed needs a GGUF file, and {where} is not one; {otherwise}")
    if settings.device != "cpu":
        raise UserError(f"reader.weights=packed works only on a CPU, but {where} is on cuda; {otherwise}")
    if settings.dtype != "bfloat16":
        raise UserError(
            f"reader.weights=packed works only in bfloat16, but {where} is in {settings.dtype}; {otherwise}, or set "
            "reader.dtype=bfloat16"
        )
    if fault := packed.fault():
        raise UserError(f"{where} cannot keep packed weights: {fault}; {otherwise}")


def check_gpu(settings: ReaderSettings, weights: int) -> None:
    """Raise :class:`UserError` if the GPU cannot compute in a reader's type, or cannot hold its ``weights``, in bytes.

    This opens the current GPU.
    """
    reader = f"reader {settings.name}"
    if settings.dtype == "bfloat16" and torch.cuda.get_device_capability() < (8, 0):
        raise UserError(
            f"{reader} computes in bfloat16, which needs a GPU of the Ampere generation or newer; set "
            "reader.dtype=float32"
        )
    free, total = torch.cuda.mem_get_info()
    if weights > free:
        raise UserError(
            f"{reader} has {gib(weights)} of weights, but only {gib(free)} of the GPU's {gib(total)} are free; stop "
            "other programs that use the GPU, or use a smaller reader"
        )


def check(settings: ReaderSettings) -> PreTrainedTokenizerBase | None:
    """Check a reader without reading its weights, and return its tokenizer.

    The check compares names and shapes of the weights on disk with the model's. Of a GGUF file that is not converted
    yet, it checks the file itself and its tokenizer, and returns None. Raises :class:`UserError` if the reader is
    not available, incomplete or not supported.
    """
    check_settings(settings)
    settings = resolved(settings)
    _check_packed(settings)
    path = settings.path
    if not gguf.is_gguf(path):
        with hub.asked_once(path, settings.revision):
            return _check_model(settings)
    is_packed = settings.weights == "packed"
    is_converted = files.folder_of(settings) is not None
    if not is_converted:
        if not os.path.isfile(path) and public.entry(path):
            listed = (root() / "config" / "reader" / f"{settings.name}.yaml").is_file()
            argument = settings.name if listed else "NAME (without a name, it lists the names)"
            raise UserError(f"{files.where(settings)} is not fetched yet; run: {public.COMMAND} {argument}")
        gguf.check(path, is_packed)
        with in_a_sentence(f"{files.where(settings)} has a tokenizer that cannot be used", "take another file"):
            tokenizer, rows = gguf.tokenizer(Path(path))
            tokenizer.name_or_path = path
            _check_tokenizer(files.where(settings), tokenizer, rows)
        return None
    try:
        return _check_model(settings)
    except UserError as fault:
        # A message is the fault, "; " and what to do, which is another thing here.
        reason = str(fault).rpartition("; ")[0]
        raise UserError(
            f"the converted model {gguf.conversion(path, is_packed)} is damaged ({reason}); delete it, and the next "
            f"run converts {path} again"
        ) from fault


def _check_model(settings: ReaderSettings) -> PreTrainedTokenizerBase:
    """Check the model that a reader's folder or the hub holds, and return its tokenizer."""
    where = files.where(settings)
    folder = files.folder_of(settings)
    path = str(folder or settings.path)
    with in_a_sentence(f"{where} cannot be read", "copy or download the model again"):
        file = _check_config(settings)
        with in_a_sentence(f"{where} has a config.json that makes no model", "copy or download it again"):
            config = model_config(file)
            with torch.device("meta"):
                model = AutoModelForCausalLM.from_config(
                    config, dtype=torch.float32, attn_implementation=ATTENTION, trust_remote_code=False
                )
            _check_attention(where, config)
            _check_rotation(where, model)
        with in_a_sentence(f"{where} has a generation_config.json that cannot be used", "correct or remove it"):
            end_tokens(model.generation_config)
            if folder is not None and (folder / "generation_config.json").is_file():
                end_tokens(GenerationConfig.from_pretrained(path))
        with in_a_sentence(f"{where} has a tokenizer that cannot be used", "copy or download its files again"):
            tokenizer = load_tokenizer(path, settings.revision)
            _check_tokenizer(where, tokenizer, config.vocab_size)
        if (stored := files.stored_weights(settings)) is not None:
            kinds = _PLAIN
            if settings.weights == "packed":
                packed.fit(model, {name: weight.shape for name, weight in stored.items()})
                kinds = (*_PLAIN, packed.BYTES)
            elif any(name.endswith(".codes") for name in stored):
                raise UserError(
                    f"{where} is the conversion of a GGUF file with packed weights; set reader.path to the GGUF file"
                )
            _check_stored(where, model, stored, kinds)
    return tokenizer


def check_borrowed(model: PreTrainedModel) -> None:
    """Raise :class:`UserError` unless a model that another program loaded is plain, of a supported family and type."""
    config = model.config
    where = f"model {model.name_or_path}" if model.name_or_path else f"this {type(model).__name__}"
    if config.model_type not in FAMILIES:
        raise UserError(
            f"{where} is a {config.model_type} model, which is not supported; use one of {', '.join(FAMILIES)}"
        )
    weights = list(model.parameters())
    types = sorted({str(weight.dtype).removeprefix("torch.") for weight in weights})
    if getattr(model, "is_quantized", False):
        raise UserError(f"{where} has quantised weights; load it in float32 or bfloat16")
    if len(types) > 1 or types[0] not in ("float32", "bfloat16"):
        raise UserError(f"{where} has weights of {' and '.join(types)}; load it in float32 or bfloat16")
    devices = sorted({str(weight.device) for weight in weights})
    if len(devices) > 1 or devices[0] == "meta":
        raise UserError(f"{where} is on {' and '.join(devices)}; load it onto one device, a CPU or a GPU")
    _check_attention(where, config)
    _check_rotation(where, model)


def _check_config(settings: ReaderSettings) -> Path:
    """Path of a reader's ``config.json``; raise :class:`UserError` unless its model is plain, of a supported family."""
    reader = files.where(settings)
    folder = files.folder_of(settings)
    if folder is not None:
        files.check_folder(settings)
        config = folder / "config.json"
    elif os.path.isfile(settings.path):
        raise UserError(f"{reader} {files.form_of(Path(settings.path))}")
    elif not hub.is_id(settings.path):
        raise UserError(files.absent(settings.path))
    else:
        try:
            config = Path(cached_file(settings.path, "config.json", revision=settings.revision or None))
        except (OSError, ValueError) as error:
            way = "download it, or set reader.path to a folder (a gated model also needs HF_TOKEN)"
            if settings.path.lower().endswith("-gguf"):
                way = "of a repository of GGUF files, download one and set reader.path to that file"
            raise UserError(
                f"{reader} is neither a folder that you can read nor a model that the hub has; {way}"
            ) from error
    family = files.read_object(config).get("model_type")
    if not isinstance(family, str):
        raise UserError(f"{config} has no model_type; copy or download it again")
    if family not in FAMILIES:
        raise UserError(f"{reader} is a {family} model, which is not supported; use one of {', '.join(FAMILIES)}")
    files.check_config(config)
    return config


def _check_attention(where: str, config: PretrainedConfig) -> None:
    """Raise :class:`UserError` if block memory does not support the attention of a model."""
    rope = getattr(config, "rope_parameters", None) or {}
    kind = rope.get("rope_type", "default")
    if kind not in FIXED_ROTARY:
        raise UserError(
            f"{where} uses {kind} rotary scaling, which is not supported; use a model with one of "
            f"{', '.join(FIXED_ROTARY)}"
        )
    layers = getattr(config, "layer_types", None) or []
    if "sliding_attention" in layers or (config.model_type == "mistral" and config.sliding_window is not None):
        raise UserError(
            f"{where} uses sliding-window attention, which block memory does not support; use another model"
        )
    if other := next((layer for layer in layers if layer != "full_attention"), ""):
        raise UserError(f"{where} has layers of {other}, which block memory does not support; use another model")


def _check_rotation(where: str, model: PreTrainedModel) -> None:
    """Raise :class:`UserError` if a model's rotary embedding is not a rotation of heads by finite angles.

    transformers itself would fail only at the first pass, or would compute numbers that are not finite.
    """
    family = FAMILIES[model.config.model_type]
    config = model.config
    # The model itself is on the device meta, which holds no numbers.
    rotary = type(family.parts(model).rotary)(config)
    cos, sin = rotary(torch.zeros(1), torch.arange(2)[None])
    scale = rotary.attention_scaling
    width = Sizes.of(config.to_dict()).head_size
    if not (cos.isfinite().all() and sin.isfinite().all() and scale > 0):
        raise UserError(f"{where} has a rotary embedding whose numbers are not finite; copy or download it again")
    if family.like_llama and cos.shape[-1] != width:
        raise UserError(
            f"{where} rotates {cos.shape[-1]} of the {width} dimensions of a head, but models of its family rotate "
            "all; copy or download it again"
        )


def end_tokens(config: GenerationConfig) -> list[int]:
    """Token ids in ``eos_token_id`` of a generation config; raises :class:`ValueError` if a value is not an integer."""
    configured = config.eos_token_id
    ids = configured if isinstance(configured, list) else [] if configured is None else [configured]
    if not all(type(number) is int for number in ids):
        raise ValueError(f"eos_token_id is {configured!r}, but must be a token id or several")
    return ids


def _check_stored(
    where: str, model: PreTrainedModel, stored: Mapping[str, files.Stored], kinds: Collection[str]
) -> None:
    """Raise :class:`UserError` if ``stored`` weights are not of ``kinds``, or differ from ``model`` in name or shape.

    ``where`` names the reader. As in transformers, the files need only one of several tied weights, and names of
    weights may omit the prefix of the model's body.
    """
    wanted = {name: tuple(weight.shape) for name, weight in model.state_dict().items()}
    body = f"{model.base_model_prefix}."
    weights = {body + name if body + name in wanted else name: weight for name, weight in stored.items()}
    # Pairs of names for one weight: if a file has one of them, the other is not missing.
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
        if (kind := weights[name].kind) not in kinds:
            raise UserError(f"{where} has {name} as {kind}: its weights are {files.QUANTISED}")


def check_names(
    where: str, missing: Collection[str], unexpected: Collection[str], mismatched: Mapping[str, str]
) -> None:
    """Raise :class:`UserError` if any weights are missing, unexpected, or of another shape than the model's."""
    faults = [f"lacks {len(missing)} of the model's weights ({files.first_few(sorted(missing))})"] if missing else []
    if unexpected:
        faults.append(f"holds {len(unexpected)} that the model lacks ({files.first_few(sorted(unexpected))})")
    if mismatched:
        sizes = [f"{name} is {shapes}" for name, shapes in sorted(mismatched.items())]
        faults.append(f"holds {len(sizes)} of other sizes than config.json says ({files.first_few(sizes)})")
    if faults:
        raise UserError(f"{where} {', and '.join(faults)}; copy or convert the model again")


def check_numbers(where: str, model: nn.Module) -> None:
    """Raise :class:`UserError` if a weight holds a number that is not finite, or if a matrix is all zeros.

    The end of a file that was never written is zeros.
    """
    # Buffers have numbers too: the frequencies of the rotary embedding, the scales of packed weights.
    numbers = [(name, buffer) for name, buffer in model.named_buffers() if buffer.is_floating_point()]
    for name, weight in [*model.named_parameters(), *numbers]:
        low, high = (bound.item() for bound in weight.aminmax())
        if not (math.isfinite(low) and math.isfinite(high)):
            raise UserError(f"{where} has numbers that are not finite in {name}; copy or download its weights again")
        if weight.ndim > 1 and low == high == 0:
            raise UserError(f"{where} has nothing but zeros in {name}; copy or download its weights again")


def _check_tokenizer(where: str, tokenizer: PreTrainedTokenizerBase, rows: int) -> None:
    """Raise :class:`UserError` if a text or the chat template can yield a token id beyond the embedding's ``rows``."""
    prompts = Prompts(tokenizer)
    # Ids that texts are encoded to, and control tokens that the chat template writes.
    of_texts = tokenizer.backend_tokenizer.get_vocab(with_added_tokens=False).values()
    largest = max(*of_texts, *prompts.document(""), *prompts.question(""))
    if largest >= rows:
        raise UserError(
            f"{where} has a tokenizer with token {largest} ({tokenizer.convert_ids_to_tokens(largest)!r}), but its "
            f"model has vocab_size={rows}; copy tokenizer and model from the same source"
        )
