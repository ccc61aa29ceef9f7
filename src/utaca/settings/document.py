"""The page and the JSON Schema of the config, made from the dataclasses: ``python -m utaca.settings.document``."""

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

_GROUP_HELP = {
    "scale": "sizes of a run",
    "reader": "the language model that answers",
    "corpus": "padding prose",
    "writer": "endpoint that writes test narratives",
    "labeller": "endpoint that labels factual tokens",
    "judge": "endpoint that scores answers",
    "tasks": "benchmarks of other domains",
    "suites": "operating points; each reader brings its own choice",
    "detectors": "variants of the detector; scale=paper brings all of the paper's",
}

_INTRODUCTION = """\
# Config

This page and [schema.json](schema.json), by which editors check and complete a config file, are generated from the
typed config (`src/utaca/settings/schema.py`); `python -m utaca.settings.document` writes them anew.

Every entry of `snakemake --config`, and every file given by `--configfile`, changes the config for one run:

```
snakemake --cores all results/tables --config scale=paper judge=gpt_oss_120b     # options of groups
snakemake --cores all results/tables --config 'scale={bootstrap: 500}'            # single keys
snakemake --cores all results/tables --config 'judge={use: gpt_oss_120b, base_url: http://gpu7:8000/v1}'    # both
snakemake --cores all results/tables --config corpus=/data/articles.jsonl         # a path as corpus
```

Targets come first: Snakemake takes what follows `--config` for entries.

A file beside an option, say `config/reader/mine.yaml`, is a new option: `reader=mine`. Unknown keys, wrong types and
impossible values stop the run before its first job, all of them named at once; `python -m utaca.preflight` also checks
weights, memory, disk and endpoints, and runs nothing. Keys marked *transport* never change a result: a change of them
reruns nothing.

## Runs

All that a run makes lies in `results/NAME`. The name is `run`, or else follows from the config: the scale, what else of
reader, corpus, documents, writer and labeller is not the default, and a digest where single keys tell it apart
(`quick`, `paper-llama31_8b`, `quick-3fa92c`). Suites, detectors, judges, replays and tables are added to a run of that
name; a config with other documents, another reader or other trajectories is refused there and wants a name of its own.

```
snakemake --cores all results/tables --configfile config/runs/paper.yaml          # a shipped run
snakemake --cores all results/tables --configfile results/quick/run.yaml          # a run as it was, repeated
snakemake --cores all results/tables --configfile results/quick/run.yaml --config judge=gpt_oss_120b run=again
```

A saved run holds whole groups under `use`, where an option's name may stand. So what `--config` says goes on top: an
option takes the place of a group, keys change it.

`judge={base_url: ...}` makes an endpoint remote and wants `name` and `model`, its own or an option's. Another
`reader.path` than the option's wants a `name`, and then all other keys of `reader` start from the defaults below, or
from those of an option that `use` names, as in `reader={use: tiny, name: mine, path: ...}` for a tiny reader of one's
own.

## Detectors

A variant of the detector is an entry of `detectors`, in an option's file or for one run; it tells what differs from the
defaults, or from the variant of that name. It is trained and measured beside the others, and used by the adaptive
operating points where `detector` names it:

```
snakemake --cores all results/tables --config 'detectors={mine: {signals: [margin, retrieval], lstm: false}}'
snakemake --cores all results/tables --config 'detectors={mine: {decision: youden}}' detector=mine
```

A signal of one's own is a file in `src/utaca/detection/signals`, named like the signal; `docs/extending.md` shows one.

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
    """The whole page, as Markdown; ``root`` is the folder that holds ``config/``."""
    options = groups(root)
    lines = [
        f"| `{name}` | {', '.join(f'`{option}`' for option in options[name])} | {meaning} |"
        for name, meaning in _GROUP_HELP.items()
    ]
    return _INTRODUCTION + "\n".join(lines) + "\n" + _KEYS + "\n".join(_rows(schema.Config, "")) + "\n"


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
