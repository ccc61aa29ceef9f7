"""Files of readers: the readers that the config lists, their files on disk, and fetching; does not import torch."""

import difflib
import json
import os
import re
from collections.abc import Sequence
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from utaca.data_files import root, shipped
from utaca.errors import UserError, cause
from utaca.machine import gib
from utaca.readers import gguf, gguf_faults, public
from utaca.settings.checks import build_reader
from utaca.settings.schema import ReaderSettings
from utaca.sizes import Model, Sizes

WHOLE, INDEX = "model.safetensors", "model.safetensors.index.json"
"""Files that transformers reads weights from: one file, or the shards that an index names."""

_WANTED = ["*.safetensors", "*.json", "*.jinja", "*.model"]
TWICE = "consolidated"
"""Beginning of files, in Mistral's repositories, that hold the weights once more; transformers does not read them."""
_OBJECTS = (
    "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
    "added_tokens.json", "chat_template.json",
)  # fmt: skip
_POINTER = b"version https://git-lfs"
_NUMBERS = (
    "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size",
    "max_position_embeddings",
)  # fmt: skip
"""Sizes that a ``config.json`` must state; for a missing size, transformers would use the value of another model."""
QUANTISED = "quantised; use the model's float32 or bfloat16 weights"
_QUANTISED_KEYS = ("quantization_config", "compression_config", "quantization")
_MOST_LAYERS = 1_000
_ELSEWHERE = ("configuration_files", "transformers_weights")
"""Keys that name another file than ``config.json`` or :data:`WHOLE`, which transformers would then read instead."""


def listed() -> dict[str, Path]:
    """Config files of the readers that the config lists, by the reader's name, sorted."""
    return {path.stem: path for path in sorted((root() / "config" / "reader").glob("*.yaml"))}


def listed_keys(name: str) -> dict[str, Any]:
    """Config keys and values of the listed reader ``name``; empty if the config lists no such reader."""
    if (path := listed().get(name)) is None:
        return {}
    values = yaml.safe_load(path.read_text(encoding="utf-8"))
    values.pop("defaults", None)
    return values | {"path": shipped(values["path"], root())}


def listed_settings(name: str) -> ReaderSettings:
    """Settings of the listed reader ``name``."""
    return build_reader(listed_keys(name))


def absent(path: str) -> str:
    """The sentence for a reader's path that does not exist and is not a hub id: for a name, with similar names."""
    if page := re.fullmatch(r"(?:https?://)?(?:huggingface\.co|hf\.co)/([\w.-]+/[\w.-]+)(?:/.*)?", path):
        return f"{path} is a page of the hub; name its model by its hub id, {page[1]}"
    if os.path.basename(path) != path:
        return f"{path} is neither a folder nor a file that this user may read; correct the reader's path"
    return f"{unknown(path)} (a model of your own: its folder, GGUF file, or hub id ORGANISATION/NAME)"


def unknown(name: str) -> str:
    """The sentence for a name that no listed reader has, with the most similar name."""
    near = difflib.get_close_matches(name.lower().replace("-", "_"), listed(), n=1)
    return f"there is no reader {name!r}; " + (
        f"did you mean {near[0]}?" if near else f"there are {', '.join(listed())}"
    )


def listed_of(path: str) -> str:
    """Name of the listed reader whose model a path or hub id is, wherever the files lie; "" if it is of none.

    Files are compared by size and digest: a GGUF file with those of the catalogue, a folder's weights with those of the
    listed readers' folders.
    """
    for name in listed():
        other = str(listed_keys(name)["path"])
        if path == other or _same_file(path, other) or _same_file(*(os.path.join(x, WHOLE) for x in (path, other))):
            return name
    return ""


def _same_file(path: str, other: str) -> bool:
    """Whether ``path`` is a file whose bytes are those of ``other``, which is here or in the catalogue."""
    if not os.path.isfile(path):
        return False
    size = os.path.getsize(path)
    file = public.entry(other)
    if file is not None:
        return size == file.size and gguf.digest(path) == file.sha256
    return os.path.isfile(other) and size == os.path.getsize(other) and gguf.digest(path) == gguf.digest(other)


def state(reader: ReaderSettings) -> str:
    """Describe in one line whether a reader's files are on disk, and the source of the files."""
    presence = "here" if weights(reader) or os.path.isfile(reader.path) else "not fetched"
    file = public.entry(reader.path)
    source = f"{file.hub or file.parts.requirement}, {gib(file.size)}, {file.licence}" if file else reader.path
    return f"{presence:12} {source}"


def where(reader: ReaderSettings) -> str:
    """Name and path of a reader, as the beginning of a sentence."""
    return f"reader {reader.name!r} (reader.path={reader.path})"


def folder_of(reader: ReaderSettings) -> Path | None:
    """Folder of a reader's model, for a GGUF file the folder of its conversion; None if the folder does not exist."""
    path = reader.path
    folder = gguf.conversion(path, gguf.is_packed(reader)) if gguf.is_gguf(path) else Path(path)
    return folder if folder is not None and os.path.isdir(folder) else None


def _file(reader: ReaderSettings, name: str) -> Path | None:
    """Path of the file ``name`` of a reader's model, in its folder or in the cache of the hub; None if it is missing.

    A GGUF file that is not converted yet has no files.
    """
    if (folder := folder_of(reader)) is not None:
        return folder / name if (folder / name).is_file() else None
    if gguf.is_gguf(reader.path):
        return None
    from huggingface_hub import try_to_load_from_cache

    cached = try_to_load_from_cache(reader.path, name, revision=reader.revision or None)
    return Path(cached) if isinstance(cached, str) else None


def config_file(reader: ReaderSettings) -> Path | None:
    """Path of ``config.json`` in the reader's folder or in the cache of the hub; None if both lack the file."""
    return _file(reader, "config.json")


def weights(reader: ReaderSettings) -> list[Path]:
    """Paths of the weight files, in the reader's folder or in the cache of the hub; empty if a file is missing."""
    files = [_file(reader, name) for name in sorted(_shards(reader))]
    return [file for file in files if file is not None] if all(files) else []


def _shards(reader: ReaderSettings) -> dict[str, list[str]]:
    """Names of the weight files of a reader, each with the weights that an index lists for the file.

    Without an index, it is the one file of all weights, with an empty list.
    """
    if _file(reader, WHOLE) is not None or (index := _file(reader, INDEX)) is None:
        return {WHOLE: []}
    places = read_object(index).get("weight_map")
    if not places or not isinstance(places, dict) or not all(isinstance(name, str) for name in places.values()):
        raise UserError(f"{index} has no weight_map of weights and files; copy or download it again")
    shards: dict[str, list[str]] = {}
    for weight, name in sorted(places.items()):
        shards.setdefault(name, []).append(weight)
    return shards


def check_folder(reader: ReaderSettings) -> None:
    """Raise :class:`UserError` if a reader's folder lacks a file, or holds an unreadable or unsupported file."""
    folder = folder_of(reader) or Path(reader.path)
    named = where(reader)
    if (folder / "adapter_config.json").is_file():
        raise UserError(
            f"{named} is an adapter (adapter_config.json); merge it into its base model (peft: merge_and_unload) and "
            "set reader.path to the merged folder"
        )
    if not (folder / "config.json").is_file():
        if ggufs := _gguf_advice(folder):
            raise UserError(f"{named} is a folder with {ggufs}")
        way = _elsewhere(folder) or "; point reader.path at a Hugging Face model folder"
        raise UserError(f"{named} has no config.json{way}")
    for path in sorted(folder.iterdir()):
        if path.name in _OBJECTS:
            read_object(path)
        elif path.suffix in (".jinja", ".model", ".txt") and path.is_file() and _is_pointer(path):
            # _broken looks at the file itself, and names the pointer.
            raise _broken(path, ValueError())
    if not any((folder / name).is_file() for name in ("tokenizer.json", "tokenizer.model", "tokenizer_config.json")):
        raise UserError(f"{named} has no tokenizer; add tokenizer.json to the folder")
    if not any((folder / name).is_file() for name in (WHOLE, INDEX)):
        if any(path.is_file() for path in folder.glob("*.safetensors")):
            raise UserError(f"{named} has .safetensors files, but neither {WHOLE} nor {INDEX}; copy that file too")
        if ggufs := _gguf_advice(folder):
            raise UserError(f"{named} has no .safetensors files, but {ggufs}")
        other = next((path.name for form in ("*.bin", "*.pt", "*.pth") for path in folder.glob(form)), None)
        instead = f", but {other}, which is not read" if other else ""
        raise UserError(f"{named} has no weights{instead}; add its .safetensors files to the folder")
    lacking = [name for name in _shards(reader) if not (folder / name).is_file()]
    if lacking:
        raise UserError(f"{named} lacks {first_few(lacking)}, which {INDEX} lists; copy or download the missing files")


def _gguf_advice(folder: Path) -> str:
    """The end of an error message: which GGUF files a folder has, and what to set reader.path to; "" if it has none."""
    every = sorted(path for path in folder.iterdir() if gguf.is_gguf(path))
    # A file with mmproj in its name holds only a model's image encoder, which cannot answer.
    found = [path for path in every if "mmproj" not in path.name.lower()] or every
    if not found:
        return ""
    if len(found) == 1:
        return f"a GGUF file; set reader.path={found[0]}"
    parts = [gguf_faults.part_of(path) for path in found]
    if None not in parts and len(set(parts)) == len(parts):
        return f"the parts of a split GGUF file; {gguf_faults.merging(found[0])}"
    return f"{len(found)} GGUF files; set reader.path to one of them, such as {found[0]}"


def _elsewhere(folder: Path) -> str:
    """The end of an error message: the one folder with a model below ``folder``, as a hub's cache has it.

    "" if there is no such folder, or if there are several.
    """
    found = [path.parent for form in ("*/config.json", "*/*/config.json") for path in folder.glob(form)]
    return f"; there is one in {found[0].name}, so set reader.path={found[0]}" if len(found) == 1 else ""


def form_of(path: Path) -> str:
    """The end of an error message on a reader's path that is a file, and no GGUF file: what it is, and what to do."""
    if gguf.is_old(path):
        return "has a format that is older than GGUF; convert its model with a current llama.cpp"
    if (path.parent / "config.json").is_file():
        return f"is a file; set reader.path to its folder, {path.parent}"
    if path.suffix.lower() in (".bin", ".pt", ".pth", ".ckpt"):
        return (
            "is a file of pickled weights, which utaca does not read; set reader.path to a folder of .safetensors files"
        )
    return "is a file; set reader.path to a folder with config.json, tokenizer and .safetensors, or to a GGUF file"


def first_few(names: Sequence[str]) -> str:
    """List the first three names and the number of further names."""
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def read_object(path: Path) -> dict[str, Any]:
    """Read a JSON file; raises :class:`UserError` if the file cannot be read, or does not hold a JSON object."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise _broken(path, error) from error
    if not isinstance(content, dict):
        raise UserError(f"{path} is not a JSON object; copy or download it again")
    return content


def _broken(path: Path, error: Exception) -> UserError:
    """The error for a file that could not be read because of ``error``; it says what to do."""
    try:
        if _is_pointer(path):
            return UserError(f"{path} is only a Git LFS pointer; fetch the file: git lfs pull")
    except PermissionError:
        # For a file without read permission, safetensors reports that the file is missing.
        return UserError(f"{path} cannot be read by this user; change its permissions")
    except OSError:
        pass
    return UserError(f"{path} cannot be read ({cause(error)}); copy or download it again")


def _is_pointer(path: Path) -> bool:
    """Whether a file is the pointer that Git LFS leaves in place of a large file."""
    with path.open("rb") as file:
        return file.read(len(_POINTER)) == _POINTER


def check_config(path: Path) -> dict[str, Any]:
    """Read a ``config.json``; raise :class:`UserError` if block memory cannot compute what transformers would.

    That is so if the file lacks sizes, is of a quantised model, names code or other files, changes single layers, or
    lets tokens attend to later ones.
    """
    config = read_object(path)
    optional = [key for key in ("num_key_value_heads", "head_dim") if config.get(key) is not None]
    for key in (*_NUMBERS, *optional):
        value = config.get(key)
        if type(value) is not int or value < 1:
            raise UserError(
                f"{path} has {key}={json.dumps(value)}, but it must be a whole number above 0; copy or download it "
                "again"
            )
    heads = config["num_attention_heads"]
    kv_heads = config.get("num_key_value_heads")
    if kv_heads is not None and heads % kv_heads:
        raise UserError(
            f"{path} has num_attention_heads={heads}, which num_key_value_heads={kv_heads} does not divide; copy or "
            "download it again"
        )
    if config["num_hidden_layers"] > _MOST_LAYERS:
        raise UserError(
            f"{path} has num_hidden_layers={config['num_hidden_layers']}, more than any model has; copy or download it "
            "again"
        )
    for key in _QUANTISED_KEYS:
        if config.get(key) is not None:
            raise UserError(f"{path} has {key}: its weights are {QUANTISED}")
    if config.get("auto_map") is not None:
        raise UserError(f"{path} has auto_map: the model needs its own code, which utaca never runs; use another model")
    if not config.get("is_causal", True):
        raise UserError(
            f"{path} has is_causal={json.dumps(config['is_causal'])}: the model is bidirectional, as models for "
            "embeddings are; use a model that generates text"
        )
    if config.get("per_layer_config"):
        raise UserError(
            f"{path} has per_layer_config: its layers differ, which block memory does not support; use another model"
        )
    for key in _ELSEWHERE:
        if config.get(key) is not None:
            raise UserError(f"{path} has {key}, which names other files; use a folder with the usual file names")
    return config


def model(reader: ReaderSettings) -> Model:
    """Describe a reader for estimates of a job's memory and time; raises :class:`UserError` if a file is missing."""
    if gguf.is_gguf(reader.path) and folder_of(reader) is None:
        # The machine that runs a job may read the weights in another form than the one that asks.
        forms = (replace(reader, weights=form) for form in ("packed", "plain"))
        reader = next((one for one in forms if folder_of(one) is not None), reader)
    path = config_file(reader)
    paths = weights(reader)
    if path is None or not paths:
        raise UserError(
            f"jobs on a cluster request memory by the size of the weights, but {reader.path} of reader {reader.name!r} "
            "is not here yet; fetch it first, with the same --config: snakemake --cores 1 readers"
        )
    config = check_config(path)
    positions = reader.positions or config["max_position_embeddings"]
    return Model(reader, Sizes.of(config), parameters(paths), positions)


class Stored(NamedTuple):
    """Type and shape of a weight, as the header of its file states them."""

    kind: str
    shape: tuple[int, ...]


def _stored(path: Path) -> dict[str, Stored]:
    """Type and shape of each weight in a file, by name; raises :class:`UserError` if the file is incomplete."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "numpy") as file:
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
            return {name: Stored(one.get_dtype(), tuple(one.get_shape())) for name, one in slices.items()}
    except (OSError, SafetensorError) as error:
        raise _broken(path, error) from error


def stored_weights(reader: ReaderSettings) -> dict[str, Stored] | None:
    """Type and shape of each weight of a reader, by name, from the headers of its files; None if a file is missing.

    Raises :class:`UserError` if a file is incomplete, or lacks a weight that the index lists for that file.
    """
    stored: dict[str, Stored] = {}
    for name, indexed in _shards(reader).items():
        if (path := _file(reader, name)) is None:
            return None
        held = _stored(path)
        if lacking := [weight for weight in indexed if weight not in held]:
            raise UserError(
                f"{path} lacks {first_few(lacking)}, which {INDEX} lists; copy or download {path} and {INDEX} again"
            )
        stored |= held
    return stored


def parameters(paths: Sequence[Path]) -> int:
    """Count the parameters in weight files, from the headers of the files."""
    return sum(_parameters_in(path) for path in paths)


def _parameters_in(path: Path) -> int:
    """Count the parameters in one weight file."""
    from safetensors import safe_open

    stored = _stored(path)
    with safe_open(path, "numpy") as file:
        # A file of packed weights has other shapes than the model, and its metadata have the number of parameters.
        said = (file.metadata() or {}).get(gguf.PARAMETERS)
    return sum(prod(weight.shape) for weight in stored.values()) if said is None else int(said)


def fetch(reader: ReaderSettings) -> str:
    """Fetch the missing files of a reader, and return a sentence that says what was done.

    The files of a hub model go into the cache of the hub. A GGUF file is fetched if it is in the catalogue
    (:mod:`utaca.readers.public`), and converted. Raises :class:`UserError` if the files are not available.
    """
    if gguf.is_gguf(reader.path):
        file = public.entry(reader.path)
        done = "fetched" if file and public.fetch(Path(reader.path), file) else "is here"
        return f"{reader.path} {done}; its model is in {gguf.converted(reader.path, gguf.is_packed(reader))}"
    if os.path.isdir(reader.path):
        return f"{reader.path} is here: {len(weights(reader))} files of weights"
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HTTPError

    try:
        which = {"revision": reader.revision or None, "allow_patterns": _WANTED, "ignore_patterns": f"{TWICE}*"}
        folder = snapshot_download(reader.path, **which)
    except (HTTPError, OSError, ValueError) as error:
        raise UserError(
            f"{where(reader)} cannot be fetched from the hub: {str(error).splitlines()[0]}; a gated model needs "
            "HF_TOKEN"
        ) from error
    if reader.revision:
        return f"{reader.path} at revision {reader.revision} is here: {folder}"
    return (
        f"{reader.path} is here: {folder}; reader.revision is empty, so that another day may bring other weights: pin "
        f"them by reader={{use: {reader.name}, revision: {Path(folder).name}}}"
    )
