"""Config files and the words of a Snakemake command line, checked before Snakemake reads them.

Snakemake parses both before it reads the Snakefile, so that its own faults there are tracebacks, or name no file.
"""

import json
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from utaca.errors import UserError

_FILES = ("--configfile", "--configfiles")
_ENTRIES = ("--config", "-C")
_FOLDER = ("--directory", "-d")
_MERGE = "tag:yaml.org,2002:merge"
_KEY = re.compile(r"[a-zA-Z_][\w-]*\w")
"""What Snakemake takes for the key of an entry of ``--config``."""


def check(path: str | Path) -> None:
    """Raise :class:`UserError`, with the line, if a config file is missing, is no YAML or JSON of keys and values, or
    has a key twice: a parser would silently take the last."""
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except OSError as error:
        raise UserError(f"the config file {path} cannot be read ({error.strerror}); correct its path") from error
    except UnicodeDecodeError as error:
        raise UserError(f"the config file {path} is not UTF-8 text ({error.reason}); convert it") from error
    try:
        held = json.loads(text, object_pairs_hook=lambda pairs: _once(pairs, path))
    except (ValueError, RecursionError):
        _check_yaml(text, path)
    else:
        if not isinstance(held, dict):
            raise _no_keys(path)


def _once(pairs: Sequence[tuple[str, Any]], path: str | Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise UserError(f"{path}: the key {key!r} comes twice; remove one")
        found[key] = value
    return found


def _no_keys(path: str | Path) -> UserError:
    return UserError(f"{path} holds no keys and values; write them as KEY: VALUE, a line each")


def _check_yaml(text: str, path: str | Path) -> None:
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        if not isinstance(node, yaml.MappingNode):
            raise _no_keys(path)
        _check_nodes(node, path, set(), set())
        # What is wrong only as a whole, as a list for a key.
        yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        why = getattr(error, "problem", None) or str(error)
        line = f", line {mark.line + 1}," if mark else ""
        if "'\\t'" in why:
            raise UserError(f"{path}{line} begins with a tab; YAML is indented by spaces: replace it") from error
        raise UserError(f"{path}{line} is no YAML ({' '.join(why.split())}); correct it") from error
    except RecursionError:
        raise UserError(f"{path} is nested too deeply for a config; write keys and values") from None


def _check_nodes(node: yaml.Node, path: str | Path, above: set[int], done: set[int]) -> None:
    """Check the keys of a node and of those below it; ``above`` and ``done`` have the ids of nodes that were met."""
    if id(node) in above:
        raise UserError(
            f"{path}, line {node.start_mark.line + 1}: an anchor holds itself; write out what it stands for"
        )
    if id(node) in done:
        return
    if isinstance(node, yaml.ScalarNode):
        if node.tag != _MERGE:
            _check_value(node, path)
        return
    above.add(id(node))
    if isinstance(node, yaml.MappingNode):
        _check_keys(node, path)
    for each in node.value:
        for part in each if isinstance(each, tuple) else (each,):
            _check_nodes(part, path, above, done)
    above.remove(id(node))
    done.add(id(node))


def _check_value(node: yaml.ScalarNode, path: str | Path) -> None:
    """Check that a value is of the kind that it is written as, as a number that it can be read as."""
    try:
        yaml.SafeLoader("").construct_object(node)
    except yaml.YAMLError:
        raise
    except Exception as error:  # PyYAML raises errors of many classes here
        value, kind = repr(node.value[:40]), node.tag.rpartition(":")[2]
        raise UserError(
            f"{path}, line {node.start_mark.line + 1}: {value} cannot be read as the {kind} that YAML takes it for; "
            "correct it, or write a text in quotes"
        ) from error


def _check_keys(node: yaml.MappingNode, path: str | Path) -> None:
    lines: dict[str, int] = {}
    for key, _ in node.value:
        if isinstance(key, yaml.ScalarNode):
            line = key.start_mark.line + 1
            if key.value in lines:
                raise UserError(
                    f"{path}, line {line}: the key {key.value!r} comes twice, first in line {lines[key.value]}; remove "
                    "one of them"
                )
            lines[key.value] = line


def check_words(words: Sequence[str]) -> None:
    """Raise :class:`UserError` for what Snakemake would end in a traceback for: a config file that is missing or
    malformed, an entry of ``--config`` without a key or a value, or a working directory that cannot be made."""
    for option, value in _options(words):
        if option in _FILES:
            check(value)
        elif option in _ENTRIES and "=" not in value:
            raise UserError(
                f"{value} is taken for an entry of --config, which takes all words that follow it and wants KEY=VALUE; "
                f"write {value} before --config"
            )
        elif option in _ENTRIES and not _KEY.fullmatch(value.partition("=")[0]):
            raise UserError(f"--config {value} begins with no key of the config; write KEY=VALUE, as seed=1")
        elif option in _FOLDER:
            try:
                os.makedirs(value, exist_ok=True)
            except OSError as error:
                raise UserError(f"--directory {value} cannot be made ({error.strerror}); name another") from error


def _options(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Each value of the options that :func:`check_words` checks, with its option."""
    option = ""
    for word in words:
        name, joined, value = word.partition("=")
        if word.startswith("-"):
            option = name
            if joined:
                yield option, value
        elif option:
            yield option, word
            if option in _FOLDER:
                option = ""
