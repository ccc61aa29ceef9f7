"""The table of endpoints: the use of each endpoint, and the cost of its answers."""

from collections import Counter

import pandas as pd

from utaca.records import rows
from utaca.reporting.registry import Files
from utaca.reporting.statistics import Row
from utaca.reporting.table import framed
from utaca.settings import schema


def endpoints(files: Files, config: schema.Config) -> pd.DataFrame:
    """Use and cost of each endpoint."""
    table: list[Row] = []
    for name, paths in files.items():
        role = name.removesuffix("_usage")
        endpoint: schema.EndpointSettings = getattr(config, role)
        items = rows(paths, "usage") if paths else []
        answers = {answer["request"]: answer for item in items for answer in item["answers"]}
        again = {answer["request"] for item in items for answer in item["answers"][1:]}
        kinds = Counter(item["failure"] for item in items if item["failure"] is not None)
        tokens = [sum(answer[f"{part}_tokens"] for answer in answers.values()) for part in ("prompt", "completion")]
        row: Row = {
            "role": role,
            "endpoint": endpoint.name,
            "model": endpoint.model,
            "n_items": len(items),
            "n_answers": len(answers),
            "n_asked_again": len(again),
            "n_failed": kinds.total(),
            "failures": ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items())),
            "prompt_tokens": tokens[0],
            "completion_tokens": tokens[1],
            "cost_usd": endpoint.cost(*tokens),
        }
        table.append(row)
    return framed(table)
