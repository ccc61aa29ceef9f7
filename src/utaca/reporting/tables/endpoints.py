"""The table of endpoints: the use of each endpoint, and the cost of its answers."""

from collections import Counter

import pandas as pd

from utaca.records import rows
from utaca.reporting.registry import Files
from utaca.reporting.statistics import Row
from utaca.reporting.table import framed
from utaca.settings import schema


def endpoints(files: Files, config: schema.Config) -> pd.DataFrame:
    """Make the table of the use and the cost of each endpoint, a row for each role (writer, labeller, judge).

    ``files`` are those of schema "usage", by role, with one row for each item that was asked for.
    """
    table: list[Row] = []
    for name, paths in files.items():
        role = name.removesuffix("_usage")
        endpoint: schema.EndpointSettings = getattr(config, role)
        items = rows(paths, "usage") if paths else []
        # By request: items that share a request share its answer, which counts once.
        answers: dict[str, Row] = {}
        repeated: set[str] = set()
        failures: Counter[str] = Counter()
        for item in items:
            for number, answer in enumerate(item["answers"]):
                answers[answer["request"]] = answer
                # An item is asked again if its last answer was of no use.
                if number > 0:
                    repeated.add(answer["request"])
            if item["failure"] is not None:
                failures[item["failure"]] += 1
        prompt_tokens = sum(answer["prompt_tokens"] for answer in answers.values())
        completion_tokens = sum(answer["completion_tokens"] for answer in answers.values())
        row: Row = {
            "role": role,
            "endpoint": endpoint.name,
            "model": endpoint.model,
            "n_items": len(items),
            "n_answers": len(answers),
            "n_asked_again": len(repeated),
            "n_failed": failures.total(),
            "failures": ", ".join(f"{count} {failure}" for failure, count in sorted(failures.items())),
            "prompt_tokens": prompt_tokens,
            "completion_tokens": completion_tokens,
            "cost_usd": endpoint.cost(prompt_tokens, completion_tokens),
        }
        table.append(row)
    return framed(table)
