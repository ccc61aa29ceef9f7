"""A reader's files, looked at where they lie: its sizes and its weights; without torch."""

from __future__ import annotations

import json
from collections.abc import Sequence
from math import prod
from pathlib import Path

from utaca.errors import UserError
from utaca.room import Sizes
from utaca.settings.schema import Reader

_WANTED = ("*.safetensors", "*.json", "*.jinja", "*.model")


def config_file(reader: Reader) -> Path | None:
    """Its ``config.json``, in its folder or in the cache of the hub; None where it is in neither."""
    return _found(reader, "config.json")


def weights(reader: Reader) -> list[Path]:
    """Its files of weights, in its folder or in the cache; none where one of a hub model's is missing."""
    folder = Path(reader.path)
    if folder.is_dir():
        return sorted(folder.glob("*.safetensors"))
    index = _found(reader, "model.safetensors.index.json")
    names = ["model.safetensors"]
    if index is not None:
        names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    files = [_found(reader, name) for name in names]
    return [file for file in files if file is not None] if all(files) else []


def sizes(config: Path) -> Sizes:
    """The sizes that a ``config.json`` of transformers tells."""
    told = json.loads(config.read_text(encoding="utf-8"))
    heads, hidden = told["num_attention_heads"], told["hidden_size"]
    return Sizes(
        layers=told["num_hidden_layers"],
        heads=heads,
        kv_heads=told.get("num_key_value_heads") or heads,
        head_size=told.get("head_dim") or hidden // heads,
        hidden=hidden,
        intermediate=told["intermediate_size"],
    )


def positions(config: Path) -> int:
    """Positions that a ``config.json`` says the model was trained for."""
    return json.loads(config.read_text(encoding="utf-8"))["max_position_embeddings"]


def parameters(files: Sequence[Path]) -> int:
    """Numbers in files of weights, by their headers."""
    from safetensors import safe_open

    total = 0
    for path in files:
        with safe_open(path, "numpy") as file:
            total += sum(prod(file.get_slice(name).get_shape()) for name in file.keys())  # noqa: SIM118
    return total


def fetch(reader: Reader) -> str:
    """Bring a hub model's files into the cache, those that are there already aside; what was done, as a sentence.

    Raises :class:`UserError` where the hub cannot be asked, or refuses.
    """
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


def _found(reader: Reader, name: str) -> Path | None:
    folder = Path(reader.path)
    if folder.is_dir():
        return folder / name if (folder / name).is_file() else None
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(reader.path, name, revision=reader.revision or None)
    return Path(found) if isinstance(found, str) else None
