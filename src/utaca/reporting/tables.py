"""The tables of results, each as CSV (all figures, unrounded), Markdown and LaTeX, beside the paper's figures.

In the CSV files ``*_pct`` are percentages, ``*_low`` and ``*_high`` the limits of the 95 % interval, ``*_sd`` the
standard deviation over detector seeds, ``paper_*`` the paper's figures; tokens, seconds and GiB as named.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from utaca.records import atomic_path, read
from utaca.reporting import paper, render, statistics
from utaca.reporting.statistics import Estimate
from utaca.settings import schema
from utaca.settings.machine import chosen_dtype

NOT_RUN = "not run"
VIEWER = "../traces"
"""Where the pages of the trace viewer lie, from a table."""
NAN = float("nan")

Row = dict[str, Any]
Show = Callable[[Mapping[str, Any]], str]


@dataclass(frozen=True)
class Column:
    """A column for people: its header and how a row of the frame is shown in it.

    Those that are ``folded`` are shown where all are: the first seven or so say what a table is for.
    """

    header: str
    show: Show
    folded: bool = False


@dataclass(frozen=True)
class Table:
    """A table: ``frame`` holds the figures, ``columns`` what people are shown of them.

    ``lead`` stands before it, ``caption`` after it, ``notes`` where all columns are; their lines are paragraphs.
    """

    name: str
    title: str
    caption: str
    frame: pd.DataFrame
    columns: tuple[Column, ...]
    lead: str = ""
    notes: str = ""

    def cells(self, *, folded: bool = True) -> tuple[list[str], list[list[str]]]:
        """Header and rows as text, with or without the columns that are folded."""
        shown = [column for column in self.columns if folded or not column.folded]
        rows = self.frame.to_dict("records")
        return [column.header for column in shown], [[column.show(row) for column in shown] for row in rows]


def save(table: Table, directory: str | Path) -> list[Path]:
    """Write ``{name}.csv``, ``.md`` and ``.tex`` into a folder."""
    header, rows = table.cells(folded=False)
    whole = (*table.cells(), table.notes) if any(column.folded for column in table.columns) else None
    texts = {
        "csv": _csv(table.frame),
        "md": render.markdown(table.title, table.caption, header, rows, lead=table.lead, whole=whole),
        "tex": render.latex(table.name, table.caption, header, rows),
    }
    paths = [Path(directory) / f"{table.name}.{extension}" for extension in texts]
    for path, text in zip(paths, texts.values(), strict=True):
        _write(path, text)
    return paths


def save_frame(frame: pd.DataFrame, path: str | Path) -> None:
    """Write figures that no table is made of as CSV."""
    _write(Path(path), _csv(frame))


def _csv(frame: pd.DataFrame) -> str:
    return frame.to_csv(index=False, float_format="%.6g", lineterminator="\n")


def _write(path: Path, text: str) -> None:
    with atomic_path(path) as scratch:
        scratch.write_text(text, encoding="utf-8")


# What a run is made of, in words


def corpus_in_words(config: schema.Config) -> str:
    """The padding corpus, said to be synthetic where it is, and how documents are others than the paper's."""
    synthetic = " (synthetic prose)" if config.corpus.source == "embedded" else ""
    return f"{config.corpus.name}{synthetic}{', hard documents' if config.documents == 'hard' else ''}"


def endpoint_in_words(endpoint: schema.Endpoint) -> str:
    """An endpoint, said to be no language model where it is the reference."""
    if endpoint.kind == "reference":
        return f"{endpoint.name} (built-in rules, not GPT-OSS-120B nor any language model)"
    return f"{endpoint.name} ({endpoint.model})"


def what_is_synthetic(config: schema.Config) -> str:
    """What in a run is made up or stands in for something else, and where the paper's figures come from."""
    synthetic = ["All people and facts are fictitious and drawn by the pipeline."]
    if config.corpus.source == "embedded":
        synthetic.append("The padding is synthetic prose that ships with the project, not natural text.")
    built_in = [role for role in ("writer", "labeller", "judge") if getattr(config, role).kind == "reference"]
    if built_in:
        synthetic.append(
            f"The built-in reference endpoint, rules and no language model, stands in as {' and '.join(built_in)}."
        )
    if "data/readers/" in config.reader.path:
        synthetic.append("The reader is a small model that ships with the project, trained on this task.")
    synthetic.append("The paper's figures stand beside as reference; they come from its own models and data.")
    return " ".join(synthetic)


def caption_in_words(
    what: str, config: schema.Config, role: str, n_documents: int, seeds: str, reference: str, *, columns: bool = True
) -> str:
    """``what`` a table shows and whose figures stand beside; then, as a paragraph of its own, what it was made with.

    ``reference`` is a reader of the paper; ``columns`` says whether the table has columns of the paper's figures.
    """
    same = "same reader model, other data" if reference == config.reader.name else "other model and data"
    beside = f" Paper: its figure with {paper.NAMES[reference]}, {same}." if columns else ""
    seen = f"{n_documents} documents; {seeds}; {intervals_in_words(config)}"
    return f"{what}{beside}\n{run_in_words(config, role)}; {seen}"


def run_in_words(config: schema.Config, role: str) -> str:
    """The line that says what a run is: reader, corpus, the endpoint of ``role`` and the scale."""
    return (
        f"{render.RUN}reader {reader_in_words(config.reader)}; padding {corpus_in_words(config)}; {role} "
        f"{endpoint_in_words(getattr(config, role))}; scale {config.scale.name}"
    )


def reader_in_words(reader: schema.Reader) -> str:
    """A reader's name, and the settings in which its block memory leaves InfLLM's rules, whose name points bear."""
    memory = reader.memory
    own = [f"representatives={memory.representatives}"] if memory.representatives in schema.UNWEIGHTED else []
    own += [f"far_positions={memory.far_positions}"] if memory.far_positions != schema.CLIPPED else []
    name = f"{reader.name} in {chosen_dtype(reader.dtype, reader.device)}" if reader.dtype == "auto" else reader.name
    return f"{name} (not by InfLLM's rules: {', '.join(own)})" if own else name


def intervals_in_words(config: schema.Config) -> str:
    """What brackets hold."""
    what = f"documents, and seeds where a figure has several ({config.scale.bootstrap} resamples)"
    return f"brackets: {statistics.LEVEL:.0%} bootstrap over {what}."


def spread(row: Row, column: str, estimate: Estimate, factor: float = 1) -> None:
    """Put a figure and the limits of its interval into a row, times ``factor``."""
    row[column] = factor * estimate.value
    row[f"{column}_low"], row[f"{column}_high"] = factor * estimate.low, factor * estimate.high


def plain(column: str) -> Show:
    """Shows a column as it is."""
    return lambda row: str(row[column])


def figure(column: str, digits: int) -> Show:
    """Shows a number rounded, with its interval where it has one."""
    return lambda row: render.bracketed(row[column], row.get(f"{column}_low"), row.get(f"{column}_high"), digits)


# Endpoints


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
    columns = (
        Column("Role", lambda row: row["role"]),
        Column("Endpoint", lambda row: endpoint_in_words(getattr(config, row["role"]))),
        Column("Items", lambda row: str(row["n_items"])),
        Column("Answers needed", lambda row: str(row["n_answers"])),
        Column("Asked again", lambda row: str(row["n_asked_again"]), folded=True),
        Column("Failed", lambda row: f"{row['n_failed']} ({row['failures']})" if row["n_failed"] else "0"),
        Column("Prompt tokens", lambda row: str(row["prompt_tokens"]), folded=True),
        Column("Completion tokens", lambda row: str(row["completion_tokens"])),
        Column("Cost USD", lambda row: render.number(row["cost_usd"], 2)),
    )
    caption = (
        "What the endpoints were needed for. An item is a "
        "biography, a stated fact to label or an attribute to score; items that ask the same share an answer. Asked "
        "again: answers sent for because the one before could not be used. Answers count the same whether they were "
        "sent for or found in the answer store; the cost is theirs, at the prices in the config (0: none given).\n"
        f"{render.RUN}reader {config.reader.name}; scale {config.scale.name}."
    )
    return Table("endpoints", "Endpoints", caption, pd.DataFrame(rows), columns)
