"""The page that lists every config key, made from the dataclasses: ``python -m utaca.settings.document``."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from utaca.settings import schema
from utaca.settings.compose import groups

PAGE = Path("config") / "README.md"

_GROUP_HELP = {
    "scale": "sizes of a run",
    "reader": "the language model that answers",
    "corpus": "padding prose",
    "writer": "endpoint that writes test narratives",
    "labeller": "endpoint that labels factual tokens",
    "judge": "endpoint that scores answers",
    "suites": "operating points; each reader brings its own choice",
    "detectors": "variants of the detector; scale=paper brings all of the paper's",
}

_INTRODUCTION = """\
# Config

This page is generated from the typed config (`src/utaca/settings/schema.py`); `python -m utaca.settings.document`
writes it anew.

Every entry of `snakemake --config`, and every file given by `--configfile`, changes the config for one run:

```
snakemake --cores all --config scale=paper judge=gpt_oss_120b -- results/tables     # options of groups
snakemake --cores all --config 'scale={bootstrap: 500}' -- results/tables            # single keys
snakemake --cores all --config 'judge={use: gpt_oss_120b, base_url: http://gpu7:8000/v1}' -- results/tables    # both
snakemake --cores all --config corpus=/data/articles.jsonl -- results/tables         # a path as corpus
```

A variant of the detector is an entry of `detectors`, in an option's file or for one run; it tells what differs from the
defaults, or from the variant of that name. It is trained and measured beside the others, and used by the adaptive
operating points where `detector` names it:

```
snakemake --cores all --config 'detectors={mine: {signals: [margin, retrieval], lstm: false}}' -- results/tables
snakemake --cores all --config 'detectors={mine: {decision: youden}}' detector=mine -- results/tables
```

A signal of one's own is a file in `src/utaca/detection/signals`, named like the signal; `docs/extending.md` shows one.

A file beside an option, say `config/reader/mine.yaml`, is a new option: `reader=mine`. An unknown key, a wrong type or
an impossible value stops the run before its first job. Keys marked *transport* never change a result: a change of them
reruns nothing.

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
    PAGE.write_text(page(Path()), encoding="utf-8")
