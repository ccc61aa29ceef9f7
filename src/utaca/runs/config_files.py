"""Check config files and the words of a Snakemake command line before Snakemake reads them.

Snakemake parses both before it reads the Snakefile; its own errors there are tracebacks, or name no file.
"""

import json
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from utaca.errors import UserError

# Options of Snakemake's command line that name config files, entries of the config, and the working directory.
_FILES = ("--configfile", "--configfiles")
_ENTRIES = ("--config", "-C")
_FOLDER = ("--directory", "-d")
_MERGE = "tag:yaml.org,2002:merge"
"""YAML's tag of the key ``<<``, which merges another mapping."""
_KEY = re.compile(r"[a-zA-Z_][\w-]*\w")
"""What Snakemake takes for the key of an entry of ``--config``."""


def check(path: str | Path) -> None:
    """Check a config file; raise :class:`UserError`, with the line, if it has a fault.

    The file may be missing, or not be YAML or JSON of keys and values, or a key may come twice. Of two equal keys, a
    parser would silently take the last.
    """
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except OSError as error:
        raise UserError(f"the config file {path} cannot be read ({error.strerror}); correct its path") from error
    except UnicodeDecodeError as error:
        raise UserError(f"the config file {path} is not UTF-8 text ({error.reason}); convert it") from error
    try:
        content = json.loads(text, object_pairs_hook=lambda pairs: _object(pairs, path))
    except (ValueError, RecursionError):
        # It is not JSON, and so it is read as YAML, whatever the end of its name.
        _check_yaml(text, path)
    else:
        if not isinstance(content, dict):
            raise _no_keys(path)


def _object(pairs: Sequence[tuple[str, Any]], path: str | Path) -> dict[str, Any]:
    """The dict of a JSON object's ``pairs``; raises :class:`UserError` if a key comes twice."""
    content: dict[str, Any] = {}
    for key, value in pairs:
        if key in content:
            raise UserError(f"{path}: the key {key!r} occurs twice; remove one of them")
        content[key] = value
    return content


def _no_keys(path: str | Path) -> UserError:
    """The error of a file that is no mapping."""
    return UserError(f"{path} has no keys and values; write one KEY: VALUE per line")


def _check_yaml(text: str, path: str | Path) -> None:
    """Check the text of a YAML file, as :func:`check` says."""
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        if not isinstance(node, yaml.MappingNode):
            raise _no_keys(path)
        _check_nodes(node, path, set(), set())
        # Finds faults that no single node has, such as a list for a key.
        yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        why = getattr(error, "problem", None) or str(error)
        line = f", line {mark.line + 1}," if mark else ""
        if "'\\t'" in why:
            raise UserError(f"{path}{line} begins with a tab; YAML is indented by spaces: replace it") from error
        raise UserError(f"{path}{line} is not valid YAML ({' '.join(why.split())}); correct it") from error
    except RecursionError:
        raise UserError(f"{path} is nested too deeply for a config; write it with fewer levels") from None


def _check_nodes(node: yaml.Node, path: str | Path, above: set[int], done: set[int]) -> None:
    """Check the keys and values of a node and of the nodes below it.

    Anchors let a node occur in several places, or in itself: ``above`` has the ids of the nodes that hold this one, and
    ``done`` those of the nodes that were checked.
    """
    if id(node) in above:
        raise UserError(f"{path}, line {node.start_mark.line + 1}: an anchor contains itself; write out its value")
    if id(node) in done:
        return
    if isinstance(node, yaml.ScalarNode):
        if node.tag != _MERGE:
            _check_value(node, path)
        return
    above.add(id(node))
    if isinstance(node, yaml.MappingNode):
        _check_keys(node, path)
    for item in node.value:
        # An item of a mapping is a pair of nodes, an item of a list is one node.
        for part in item if isinstance(item, tuple) else (item,):
            _check_nodes(part, path, above, done)
    above.remove(id(node))
    done.add(id(node))


def _check_value(node: yaml.ScalarNode, path: str | Path) -> None:
    """Check that a value can be read as what YAML takes it for, such as a number or a date."""
    try:
        yaml.SafeLoader("").construct_object(node)
    except yaml.YAMLError:
        raise
    except Exception as error:  # PyYAML raises errors of many classes here
        value, kind = repr(node.value[:40]), node.tag.rpartition(":")[2]
        raise UserError(
            f"{path}, line {node.start_mark.line + 1}: YAML takes {value} for a value of type {kind}, but it is not a "
            "valid one; correct it, or put it in quotes"
        ) from error


def _check_keys(node: yaml.MappingNode, path: str | Path) -> None:
    """Check that each key of a mapping comes once."""
    lines: dict[str, int] = {}
    for key, _ in node.value:
        if isinstance(key, yaml.ScalarNode):
            line = key.start_mark.line + 1
            if key.value in lines:
                raise UserError(
                    f"{path}, line {line}: the key {key.value!r} occurs twice, first in line {lines[key.value]}; "
                    "remove one of them"
                )
            lines[key.value] = line


def check_words(words: Sequence[str]) -> None:
    """Check the ``words`` of a command line; raise :class:`UserError` for faults that end Snakemake in a traceback.

    These are a config file that is missing or malformed, an entry of ``--config`` without a key or a value, and a
    working directory that cannot be made; the directory is made here.
    """
    for option, value in _options(words):
        if option in _FILES:
            check(value)
        elif option in _ENTRIES and "=" not in value:
            raise UserError(
                f"--config takes all words that follow it, and {value} is not KEY=VALUE; write {value} before --config"
            )
        elif option in _ENTRIES and not _KEY.fullmatch(value.partition("=")[0]):
            raise UserError(
                f"--config {value} does not begin with a key of the config; write KEY=VALUE, for example seed=1"
            )
        elif option in _FOLDER:
            try:
                os.makedirs(value, exist_ok=True)
            except OSError as error:
                raise UserError(
                    f"--directory {value} cannot be made ({error.strerror}); name another folder"
                ) from error


def _options(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield (option, value) for every value of an option on a command line.

    An option takes all words up to the next one, except the working directory, which is one word.
    """
    option = ""
    for word in words:
        name, equals_sign, value = word.partition("=")
        if word.startswith("-"):
            option = name
            if equals_sign:
                yield option, value
        elif option:
            yield option, word
            if option in _FOLDER:
                option = ""
