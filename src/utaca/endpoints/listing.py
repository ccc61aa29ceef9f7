"""The answer store as ``utaca answers`` shows it."""

import json
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pandas as pd

from utaca.endpoints.store import AnswerStore
from utaca.errors import UserError
from utaca.settings.checks import is_database

_SUMS = ["prompt_tokens", "completion_tokens", "seconds"]


def is_missing(place: str) -> bool:
    """Whether ``place`` is the path of a file that does not exist."""
    return not is_database(place) and not Path(place).exists()


def opened(place: str) -> AnswerStore:
    """Open the store at ``place`` (path or URL); raises :class:`UserError` if the file does not exist."""
    if is_missing(place):
        raise UserError(f"{place} does not exist; name the answer store: --store results/answers.sqlite")
    return AnswerStore(place)


def listed(store: AnswerStore) -> str:
    """Format the answers as a table: counts, tokens, seconds and dates per model, prompt version and answer type."""
    answers = ({**row, "prompt": row["version"], "shape": row["schema"].get("title")} for row in store.export())
    rows = pd.DataFrame(answers, columns=["model", "prompt", "shape", "answered", *_SUMS])
    if rows.empty:
        return f"no answers in {store.place}"
    groups = rows.groupby(["model", "prompt", "shape"])
    dates = groups["answered"].agg(answers="count", first="min", last="max")
    table = groups[_SUMS].sum().round({"seconds": 1}).join(dates).reset_index()
    table = table[["model", "prompt", "shape", "answers", *_SUMS, "first", "last"]]
    return table.rename(columns=lambda name: name.replace("_", " ")).to_string(index=False)


def exported(store: AnswerStore, model: str | None) -> Iterator[str]:
    """The answers of ``model`` with their requests, each as a line of JSON; None: of all models."""
    # If stdout is not in UTF, Python's escapes for characters that it cannot encode would not be valid JSON.
    escaped = "utf" not in str(sys.stdout.encoding).lower()
    return (json.dumps(row, ensure_ascii=escaped) for row in store.export() if model in (None, row["model"]))


def moment(text: str) -> str:
    """Convert a date, perhaps with a time, to the format of times in the store: 2026-01-31T00:00:00Z.

    The time is UTC unless ``text`` has an offset. Raises :class:`UserError` if the text is not a date.
    """
    try:
        date = datetime.fromisoformat(text)
        date = date.replace(tzinfo=date.tzinfo or UTC).astimezone(UTC)
    except (ValueError, OverflowError):
        raise UserError(f"--before {text!r} is not a date such as 2026-01-31") from None
    return date.replace(tzinfo=None).isoformat(timespec="seconds") + "Z"
