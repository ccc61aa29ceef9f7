"""The rules that write, label and score offline: plain functions, and a deterministic model made of them."""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.resources import files

from utaca.data_files import root


@cache
def revision() -> str:
    """Eight hex digits that change with the rules: with other rules it is another model."""
    sources = sorted(
        (file for file in files(__name__).iterdir() if file.name.endswith((".py", ".json", ".txt"))),
        key=lambda file: file.name,
    )
    sources += [files("utaca.biographies") / "templates.py", root() / "data" / "biographies" / "writer.yaml"]
    return hashlib.sha256(b"\0".join(file.read_bytes() for file in sources)).hexdigest()[:8]
