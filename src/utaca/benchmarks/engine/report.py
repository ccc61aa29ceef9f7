"""Table and figure of the benchmark."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from matplotlib.figure import Figure
from matplotlib.ticker import LogFormatter

from utaca.benchmarks.engine import paper
from utaca.benchmarks.engine.floors import Machine
from utaca.benchmarks.engine.measure import ENGINE, FULL
from utaca.benchmarks.engine.rows import BYTES, PASSES, RATIO, SECONDS, Part, Row
from utaca.readers.load import Reader
from utaca.reporting.figures import drawing
from utaca.reporting.render import MISSING, bracketed
from utaca.reporting.tables import Column, Table
from utaca.settings.machine import processor

_STYLES = {ENGINE: ("tab:blue", "o"), FULL: ("tab:gray", "s")}


def machine_in_words(reader: Reader) -> str:
    """The device and how it is used, as in ``AMD EPYC, threads: 2, bfloat16``."""
    cuda = reader.device.type == "cuda"
    name = torch.cuda.get_device_name(reader.device) if cuda else f"{processor()}, threads: {torch.get_num_threads()}"
    return f"{name}, {reader.settings.dtype}"


def caption(reader: Reader, machine: Machine) -> str:
    """What the figures of a run were measured on, and how to read them."""
    m, weights = reader.settings.memory, sum(weight.numel() for weight in reader.model.parameters())
    return (
        f"Reader {reader.settings.name} ({weights / 1e6:.1f} M weights) on {machine_in_words(reader)}; memory of "
        f"{m.n_init} initial tokens, a window of {m.n_local}, blocks of {m.block_size}, {m.prefill_budget} retrieved "
        "by a prefill chunk; documents of the embedded prose, which is synthetic. A ratio is the median over repeats "
        "[least, most], both sides of it measured in the same repeat, full attention (transformers' generate with "
        "sdpa) once; ours and against are medians. Floor: the least that our side's work, named in brackets, takes at "
        f"the rates that the same run measured, {machine.bandwidth / 1e9:.1f} GB/s copied (reads and writes counted) "
        f"and {machine.rate / 1e9:.0f} GFLOP/s in a large matrix product; what fits into caches can come below. The "
        "detector has random weights, and rollbacks are forced. The block loop runs the same weights and "
        f"keeps blocks as thunlp/InfLLM does. Times depend on the machine and what else it does. {paper.caption()}"
    )


def table(rows: Sequence[Row], caption: str) -> Table:
    """The table "engine": in the frame seconds, bytes and ratios, one row a figure."""
    frame = pd.DataFrame(
        [
            {
                "what": row.what,
                "bar": f"{row.bar.sign} {row.bar.limit:.6g}" if row.bar else "",
                "unit": row.unit,
                "value": row.value,
                "low": min(row.values, default=math.nan),
                "high": max(row.values, default=math.nan),
                "repeats": len(row.values),
                "verdict": row.verdict,
                **_part("ours", row.ours),
                **_part("against", row.against),
                "floor": row.floor,
                "floor_work": row.work,
                "distance": row.distance,
            }
            for row in rows
        ]
    )
    return Table("engine", "Speed and memory of the engine", caption, frame, _columns())


def contexts(frame: pd.DataFrame, caption: str) -> Table:
    """The table "engine_contexts" of what :func:`utaca.benchmarks.engine.measure.measure` found by context."""

    def figure(name: str, digits: int) -> Column:
        header = {"prefill_s": "Prefill s", "prefill_us_token": "Prefill µs a token", "decode_ms_token": "Decode ms"}
        return Column(header[name], lambda row: bracketed(row[name], row[f"{name}_low"], row[f"{name}_high"], digits))

    columns = (
        Column("Context", lambda row: str(row["context"])),
        Column("Reader", lambda row: row["reader"]),
        figure("prefill_s", 2),
        figure("prefill_us_token", 1),
        figure("decode_ms_token", 2),
        Column("Repeats", lambda row: str(row["repeats"])),
    )
    return Table("engine_contexts", "Time by context", caption, frame, columns)


def plot(frame: pd.DataFrame, directory: str | Path, title: str) -> list[Path]:
    """Prefill and decoding time a token over the context, block memory and full attention, with the floor; PNG, SVG."""
    with drawing(directory, "engine", (7.2, 3.4)) as (figure, paths):
        _draw(figure, frame, title)
    return paths


def _draw(figure: Figure, frame: pd.DataFrame, title: str) -> None:
    panels = (("prefill_us_token", "prefill, µs a token"), ("decode_ms_token", "decoding, ms a token"))
    for axes, (name, label) in zip(figure.subplots(1, 2), panels, strict=True):
        for reader, (color, marker) in _STYLES.items():
            own = frame[frame["reader"] == reader].sort_values("context", kind="stable")
            if own.empty:
                continue
            bars = [own[name] - own[f"{name}_low"], own[f"{name}_high"] - own[name]]
            axes.errorbar(own["context"], own[name], yerr=bars, label=reader, color=color, marker=marker, capsize=3)
            if reader == ENGINE:
                axes.plot(own["context"], own[f"{name}_floor"], label=f"floor of {ENGINE}", color=color, linestyle="--")
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(LogFormatter())
        axes.yaxis.set_minor_formatter(LogFormatter())
        ticks = sorted(set(frame["context"]))
        axes.set_xticks(ticks, [f"{tick / 1024:.3g}k" for tick in ticks])
        axes.set_xlabel("context, tokens")
        axes.set_ylabel(label)
        axes.grid(alpha=0.3)
    axes.legend(loc="best", fontsize=7)
    figure.suptitle(title, fontsize=8)


def _part(name: str, part: Part | None) -> dict[str, Any]:
    return {name: part.amount if part else math.nan, f"{name}_name": part.name if part else ""}


def _columns() -> tuple[Column, ...]:
    def unit(row: Mapping[str, Any]) -> str:
        return BYTES if row["unit"] == BYTES else SECONDS

    def value(row: Mapping[str, Any]) -> str:
        if row["unit"] in (RATIO, PASSES):
            digits = 2 if row["unit"] == RATIO else 4
            several = row["repeats"] > 1
            low, high = (row["low"], row["high"]) if several else (math.nan, math.nan)
            return bracketed(row["value"], low, high, digits)
        return _amount(row["value"], row["unit"])

    def bar(row: Mapping[str, Any]) -> str:
        if not row["bar"] or row["unit"] in (RATIO, PASSES):
            return row["bar"] or MISSING
        sign, limit = row["bar"].split()
        return f"{sign} {_amount(float(limit), row['unit'])}"

    def side(name: str) -> Column:
        return Column(
            name.capitalize(),
            lambda row: f"{_amount(row[name], unit(row))} ({row[f'{name}_name']})" if row[f"{name}_name"] else MISSING,
        )

    def floor(row: Mapping[str, Any]) -> str:
        shown = _amount(row["floor"], unit(row))
        return shown if shown == MISSING else f"{shown} ({row['floor_work']})"

    return (
        Column("What", lambda row: row["what"]),
        Column("Bar", bar),
        Column("Figure", value),
        Column("Verdict", lambda row: row["verdict"] or MISSING),
        side("ours"),
        side("against"),
        Column("Floor of ours", floor),
        Column("Ours / floor", lambda row: bracketed(row["distance"], math.nan, math.nan, 1)),
    )


def _amount(amount: float, unit: str) -> str:
    """Seconds or bytes in the unit that leaves one to four digits before the point."""
    if math.isnan(amount):
        return MISSING
    steps = ((2**30, "GiB"), (2**20, "MiB")) if unit == BYTES else ((1, "s"), (1e-3, "ms"), (1e-6, "µs"))
    size, name = next((step for step in steps if amount >= step[0]), steps[-1])
    return f"{amount / size:.3g} {name}"
