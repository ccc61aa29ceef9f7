"""The tables of results, each as CSV (all figures, unrounded), Markdown and LaTeX, beside the paper's figures.

In the CSV files ``*_pct`` are percentages, ``*_low`` and ``*_high`` the limits of the 95 % interval, ``*_sd`` the
standard deviation over detector seeds, ``paper_*`` the paper's figures; tokens, seconds and GiB as named.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import pandas as pd

from utaca.readers.gguf import is_gguf
from utaca.records import atomic_path
from utaca.reporting import paper, render, statistics
from utaca.reporting.registry import ENTRIES, Files
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


def make(name: str, files: Files, config: schema.Config, folder: str | Path) -> None:
    """Make a table or figure of the registry from ``files`` and leave its files in ``folder``."""
    module = import_module(f"{__package__}.{ENTRIES[name].module}")
    result = module.MAKERS[name](files, config)
    if isinstance(result, Table):
        save(result, folder)
    else:
        save_frame(result, Path(folder) / f"{name}.csv")
        module.DRAW[name](result, folder, config)


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


def counted(frame: pd.DataFrame, documents: Sequence[str]) -> pd.DataFrame:
    """A figure's numbers with the number of documents, which is no column, for its title."""
    frame.attrs["n_documents"] = len(documents)
    return frame


def read_frame(path: str | Path) -> pd.DataFrame:
    """A table's CSV as :func:`save` left it; texts are empty where they were."""
    # Empty in every row, they would be taken for numbers.
    frame = pd.read_csv(path, dtype={"note": object, "over": object})
    return frame.fillna({column: "" for column in frame.select_dtypes(exclude=["number", "bool"])})


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
    people = config.scale.test.people
    told = f"those of the test split were written by hand ({people})" if people else "drawn by the pipeline"
    synthetic = [f"All people and facts are fictitious and {told}."]
    if config.corpus.source == "embedded":
        synthetic.append("The padding is synthetic prose that ships with the project, not natural text.")
    roles = ("labeller", "judge") if people else ("writer", "labeller", "judge")
    built_in = [role for role in roles if getattr(config, role).kind == "reference"]
    if built_in:
        synthetic.append(
            f"The built-in reference endpoint, rules and no language model, stands in as {' and '.join(built_in)}."
        )
    if "data/readers/" in config.reader.path and not is_gguf(config.reader.path):
        synthetic.append("The reader is a small model that ships with the project, trained on this task.")
    synthetic.append("The paper's figures stand beside as reference; they come from its own models and data.")
    return " ".join(synthetic)


def seeds_in_words(config: schema.Config) -> str:
    """The seeds that the operating points of a config use where they name none."""
    number = config.generation.seeds or config.scale.detector_seeds
    detector = f"{number} detector seeds" if number > 1 else f"detector seed {config.detector_seed}"
    return f"config seed {config.seed}, {detector}"


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


# What people see of a table


def build_table(
    name: str,
    rows: Sequence[Row] | pd.DataFrame,
    config: schema.Config,
    n_documents: int = 0,
    seeds: str = "",
    *,
    shows: Mapping[str, Show] | None = None,
    columns: Mapping[str, str] | None = None,
    folded: Mapping[str, bool] | None = None,
    without: Collection[str] = (),
    reader: str = paper.LLAMA,
    lead: str = "",
    **words: object,
) -> Table:
    """The table ``name`` of ``tables.yaml``, of ``n_documents`` and ``seeds``, those of the config where not named.

    ``shows`` are cells that its columns do not describe, by column of the frame. ``columns`` stand in place of those
    in the file; ``folded`` changes the columns of these headers, those ``without`` are left out. ``reader`` is the
    paper's reader whose figures stand beside; ``words`` fill in the texts.
    """
    about, words = ENTRIES[name], {"reader": paper.NAMES[reader], "run": config.run} | words
    shown = []
    for key, spec in (columns or about.columns).items():
        header = key.removeprefix("+")
        if header not in without:
            hidden = (folded or {}).get(header, header != key)
            shown.append(Column(header.format(**words), _cell(spec, shows or {}), hidden))
    caption = _filled(about.caption, words)
    if any(column.header.startswith("paper") for column in shown):
        same = "same reader model, other data" if reader == config.reader.name else "other model and data"
        caption += f" Paper: its figure with {paper.NAMES[reader]}, {same}."
    if about.role:
        caption += (
            f"\n{run_in_words(config, about.role)}; {n_documents} documents; {seeds or seeds_in_words(config)}; "
            f"{intervals_in_words(config)}"
        )
    notes = _filled(about.notes, words)
    return Table(name, about.title, caption, pd.DataFrame(rows), tuple(shown), lead, notes)


def _filled(text: str, words: Mapping[str, object]) -> str:
    return " ".join(text.format(**words).split())


def plain(column: str) -> Show:
    """Shows a column as it is."""
    return lambda row: str(row[column])


def plain_if(condition: str, column: str, otherwise: str = render.MISSING) -> Show:
    """Shows a column as it is where another one is true."""
    return lambda row: str(row[column]) if row[condition] else otherwise


def _cell(spec: str, shows: Mapping[str, Show]) -> Show:
    """How ``tables.yaml`` describes a cell, and no more: "column", "column?", "column 1" or "column [1]"."""
    column, _, digits = spec.partition(" ")
    column, dash = column.removesuffix("?"), column.endswith("?")
    if column in shows:
        return shows[column]
    if not digits:
        return (lambda row: str(row[column] or render.MISSING)) if dash else plain(column)
    places = int(digits.strip("[]"))
    if digits.startswith("["):
        return lambda row: render.figure(row, column, places)
    return lambda row: render.number(row[column], places)
