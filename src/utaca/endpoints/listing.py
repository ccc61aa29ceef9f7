"""The answer store as ``utaca answers`` shows it."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pandas as pd

from utaca.endpoints.store import Store
from utaca.errors import UserError
from utaca.settings.database import database

_SUMS = ["prompt_tokens", "completion_tokens", "seconds"]


def opened(place: str) -> Store:
    """The store at ``place``; raises :class:`UserError` for a file that does not exist."""
    if not database(place) and not Path(place).is_file():
        raise UserError(f"{place} does not exist; name the answer store: --store results/answers.sqlite")
    return Store(place)


def listed(store: Store) -> str:
    """A table of the answers by model, version of the prompt and shape of the answer."""
    kept = ({**row, "prompt": row["version"], "shape": row["schema"].get("title", "unknown")} for row in store.export())
    rows = pd.DataFrame(kept, columns=["model", "prompt", "shape", "answered", *_SUMS])
    if rows.empty:
        return f"no answers in {store.place}"
    groups = rows.groupby(["model", "prompt", "shape"])
    answered = groups["answered"].agg(answers="count", first="min", last="max")
    shown = groups[_SUMS].sum().round({"seconds": 1}).join(answered).reset_index()
    shown = shown[["model", "prompt", "shape", "answers", *_SUMS, "first", "last"]]
    return shown.rename(columns=lambda name: name.replace("_", " ")).to_string(index=False)


def exported(store: Store, model: str | None) -> Iterator[str]:
    """The answers with their requests, of one ``model`` or of all, as lines of JSON."""
    # The escapes of other encodings would not be JSON's.
    plain = "utf" not in str(sys.stdout.encoding).lower()
    for row in store.export():
        if model in (None, row["model"]):
            yield json.dumps(row, ensure_ascii=plain)


def moment(text: str) -> str:
    """A point in time as the store writes it, from a date, a date with time, or an age such as 30d."""
    try:
        if age := re.fullmatch(r"(\d+)d", text):
            date = datetime.now(UTC) - timedelta(days=int(age[1]))
        else:
            date = datetime.fromisoformat(text)
        date = date.replace(tzinfo=date.tzinfo or UTC).astimezone(UTC)
    except (ValueError, OverflowError):
        raise UserError(f"--before {text!r} is no date as in 2026-01-31, and no age as in 30d") from None
    return date.replace(tzinfo=None).isoformat(timespec="seconds") + "Z"
