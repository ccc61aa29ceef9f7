"""A config for the tests of tables, pages and figures."""

from __future__ import annotations

from typing import Any

from utaca.settings import schema


def reference_config(**other: Any) -> schema.Config:
    """The smallest config of a run for which tables are made, the reference endpoint in every role; ``other`` keys."""
    endpoint = schema.Endpoint(name="reference", kind="reference", model="utaca-reference")
    about: dict[str, Any] = {
        "scale": schema.Scale(name="smoke", detector_steps=1, bootstrap=200),
        "reader": schema.Reader(name="tiny", path="data/readers/tiny"),
        "corpus": schema.Corpus(name="embedded", source="embedded"),
        "writer": endpoint,
        "labeller": endpoint,
        "judge": endpoint,
    }
    return schema.Config(**about | other)
