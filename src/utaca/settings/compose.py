"""Composition of the config from ``config/`` with Hydra, each ``--config`` entry being an override."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, get_type_hints

from utaca.errors import UserError
from utaca.settings import schema
from utaca.settings.checks import ROLES, load, unknown_key

# Values that Hydra's grammar takes bare; anything else is quoted.
_BARE = re.compile(r"[A-Za-z0-9_./:+-]+")
_CORPUS_FILE = (".jsonl", ".parquet")
CHOICE_KEY = "use"
MAPPINGS = {"suites": schema.Suite, "detectors": schema.Detector}


def groups(root: Path) -> dict[str, list[str]]:
    """Options of every config group, by the name under which the command line knows the group.

    ``methods`` is none: its files hold a method's settings each, and all of them are in use.
    """
    found = {}
    for folder in sorted(path for path in (root / "config").iterdir() if path.is_dir() and path.name != "methods"):
        options = sorted(path.stem for path in folder.glob("*.yaml"))
        for name in ROLES if folder.name == "endpoint" else (folder.name,):
            if options:
                found[name] = options
    return found


def compose(overrides: Mapping[str, Any], root: Path) -> dict[str, Any]:
    """The whole config as a plain, resolved, checked dict.

    ``overrides`` is what ``snakemake --config`` and ``--configfile`` collected: a group's option
    (``judge=gpt_oss_120b``), a mapping of keys (``judge={temperature: 0.7}``), both
    (``corpus={use: folder, path: articles.jsonl}``), or a path as corpus (``corpus=articles.jsonl``).
    ``root`` is the folder that holds ``config/``. Raises :class:`UserError` naming the faulty key.
    """
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir
    from hydra.core.config_store import ConfigStore
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    overrides = dict(overrides)
    own_methods = overrides.pop("methods", {})
    arguments = list(_arguments(overrides, groups(root)))
    defined = {key: _entries(key, overrides.get(key)) for key in MAPPINGS}
    where = ""
    store = ConfigStore.instance()
    store.store("schema", schema.Config)
    try:
        with initialize_config_dir(str((root / "config").resolve()), version_base="1.3"):
            composed = hydra_compose("config", overrides=arguments)
        plain: dict[str, Any] = OmegaConf.to_container(composed, resolve=True)  # type: ignore[assignment]
        for key, kind in MAPPINGS.items():
            for name, entry in defined[key].items():
                # A suite is written anew; a detector of this name keeps what is not said.
                base = plain[key].get(name, {}) if kind is schema.Detector else {}
                where = f"{key}.{name}."
                merged = OmegaConf.merge(OmegaConf.structured(kind), base, entry)
                plain[key][name] = OmegaConf.to_container(merged, resolve=True)
    except (HydraException, OmegaConfBaseException) as error:
        cause = error.__cause__ if isinstance(error.__cause__, OmegaConfBaseException) else error
        key = f"key {where}{cause.full_key}" if getattr(cause, "full_key", None) else "of this run"
        raise UserError(f"config {key} is wrong: {str(cause).splitlines()[0].rstrip('.')}.") from error
    plain["methods"] = _methods(root, plain["reader"]["methods"], own_methods)
    load(plain)
    return plain


def _methods(root: Path, *changes: Any) -> dict[str, Any]:
    """Settings of every method that ``config/methods`` has a file of, with changes by method on top, in their order."""
    import yaml

    found = {}
    for path in sorted((root / "config" / "methods").glob("*.yaml")):
        found[path.stem] = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    for change in changes:
        for name, settings in change.items() if isinstance(change, Mapping) else [("", change)]:
            if name not in found:
                raise unknown_key(f"methods.{name}", str(name), found)
            if not isinstance(settings, Mapping):
                raise UserError(f"methods.{name} must be a mapping of keys to values, not {settings!r}.")
            # The command line gives texts.
            found[name] |= {k: yaml.safe_load(v) if isinstance(v, str) else v for k, v in settings.items()}
    return found


def command(overrides: Mapping[str, Any], target: str) -> str:
    """What to type for ``target`` under these overrides, settings of transport left out: addresses stay at home."""
    transport = {
        f.name for kind in (schema.Endpoint, schema.Corpus) for f in fields(kind) if f.metadata.get("transport")
    }
    entries = []
    for key, value in overrides.items():
        if isinstance(value, Mapping):
            value = {name: each for name, each in value.items() if name not in transport}
        entries.append(f"{key}={value if isinstance(value, str) else json.dumps(value)}")
    return shlex.join(["snakemake", "--cores", "all", *(["--config", *entries] if entries else []), "--", target])


def _arguments(overrides: Mapping[str, Any], options: Mapping[str, list[str]]) -> Iterator[str]:
    for key, value in overrides.items():
        if key not in {f.name for f in fields(schema.Config)}:
            raise unknown_key(key, key, [f.name for f in fields(schema.Config)])
        group = f"endpoint@{key}" if key in ROLES else key
        if key in options:
            chosen, value = _split_choice(key, value)
            if chosen:
                if chosen not in options[key]:
                    raise UserError(f"{key}={chosen} is unknown; {key} is one of {', '.join(options[key])}.")
                yield f"{group}={chosen}"
        if value is not None and key not in MAPPINGS:
            yield from _leaves(key, value, _kind(schema.Config, key))


def _split_choice(key: str, value: Any) -> tuple[str, Any]:
    """The group option that an entry chooses (or "") and the keys that it sets besides (or None)."""
    if isinstance(value, Mapping):
        rest = dict(value)
        return str(rest.pop(CHOICE_KEY, "")), rest
    if key == "corpus" and isinstance(value, str) and ("/" in value or value.endswith(_CORPUS_FILE)):
        return "folder", {"path": value}
    if not isinstance(value, str) or not value:
        raise UserError(f"{key} must be the name of an option or a mapping of keys, not {value!r}.")
    return value, None


def _entries(key: str, value: Any) -> dict[str, Any]:
    """What an override defines in a mapping by name: no Hydra override can add to one, so they are merged after."""
    defined = (
        {str(name): entry for name, entry in value.items() if name != CHOICE_KEY} if isinstance(value, Mapping) else {}
    )
    for name, entry in defined.items():
        # for its check of keys
        list(_leaves(f"{key}.{name}", entry, MAPPINGS[key]))
    return defined


def _kind(owner: type, name: str) -> Any:
    return get_type_hints(owner)[name]


def _leaves(path: str, value: Any, kind: Any) -> Iterator[str]:
    """Hydra overrides for the leaves of a nested mapping, its keys checked against the dataclasses."""
    if is_dataclass(kind) and isinstance(kind, type):
        if not isinstance(value, Mapping):
            raise UserError(f"{path} must be a mapping of keys to values, not {value!r}.")
        known = [f.name for f in fields(kind)]
        for name, element in value.items():
            if name not in known:
                raise unknown_key(f"{path}.{name}", str(name), known)
            yield from _leaves(f"{path}.{name}", element, _kind(kind, name))
    else:
        yield f"{path}={_render(value)}"


def _render(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}:{_render(element)}" for key, element in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(_render(element) for element in value) + "]"
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    text = str(value)
    if _BARE.fullmatch(text):
        return text
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
