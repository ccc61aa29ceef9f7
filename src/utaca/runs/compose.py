"""Compose a run's config: Hydra merges the chosen options of ``config/``; then single keys override them.

A group is a key of the config whose value may be chosen by name; an option of the group is a file in ``config/``.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
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
"""Groups whose options are part of a run's base, and of its name; the others only add to a run."""


def groups(root: Path) -> dict[str, list[str]]:
    """The names of the options of every config group, by the group's name on the command line.

    The folders ``runs`` and ``experiments`` hold config files and are not groups.
    """
    keys = {key.name for key in fields(schema.Config)}
    options = {}
    for folder in sorted(path for path in (root / "config").iterdir() if path.is_dir()):
        # The options of the folder "endpoint" are those of three groups, one for each role.
        names = ROLES if folder.name == "endpoint" else (folder.name,)
        for name in keys.intersection(names):
            options[name] = sorted(path.stem for path in folder.glob("*.yaml"))
    return options


def points_of(reader: str, root: Path) -> str:
    """The option of group ``points`` that a reader's config chooses; "llama", the main config's, if it chooses none."""
    path = root / "config" / "reader" / f"{reader}.yaml"
    if not path.is_file():
        return "llama"
    for entry in yaml.safe_load(path.read_text(encoding="utf-8")).get("defaults", []):
        for key, option in entry.items():
            if key.startswith("override /points@"):
                return option
    return "llama"


def compose(overrides: Mapping[str, Any], root: Path, written: Iterable[Mapping[str, Any]] = ()) -> dict[str, Any]:
    """Compose the whole config as a plain, resolved and checked dict.

    ``overrides`` is what ``snakemake --config`` and ``--configfile`` collected: a group's option
    (``judge=gpt_oss_120b``), a mapping of keys (``judge={temperature: 0.7}``), both
    (``corpus={use: folder, path: articles.jsonl}``), or a path as corpus (``corpus=articles.jsonl``). ``use`` may hold
    a whole group in place of an option's name, as a saved run does (:mod:`utaca.runs.record`), so that keys and
    options still override it. ``root`` is the folder that holds ``config/``. ``written`` are the contents of the
    config files: where one file names an option and a later one sets keys of that group, Snakemake keeps the keys only,
    so the option is looked up there. Raises :class:`UserError` naming all faulty keys.
    """
    models.refuse_misread(overrides)
    overrides = {**overrides, **_with_dropped_options(overrides, written)}
    parts = _read(overrides, groups(root))
    faults = parts.faults
    if "points" in parts.choices:
        # An option of points sets ``decode`` too, in place of a saved run's ``decode``.
        parts.whole.pop("decode", None)
    # From the bottom up: options of groups, contents of whole groups, single keys.
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
    resolved = as_written(load(plain))
    if not resolved["run"]:
        # The name shows whether single keys changed what the options give (utaca.runs.record.name).
        chosen = {key: option for key, option in parts.choices.items() if key in BASE_GROUPS}
        resolved["run"] = runs.name(resolved, _usual(root), _options(root, chosen))
        load(resolved)
    # Files that ship with the project are found wherever the run's results lie.
    variants = [(detector, "taken") for detector in resolved["detectors"].values()]
    for section, key in [(resolved["reader"], "path"), (resolved["tasks"], "path"), *variants]:
        section[key] = shipped(section[key], root.absolute())
    return resolved


def _with_dropped_options(
    overrides: Mapping[str, Any], written: Iterable[Mapping[str, Any]]
) -> dict[str, dict[str, Any]]:
    """The overrides that are mappings of keys of a group, each with the option that the files ``written`` name.

    Groups for which no file names an option are left out. Of several files, the last that names one counts.
    """
    options: dict[str, str] = {}
    for file in written:
        options.update({key: option for key, option in file.items() if isinstance(option, str)})
    completed = {}
    for key, option in options.items():
        keys = overrides.get(key)
        if isinstance(keys, Mapping):
            completed[key] = {"use": option, **keys}
    return completed


@dataclass
class _Parts:
    """The overrides of a config, by kind; each is by the key of the config that it overrides.

    ``choices`` are options of groups, ``whole`` contents of whole groups, and ``keys`` single keys that override
    either. ``faults`` has a sentence for each override that is wrong.
    """

    choices: dict[str, str] = field(default_factory=dict)
    whole: dict[str, Any] = field(default_factory=dict)
    keys: dict[str, Any] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)


def _read(overrides: Mapping[str, Any], options: Mapping[str, list[str]]) -> _Parts:
    """Sort the overrides by kind; ``options`` are the names of every group's options.

    ``decode`` is not a group, but a saved config has it whole, under ``use``.
    """
    parts = _Parts()
    for key, value in overrides.items():
        if "." in key:
            group = key.partition(".")[0]
            parts.faults.append(f"config key {key} has a dot; write --config '{group}={{KEY: VALUE, ...}}'.")
        elif key not in (*options, "decode"):
            parts.keys[key] = value
        elif isinstance(value, Mapping):
            single_keys = dict(value)
            chosen = single_keys.pop("use", "")
            if isinstance(chosen, Mapping):
                parts.whole[key] = dict(chosen)
            elif chosen not in ("", None):
                _choose(parts, key, chosen, options)
            if single_keys:
                parts.keys[key] = single_keys
        elif key == "corpus" and _is_path(value, options[key]):
            parts.choices[key] = "folder"
            parts.keys[key] = {"path": value}
        elif isinstance(value, str) and value and key != "decode":
            _choose(parts, key, value, options)
        else:
            path = ", or a path such as ./articles" if key == "corpus" else ""
            option = "" if key == "decode" else "the name of an option or "
            parts.faults.append(f"{key} must be {option}a mapping of keys{path}, not {value!r}.")
    return parts


def _is_path(value: Any, options: Sequence[str]) -> bool:
    """Whether the value of ``corpus`` is the path of the user's own prose and none of the group's ``options``."""
    if not isinstance(value, str) or value in options:
        return False
    return "/" in value or value.lower().endswith((".jsonl", ".parquet")) or os.path.exists(value)


def _choose(parts: _Parts, key: str, chosen: Any, options: Mapping[str, list[str]]) -> None:
    """Add the option ``chosen`` of group ``key`` to the parts; a fault if the group has no such option."""
    if chosen in options.get(key, ()):
        parts.choices[key] = chosen
    else:
        allowed = ", ".join(options.get(key, [])) + (", or the path of your own corpus" if key == "corpus" else "")
        parts.faults.append(f"{key}={chosen} is unknown; {key} is one of {allowed}.")


def _options(root: Path, choices: Mapping[str, str]) -> dict[str, Any]:
    """The main config as Hydra composes it with the chosen options; ``choices`` has an option by group."""
    written = tuple((path, path.stat().st_mtime_ns) for path in sorted((root / "config").rglob("*.yaml")))
    return deepcopy(_composed(root, tuple(choices.items()), written))


@lru_cache(256)
def _composed(
    root: Path, choices: tuple[tuple[str, str], ...], written: tuple[tuple[Path, int], ...]
) -> dict[str, Any]:
    """Compose as :func:`_options`; the result is cached, and must not be changed.

    ``written`` has the modification times of all config files, in ns, so that a change of one composes again.
    """
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    # A role's options are those of the folder "endpoint".
    groups_in_hydra = {role: f"endpoint@{role}" for role in ROLES}
    arguments = [f"{groups_in_hydra.get(key, key)}={option}" for key, option in choices]
    try:
        with initialize_config_dir(str((root / "config").resolve()), version_base="1.3"):
            composed = hydra_compose("config", overrides=arguments)
        return OmegaConf.to_container(composed, resolve=True)  # type: ignore[return-value]
    except (HydraException, OmegaConfBaseException, yaml.YAMLError) as error:
        cause = error.__cause__ or error
        # The message's first line says what is wrong.
        first = str(cause).strip().splitlines()[0].rstrip(".")
        raise UserError(f"the files of {root / 'config'} do not compose: {first}.") from error


def _usual(root: Path) -> dict[str, str]:
    """The option that the main config has of each group."""
    defaults = yaml.safe_load((root / "config" / "config.yaml").read_text(encoding="utf-8"))["defaults"]
    usual = {}
    for entry in defaults:
        # An entry is a mapping of a group to its option, except "_self_".
        if isinstance(entry, Mapping):
            for key, option in entry.items():
                usual[str(key).removeprefix("endpoint@")] = str(option)
    return usual


def _merged(base: Any, value: Any, path: str) -> Any:
    """Put the keys of ``value`` on top of those of ``base``, at any depth; ``path`` is the dotted key of both.

    A point is replaced as a whole, whereas a detector keeps its other keys.
    """
    if not isinstance(base, Mapping) or not isinstance(value, Mapping) or path.startswith("points."):
        return value
    merged = dict(base)
    for name, each in value.items():
        merged[name] = _merged(base.get(name), each, f"{path}.{name}")
    return merged


def _as_endpoint(role: str, base: Any, changes: Mapping[str, Any], faults: list[str]) -> Mapping[str, Any]:
    """The ``changes`` of the endpoint ``base``; an address among them makes a built-in endpoint remote.

    Adds to ``faults`` if the changes give a remote endpoint another model and no name.
    """
    was_remote = base.get("kind", "remote") == "remote"
    if changes.get("base_url") and not was_remote:
        changes = {"kind": "remote", **changes}
    if was_remote and "name" not in changes and changes.get("model", base.get("model")) != base.get("model"):
        faults.append(
            f"{role}.model is {changes['model']!r}, not the model of {base.get('name')}; also set its name: "
            f"--config '{role}={{..., model: {changes['model']}, name: NAME}}'."
        )
    return changes


def _as_reader(base: Any, changes: Mapping[str, Any], is_chosen: bool, faults: list[str]) -> Any:
    """What the ``changes`` of a reader override: the option ``base``, or nothing for another model.

    The option's prompt, window, positions and methods may not fit another model, so that it starts from the defaults,
    unless the user chose the option (``is_chosen``). Adds to ``faults`` if the changes give another model no name.
    """
    if not isinstance(base, Mapping):
        return base
    path = str(changes.get("path", base.get("path"))).rstrip("/")
    is_same_model = path == str(base.get("path")).rstrip("/")
    if not is_same_model and "name" not in changes:
        faults.append(
            f"reader.path is {path!r}, not the model of reader {base.get('name')}; also set its name: "
            f"--config 'reader={{name: NAME, path: {path}}}' (its other keys then start from the defaults of "
            "config/README.md, or from an option's by use: OPTION)."
        )
    return base if is_same_model or is_chosen or "name" not in changes else {}
