"""Runs: the settings that define a run, its name, and the files that are written beside its results.

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
_ADDED = (("scale", "bootstrap"), ("scale", "replays"), ("scale", "timed"), ("reader", "methods"))
_GROUPS = ("scale", "reader", "corpus", "writer", "labeller", "judge", "detectors", "points", "decode")
_PACKAGES = ("torch", "transformers", "tokenizers", "safetensors", "numpy", "pandas", "pyarrow", "snakemake", "openai")
_MODEL_FILES = (".json", ".jinja", ".safetensors", ".model", ".txt")
_SHOWN = 3


def base(config: Mapping[str, Any]) -> dict[str, Any]:
    """The base of a config, without transport keys: two configs with equal bases may share a run."""
    typed = identity(build(schema.Config, config))
    for part, key in _ADDED:
        del typed[part][key]
    return {part: typed[part] for part in PARTS}


def name(config: Mapping[str, Any], usual: Mapping[str, str], pure: Mapping[str, Any]) -> str:
    """The default name of a run, as in ``quick``, ``paper-llama31_8b`` or ``quick-3fa92c``.

    ``usual`` has the default run's option of each group; ``pure`` is the config of the chosen options without further
    keys. If the bases of ``config`` and ``pure`` differ, six hex digits of the base's digest end the name.
    """
    parts = [config["scale"]["name"]]
    parts += [config[key]["name"] for key in _NAMED if config[key]["name"] != usual.get(key)]
    try:
        same = base(config) == base(pure)
    except UserError:
        # An option may be valid only with further keys that the user sets.
        same = False
    return "-".join(parts if same else [*parts, digest(base(config))[:6]])


def check(config: Mapping[str, Any], folder: Path) -> None:
    """Raise :class:`UserError` if the run in ``folder`` (``results/NAME``) has another base, or if a file or a broken
    link has the path of ``folder``, of a parent or of ``logs``."""
    for place in (Path("logs"), *reversed(folder.parents), folder):
        if os.path.lexists(place) and not place.is_dir():
            raise UserError(f"{place} is no folder, or links to a disk that is not mounted; mount it, or move it away")
    path = folder / CONFIG
    if not path.is_file():
        return
    mend = "name this run otherwise (--config run=NAME)"
    saved = read(path)
    try:
        before = base(saved)
    except UserError as error:
        fault = error.faults[0] if isinstance(error, Faults) else str(error)
        raise UserError(f"{path} was written under other settings: {fault} To keep it, {mend}.") from error
    now = dict(_flat(base(config)))
    then = dict(_flat(before))
    changed = [
        f"{key} ({then.get(key)!r} there, {now.get(key)!r} now)"
        for key in dict.fromkeys([*now, *then])
        if now.get(key) != then.get(key)
    ]
    if changed:
        more = [f"{len(changed) - _SHOWN} more keys"] if len(changed) > _SHOWN else []
        raise UserError(
            f"run {config['run']} in {folder} was made with another {' and '.join(changed[:_SHOWN] + more)}; {mend}, "
            f"or take up its settings (--configfile {path})."
        )


def claim(config: Mapping[str, Any], folder: Path, *, asked: bool) -> None:
    """Save the config if its run has none yet, so that :func:`check` recognises the run from the first file on.

    If ``asked`` for, it replaces a config of other results: Snakemake never remakes a file that it has not made itself.
    """
    path = folder / CONFIG
    saved = path.is_file() and identity(build(schema.Config, read(path)))
    if not saved or (asked and saved != identity(build(schema.Config, config))):
        write(config, path)


def write(config: Mapping[str, Any], path: Path) -> None:
    """Save a resolved config atomically, so that ``--configfile`` repeats the run.

    Each group is saved under ``use``, so that single keys and other options can still override the saved config.
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
        raise UserError(f"{path} cannot be written ({error.strerror}); mend the folder, or run elsewhere") from error


def read(path: Path) -> dict[str, Any]:
    """Read a config that :func:`write` saved, unchecked; raises :class:`UserError` if the file holds no such config."""
    try:
        saved = yaml.safe_load(path.read_text(encoding="utf-8"))
        return {key: value["use"] if key in _GROUPS else value for key, value in saved.items()}
    except (OSError, ValueError, yaml.YAMLError, AttributeError, KeyError, TypeError) as error:
        raise UserError(f"{path} is no whole config of a run; remove it and run again") from error


def manifest(config: Mapping[str, Any], inputs: Iterable[Path], root: Path) -> dict[str, Any]:
    """The provenance of a run's results: code, versions, machine, model and the digest of every input file."""
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
    """Digests of a local model's files; for a hub model, its commit if it is in the local cache, else its revision."""
    folder = Path(reader["path"])
    if folder.exists():
        files = [path for path in folder.iterdir() if path.suffix in _MODEL_FILES] if folder.is_dir() else [folder]
        return {"path": reader["path"], "files": {path.name: sha256(path) for path in sorted(files)}}
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
    match = re.search(r"/snapshots/([0-9a-f]+)/", found.replace(os.sep, "/")) if isinstance(found, str) else None
    return match[1] if match else ""


def _flat(value: Any, where: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, each in value.items():
            yield from _flat(each, f"{where}.{key}" if where else str(key))
    else:
        yield where, value


def _version(package: str) -> str:
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
