"""The readers of the config by name, and where their files are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from utaca.data_files import root, shipped
from utaca.readers import files, public
from utaca.settings.checks import build_reader
from utaca.settings.machine import gib
from utaca.settings.schema import ReaderSettings


def listed() -> list[str]:
    """The names, sorted."""
    return sorted(path.stem for path in _folder().glob("*.yaml"))


def keys(name: str) -> dict[str, Any]:
    """The config's keys of the reader of that name; none if there is no such reader."""
    if name not in listed():
        return {}
    values = yaml.safe_load((_folder() / f"{name}.yaml").read_text(encoding="utf-8"))
    values.pop("defaults", None)
    return values | {"path": shipped(values["path"], root())}


def settings(name: str) -> ReaderSettings:
    """The settings of a listed reader."""
    return build_reader(keys(name))


def state(reader: ReaderSettings) -> str:
    """Say whether a reader's files are local, and where they come from."""
    state = "here" if files.weights(reader) or Path(reader.path).is_file() else "not fetched"
    file = public.entry(reader.path)
    source = f"{file.hub or file.parts.requirement}, {gib(file.size)}, {file.licence}" if file else reader.path
    return f"{state:12} {source}"


def _folder() -> Path:
    return root() / "config" / "reader"
