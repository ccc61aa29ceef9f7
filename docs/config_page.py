"""Make the tables of the page on config keys, and the JSON Schema of a config, from the dataclasses.

``python docs/config_page.py`` writes all files: the page, the schema for editors, and the schema for Snakemake's
workflow catalogue, which shows a table of the keys.
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import UnionType
from typing import Any, Literal, get_args, get_origin

import yaml
from pydantic import TypeAdapter
from pydantic.fields import FieldInfo

from utaca.runs.compose import groups
from utaca.settings import schema
from utaca.settings.triggers import TriggerSetting
from utaca.settings.validation import bounds_of, keys_of

PAGE = Path("config") / "README.md"
SCHEMA = Path("config") / "schema.json"
CATALOGUE = Path("workflow") / "schemas" / "config.schema.yaml"
"""Where the workflow catalogue looks for a schema."""

_GROUPS = """\
## Groups

| group | options | what it chooses |
|---|---|---|
"""

_KEYS = """
## Keys

`required` means that a key has no default. Every option of its group sets it. A dot separates levels:
`reader.memory.n_init` is set by `reader={memory: {n_init: 64}}`. A star stands for a name that you choose, and `[]` for
each entry of a list.

| key | type | default | allowed | meaning |
|---|---|---|---|---|
"""


def page(root: Path) -> str:
    """The whole page, as Markdown. The text before its tables is kept; ``root`` is the folder of ``config/``."""
    introduction = (root / PAGE).read_text(encoding="utf-8").partition(_GROUPS)[0]
    options = groups(root)
    lines = []
    for name, (_, about) in keys_of(schema.Config).items():
        if name in options:
            named = ", ".join(f"`{option}`" for option in options[name])
            lines.append(f"| `{name}` | {named} | {_meaning(about)} |\n")
    return introduction + _GROUPS + "".join(lines) + _KEYS + "\n".join(_rows(schema.Config, "")) + "\n"


def json_schema(root: Path) -> dict[str, Any]:
    """The JSON Schema of a config file for ``--configfile``: any part of the config, with options by name."""
    options = groups(root)
    made = TypeAdapter(schema.Config).json_schema()
    kinds = made["$defs"]
    for kind in (made, *kinds.values()):
        # An option may hold what a file leaves out.
        kind.pop("required", None)
        kind.pop("title", None)
        for about in kind["properties"].values():
            for internal in ("title", "hidden"):
                about.pop(internal, None)
            listed = about.pop("listed", ())
            # Pydantic leaves a key's description out if the key's class has the same.
            if "description" in about:
                about["description"] = _in_one_line(about["description"], listed)
    keys = keys_of(schema.Config)
    for key in options:
        whole = made["properties"][key]
        whole.pop("description", None)
        name = {"description": "name of an option", "anyOf": [{"enum": options[key]}, {"type": "string"}]}
        if "$ref" in whole:
            kind = kinds[whole["$ref"].rpartition("/")[2]]
            kind["properties"]["use"] = {"description": "option that the keys change, or a whole group"}
        else:
            whole.pop("title", None)
            whole["properties"] = {"use": {"description": "option that is added to, or a whole group"}}
        made["properties"][key] = {"description": _meaning(keys[key][1]), "anyOf": [name, whole]}
    sections = {"description": "all sections, as a saved run has them", "type": "object"}
    made["properties"]["decode"]["properties"] = {"use": sections}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "Config of utaca", **made}


def json_text(root: Path) -> str:
    """The JSON Schema as the text of its file."""
    return json.dumps(json_schema(root), indent=1, ensure_ascii=False) + "\n"


def catalogue_text(root: Path) -> str:
    """The schema as the workflow catalogue reads it, in YAML.

    The catalogue shows ``type``, ``description`` and ``default`` of every key below ``properties``, and follows no
    reference. So each key holds its own keys, and a key that may be the name of an option or a mapping has both types.
    """
    made = json_schema(root)
    kinds = made.pop("$defs")
    text = yaml.safe_dump(_whole(made, kinds), sort_keys=False, allow_unicode=True, width=120)
    return f"# Written by docs/config_page.py.\n{text}"


def _whole(part: Any, kinds: dict[str, Any]) -> Any:
    """A part of a schema with what it refers to in ``kinds`` in its place, and names of options and mappings as one."""
    if isinstance(part, list):
        return [_whole(entry, kinds) for entry in part]
    if not isinstance(part, dict):
        return part
    if "$ref" in part:
        referred = kinds[part["$ref"].rpartition("/")[2]]
        part = referred | {key: value for key, value in part.items() if key != "$ref"}
    whole = {key: _whole(value, kinds) for key, value in part.items()}
    if any("properties" in kind for kind in whole.get("anyOf", [])):
        name, mapping = whole.pop("anyOf")
        options = ", ".join(name["anyOf"][0]["enum"])
        described = f"{whole['description']} Options: {options}; or keys."
        whole = {**mapping, **whole, "type": ["string", "object"], "description": described}
    return whole


def _rows(kind: type, where: str) -> Iterator[str]:
    """A line for each key. Groups with the same keys, such as writer, labeller and judge, share their lines."""
    keys = keys_of(kind)
    alike: dict[Any, list[str]] = {}
    for name, (hint, _) in keys.items():
        alike.setdefault(_inner(hint), []).append(name)
    for name, (hint, about) in keys.items():
        inner, suffix = _inner(hint)
        if hasattr(inner, "__pydantic_fields__"):
            names = alike[inner, suffix]
            if name == names[0]:
                shared = name if len(names) == 1 else f"{{{','.join(names)}}}"
                yield from _rows(inner, f"{where}.{shared}{suffix}".lstrip("."))
            continue
        path = f"{where}.{name}".lstrip(".")
        meaning = f"{_meaning(about)}{' (*transport*)' if about.exclude else ''}"
        row = (f"`{path}`", _type(hint), _default(about), _allowed(hint, about), meaning)
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |"


def _meaning(about: FieldInfo) -> str:
    return _in_one_line(about.description, about.json_schema_extra["listed"])


def _in_one_line(docstring: str, listed: Sequence[str]) -> str:
    """A key's docstring in one line, as a table cell needs it, followed by the names ``listed``."""
    text = " ".join(docstring.split())
    return f"{text.removesuffix('.')}: {', '.join(listed)}." if listed else text


def _inner(hint: Any) -> tuple[Any, str]:
    if get_origin(hint) is list:
        return get_args(hint)[0], "[]"
    if get_origin(hint) is dict:
        return get_args(hint)[1], ".*"
    return hint, ""


def _type(hint: Any) -> str:
    if get_origin(hint) is Literal:
        return type(get_args(hint)[0]).__name__
    if hint is TriggerSetting:
        return "str"
    if isinstance(hint, UnionType):
        return " or ".join(map(_type, get_args(hint)))
    return f"list of {_type(get_args(hint)[0])}" if get_origin(hint) is list else hint.__name__


def _default(about: FieldInfo) -> str:
    if about.is_required():
        return "required"
    value = about.get_default(call_default_factory=True)
    return "empty" if value == "" else f"`{json.dumps(value)}`"


def _allowed(hint: Any, about: FieldInfo) -> str:
    if get_origin(hint) is list:
        return _allowed(get_args(hint)[0], about)
    if get_origin(hint) is Literal:
        return ", ".join("empty" if choice == "" else f"`{choice}`" for choice in get_args(hint))
    bounds = bounds_of(about)
    return ", ".join(f"{sign} {bounds[key]}" for key, sign in (("ge", "≥"), ("le", "≤")) if key in bounds)


if __name__ == "__main__":
    argparse.ArgumentParser(prog="python docs/config_page.py", description=__doc__).parse_args()
    PAGE.write_text(page(Path()), encoding="utf-8")
    SCHEMA.write_text(json_text(Path()), encoding="utf-8")
    CATALOGUE.write_text(catalogue_text(Path()), encoding="utf-8")
