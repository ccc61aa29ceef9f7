"""Parquet schemas of the stages, which ``schemas.yaml`` in this folder lists and describes.

Every file carries its schema's name and the digest of the config it was made with as metadata
(:mod:`utaca.records.tables`), and is checked against the schema when read.
"""

from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any

import pyarrow as pa
import yaml

from utaca.settings.schema import RECORDED

# Labels of generated tokens, in the order of the detector's classes (paper, section 3.1).
HALLUCINATED = 0
CORRECT = 1
UNKNOWN = 2

AS_DECIDED = "as decided"
"""The ``kind`` of a replayed answer (schema "replays") in which no decision is turned."""
FALSE_POSITIVE, FALSE_NEGATIVE = "FP", "FN"
"""The ``kind`` of a turned decision: a token that was correct was expanded, or a wrong one was kept."""

TEMPLATE = "template"
"""The ``source`` of labels of an answer's template tokens, which are set without the labeller."""


def _arrow(entry: Any) -> pa.DataType:
    """The Arrow type that an entry of ``schemas.yaml`` means.

    The entry is a type's name, a list of one entry (a list), or a mapping of names to entries (a struct).
    """
    if isinstance(entry, list):
        return pa.list_(*map(_arrow, entry))
    if isinstance(entry, dict):
        return pa.struct({name: _arrow(field) for name, field in entry.items()})
    return pa.type_for_alias(entry)


SCHEMAS: dict[str, pa.Schema] = {
    kind: pa.schema({name: _arrow(column) for name, column in columns.items()})
    for kind, columns in yaml.safe_load((files(__package__) / "schemas.yaml").read_text(encoding="utf-8")).items()
}


def replay_name(row: Mapping[str, Any]) -> str:
    """The name of a replayed answer (a row of schema "replays"), which its scores have as their ``point``."""
    return row["kind"] if row["step"] is None else f"step {row['step']}"


def embedding_column(site: str) -> str:
    """The column of the trajectories that holds the embeddings of a site."""
    return f"embedding_{site}"


def trajectory_schema(
    width: int, sites: Sequence[str] = ("attention",), signals: Sequence[str] = RECORDED
) -> pa.Schema:
    """Schema of a part of the trajectories: one row per token generated under a compact budget, or along a path.

    ``width`` is the width of the reader's residual stream, ``sites`` are the embeddings' sites, ``signals`` names of
    :mod:`utaca.detection.signals`, a column each after ``logprob``. Of the columns, ``budget`` is the fixed budget or a
    path's K_max, and ``k`` the budget of the token's pass. ``expanded_token`` and its log-probability come from the
    expanded pass on the same prefix, null if it was not run. ``selected`` has a sorted list of block ids per layer.
    ``finish`` is empty except on an answer's last token ("eos" or "length").
    """
    return pa.schema(
        [
            ("document", pa.string()),
            ("budget", pa.int32()),
            ("step", pa.int32()),
            ("k", pa.int32()),
            ("token", pa.int32()),
            ("text", pa.string()),
            ("logprob", pa.float32()),
            *((name, pa.float32()) for name in signals),
            ("top10", pa.list_(pa.float32(), 10)),
            *((embedding_column(site), pa.list_(pa.float16(), width)) for site in sites),
            ("expanded_token", pa.int32()),
            ("expanded_logprob", pa.float32()),
            ("selected", pa.list_(pa.list_(pa.int32()))),
            ("finish", pa.string()),
        ]
    )
