"""The record of a run: the settings that define it, its name, its saved config, and where its results come from.

A run is defined by its *base*, everything that its trajectories depend on. Points, detectors, judges and tables may be
added to a run later.
"""

import os
import platform
import re
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import yaml

from utaca import machine
from utaca.data_files import sha256
from utaca.errors import UserError
from utaca.readers.gguf import is_packed
from utaca.settings import schema
from utaca.settings.checks import build, digest, identity
from utaca.settings.validation import Faults

CONFIG = "run.yaml"
PARTS = ("seed", "scale", "reader", "corpus", "writer", "labeller", "trajectories", "generation")
"""Keys of the config that a run's base is made of."""
_NAMED = ("reader", "corpus", "writer", "labeller")
"""Parts whose names are in a run's name, if they are not the usual ones."""
_ADDED = (("scale", "bootstrap"), ("scale", "replays"), ("scale", "timed"), ("reader", "methods"))
"""Keys of these parts that do not belong to the base: what they make is added to a run."""
_GROUPS = ("scale", "reader", "corpus", "writer", "labeller", "judge", "detectors", "points", "decode")
"""Keys that a saved config has under ``use``."""
_PACKAGES = ("torch", "transformers", "tokenizers", "safetensors", "numpy", "pandas", "pyarrow", "snakemake", "openai")
"""Packages whose versions the manifest has."""
_MODEL_FILES = (".json", ".jinja", ".safetensors", ".model", ".txt")
"""Endings of the files of a model's folder whose digests the manifest has."""
_SHOWN = 3
"""Most keys that a message on a changed base names; it counts the others."""


def base(config: Mapping[str, Any]) -> dict[str, Any]:
    """The base of a config, without transport keys (those that change no result).

    Two configs with equal bases may share a run.
    """
    settings = identity(build(schema.Config, config))
    for part, key in _ADDED:
        del settings[part][key]
    return {part: settings[part] for part in PARTS}


def name(config: Mapping[str, Any], usual: Mapping[str, str], pure: Mapping[str, Any]) -> str:
    """The default name of a run, as in ``quick``, ``paper-llama31_8b`` or ``quick-3fa92c``.

    It has the scale's name and those of other parts that are not the usual ones. ``usual`` has the default run's option
    of each group; ``pure`` is the config of the chosen options without the single keys that were set. If these keys
    change the base, the name ends in six hexadecimal digits of the base's digest.
    """
    parts = [config["scale"]["name"]]
    parts += [config[key]["name"] for key in _NAMED if config[key]["name"] != usual.get(key)]
    try:
        is_pure = base(config) == base(pure)
    except UserError:
        # An option may be valid only with further keys that the user sets.
        is_pure = False
    if not is_pure:
        parts.append(digest(base(config))[:6])
    return "-".join(parts)


def check(config: Mapping[str, Any], folder: Path) -> None:
    """Raise :class:`UserError` if the run that ``folder`` (``results/NAME``) holds has another base than the config.

    It is raised, too, if a folder of the run, such as ``logs``, cannot be made because a file or a broken link has its
    path. A folder without a saved config holds no run.
    """
    for place in (Path("logs"), *reversed(folder.parents), folder):
        if os.path.lexists(place) and not place.is_dir():
            raise UserError(
                f"{place} is not a folder, or links to a disk that is not mounted; mount the disk, or move {place} away"
            )
    path = folder / CONFIG
    if not path.is_file():
        return
    advice = "give this run another name (--config run=NAME)"
    saved = read(path)
    try:
        saved_base = base(saved)
    except UserError as error:
        fault = error.faults[0] if isinstance(error, Faults) else str(error)
        raise UserError(f"{path} was written with other settings: {fault} To keep it, {advice}.") from error
    now = dict(_flat(base(config)))
    there = dict(_flat(saved_base))
    changed = []
    for key in dict.fromkeys([*now, *there]):
        if now.get(key) != there.get(key):
            changed.append(f"{key} ({there.get(key)!r} there, {now.get(key)!r} now)")
    if changed:
        more = [f"{len(changed) - _SHOWN} more keys"] if len(changed) > _SHOWN else []
        raise UserError(
            f"run {config['run']} in {folder} was made with other settings: {', '.join(changed[:_SHOWN] + more)}; "
            f"{advice}, or use its settings (--configfile {path})."
        )


def claim(config: Mapping[str, Any], folder: Path, *, asked: bool) -> None:
    """Save the config in the run's ``folder`` if there is none yet, so that :func:`check` can recognise the run.

    ``asked``: the saved config is among the files that the command makes. Then one that gives other results is replaced
    too, because Snakemake makes no file again that no job of its own made.
    """
    path = folder / CONFIG
    saved = identity(build(schema.Config, read(path))) if path.is_file() else None
    differs = saved != identity(build(schema.Config, config))
    if saved is None or (asked and differs):
        write(config, path)


def write(config: Mapping[str, Any], path: Path) -> None:
    """Save a resolved config atomically, so that ``--configfile`` repeats the run.

    Each group is saved as ``{use: {...}}``, so that single keys and other options can still override the saved config.
    """
    saved = {key: {"use": value} if key in _GROUPS else value for key, value in config.items()}
    command = f"# Repeats this run: snakemake --cores all results/tables --configfile {path}\n"
    part = path.with_name(f"{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        text = yaml.safe_dump(saved, sort_keys=False, allow_unicode=True, width=120)
        part.write_text(command + text, encoding="utf-8")
        part.replace(path)
    except OSError as error:
        raise UserError(
            f"{path} cannot be written ({error.strerror}); make the folder writable, or run elsewhere"
        ) from error


def read(path: Path) -> dict[str, Any]:
    """Read a config that :func:`write` saved; its values are not checked.

    Raises :class:`UserError` if the file holds no such config.
    """
    try:
        saved = yaml.safe_load(path.read_text(encoding="utf-8"))
        return {key: value["use"] if key in _GROUPS else value for key, value in saved.items()}
    except (OSError, ValueError, yaml.YAMLError, AttributeError, KeyError, TypeError) as error:
        raise UserError(f"{path} is not a complete config of a run; remove it and run again") from error


def manifest(config: Mapping[str, Any], inputs: Iterable[Path], root: Path) -> dict[str, Any]:
    """Where a run's results come from: code, versions, machine, model and the digest of every input file.

    ``root`` is the project's folder, a checkout perhaps.
    """
    return {
        "run": config["run"],
        "utaca": _version("utaca"),
        "commit": _git(root, "rev-parse", "HEAD"),
        "dirty": bool(_git(root, "status", "--porcelain", "--untracked-files=no")),
        "python": platform.python_version(),
        "packages": {package: _version(package) for package in _PACKAGES},
        "machine": {
            "system": platform.platform(),
            "processor": machine.processor(),
            "cores": os.cpu_count(),
            "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
            "gpus": machine.gpu_names(),
        },
        "model": _model(config["reader"]),
        "dtype": machine.chosen_dtype(config["reader"]["dtype"], config["reader"]["device"]),
        "weights": "packed" if is_packed(build(schema.ReaderSettings, config["reader"], "reader")) else "plain",
        "inputs": {str(path): sha256(path) for path in sorted(set(map(Path, inputs)))},
    }


def _model(reader: Mapping[str, Any]) -> dict[str, Any]:
    """The identity of a reader's model: the digests of its files or, for a hub model, its commit.

    The commit is known if the model is in the local cache; else it is the config's revision.
    """
    path = Path(reader["path"])
    if path.exists():
        files = [path]
        if path.is_dir():
            files = [file for file in path.iterdir() if file.suffix in _MODEL_FILES]
        return {"path": reader["path"], "files": {file.name: sha256(file) for file in sorted(files)}}
    revision = _hub_commit(reader["path"], reader["revision"]) or reader["revision"]
    return {"path": reader["path"], "revision": revision}


def _hub_commit(model: str, revision: str) -> str:
    """The commit of a hub model in the local cache; "" if the cache does not hold the model."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        found = try_to_load_from_cache(model, "config.json", revision=revision or None)
    except HFValidationError:
        return ""
    if not isinstance(found, str):
        return ""
    match = re.search(r"/snapshots/([0-9a-f]+)/", found.replace(os.sep, "/"))
    return match[1] if match else ""


def _flat(value: Any, where: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (dotted key, value) for every value of nested mappings; ``where`` is the dotted key of ``value``."""
    if isinstance(value, Mapping):
        for key, each in value.items():
            yield from _flat(each, f"{where}.{key}" if where else str(key))
    else:
        yield where, value


def _version(package: str) -> str:
    """The installed version of a package; "" if it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def _git(root: Path, *arguments: str) -> str:
    """The output of a git command; "" if the command fails or ``root`` is not a checkout."""
    if not (root / ".git").exists():
        # Git would search the parent folders, which may belong to another project's checkout.
        return ""
    try:
        done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
