"""The table of endpoints: what each was needed for, and what its answers cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from utaca.records import read
from utaca.reporting.tables import Row, Table, build_table, endpoint_in_words
from utaca.settings import schema


def endpoints(usage: Mapping[str, str | Path | Sequence[str | Path]], config: schema.Config) -> Table:
    """What each endpoint was needed for, by role: from files of schema "usage".

    Answers are counted once however many items share them, and whether they were sent for in this run or came from the
    answer store: the table is the same either way. The cost is theirs, at the prices in the config.
    """
    rows: list[Row] = []
    for role, paths in usage.items():
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
    shows = {
        "endpoint": lambda row: endpoint_in_words(getattr(config, row["role"])),
        "n_failed": lambda row: f"{row['n_failed']} ({row['failures']})" if row["n_failed"] else "0",
    }
    return build_table("endpoints", rows, config, shows=shows)


MAKERS = {
    "endpoints": lambda files, config: endpoints(
        {role: files[f"{role}_usage"] for role in ("writer", "labeller", "judge")}, config
    )
}
