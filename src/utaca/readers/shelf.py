"""Readers by name, for use from Python."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from utaca.readers.load import Reader, load
from utaca.settings import schema

ROOT = Path(__file__).resolve().parents[3]


def load_reader(name: str, memory: schema.Memory | None = None) -> Reader:
    """Load a reader by the name of its config (``tiny``, ``llama31_8b``, ...), Hugging Face id or folder.

    ``memory`` replaces the block memory of its config (of a bare id or folder: InfLLM's). Raises
    :class:`utaca.errors.UserError` where the reader cannot be had or is not supported.
    """
    if (ROOT / "config" / "reader" / f"{name}.yaml").is_file():
        from utaca.settings.checks import build
        from utaca.settings.compose import compose

        settings = build(schema.Reader, compose({"scale": "paper", "reader": name}, ROOT)["reader"], "reader")
        if (ROOT / settings.path).is_dir():
            settings = replace(settings, path=str(ROOT / settings.path))
    else:
        settings = schema.Reader(name=Path(name).name, path=name, prompt="instruct")
    return load(replace(settings, memory=memory) if memory else settings)
