"""Composition of the config: Hydra merges the chosen options of ``config/``; then single keys override them."""

import os
from collections.abc import Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field, fields
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from utaca.data_files import shipped
from utaca.errors import UserError
from utaca.runs import record as runs
from utaca.settings import schema
from utaca.settings import validation as models
from utaca.settings.checks import ROLES, load
from utaca.settings.triggers import as_written

BASE_GROUPS = ("scale", "reader", "corpus", "writer", "labeller")
"""Groups that tell runs apart; the others add to a run."""


def groups(root: Path) -> dict[str, list[str]]:
    """Options of every config group, by the group's name on the command line.

    The folders ``runs`` and ``experiments`` hold config files and are not groups.
    """
    keys = {key.name for key in fields(schema.Config)}
    options = {}
    for folder in sorted(path for path in (root / "config").iterdir() if path.is_dir()):
        for name in keys.intersection(ROLES if folder.name == "endpoint" else (folder.name,)):
            options[name] = sorted(path.stem for path in folder.glob("*.yaml"))
    return options


def points_of(reader: str, root: Path) -> str:
    """The group of points that a reader's config brings, or else the usual one."""
    path = root / "config" / "reader" / f"{reader}.yaml"
    defaults = yaml.safe_load(path.read_text(encoding="utf-8")).get("defaults", []) if path.is_file() else []
    brought = (name for entry in defaults for key, name in entry.items() if key.startswith("override /points@"))
    return next(brought, "llama")


def compose(overrides: Mapping[str, Any], root: Path, written: Iterable[Mapping[str, Any]] = ()) -> dict[str, Any]:
    """The whole config as a plain, resolved, checked dict.

    ``overrides`` is what ``snakemake --config`` and ``--configfile`` collected: a group's option
    (``judge=gpt_oss_120b``), a mapping of keys (``judge={temperature: 0.7}``), both
    (``corpus={use: folder, path: articles.jsonl}``), or a path as corpus (``corpus=articles.jsonl``). ``use`` may hold
    a whole group in place of an option's name, as a saved run does (:mod:`utaca.runs.record`), so that keys and
    options still go on top of it. ``root`` is the folder that holds ``config/``; ``written`` are the config files, of
    which Snakemake drops an option where keys follow. Raises :class:`UserError` naming all faulty keys.
    """
    models.refuse_misread(overrides)
    options = {key: option for file in written for key, option in file.items() if isinstance(option, str)}
    kept = {key: {"use": options[key], **overrides[key]} for key in options if isinstance(overrides.get(key), Mapping)}
    parts = _read({**overrides, **kept}, groups(root))
    faults = parts.faults
    if "points" in parts.choices:
        # An option of points sets ``decode`` too, in place of a saved run's ``decode``.
        parts.whole.pop("decode", None)
    plain = _options(root, parts.choices) | parts.whole
    models.refuse_misread(plain)
    for key, value in parts.keys.items():
        base = plain.get(key)
        if key in ROLES:
            value = _as_endpoint(key, base, value, faults)
        if key == "reader":
            base = _as_reader(base, value, key in parts.choices, faults)
        plain[key] = _merged(base, value, key)
    try:
        models.build(schema.Config, plain)
    except models.Faults as error:
        faults += error.faults
    models.refuse(faults)
    named = as_written(load(plain))
    if not named["run"]:
        chosen = {key: option for key, option in parts.choices.items() if key in BASE_GROUPS}
        named["run"] = runs.name(named, _usual(root), _options(root, chosen))
        load(named)
    variants = [(detector, "taken") for detector in named["detectors"].values()]
    for section, key in [(named["reader"], "path"), (named["tasks"], "path"), *variants]:
        section[key] = shipped(section[key], root.absolute())
    return named


@dataclass
class _Parts:
    """The overrides, sorted: options of groups, whole groups, single keys on top; and a sentence for each fault."""

    choices: dict[str, str] = field(default_factory=dict)
    whole: dict[str, Any] = field(default_factory=dict)
    keys: dict[str, Any] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)


def _read(overrides: Mapping[str, Any], options: Mapping[str, list[str]]) -> _Parts:
    parts = _Parts()
    for key, value in overrides.items():
        if "." in key:
            group = key.partition(".")[0]
            parts.faults.append(f"config key {key} is dotted; write --config '{group}={{KEY: VALUE, ...}}'.")
        elif key not in (*options, "decode"):
            parts.keys[key] = value
        elif isinstance(value, Mapping):
            rest = dict(value)
            chosen = rest.pop("use", "")
            if isinstance(chosen, Mapping):
                parts.whole[key] = dict(chosen)
            elif chosen not in ("", None):
                _choose(parts, key, chosen, options)
            if rest:
                parts.keys[key] = rest
        elif (
            key == "corpus"
            and isinstance(value, str)
            and value not in options[key]
            and ("/" in value or value.lower().endswith((".jsonl", ".parquet")) or os.path.exists(value))
        ):
            parts.choices[key] = "folder"
            parts.keys[key] = {"path": value}
        elif isinstance(value, str) and value and key != "decode":
            _choose(parts, key, value, options)
        else:
            path = ", or a path, as ./articles" if key == "corpus" else ""
            named = "" if key == "decode" else "the name of an option or "
            parts.faults.append(f"{key} must be {named}a mapping of keys{path}, not {value!r}.")
    return parts


def _choose(parts: _Parts, key: str, chosen: Any, options: Mapping[str, list[str]]) -> None:
    if chosen in options.get(key, ()):
        parts.choices[key] = chosen
    else:
        allowed = ", ".join(options.get(key, [])) + (", or the path of your own" if key == "corpus" else "")
        parts.faults.append(f"{key}={chosen} is unknown; {key} is one of {allowed}.")


def _options(root: Path, choices: Mapping[str, str]) -> dict[str, Any]:
    """The main config as Hydra composes it with the chosen options."""
    written = tuple((path, path.stat().st_mtime_ns) for path in sorted((root / "config").rglob("*.yaml")))
    return deepcopy(_composed(root, tuple(choices.items()), written))


@lru_cache(256)
def _composed(
    root: Path, choices: tuple[tuple[str, str], ...], written: tuple[tuple[Path, int], ...]
) -> dict[str, Any]:
    """As :func:`_options`, cached until a config file changes: ``written`` has the files' modification times, in ns."""
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    arguments = [f"{f'endpoint@{key}' if key in ROLES else key}={option}" for key, option in choices]
    try:
        with initialize_config_dir(str((root / "config").resolve()), version_base="1.3"):
            composed = hydra_compose("config", overrides=arguments)
        return OmegaConf.to_container(composed, resolve=True)  # type: ignore[return-value]
    except (HydraException, OmegaConfBaseException, yaml.YAMLError) as error:
        cause = error.__cause__ or error
        first = str(cause).strip().splitlines()[0].rstrip(".")
        raise UserError(f"the files of {root / 'config'} do not compose: {first}.") from error


def _usual(root: Path) -> dict[str, str]:
    """The main config's option of each group."""
    listed = yaml.safe_load((root / "config" / "config.yaml").read_text(encoding="utf-8"))["defaults"]
    pairs = [pair for entry in listed if isinstance(entry, Mapping) for pair in entry.items()]
    return {str(key).removeprefix("endpoint@"): str(option) for key, option in pairs}


def _merged(base: Any, value: Any, path: str) -> Any:
    """``base`` with the keys of ``value`` on top; a point is replaced as a whole, a detector keeps its other keys."""
    if not isinstance(base, Mapping) or not isinstance(value, Mapping) or path.startswith("points."):
        return value
    return {**base, **{name: _merged(base.get(name), each, f"{path}.{name}") for name, each in value.items()}}


def _as_endpoint(role: str, base: Any, changes: Mapping[str, Any], faults: list[str]) -> Mapping[str, Any]:
    """Changes of an endpoint, made remote by an address; adds to ``faults`` if a remote one's new model has no name."""
    was_remote = base.get("kind", "remote") == "remote"
    if changes.get("base_url") and not was_remote:
        changes = {"kind": "remote", **changes}
    if was_remote and "name" not in changes and changes.get("model", base.get("model")) != base.get("model"):
        faults.append(
            f"{role}.model is {changes['model']!r}, another than that of {base.get('name')}; name it too, as in "
            f"--config '{role}={{..., model: {changes['model']}, name: NAME}}'."
        )
    return changes


def _as_reader(base: Any, changes: Mapping[str, Any], kept: bool, faults: list[str]) -> Any:
    """The base of a reader's changes. A model other than the option's needs a new name, and starts from defaults
    unless ``use`` names the option (``kept``): the option's prompt, window, positions and methods may not fit it."""
    if not isinstance(base, Mapping):
        return base
    path = str(changes.get("path", base.get("path"))).rstrip("/")
    same = path == str(base.get("path")).rstrip("/")
    if not same and "name" not in changes:
        faults.append(
            f"reader.path is {path!r}, another model than that of reader {base.get('name')}; name it too, as in "
            f"--config 'reader={{name: NAME, path: {path}}}' (its other keys then start from the defaults of "
            "config/README.md, or from an option's by use: OPTION)."
        )
    return base if same or kept or "name" not in changes else {}
