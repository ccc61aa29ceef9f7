"""The table of endpoints: what each was needed for, and what its answers cost."""

from __future__ import annotations

from collections import Counter

import pandas as pd

from utaca.records import read
from utaca.reporting.registry import Files, table
from utaca.reporting.statistics import Row
from utaca.reporting.table import framed
from utaca.settings import schema


@table(
    theme="judging",
    files="writer_usage labeller_usage judge_usage",
    columns="""role endpoint n_items n_answers +n_asked_again n_failed failures +prompt_tokens completion_tokens
        cost_usd""",
)
def endpoints(files: Files, config: schema.Config) -> pd.DataFrame:
    """Endpoints.

    What the endpoints of run {run} were needed for. An item is a biography, a stated fact to label or an attribute to
    score; items that ask the same share an answer. Asked again: answers sent for because the one before could not be
    used. Answers count the same whether they were sent for or found in the answer store; the cost is theirs, at the
    prices in the config (0: none given).
    """
    rows: list[Row] = []
    for name, paths in files.items():
        role = name.removesuffix("_usage")
        endpoint: schema.Endpoint = getattr(config, role)
        items = read(paths, "usage").to_pylist()
        answers = {answer["request"]: answer for item in items for answer in item["answers"]}
        again = {answer["request"] for item in items for answer in item["answers"][1:]}
        kinds = Counter(item["failure"] for item in items if item["failure"] is not None)
        tokens = [sum(answer[f"{part}_tokens"] for answer in answers.values()) for part in ("prompt", "completion")]
        rows.append(
            {
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
        )
    return framed(rows)
