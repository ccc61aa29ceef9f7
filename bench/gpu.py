"""Everything about utaca on a GPU, in eight minutes: ``python bench/gpu.py [PART ...]``.

Parts run in order of worth, each with its share of the time; time that a part leaves goes to the later ones. Every row
is written to a JSON file (:class:`Report`) as soon as it is measured, so that a run that is cut off anywhere leaves
what it had. At the end a summary is printed as Markdown. ``--small`` runs all parts on the CPU in tiny sizes, whose
figures mean nothing. Leave the machine to it meanwhile.

Parts run in processes of their own (:class:`Child`): a part that is cut off, or that harms the GPU's state, ends with
its process, and the later parts have another one. What the parts measure: ``bench/gpu_parts.py``.
"""

import argparse
import json
import math
import os
import platform
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from multiprocessing import connection, get_context, parent_process
from pathlib import Path
from threading import Thread
from typing import Any, NamedTuple, TypedDict

import torch
import transformers
from engine import llama_8b
from gpu_parts import (
    DEVICE,
    FIXED_STEP,
    HOST,
    LARGE,
    LARGE_PARTS,
    PARTS,
    PREFILL,
    REPLAYED_STEP,
    ROOT,
    SAME_STEP,
    SIZES,
    SMALL,
    Clock,
    Lab,
    NotRun,
    Point,
    Row,
    tidy,
)
from report import markdown
from transformers import AutoModelForCausalLM

import utaca
from utaca import machine
from utaca.errors import cause
from utaca.readers.checks import check_gpu, check_settings
from utaca.records import atomic_path
from utaca.settings.schema import MemorySettings, ReaderSettings
from utaca.sizes import Sizes, chunks, document_bytes

DONE = "done"
CUT_OFF = "cut off"
FAILED = "failed"
NOT_RUN = "not run"
ROW = "row"
PATIENCE = 3.0
"""Seconds that a process has to end before it is killed."""


# The JSON


class Machine(TypedDict):
    """The machine that the figures are of. "" or None: unknown, or there is no card or no checkout of git."""

    card: str
    memory_gib: float | None
    compute_capability: str
    driver: str
    processor: str
    cores: int
    torch: str
    cuda: str
    transformers: str
    python: str
    commit: str


class PartReport(TypedDict):
    """A part: "done", "cut off", "failed" or "not run", why it is not done, its seconds, and its rows.

    The columns of a part's rows are the fields of its row in ``bench/gpu_parts.py``; those of ``exactness`` are of
    ``bench/exactness.py``.
    """

    status: str
    why: str
    seconds: float
    rows: list[Row]


class Report(TypedDict):
    """A run: its machine, when it was started (ISO 8601), the minutes it had and the seconds it took, and its parts.

    ``small``: it ran on the CPU in tiny sizes. ``parts`` has the parts that were asked for, by name. ``bars`` has a row
    for each :class:`Bar`, whose columns are texts: ``bar``, ``wanted``, ``measured``, ``met`` ("yes", "no" or "–").
    """

    machine: Machine
    started: str
    minutes: float
    seconds: float
    small: bool
    parts: dict[str, PartReport]
    bars: list[dict[str, str]]


def here(small: bool) -> Machine:
    """The machine of this process; without its card if ``small``."""
    card: dict[str, Any] = {"card": "", "memory_gib": None, "compute_capability": "", "driver": ""}
    if not small:
        major, minor = torch.cuda.get_device_capability()
        card = {
            "card": torch.cuda.get_device_name(),
            "memory_gib": torch.cuda.mem_get_info()[1] / 2**30,
            "compute_capability": f"{major}.{minor}",
            "driver": said("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"),
        }
    return Machine(
        **card,
        processor=machine.processor(),
        cores=os.cpu_count() or 1,
        torch=torch.__version__,
        cuda=torch.version.cuda or "",
        transformers=transformers.__version__,
        python=platform.python_version(),
        commit=said("git", "-C", str(ROOT), "rev-parse", "HEAD"),
    )


def said(*command: str) -> str:
    """The first line that a command prints; "" if there is no such command here, or if it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    lines = done.stdout.splitlines()
    return lines[0].strip() if done.returncode == 0 and lines else ""


# A process that measures


class Order(NamedTuple):
    """A part to measure until ``deadline`` (of ``time.monotonic``), and the rows of part ``sizes`` so far."""

    part: str
    deadline: float
    sizes: list[Row]


def serve(orders: connection.Connection, small: bool) -> None:
    """Measure the parts that are ordered, in a process of its own, and answer by :func:`answer`."""
    # Whoever ends this process ends what it started, by its group.
    os.setsid()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    Thread(target=end_with_parent, daemon=True).start()
    if small:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    lab = Lab(SMALL if small else LARGE)
    while True:
        answer(orders.recv(), lab, orders.send)


def answer(order: Order, lab: Lab, send: Callable[[tuple[str, Any]], None]) -> None:
    """Send the rows of a part as (:data:`ROW`, row), then its status and why it is not done."""
    try:
        for row in PARTS[order.part].rows(lab, Clock(order.deadline), order.sizes):
            send((ROW, tidy(row)))
        send((DONE, ""))
    except NotRun as reason:
        send((NOT_RUN, str(reason)))
    except Exception as error:
        traceback.print_exc()
        send((FAILED, str(error) if isinstance(error, utaca.UserError) else cause(error)))


def end_with_parent() -> None:
    """Wait until the parent has ended, however it did; then end this process and all that it started."""
    connection.wait([parent_process().sentinel])
    os.killpg(0, signal.SIGTERM)
    time.sleep(PATIENCE)
    os.killpg(0, signal.SIGKILL)


class Child:
    """A process that runs :func:`serve`, and the connection to it."""

    def __init__(self, small: bool) -> None:
        context = get_context("spawn")
        self.orders, theirs = context.Pipe()
        self.process = context.Process(target=serve, args=(theirs, small))
        self.process.start()
        theirs.close()

    def end(self) -> None:
        """End the process and all that it started."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(self.process.pid, number)
            except ProcessLookupError:
                # Its group does not exist yet, or no more.
                self.process.kill()
            self.process.join(PATIENCE)
        self.orders.close()


class Run:
    """A run of parts, and the report that it writes to the file ``out`` after every row."""

    def __init__(self, parts: Sequence[str], minutes: float, small: bool, out: Path) -> None:
        self.small = small
        self.out = out
        self.child: Child | None = None
        self.started = time.monotonic()
        self.deadline = self.started + 60 * minutes
        ended = "the run ended before its turn"
        self.report = Report(
            machine=here(small),
            started=datetime.now(UTC).isoformat(timespec="seconds"),
            minutes=minutes,
            seconds=0.0,
            small=small,
            parts={name: PartReport(status=NOT_RUN, why=ended, seconds=0.0, rows=[]) for name in parts},
            bars=[],
        )

    def all(self) -> None:
        """Measure all parts."""
        names = list(self.report["parts"])
        try:
            for place, name in enumerate(names):
                left = self.deadline - time.monotonic()
                shares = [PARTS[later].share for later in names[place:]]
                self.measure(name, left * shares[0] / sum(shares))
        finally:
            self.end_child()
            self.write()

    def measure(self, name: str, limit: float) -> None:
        """Measure a part within ``limit`` seconds."""
        part = self.report["parts"][name]
        started = time.monotonic()
        if limit <= 0:
            part["why"] = "no time was left"
            self.say(name, part["why"])
            return
        # What the file says if nothing can be written to it any more.
        part["status"] = CUT_OFF
        part["why"] = "the run was ended while this part ran"
        self.write()
        self.say(name, f"it has {limit:.0f} s")
        if not PARTS[name].shared:
            self.end_child()
        self.child = self.child or Child(self.small)
        part["status"], part["why"] = self.follow(self.child, name, started + limit)
        part["seconds"] = round(time.monotonic() - started, 2)
        if part["status"] != DONE or not PARTS[name].shared:
            # A process that was cut off is busy, and one whose part failed may have lost its GPU.
            self.end_child()
        self.write()
        self.say(name, f"{part['status']} {part['why']}".strip())

    def follow(self, child: Child, name: str, deadline: float) -> tuple[str, str]:
        """Take the rows of a part from its process until it is done; its status, and why it is not done."""
        part = self.report["parts"][name]
        limit = deadline - time.monotonic()
        sizes = self.report["parts"].get(SIZES)
        try:
            child.orders.send(Order(name, deadline, sizes["rows"] if sizes else []))
            while (left := deadline - time.monotonic()) > 0 and child.orders.poll(left):
                kind, content = child.orders.recv()
                if kind != ROW:
                    return kind, content
                part["rows"].append(content)
                part["seconds"] = round(limit - left, 2)
                self.write()
                self.say(
                    name, " ".join(f"{key}={shown(value)}" for key, value in content.items() if value not in (None, ""))
                )
        except (EOFError, OSError):
            child.process.join(PATIENCE)
            return FAILED, f"its process ended with exit code {child.process.exitcode}"
        return CUT_OFF, f"its {limit:.0f} s were over"

    def end_child(self) -> None:
        """End the process that measures, if there is one."""
        if self.child is not None:
            self.child.end()
            self.child = None

    def write(self) -> None:
        """Write the report as it is now."""
        self.report["seconds"] = round(time.monotonic() - self.started, 2)
        self.report["bars"] = [bar.row(self.report) for bar in bars(self.report)]
        try:
            with atomic_path(self.out) as path:
                path.write_text(json.dumps(self.report, indent=1, allow_nan=False) + "\n", encoding="utf-8")
        except OSError as error:
            raise utaca.UserError(
                f"{self.out} cannot be written ({error.strerror}); give --out a file in a folder that can"
            ) from error

    def say(self, name: str, what: str) -> None:
        """Print a line on the progress, with the elapsed and the remaining seconds."""
        now = time.monotonic()
        print(
            f"[{now - self.started:.0f} s, {self.deadline - now:.0f} s left] {name}: {what}",
            file=sys.stderr,
            flush=True,
        )


# The summary


@dataclass(frozen=True)
class Bar:
    """What a figure is held to: ``limit`` and a ``unit``, as the most that is allowed, or as the least.

    ``limit`` is None where the card has no bar. ``measured`` reads the figure of a report: None if it was not measured.
    """

    what: str
    limit: float | None
    unit: str
    measured: Callable[[Report], float | None]
    least: bool = False

    def row(self, report: Report) -> dict[str, str]:
        """The bar, what is wanted, what was measured, and whether that meets the bar."""
        figure = self.measured(report)
        wanted = "–" if self.limit is None else f"{'>=' if self.least else '<='} {self.limit:g} {self.unit}".rstrip()
        measured = "not measured"
        met = "–"
        if figure is not None:
            measured = f"{figure:.3g} {self.unit}".rstrip()
            if self.limit is not None:
                met = "yes" if (figure >= self.limit if self.least else figure <= self.limit) else "no"
        return {"bar": self.what, "wanted": wanted, "measured": measured, "met": met}


PREFILL_S = {"H200": 6.0, "H100": 8.0}
"""Seconds that a prefill of 252k tokens may take, by the card."""


def bars(report: Report) -> list[Bar]:
    """The bars of the project's plan for a GPU, which were set before any GPU had run this code."""
    card = report["machine"]["card"]
    mean = LARGE.paper
    prefill_s = next((seconds for name, seconds in PREFILL_S.items() if name in card), None)
    step = FIXED_STEP._asdict()
    return [
        Bar("cases that are not exact", 0, "", inexact),
        Bar(f"prefill of {mean} tokens", prefill_s, "s", lambda run: size(run, "seconds", mean, what=PREFILL)),
        Bar(f"a token behind {mean}, {FIXED_STEP.name}", 9, "ms", lambda run: size(run, "median_ms", mean, **step)),
        Bar(
            f"peak memory at {mean} tokens in host memory",
            20,
            "GiB",
            lambda run: size(run, "peak_gib", mean, HOST, **step),
        ),
        Bar(f"a replayed step against an ordinary one, {FIXED_STEP.name}, behind {mean}", 1, "", replay_ratio),
        Bar(f"UT-ACA's step against InfLLM's, both K={FIXED_STEP.budget}, behind {mean}", 1.1, "", step_ratio),
        Bar(
            f"full attention's prefill of {LARGE.full[-1]} tokens against ours",
            5,
            "",
            lambda run: figure(run, "full", "prefill_ratio", length=LARGE.full[-1]),
            least=True,
        ),
    ]


def figure(report: Report, part: str, column: str, **where: Any) -> float | None:
    """A figure of the row of a part whose columns have the values ``where``; None if it was not measured."""
    rows = report["parts"][part]["rows"] if part in report["parts"] else []
    found = (row[column] for row in rows if all(row[name] == value for name, value in where.items()))
    return next(found, None)


def size(report: Report, column: str, length: int, storage: str = DEVICE, **where: Any) -> float | None:
    """A figure of part ``sizes``."""
    return figure(report, SIZES, column, length=length, storage=storage, **where)


def inexact(report: Report) -> float | None:
    """How many cases of part ``exactness`` are not exact."""
    part = report["parts"].get("exactness")
    if part is None:
        return None
    count = sum(not row["exact"] for row in part["rows"])
    # Those that were not run might not be exact.
    return count if count or part["status"] == DONE else None


def step_ratio(report: Report) -> float | None:
    """How many times as long as a step of InfLLM a step of UT-ACA under as many blocks takes."""
    return _ratio(report, SAME_STEP)


def replay_ratio(report: Report) -> float | None:
    """How many times as long as an ordinary step of InfLLM one takes that is replayed from a CUDA graph."""
    return _ratio(report, REPLAYED_STEP, "replay")


def _ratio(report: Report, point: Point, part: str = SIZES) -> float | None:
    """How many times as long as :data:`FIXED_STEP` a step of another point of the part takes."""
    where = {"length": LARGE.paper, "storage": DEVICE}
    this = figure(report, part, "median_ms", **where, **point._asdict())
    base = figure(report, part, "median_ms", **where, **FIXED_STEP._asdict())
    return this / base if this and base else None


def summary(report: Report) -> str:
    """The report in Markdown: the bars, then a table a part."""
    card = report["machine"]["card"] or f"the CPU, {report['machine']['processor']}"
    texts = [f"On {card}, {report['seconds']:.0f} s of {report['minutes']:g} minutes, at {report['started']}."]
    if report["small"]:
        texts.append("A small run: its times mean nothing.")
    header = ("bar", "wanted", "measured", "met")
    texts.append(markdown(header, [[bar.row(report)[column] for column in header] for bar in bars(report)]))
    for name, part in report["parts"].items():
        status = f"{part['status']}: {part['why']}" if part["why"] else part["status"]
        texts.append(f"## {name}\n\n{status}, {part['seconds']:.0f} s")
        texts += table(name, part["rows"])
    return "\n\n".join(texts)


def table(name: str, rows: Sequence[Row]) -> Iterator[str]:
    """The rows of a part as a table, without its empty columns; of cases that are exact just their number."""
    if name == "exactness":
        yield f"{sum(row['exact'] for row in rows)} of {len(rows)} cases are exact."
        rows = [row for row in rows if not row["exact"]]
    columns = [column for column in (rows[0] if rows else ()) if any(row[column] not in (None, "") for row in rows)]
    if columns:
        yield markdown(columns, [[shown(row[column]) for column in columns] for row in rows])


def shown(value: Any) -> str:
    """A cell: three digits of a number that is not whole, "–" for what was not measured."""
    if value is None:
        return "–"
    return f"{value:.3g}" if isinstance(value, float) else str(value).replace("|", "/")


# The command


def needed_bytes() -> int:
    """Bytes of a GPU's memory that the shape of Llama-3.1-8B needs in bfloat16 with the shortest of the documents."""
    config = llama_8b()
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    weights = sum(weight.numel() for weight in model.parameters())
    memory = MemorySettings()
    bfloat16 = torch.bfloat16.itemsize
    shortest = min(length for length, _ in LARGE.sizes)
    sizes = Sizes.of(config.to_dict())
    document = document_bytes(sizes, memory, shortest, bfloat16, "cuda", chunks(memory))
    return weights * bfloat16 + document["cuda"]


def check(parts: Sequence[str], minutes: float, small: bool) -> None:
    """Raise :class:`utaca.UserError` if the parts are unknown, the time is none, or the card does not suffice."""
    if unknown := [name for name in parts if name not in PARTS]:
        raise utaca.UserError(f"no part is called {', '.join(unknown)}; the parts are {', '.join(PARTS)}")
    if not (math.isfinite(minutes) and minutes > 0):
        raise utaca.UserError(f"--minutes is {minutes:g}; give it a number above 0")
    if small:
        return
    reader = ReaderSettings(name=LARGE.reader, path="", device="cuda", dtype="bfloat16")
    try:
        check_settings(reader)
        check_gpu(reader, weights=0)
    except utaca.UserError as error:
        raise utaca.UserError(f"{error}; here: give --small") from error
    large = [name for name in parts if name in LARGE_PARTS]
    free = torch.cuda.mem_get_info()[0]
    if large and free < needed_bytes():
        others = ", ".join(name for name in PARTS if name not in LARGE_PARTS)
        raise utaca.UserError(
            f"the shape of Llama-3.1-8B needs {machine.gib(needed_bytes())} of the GPU's memory, but "
            f"{machine.gib(free)} are free; ask for the parts {others}, which do without it, or give --small"
        )


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    listed = "\n".join(f"  {name:10} {part.rows.__doc__}" for name, part in PARTS.items())
    parser = argparse.ArgumentParser(
        prog="python bench/gpu.py",
        description="Measure utaca on a GPU.",
        epilog=f"parts, in order of worth:\n{listed}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help="one of those below (default: all)")
    parser.add_argument("--small", action="store_true", help="all on the CPU in tiny sizes, whose figures mean nothing")
    parser.add_argument("--minutes", type=float, default=8.0, help="time for all parts (%(default)g)")
    out = Path("results") / "gpu.json"
    parser.add_argument("--out", type=Path, default=out, help="the JSON that is written (%(default)s)")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    options = parsed(arguments)
    asked = options.parts or list(PARTS)
    try:
        check(asked, options.minutes, options.small)
        run = Run([name for name in PARTS if name in asked], options.minutes, options.small, options.out)
        run.write()
        try:
            run.all()
        finally:
            print(summary(run.report))
    except utaca.UserError as error:
        sys.exit(f"Error: {error}")
    if any(part["status"] == FAILED for part in run.report["parts"].values()):
        sys.exit(1)


def stop(number: int, _frame: object) -> None:
    """End the run in order, so that its JSON says what ran and the summary is printed."""
    sys.exit(f"Error: the run was ended by {signal.Signals(number).name}")


if __name__ == "__main__":
    for ending in (signal.SIGTERM, signal.SIGINT):
        signal.signal(ending, stop)
    main()
