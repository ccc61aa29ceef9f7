"""Parquet schemas of the stages, which ``schemas.yaml`` beside this module lists and describes.

Every file carries its schema's name and the digest of the config it was made with as metadata
(:mod:`utaca.records.tables`), and is checked against the schema when read.
"""

from collections.abc import Sequence
from importlib.resources import files
from typing import Any

import pyarrow as pa
import yaml

from utaca.settings.schema import SIGNALS

# Labels of generated tokens, in the order of the detector's classes (paper, section 3.1).
HALLUCINATED, CORRECT, UNKNOWN = 0, 1, 2

TEMPLATE = "template"
"""Source of the labels of an answer's template, which no labeller sees."""


def _arrow(kind: Any) -> pa.DataType:
    """The type that a name, a list of one type or a mapping of names to types stands for."""
    if isinstance(kind, list):
        return pa.list_(*map(_arrow, kind))
    if isinstance(kind, dict):
        return pa.struct({name: _arrow(one) for name, one in kind.items()})
    return pa.type_for_alias(kind)


SCHEMAS: dict[str, pa.Schema] = {
    kind: pa.schema({name: _arrow(column) for name, column in columns.items()})
    for kind, columns in yaml.safe_load((files(__package__) / "schemas.yaml").read_text(encoding="utf-8")).items()
}


def embedding_column(site: str) -> str:
    """The column of the trajectories that holds the embeddings of a site."""
    return f"embedding_{site}"


def trajectory_schema(width: int, sites: Sequence[str] = ("attention",)) -> pa.Schema:
    """Schema of a trajectory part: one generated token under a fixed compact budget.

    ``width`` is the reader's residual width, ``sites`` those of the embeddings. A column a signal of
    :mod:`utaca.detection.signals` follows ``logprob``. ``expanded_token`` and its log-probability are what the expanded
    pass gives for the same prefix, null where it was not run. ``selected`` lists block ids, sorted, a list a layer;
    ``finish`` is empty but on the last token of an answer ("eos" or "length").
    """
    return pa.schema(
        [
            ("document", pa.string()),
            ("budget", pa.int32()),
            ("step", pa.int32()),
            ("token", pa.int32()),
            ("text", pa.string()),
            ("logprob", pa.float32()),
            *((name, pa.float32()) for name in SIGNALS),
            ("top10", pa.list_(pa.float32(), 10)),
            *((embedding_column(site), pa.list_(pa.float16(), width)) for site in sites),
            ("expanded_token", pa.int32()),
            ("expanded_logprob", pa.float32()),
            ("selected", pa.list_(pa.list_(pa.int32()))),
            ("finish", pa.string()),
        ]
    )
