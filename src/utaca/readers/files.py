"""A reader's files, looked at where they lie: whether they are whole, its sizes and its weights; without torch."""

from __future__ import annotations

import json
from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

from utaca.errors import UserError, cause
from utaca.readers import gguf
from utaca.settings.schema import ReaderSettings
from utaca.sizes import Model, Sizes

WHOLE, INDEX = "model.safetensors", "model.safetensors.index.json"
"""What transformers reads weights from: one file, else the shards that an index names."""

_WANTED = ("*.safetensors", "*.json", "*.jinja", "*.model")
_OBJECTS = (
    "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
    "added_tokens.json", "chat_template.json",
)  # fmt: skip
_POINTER = b"version https://git-lfs"
_NUMBERS = (
    "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size",
    "max_position_embeddings",
)  # fmt: skip
"""Sizes that a ``config.json`` must tell: transformers would take those of another model."""
QUANTISED = "quantised; use the model's float32 or bfloat16 weights"
_QUANTISED_KEYS = ("quantization_config", "compression_config", "quantization")


def where(reader: ReaderSettings) -> str:
    """The reader's name and path, the beginning of a sentence about it."""
    return f"reader {reader.name!r} (reader.path={reader.path})"


def broken(path: Path, error: Exception) -> UserError:
    """What to say of a file that could not be read, with the mend."""
    try:
        if _is_pointer(path):
            return UserError(f"{path} is the pointer that Git LFS keeps in its place; fetch the file: git lfs pull")
    except PermissionError:
        # safetensors says that there is no such file.
        return UserError(f"{path} may not be read by this user; change its permissions")
    except OSError:
        pass
    return UserError(f"{path} cannot be read ({cause(error)}); copy or download it anew")


def _is_pointer(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(_POINTER)) == _POINTER


def read_object(path: Path) -> dict[str, Any]:
    """What a JSON file holds; raises :class:`UserError` where it cannot be read, or holds no object."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise broken(path, error) from error
    if not isinstance(content, dict):
        raise UserError(f"{path} holds no JSON object; copy or download it anew")
    return content


def check_folder(reader: ReaderSettings) -> None:
    """Raise :class:`UserError` where a file is missing in a reader's folder, or is another than it should be."""
    folder, named = folder_of(reader.path) or Path(reader.path), where(reader)
    if not (folder / "config.json").is_file() and (whole := next(folder.glob("*.gguf"), None)):
        raise UserError(f"{named} is a folder with a GGUF file; set reader.path={whole}")
    if (folder / "adapter_config.json").is_file():
        raise UserError(
            f"{named} holds an adapter (adapter_config.json); merge it into its base model (peft: "
            "merge_and_unload) and set reader.path to the merged folder"
        )
    if not (folder / "config.json").is_file():
        raise UserError(f"{named} has no config.json; point reader.path at a Hugging Face model folder")
    for path in sorted(folder.iterdir()):
        if path.name in _OBJECTS:
            read_object(path)
        elif path.suffix in (".jinja", ".model", ".txt") and path.is_file() and _is_pointer(path):
            raise broken(path, ValueError())
    if not any((folder / name).is_file() for name in ("tokenizer.json", "tokenizer.model", "tokenizer_config.json")):
        raise UserError(f"{named} has no tokenizer; add tokenizer.json to the folder")
    if not any((folder / name).is_file() for name in (WHOLE, INDEX)):
        if any(path.is_file() for path in folder.glob("*.safetensors")):
            raise UserError(f"{named} has .safetensors files, but neither {WHOLE} nor {INDEX}; copy that too")
        other = next((path.name for form in ("*.bin", "*.pt", "*.pth") for path in folder.glob(form)), None)
        instead = f", but {other}, which is not read" if other else ""
        raise UserError(f"{named} has no weights{instead}; add its .safetensors files to the folder")
    lacking = [name for name in _shards(reader) if not (folder / name).is_file()]
    if lacking:
        raise UserError(f"{named} lacks {first_few(lacking)}, which {INDEX} names; copy or download what is missing")


def check_config(path: Path) -> None:
    """Raise :class:`UserError` if a ``config.json`` tells no sizes, is of a quantised model, or brings code."""
    config = _numbers(path)
    for key in _QUANTISED_KEYS:
        if config.get(key) is not None:
            raise UserError(f"{path} has {key}: its weights are {QUANTISED}")
    if config.get("auto_map") is not None:
        raise UserError(f"{path} has auto_map: it brings code of its own, which is never run")


def _numbers(path: Path) -> dict[str, Any]:
    """Read a ``config.json``; raise :class:`UserError` if one of its sizes is not a whole number above 0."""
    config = read_object(path)
    optional = [key for key in ("num_key_value_heads", "head_dim") if config.get(key) is not None]
    for key in (*_NUMBERS, *optional):
        value = config.get(key)
        if type(value) is not int or value < 1:
            raise UserError(
                f"{path} has {key}={json.dumps(value)}, which must be a whole number above 0, as models have"
            )
    return config


def first_few(names: Sequence[str]) -> str:
    """The first three names and how many more there are."""
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _shards(reader: ReaderSettings) -> dict[str, list[str]]:
    """The files that hold a reader's weights, and which ones an index says that each of them has."""
    if _found(reader, WHOLE) is not None or (index := _found(reader, INDEX)) is None:
        return {WHOLE: []}
    places = read_object(index).get("weight_map")
    if not places or not isinstance(places, dict) or not all(isinstance(name, str) for name in places.values()):
        raise UserError(f"{index} has no weight_map of weights and files; copy or download it anew")
    shards: dict[str, list[str]] = {}
    for weight, name in sorted(places.items()):
        shards.setdefault(name, []).append(weight)
    return shards


def config_file(reader: ReaderSettings) -> Path | None:
    """Its ``config.json``, in its folder or in the cache of the hub; None where it is in neither."""
    return _found(reader, "config.json")


def weights(reader: ReaderSettings) -> list[Path]:
    """Its files of weights, in its folder or in the cache; none where one is missing."""
    files = [_found(reader, name) for name in sorted(_shards(reader))]
    return [file for file in files if file is not None] if all(files) else []


def sizes(config: Path) -> Sizes:
    """The sizes that a ``config.json`` of transformers tells."""
    numbers = _numbers(config)
    heads, hidden = numbers["num_attention_heads"], numbers["hidden_size"]
    return Sizes(
        layers=numbers["num_hidden_layers"],
        heads=heads,
        kv_heads=numbers.get("num_key_value_heads") or heads,
        head_size=numbers.get("head_dim") or hidden // heads,
        hidden=hidden,
        intermediate=numbers["intermediate_size"],
    )


def positions(config: Path) -> int:
    """Positions that a ``config.json`` says the model was trained for."""
    return _numbers(config)["max_position_embeddings"]


def model(reader: ReaderSettings) -> Model:
    """What a cluster's jobs are asked for by; raises :class:`UserError` where the reader's files are not here."""
    config, paths = config_file(reader), weights(reader)
    if config is None or not paths:
        raise UserError(
            f"a cluster's jobs ask for memory by the weights of reader {reader.name!r}, and {reader.path} is not here "
            "yet; fetch it first, with the same --config: snakemake --cores 1 readers"
        )
    return Model(reader, sizes(config), parameters(paths), reader.positions or positions(config))


class Stored(NamedTuple):
    """What a file of weights says of one of them: how its numbers are written, and its sizes."""

    kind: str
    shape: tuple[int, ...]


def stored(files: Sequence[Path]) -> dict[str, Stored]:
    """The weights in files, by name, from their headers; raises :class:`UserError` for a file that is not whole."""
    from safetensors import SafetensorError, safe_open

    weights = {}
    for path in files:
        try:
            with safe_open(path, "numpy") as file:
                slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
                weights |= {name: Stored(one.get_dtype(), tuple(one.get_shape())) for name, one in slices.items()}
        except (OSError, SafetensorError) as error:
            raise broken(path, error) from error
    return weights


def stored_weights(reader: ReaderSettings) -> dict[str, Stored] | None:
    """The weights of a reader whose files are here, by name; None where one is missing.

    Raises :class:`UserError` as :func:`stored` does, and where a file has not what the index says.
    """
    weights: dict[str, Stored] = {}
    for name, listed in _shards(reader).items():
        if (path := _found(reader, name)) is None:
            return None
        stored_names = stored([path])
        if lacking := [weight for weight in listed if weight not in stored_names]:
            raise UserError(f"{path} lacks {first_few(lacking)}, which {INDEX} says it has; copy or download both anew")
        weights |= stored_names
    return weights


def parameters(files: Sequence[Path]) -> int:
    """Numbers in files of weights, by their headers."""
    return sum(prod(weight.shape) for weight in stored(files).values())


def fetch(reader: ReaderSettings) -> str:
    """Fetch the files of a reader that are missing, and return what was done as a sentence.

    A hub model's files go into the cache of the hub. A GGUF file, of the catalogue (:mod:`utaca.readers.public`) or
    not, is converted. Raises :class:`UserError` if the files cannot be had.
    """
    from utaca.readers import public

    file = public.entry(reader.path)
    if gguf.is_gguf(reader.path):
        done = "fetched" if file and public.fetch(Path(reader.path), file) else "is here"
        return f"{reader.path} {done}; its model is in {gguf.converted(reader.path)}"
    if Path(reader.path).is_dir():
        return f"{reader.path} is here: {len(weights(reader))} files of weights"
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HTTPError

    try:
        folder = snapshot_download(reader.path, revision=reader.revision or None, allow_patterns=list(_WANTED))
    except (HTTPError, OSError, ValueError) as error:
        raise UserError(
            f"reader {reader.name!r} (reader.path={reader.path}) cannot be fetched from the hub: "
            f"{str(error).splitlines()[0]}; a gated model needs HF_TOKEN"
        ) from error
    commit = Path(folder).name
    if reader.revision:
        return f"{reader.path} at revision {reader.revision} is here: {folder}"
    return (
        f"{reader.path} is here: {folder}; reader.revision is empty, so that another day may bring other weights: pin "
        f"them by reader={{use: {reader.name}, revision: {commit}}}"
    )


def folder_of(path: str) -> Path | None:
    """The folder of a reader's model, for a GGUF file that which it is converted to; None where there is none here."""
    folder = gguf.conversion(path) if gguf.is_gguf(path) else Path(path)
    return folder if folder is not None and folder.is_dir() else None


def _found(reader: ReaderSettings, name: str) -> Path | None:
    if (folder := folder_of(reader.path)) is not None:
        return folder / name if (folder / name).is_file() else None
    if gguf.is_gguf(reader.path):
        return None
    from huggingface_hub import try_to_load_from_cache

    cached = try_to_load_from_cache(reader.path, name, revision=reader.revision or None)
    return Path(cached) if isinstance(cached, str) else None
