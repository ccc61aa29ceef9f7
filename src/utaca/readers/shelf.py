"""Readers by name, for use from Python."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from utaca.errors import UserError
from utaca.readers import names
from utaca.readers.load import Reader, load
from utaca.settings import schema
from utaca.settings.checks import build_reader

if TYPE_CHECKING:
    import torch


def load_reader(
    name_or_path: str | Path,
    *,
    dtype: str | torch.dtype | None = None,
    device: str | torch.device | None = None,
    memory: schema.Memory | None = None,
) -> Reader:
    """Load a reader by the name of its config (``tiny``, ``llama31_8b``, ...), Hugging Face id, folder or GGUF file.

    ``dtype`` is "float32" or "bfloat16", ``device`` "cpu" or "cuda", ``memory`` the settings of its block memory. What
    is left out is as the config says; a bare id or path is loaded onto CUDA where there is one, else the CPU, in the
    type of :func:`utaca.settings.machine.natural_dtype`, with InfLLM's block memory. ``utaca fetch NAME`` fetches a
    public reader before. Raises :class:`utaca.errors.UserError`, before weights are read, where the reader
    cannot be had or is not supported, and for values out of range.
    """
    if not isinstance(name_or_path, str | Path):
        raise UserError(f"a reader has a name, a Hugging Face id or a folder, and {name_or_path!r} is none of these")
    if not isinstance(memory, schema.Memory | None):
        raise UserError(f"memory must be a utaca.Memory, as utaca.Memory(n_local=256), not {memory!r}")
    name = str(name_or_path)
    settings = names.keys(name) or {"name": Path(name).name, "path": name, "prompt": "instruct"}
    overrides = {
        "dtype": dtype if dtype is None else str(dtype).removeprefix("torch."),
        "device": device if device is None else str(device),
        "memory": memory if memory is None else asdict(memory),
    }
    return load(build_reader(settings | {key: value for key, value in overrides.items() if value is not None}))
