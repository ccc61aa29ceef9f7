"""Schema of the tokens that a detector judged along its own answers, with their labels."""

from __future__ import annotations

from utaca.records.schemas import SCHEMAS

KIND = "trace_labels"
TRACE_LABELS = SCHEMAS[KIND]
