"""The tables of the config's page, and its JSON Schema, made from the dataclasses.

``python -m utaca.settings.document`` writes them anew.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from utaca.settings import schema
from utaca.settings.compose import groups
from utaca.settings.models import model

PAGE = Path("config") / "README.md"
SCHEMA = Path("config") / "schema.json"

_GROUPS = """\
## Groups

| group | options | what it chooses |
|---|---|---|
"""

_KEYS = """
## Keys

`required` marks keys that every option of their group sets.

| key | type | default | allowed | meaning |
|---|---|---|---|---|
"""


def page(root: Path) -> str:
    """The whole page, as Markdown, what it says before its tables as it is; ``root`` is the folder of ``config/``."""
    introduction = (root / PAGE).read_text(encoding="utf-8").partition(_GROUPS)[0]
    options = groups(root)
    lines = []
    for group in fields(schema.Config):
        if group.name in options:
            named = ", ".join(f"`{option}`" for option in options[group.name])
            lines.append(f"| `{group.name}` | {named} | {group.metadata['help']} |\n")
    return introduction + _GROUPS + "".join(lines) + _KEYS + "\n".join(_rows(schema.Config, "")) + "\n"


def json_schema(root: Path) -> dict[str, Any]:
    """The JSON Schema of a config file, as ``--configfile`` takes it: any part of the config, options by name."""
    options = groups(root)
    made = model(schema.Config).model_json_schema()
    kinds = made["$defs"]
    for kind in (made, *kinds.values()):
        # An option may hold what a file leaves out.
        kind.pop("required", None)
        kind.pop("title", None)
        for about in kind["properties"].values():
            about.pop("title", None)
    for key in (*options, "methods"):
        whole = made["properties"][key]
        about = whole.pop("description")
        known = [{"enum": options[key]}] if key in options else []
        name = {"description": "name of an option", "anyOf": [*known, {"type": "string"}]}
        if "$ref" in whole:
            kind = kinds[whole["$ref"].rpartition("/")[2]]
            kind["properties"]["use"] = {"description": "option that the keys change, or a whole group"}
        else:
            whole.pop("title", None)
            whole["properties"] = {"use": {"description": "option that is added to, or a whole group"}}
        made["properties"][key] = {"description": about, "anyOf": [name, whole]}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "Config of utaca", **made}


def json_text(root: Path) -> str:
    """The JSON Schema as its file holds it."""
    return json.dumps(json_schema(root), indent=1, ensure_ascii=False) + "\n"


def _rows(kind: type, where: str) -> Iterator[str]:
    hints = get_type_hints(kind)
    for declared in fields(kind):
        path = f"{where}.{declared.name}" if where else declared.name
        hint = hints[declared.name]
        inner, suffix = _inner(hint)
        if is_dataclass(inner) and isinstance(inner, type):
            yield from _rows(inner, path + suffix)
            continue
        meaning = str(declared.metadata["help"]) + (" (*transport*)" if declared.metadata.get("transport") else "")
        row = (f"`{path}`", _type(hint), _default(declared), _allowed(declared.metadata), meaning)
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |"


def _inner(hint: Any) -> tuple[Any, str]:
    if get_origin(hint) is list:
        return get_args(hint)[0], "[]"
    if get_origin(hint) is dict:
        return get_args(hint)[1], ".*"
    return hint, ""


def _type(hint: Any) -> str:
    return f"list of {get_args(hint)[0].__name__}" if get_origin(hint) is list else hint.__name__


def _default(declared: Field[Any]) -> str:
    if declared.default == schema.MISSING:
        return "required"
    value = declared.default if declared.default_factory is MISSING else declared.default_factory()
    return "empty" if value == "" else f"`{json.dumps(value)}`"


def _allowed(metadata: Mapping[str, Any]) -> str:
    if "choices" in metadata:
        return ", ".join("empty" if choice == "" else f"`{choice}`" for choice in metadata["choices"])
    bounds = [f"{sign} {metadata[key]}" for key, sign in (("minimum", "≥"), ("maximum", "≤")) if key in metadata]
    return ", ".join(bounds)


if __name__ == "__main__":
    argparse.ArgumentParser(prog="python -m utaca.settings.document", description=__doc__).parse_args()
    PAGE.write_text(page(Path()), encoding="utf-8")
    SCHEMA.write_text(json_text(Path()), encoding="utf-8")
