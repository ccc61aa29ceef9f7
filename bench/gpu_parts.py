"""What ``bench/gpu.py`` measures: a function a part, which yields a row as soon as it is measured.

Every part but ``exactness`` and ``pipeline`` works with one reader of the shape of Llama-3.1-8B with random weights,
which :class:`Lab` loads once. Documents are random tokens: times depend on neither.
"""

import argparse
import csv
import importlib.util
import json
import math
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import groupby, islice, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import torch
from engine import ADAPTIVE, ASKED, EVERY, FIXED, RANDOM_8B, WARM_UP, Bench, full_attention
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.profiler import ProfilerActivity, profile

import utaca
from utaca.decoding import policies
from utaca.decoding.loop import generate_together
from utaca.decoding.options import Decoding
from utaca.errors import cause
from utaca.generation.peak import PeakMemory
from utaca.memory import BlockMemory
from utaca.memory.prefill import begun, passes
from utaca.reporting import paper
from utaca.trace import Token

ROOT = Path(__file__).resolve().parents[1]
Row = dict[str, Any]
"""A row as it stands in the JSON: texts, numbers, booleans, or None for what was not measured."""

DEVICE, HOST = "device", "host"
"""Where a document's keys lie: the values of ``reader.memory.storage``."""
ANSWER = 200
"""Tokens of the answer in an end-to-end time."""
ROUNDS, CALLS = 3, 10
"""Rounds, and calls in a round, by which a copy and a product of matrices are timed."""
PINNED_RATE = 2.5e9
"""Bytes a second at which a system is taken to pin memory; it says what is begun, not what is measured."""
SLACK = 1.2
"""How many times as long as was seen so far something may take that is begun."""
OPERATIONS = 10
"""Operations that a profile lists."""
PREFILL = "prefill"
TOKEN = "answer"


class NotRun(utaca.UserError):
    """A part cannot be run here, for the reason that the message gives."""


# What is measured


class Point(NamedTuple):
    """An operating point: its method, its budget (K or K_max) and its policy, "" for a fixed budget.

    ``every``: every so-many-th token is expanded; 0: none is. ``graphs``: steps are replayed (``reader.graphs``).
    """

    method: str
    budget: int
    policy: str = ""
    every: int = 0
    graphs: bool = False

    @property
    def name(self) -> str:
        """The point in words."""
        name = f"InfLLM K={self.budget}"
        if self.policy:
            expanded = f"1 of {self.every} expanded" if self.every else "none expanded"
            name = f"UT-ACA K_max={self.budget} {self.policy}, {expanded}"
        return f"{name}, replayed" if self.graphs else name

    def options(self, bench: Bench) -> dict[str, Any]:
        """Options of an answer under this point."""
        adaptive: dict[str, Any] = {}
        if self.policy:
            every = self.every
            adaptive = bench.adaptive(policies.parse(self.policy), lambda step: every > 0 and step % every == every - 1)
        return {"budget": self.budget, "max_new_tokens": bench.options.tokens, **adaptive}


POINTS = [
    *(Point("infllm", budget) for budget in FIXED),
    *(Point("utaca", budget, "sub.16", EVERY) for budget in ADAPTIVE),
]
"""The points of the paper's trade-off table."""
FIXED_STEP = Point("infllm", FIXED[-1])
SAME_STEP = Point("utaca", 2 * FIXED[-1], f"set.{FIXED[-1]}")
"""A step of UT-ACA that retrieves as many blocks as :data:`FIXED_STEP`: what detector and policy add to it."""
REPLAYED_STEP = FIXED_STEP._replace(graphs=True)
REPLAYED = (REPLAYED_STEP, *(point._replace(graphs=True) for point in POINTS if point.policy and point.budget == 64))
"""Points whose steps are also replayed from a CUDA graph."""


@dataclass(frozen=True)
class Plan:
    """The sizes of a run.

    ``sizes`` are documents in tokens with the place of their keys, in order of worth, and ``paper`` is the length that
    the paper's figures stand next to. ``full``, ``points`` and ``profile`` are the documents of these parts. An answer
    has ``tokens`` tokens, enough to profile ``steps`` of them three times. ``warm`` tokens are read before anything is
    timed. ``copied`` bytes and matrices of ``matrix`` rows give the device's own rates. The pipeline runs up to
    ``target`` with the options ``config``, on each of ``devices``.
    """

    device: str
    reader: str
    sizes: tuple[tuple[int, str], ...]
    paper: int
    full: tuple[int, ...]
    points: int
    profile: int
    tokens: int
    steps: int
    warm: int
    copied: int
    matrix: int
    target: str
    config: tuple[str, ...]
    devices: tuple[str, str]


LARGE = Plan(
    device="cuda",
    reader=RANDOM_8B,
    sizes=(
        (252_000, DEVICE),
        (252_000, HOST),
        (131_072, DEVICE),
        (32_768, DEVICE),
        (400_000, DEVICE),
        (131_072, HOST),
        (32_768, HOST),
        (400_000, HOST),
    ),
    paper=252_000,
    full=(32_768, 131_072),
    points=131_072,
    profile=131_072,
    tokens=55,
    steps=8,
    warm=16_384,
    copied=2 << 30,
    matrix=8192,
    target="results/tables",
    config=("scale=smoke",),
    devices=("cpu", "cuda"),
)
SMALL = Plan(
    device="cpu",
    reader="tiny",
    sizes=((2560, DEVICE), (2560, HOST), (2048, DEVICE)),
    paper=2560,
    full=(2048,),
    points=2048,
    profile=2048,
    tokens=12,
    steps=2,
    warm=2048,
    copied=16 << 20,
    matrix=256,
    target="results/gpu/tables/validation.csv",
    config=(
        "scale={use: smoke, validation: {biographies: 2}}",
        "decode={validation: [infllm-K1, infllm-K2], test: [infllm-K4]}",
    ),
    devices=("cpu", "cpu"),
)


# Rows


@dataclass(kw_only=True)
class CardRow:
    """What the device itself can do: a ``value`` in the ``unit``."""

    what: str
    value: float
    unit: str


@dataclass(kw_only=True)
class SizeRow:
    """A document that was read (``what`` is "prefill"), or an answer about it ("answer").

    ``length`` is in tokens, ``storage`` the place of their keys. Of a prefill: its ``seconds``, those of them that the
    allocation of its memory took (``room_s``), and ``tokens_per_s``. Of an answer: the seconds to its first token,
    which waits for the question to be read (``first_s``), a later token's median and mean in ms, the mean number of
    selected tokens (``mtokens``), and the seconds of prefill and an answer of 200 tokens (``end_to_end_s``).
    ``peak_gib`` is the peak of the device's memory, of an answer with the prefill before it. ``floor`` is what the
    device cannot go below, in s or ms, and ``floor_share`` the floor as a share of what was measured: 1 at the floor.
    ``paper_*`` are the paper's figures. ``note`` says why something was not measured.
    """

    length: int
    storage: str
    what: str
    method: str | None = None
    budget: int | None = None
    policy: str | None = None
    every: int | None = None
    graphs: bool | None = None
    seconds: float | None = None
    room_s: float | None = None
    tokens_per_s: float | None = None
    first_s: float | None = None
    median_ms: float | None = None
    mean_ms: float | None = None
    mtokens: float | None = None
    end_to_end_s: float | None = None
    peak_gib: float | None = None
    floor: float | None = None
    floor_share: float | None = None
    paper_mtokens: float | None = None
    paper_end_to_end_s: float | None = None
    paper_peak_gib: float | None = None
    note: str = ""


@dataclass(kw_only=True)
class FullRow:
    """Full attention over ``length`` tokens: seconds to the first token, ms of a later one, peak of memory in GiB.

    ``ours_*`` are the figures of part ``sizes`` for that length, with keys on the device, and ``*_ratio`` how many
    times as long full attention takes. ``note`` says why something was not measured.
    """

    length: int
    prefill_s: float | None = None
    median_ms: float | None = None
    peak_gib: float | None = None
    ours_prefill_s: float | None = None
    ours_median_ms: float | None = None
    ours_peak_gib: float | None = None
    prefill_ratio: float | None = None
    token_ratio: float | None = None
    note: str = ""


@dataclass(kw_only=True)
class PointsRow:
    """Answers of ``tokens`` tokens each about one document of ``length`` tokens under ``points`` points, in seconds.

    ``ratio``: how many times as long as one point, :data:`FIXED_STEP`.
    """

    what: str
    length: int
    points: int
    tokens: int
    seconds: float | None = None
    ratio: float | None = None
    note: str = ""


@dataclass(kw_only=True)
class ProfileRow:
    """A figure of a decoding step under ``case``, or an operation of it, named by ``what``.

    ``kind`` is "figure" or "operation". ``value`` is of a token, in the ``unit``; of an operation it is the time of its
    own kernels, and ``calls`` is how often a token calls it.
    """

    case: str
    kind: str
    what: str
    value: float | None = None
    unit: str = ""
    calls: float | None = None
    note: str = ""


@dataclass(kw_only=True)
class PipelineRow:
    """A table of the pipeline on two devices: how many ``cells`` were compared, and how many are ``differing``.

    ``largest_pct`` is the largest difference of a number, relative to the larger of both, in percent.
    """

    table: str
    cells: int
    differing: int
    largest_pct: float
    note: str = ""


# Time and the reader


class Clock:
    """The time that a part has: ``deadline`` is a value of ``time.monotonic``, which a machine's processes share."""

    def __init__(self, deadline: float) -> None:
        self.deadline = deadline

    @property
    def left(self) -> float:
        """Seconds that are left."""
        return self.deadline - time.monotonic()

    def refusal(self, what: str, seconds: float) -> str:
        """Why ``what``, which takes about so many ``seconds``, is not run; "" if the time that is left suffices."""
        left = self.left
        return (
            ""
            if SLACK * seconds <= left
            else f"not run: {what} would take about {seconds:.0f} s, {left:.0f} s are left"
        )


class Reading(NamedTuple):
    """How a document was read: seconds in all, seconds of them for the memory's allocation, and peak bytes."""

    seconds: float
    room_s: float
    peak: int


class Answer(NamedTuple):
    """How an answer was decoded: seconds to the first token, seconds of each of the later ones, peak bytes, tokens."""

    first_s: float
    steps: list[float]
    peak: int
    tokens: list[Token]


class Lab:
    """What the parts of one process share: the reader, loaded when it is first needed, and the rates seen so far.

    ``reading`` and ``decoding`` are seconds of a token of a prefill and of an answer, by the place of the keys.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.device = torch.device(plan.device)
        self.reading: dict[str, float] = {}
        self.decoding: dict[str, float] = {}

    @cached_property
    def copy_rate(self) -> float:
        """Bytes a second of a copy on the device, read and written ones counted."""
        source = torch.randn(self.plan.copied // 4, device=self.device)
        target = torch.empty_like(source)
        return 2 * self.plan.copied / self.timed(lambda: target.copy_(source))

    @cached_property
    def product_rate(self) -> float:
        """FLOP/s of a product of matrices in the reader's type; of random numbers, since zeros run faster."""
        kind = torch.bfloat16 if self.device.type == "cuda" else torch.float32
        rows = self.plan.matrix
        left = torch.randn(rows, rows, device=self.device, dtype=kind)
        right = torch.randn(rows, rows, device=self.device, dtype=kind)
        return 2 * rows**3 / self.timed(lambda: left @ right)

    @cached_property
    def bench(self) -> Bench:
        """The reader and a detector."""
        return Bench(argparse.Namespace(reader=self.plan.reader, host=False, tokens=self.plan.tokens))

    def warm_up(self) -> None:
        """Load the kernels and learn the rates, once."""
        if self.reading:
            return
        for storage in (DEVICE, HOST):
            # The first time of each is no time to plan by, the second is.
            for _ in range(2):
                memory, _ = self.read(self.plan.warm, storage)
                for point in (POINTS[-1], FIXED_STEP):
                    self.answer(memory, point, storage)
                del memory

    def synchronize(self) -> None:
        """Wait until the device has done all that it was given."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def timed(self, work: Callable[[], object]) -> float:
        """Seconds of ``work`` on the device: the median of rounds, each of several calls that nothing waits between."""
        times = []
        for _ in range(ROUNDS + 1):
            self.synchronize()
            started = time.perf_counter()
            for _ in range(CALLS):
                work()
            self.synchronize()
            times.append((time.perf_counter() - started) / CALLS)
        # The first round loads the kernels.
        return statistics.median(times[1:])

    def read(self, length: int, storage: str) -> tuple[BlockMemory, Reading]:
        """Read a document of ``length`` tokens whose keys lie in ``storage``."""
        reader = self.bench.reader
        tokens = self.bench.tokens(length)
        reader.settings = replace(reader.settings, memory=replace(reader.settings.memory, storage=storage))
        with PeakMemory(self.device) as peak:
            self.synchronize()
            started = time.perf_counter()
            memory = begun(reader, tokens)
            self.synchronize()
            room = time.perf_counter()
            for _ in passes(memory):
                pass
            self.synchronize()
            ended = time.perf_counter()
        self.reading[storage] = (ended - started) / length
        return memory, Reading(ended - started, room - started, peak.bytes)

    def answer(self, memory: BlockMemory, point: Point, storage: str) -> Answer:
        """Decode an answer under ``point``; each token is on the host before the next one is begun."""
        reader = self.bench.reader
        reader.settings = replace(reader.settings, graphs=point.graphs)
        tokens = []
        with PeakMemory(self.device) as peak:
            marks = [time.perf_counter()]
            for token in utaca.stream(memory, ASKED, **point.options(self.bench)):
                marks.append(time.perf_counter())
                tokens.append(token)
        steps = [after - before for before, after in pairwise(marks[WARM_UP:])]
        self.decoding[storage] = (marks[-1] - marks[0]) / len(tokens)
        return Answer(marks[1] - marks[0], steps, peak.bytes, tokens)

    def seconds_to_read(self, length: int, storage: str) -> float:
        """About how long a document of ``length`` tokens will take."""
        seconds = length * self.reading.get(storage, 0.0)
        if storage == HOST and self.device.type == "cuda":
            # Memory of the host that a GPU copies from is pinned first, once a document is longer than those before.
            reader = self.bench.reader
            seconds += reader.sizes.cache_bytes(length, reader.dtype.itemsize) / PINNED_RATE
        return seconds

    def seconds_to_answer(self, storage: str) -> float:
        """About how long an answer will take."""
        return self.plan.tokens * self.decoding.get(storage, 0.0)

    def floor_of_prefill(self, length: int) -> float:
        """Seconds of the products of a prefill at the device's own rate: with the weights, and with keys.

        A token is multiplied with all weights of the layers, and attends to the initial tokens, to the blocks that its
        chunk retrieves, to the window and to half of its chunk.
        """
        reader = self.bench.reader
        m = self.bench.reader.settings.memory
        layers, heads, _, width = reader.shape
        weights = sum(weight.numel() for layer in reader.layers for weight in layer.parameters())
        keys = m.n_init + m.prefill_budget * m.block_size + m.n_local + m.prefill_chunk / 2
        return length * (2 * weights + 4 * min(keys, length / 2) * heads * width * layers) / self.product_rate

    def floor_of_token(self, passes_of_token: float) -> float:
        """Seconds in which the device reads the weights of a token's passes; of the embedding a token needs a row."""
        model = self.bench.reader.model
        embedding = model.get_input_embeddings().weight
        head = model.get_output_embeddings().weight
        read = sum(weight.numel() * weight.itemsize for weight in model.parameters())
        if embedding is not head:
            read -= embedding.numel() * embedding.itemsize
        return passes_of_token * read / self.copy_rate


# Parts


def exactness(lab: Lab, clock: Clock, sizes_so_far: Sequence[Row]) -> Iterator[Row]:
    """Whether the device answers as the CPU does, case by case."""
    from exactness import rows

    yield from rows(lab.plan.device, small=lab.plan is SMALL)


def card(lab: Lab, clock: Clock, sizes_so_far: Sequence[Row]) -> Iterator[CardRow]:
    """The device's own rates, from which the floors of the other parts follow."""
    yield CardRow(what="copy on the device, bytes read and written", value=lab.copy_rate / 1e9, unit="GB/s")
    product = f"product of two matrices of {lab.plan.matrix} rows"
    yield CardRow(what=product, value=lab.product_rate / 1e12, unit="TFLOP/s")


def sizes(lab: Lab, clock: Clock, sizes_so_far: Sequence[Row]) -> Iterator[SizeRow]:
    """Prefill, a decoded token under every point, end to end, and peak memory, for documents of several lengths."""
    lab.warm_up()
    for length, storage in lab.plan.sizes:
        yield from _size(lab, clock, length, storage)


def _size(lab: Lab, clock: Clock, length: int, storage: str) -> Iterator[SizeRow]:
    """The rows of one document."""
    needed = lab.seconds_to_read(length, storage) + lab.seconds_to_answer(storage)
    if refusal := clock.refusal(f"{length} tokens, storage={storage},", needed):
        yield SizeRow(length=length, storage=storage, what=PREFILL, note=refusal)
        return
    try:
        memory, reading = lab.read(length, storage)
    except (utaca.UserError, torch.OutOfMemoryError) as error:
        yield SizeRow(length=length, storage=storage, what=PREFILL, note=f"not run: {cause(error)}")
        return
    floor = lab.floor_of_prefill(length)
    yield SizeRow(
        length=length,
        storage=storage,
        what=PREFILL,
        seconds=reading.seconds,
        room_s=reading.room_s,
        tokens_per_s=length / reading.seconds,
        peak_gib=reading.peak / 2**30,
        floor=floor,
        floor_share=floor / reading.seconds,
    )
    for point in (FIXED_STEP, SAME_STEP, *(each for each in POINTS if each != FIXED_STEP)):
        row = _answered(lab, clock, memory, reading, point, storage)
        if length == lab.plan.paper:
            figures = paper.tables().tradeoff[paper.LLAMA].get((point.method, point.budget, point.policy))
            for column, figure in paper.reference(("mtokens", "end_to_end_s", "peak_gib"), figures).items():
                setattr(row, column, figure)
        yield row


def _answered(lab: Lab, clock: Clock, memory: BlockMemory, reading: Reading, point: Point, storage: str) -> SizeRow:
    """The row of an answer under ``point``; an answer that fails leaves its reason, and the others go on."""
    row = SizeRow(length=len(memory), storage=storage, what=TOKEN, **point._asdict())
    row.note = clock.refusal(f"an answer under {point.name}", lab.seconds_to_answer(storage))
    if not row.note:
        try:
            _fill(row, lab, reading, lab.answer(memory, point, storage))
        except Exception as error:
            row.note = f"failed: {cause(error)}"
    return row


def replay(lab: Lab, clock: Clock, sizes_so_far: Sequence[Row]) -> Iterator[SizeRow]:
    """A step that is replayed from a CUDA graph (``reader.graphs``), against an ordinary one."""
    if lab.device.type != "cuda":
        raise NotRun("a step is recorded as a graph on a GPU only")
    memory, reading = lab.read(lab.plan.paper, DEVICE)
    for point in REPLAYED:
        # The first answer of each kind loads its kernels.
        for each in (point._replace(graphs=False), point):
            _answered(lab, clock, memory, reading, each, DEVICE)
            yield _answered(lab, clock, memory, reading, each, DEVICE)


def _fill(row: SizeRow, lab: Lab, reading: Reading, answer: Answer) -> None:
    """Write the figures of an ``answer`` into its row."""
    mean = statistics.mean(answer.steps)
    count = len(answer.tokens)
    row.first_s = answer.first_s
    row.median_ms = 1e3 * statistics.median(answer.steps)
    row.mean_ms = 1e3 * mean
    block_size = lab.bench.reader.settings.memory.block_size
    row.mtokens = block_size * sum(token.k for token in answer.tokens) / count
    row.end_to_end_s = reading.seconds + answer.first_s + (ANSWER - 1) * mean
    row.peak_gib = max(reading.peak, answer.peak) / 2**30
    # The first tokens are not timed, so their passes do not count either.
    timed = answer.tokens[WARM_UP:]
    row.floor = 1e3 * lab.floor_of_token(sum(len(token.passes) for token in timed) / len(timed))
    row.floor_share = row.floor / row.mean_ms


def full(lab: Lab, clock: Clock, sizes_so_far: Sequence[Row]) -> Iterator[FullRow]:
    """Hugging Face's full attention by flash attention with the same weights, against block memory."""
    reader = lab.bench.reader
    prefill_s = token_s = 0.0
    before = lab.plan.warm // 2
    for length in (before, *lab.plan.full):
        # At most: only attention grows with the square of the length.
        growth = length / before
        needed = prefill_s * growth**2 + lab.plan.tokens * token_s * growth
        if refusal := clock.refusal(f"full attention over {length} tokens", needed):
            yield FullRow(length=length, note=refusal)
            continue
        try:
            with only_flash(), only_last_logits(reader.model), PeakMemory(lab.device) as peak:
                prefill_s, token_s = full_attention(reader, lab.bench.tokens(length), lab.plan.tokens)
        except torch.OutOfMemoryError as error:
            yield FullRow(length=length, note=f"not run: {cause(error)}")
            continue
        before = length
        if length not in lab.plan.full:
            # This was the warm-up.
            continue
        row = FullRow(length=length, prefill_s=prefill_s, median_ms=1e3 * token_s, peak_gib=peak.bytes / 2**30)
        _hold_against(row, sizes_so_far)
        yield row


def _hold_against(row: FullRow, sizes_so_far: Sequence[Row]) -> None:
    """Write the figures of part ``sizes`` for the same length into a row of full attention."""
    same = [each for each in sizes_so_far if each["length"] == row.length and each["storage"] == DEVICE]
    for each in same:
        if each["what"] == PREFILL and each["seconds"]:
            row.ours_prefill_s = each["seconds"]
            row.prefill_ratio = row.prefill_s / each["seconds"]
        if all(each[name] == value for name, value in FIXED_STEP._asdict().items()) and each["median_ms"]:
            row.ours_median_ms = each["median_ms"]
            row.ours_peak_gib = each["peak_gib"]
            row.token_ratio = row.median_ms / each["median_ms"]
    if row.ours_prefill_s is None:
        row.note = "part sizes has no figures for this length"


@contextmanager
def only_flash() -> Iterator[None]:
    """Allow no scaled dot product attention but flash attention: where that cannot run, torch raises an error."""
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        yield


@contextmanager
def only_last_logits(model: torch.nn.Module) -> Iterator[None]:
    """Raise an error if the model computes logits of more than one position: they would count as its memory."""

    def check(_module: object, inputs: tuple[Tensor, ...]) -> None:
        if inputs[0].shape[-2] > 1:
            raise RuntimeError(f"generate computed logits of {inputs[0].shape[-2]} positions, not only of the last")

    hook = model.get_output_embeddings().register_forward_pre_hook(check)
    try:
        yield
    finally:
        hook.remove()


def points(lab: Lab, clock: Clock, sizes_so_far: Sequence[Row]) -> Iterator[PointsRow]:
    """All points of one document in shared passes, against each of them decoded separately."""
    lab.warm_up()
    length = lab.plan.points
    tokens = lab.plan.tokens
    # One point and the shared passes come first, each of them twice.
    needed = lab.seconds_to_read(length, DEVICE) + 6 * lab.seconds_to_answer(DEVICE)
    if refusal := clock.refusal(f"{len(POINTS)} points of {length} tokens", needed):
        yield PointsRow(what="not run", length=length, points=len(POINTS), tokens=tokens, note=refusal)
        return
    memory, _ = lab.read(length, DEVICE)

    def seconds(chosen: Sequence[Point]) -> float:
        # The first time loads the kernels for rows of this number.
        for _ in range(2):
            lab.synchronize()
            started = time.perf_counter()
            generate_together([Decoding(memory, ASKED, **point.options(lab.bench)) for point in chosen])
            lab.synchronize()
        return time.perf_counter() - started

    def row(what: str, count: int, taken: float) -> PointsRow:
        return PointsRow(what=what, length=length, points=count, tokens=tokens, seconds=taken, ratio=taken / one)

    one = seconds([FIXED_STEP])
    yield row(FIXED_STEP.name, 1, one)
    yield row("in shared passes", len(POINTS), seconds(POINTS))
    total = one
    for point in POINTS:
        if point != FIXED_STEP:
            each = seconds([point])
            total += each
            yield row(point.name, 1, each)
    yield row("one after another", len(POINTS), total)


# Profile


class Case(NamedTuple):
    """What is profiled: a point, and the place of the document's keys."""

    point: Point
    storage: str


CASES = (Case(FIXED_STEP, DEVICE), Case(SAME_STEP, DEVICE), Case(FIXED_STEP, HOST))
"""Cases of one storage follow each other, so that they share a document."""
_CALLS = ("cuda_runtime", "cuda_driver")
_ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
"""Categories of a trace's events: calls of CUDA on the host, and what they have the device do."""
_WAITS = ("cudaStreamSynchronize", "cudaEventSynchronize", "cudaMemcpy")
"""Calls in which the host waits; the profile's own last wait is another, cudaDeviceSynchronize."""


def profiled(lab: Lab, clock: Clock, sizes_so_far: Sequence[Row]) -> Iterator[ProfileRow]:
    """Where the time of a decoding step goes: kernels, gaps between them, waits of the host, copies, operations."""
    lab.warm_up()
    for storage, cases in groupby(CASES, key=lambda case: case.storage):
        chosen = [case.point for case in cases]
        where = f"storage={storage}"
        needed = lab.seconds_to_read(lab.plan.profile, storage) + 2 * len(chosen) * lab.seconds_to_answer(storage)
        if refusal := clock.refusal(f"the profile of steps with {where}", needed):
            yield ProfileRow(case=where, kind="figure", what="not run", note=refusal)
            continue
        memory, _ = lab.read(lab.plan.profile, storage)
        for point in chosen:
            for row in _profile(lab, memory, point):
                row.case = f"{point.name}, {where}"
                yield row
        del memory


def _profile(lab: Lab, memory: BlockMemory, point: Point) -> Iterator[ProfileRow]:
    """The rows of one case, their case left out."""
    steps = lab.plan.steps
    cuda = lab.device.type == "cuda"
    options = point.options(lab.bench) | {"max_new_tokens": WARM_UP + 3 * steps}
    stream = utaca.stream(memory, ASKED, **options)
    for _ in islice(stream, WARM_UP):
        pass
    marks = [time.perf_counter()]
    for _ in islice(stream, steps):
        marks.append(time.perf_counter())
    token_ms = 1e3 * statistics.median(after - before for before, after in pairwise(marks))
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]
    # The first profile of a process also starts the device's tracer.
    for _ in range(2):
        with profile(activities=activities) as taken:
            for _ in islice(stream, steps):
                pass
            lab.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        # torch's own averages take a minute for as many events.
        taken.export_chrome_trace(str(path))
        events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    yield ProfileRow(case="", kind="figure", what="token, not profiled", value=token_ms, unit="ms")
    yield from figures(events, steps, token_ms)
    found = operations(events)
    for name in sorted(found, key=lambda name: -found[name].time(cuda))[:OPERATIONS]:
        yield ProfileRow(
            case="",
            kind="operation",
            what=name,
            value=found[name].time(cuda) / 1e3 / steps,
            unit="ms",
            calls=found[name].calls / steps,
        )


@dataclass
class Operation:
    """How often an operation was called, and its µs, those of operations that it called left out.

    ``host_us`` is the time of its calls, ``device_us`` that of the kernels and copies that it launched.
    """

    calls: int = 0
    host_us: float = 0.0
    device_us: float = 0.0

    def time(self, on_device: bool) -> float:
        """Its µs on the device, or on the host."""
        return self.device_us if on_device else self.host_us


def operations(events: Sequence[Row]) -> dict[str, Operation]:
    """The operations of a trace in Chrome's format, by name."""
    found: dict[str, Operation] = defaultdict(Operation)
    launched_by: dict[int | None, str] = {}
    on_host = [event for event in events if event.get("ph") == "X" and event.get("cat") in ("cpu_op", *_CALLS)]
    for _, thread in groupby(sorted(on_host, key=lambda event: event["tid"]), key=lambda event: event["tid"]):
        under_way: list[Row] = []
        # An operation comes before those that it calls, which begin later, or at the same time and end earlier.
        for event in sorted(thread, key=lambda event: (event["ts"], -event["dur"])):
            while under_way and event["ts"] >= under_way[-1]["ts"] + under_way[-1]["dur"]:
                under_way.pop()
            caller = under_way[-1]["name"] if under_way else ""
            if event["cat"] in _CALLS:
                launched_by[_launch(event)] = caller
                continue
            found[event["name"]].calls += 1
            found[event["name"]].host_us += event["dur"]
            if caller:
                found[caller].host_us -= event["dur"]
            under_way.append(event)
    for event in events:
        if event.get("cat") in _ON_DEVICE:
            name = launched_by.get(_launch(event)) or "launched by no operation"
            found[name].device_us += event["dur"]
    return dict(found)


def _launch(event: Row) -> int | None:
    """The number that a call of CUDA has in common with what it launched; None if it has none."""
    return event.get("args", {}).get("correlation")


def figures(events: Sequence[Row], steps: int, token_ms: float) -> Iterator[ProfileRow]:
    """Figures of a token, from the ``events`` of a trace over ``steps`` tokens in Chrome's format, times in µs.

    ``token_ms`` is the time of a token that was not profiled; the profiler makes gaps longer.
    """
    spans = [event for event in events if event.get("ph") == "X"]
    kernels = [event for event in spans if event.get("cat") == "kernel"]
    copies = [event for event in spans if event.get("cat") == "gpu_memcpy"]
    on_device = [event for event in spans if event.get("cat") in _ON_DEVICE]
    on_host = [event for event in spans if event.get("cat") == "cpu_op"]
    calls = [event for event in spans if event.get("cat") in _CALLS]
    waits = [event for event in calls if event["name"] in _WAITS]
    counts = {
        "operations": len(on_host),
        "numbers that the host reads": sum(event["name"] == "aten::_local_scalar_dense" for event in on_host),
    }
    times: dict[str, float] = {}
    if on_device:
        busy = _covered(on_device)
        first = min(event["ts"] for event in on_device)
        last = max(event["ts"] + event["dur"] for event in on_device)
        counts |= {
            "kernels": len(kernels),
            "launches": sum("LaunchKernel" in event["name"] for event in calls),
            "waits of the host": len(waits),
            "copies to the host": sum("DtoH" in event["name"] for event in copies),
            "copies to the device": sum("HtoD" in event["name"] for event in copies),
        }
        times = {
            "device at work": busy,
            "gaps, as profiled": last - first - busy,
            "gaps, not profiled": 1e3 * token_ms * steps - busy,
            "copies": sum(event["dur"] for event in copies),
            "waits of the host": sum(event["dur"] for event in waits),
        }
    for what, count in counts.items():
        yield ProfileRow(case="", kind="figure", what=what, value=count / steps)
    for what, duration in times.items():
        yield ProfileRow(case="", kind="figure", what=what, value=duration / 1e3 / steps, unit="ms")


def _covered(events: Sequence[Row]) -> float:
    """Microseconds in which at least one of the events was under way."""
    covered = 0.0
    end = -math.inf
    for event in sorted(events, key=lambda event: event["ts"]):
        covered += max(0.0, event["ts"] + event["dur"] - max(end, event["ts"]))
        end = max(end, event["ts"] + event["dur"])
    return covered


# Pipeline

_MEASURED = re.compile(r"(^|_)(seconds|s|gib)(_|$)")
"""Columns of time, memory and speed, which differ from run to run."""
_MISSING = re.compile(r"No module named '(\w+)")
_NUMBER = re.compile(r"-?\d+(\.\d+)?(e[+-]?\d+)?")


def pipeline(lab: Lab, clock: Clock, sizes_so_far: Sequence[Row]) -> Iterator[PipelineRow]:
    """The pipeline on both devices, side by side; then its tables, cell by cell."""
    if importlib.util.find_spec("snakemake") is None:
        raise NotRun(_lacking("snakemake"))
    with tempfile.TemporaryDirectory(prefix="utaca-pipeline-") as scratch:
        folders = [Path(scratch) / f"{number}-{device}" for number, device in enumerate(lab.plan.devices)]
        running = []
        try:
            for folder, device in zip(folders, lab.plan.devices, strict=True):
                running.append(_started(lab.plan, folder, device))
            for process, folder in zip(running, folders, strict=True):
                if process.wait() != 0:
                    raise fault(folder)
        finally:
            for process in running:
                process.terminate()
                process.wait()
        yield from compared(*(folder / "results" / "gpu" / "tables" for folder in folders))


def _started(plan: Plan, folder: Path, device: str) -> subprocess.Popen:
    """The pipeline on ``device``, whose results and log lie in ``folder``."""
    folder.mkdir()
    cores = max(1, (os.cpu_count() or 1) // 2)
    command = [sys.executable, "-m", "snakemake", "--snakefile", str(ROOT / "Snakefile"), "--cores", str(cores)]
    command += [plan.target, "--config", "run=gpu", f"reader={{device: {device}}}", *plan.config]
    with (folder / "log").open("w") as log:
        return subprocess.Popen(command, cwd=folder, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)


def fault(folder: Path) -> Exception:
    """Why a run of the pipeline failed, from its logs."""
    logs = [folder / "log", *sorted((folder / "logs").rglob("*.log"))]
    text = "\n".join(log.read_text(encoding="utf-8", errors="replace") for log in logs)
    if missing := _MISSING.search(text):
        return NotRun(_lacking(missing[1]))
    lines = [line for line in text.splitlines() if "Error" in line]
    said = lines[0].strip() if lines else "its log names no error"
    return RuntimeError(f"the pipeline in {folder.name} failed: {said}")


def _lacking(package: str) -> str:
    return f"the package {package} is missing; install the extra: pip install -e '.[pipeline]'"


def compared(one: Path, other: Path) -> Iterator[PipelineRow]:
    """Every table of both folders, cell by cell; columns of time, memory and speed are left out."""
    for name in sorted({path.name for folder in (one, other) for path in folder.glob("*.csv")}):
        row = PipelineRow(table=name.removesuffix(".csv"), cells=0, differing=0, largest_pct=0.0)
        if not ((one / name).is_file() and (other / name).is_file()):
            row.note = "only one of the devices has this table"
        else:
            _compare(row, _cells(one / name), _cells(other / name))
        yield row


def _cells(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def _compare(row: PipelineRow, one: list[dict[str, str]], other: list[dict[str, str]]) -> None:
    """Write into ``row`` how two tables differ."""
    if [[*cells] for cells in one] != [[*cells] for cells in other]:
        row.note = f"the tables have other columns, or {len(one)} and {len(other)} rows"
        return
    differing_columns = []
    for mine, theirs in zip(one, other, strict=True):
        for column in mine:
            if _MEASURED.search(column):
                continue
            row.cells += 1
            if mine[column] != theirs[column]:
                row.differing += 1
                row.largest_pct = max(row.largest_pct, _difference_pct(mine[column], theirs[column]))
                differing_columns.append(column)
    if differing_columns:
        row.note = "differing: " + ", ".join(dict.fromkeys(differing_columns))


def _difference_pct(one: str, other: str) -> float:
    """Relative difference of two cells in percent; of texts, and of a number and no number, 100."""
    if not (_NUMBER.fullmatch(one) and _NUMBER.fullmatch(other)):
        return 100.0
    first = float(one)
    second = float(other)
    return 100 * abs(first - second) / max(abs(first), abs(second))


# All of them


class Part(NamedTuple):
    """A part: its function, its share of the time in seconds of eight minutes, and whether its process is shared.

    Parts that share a process share the large reader there.
    """

    rows: Callable[[Lab, Clock, Sequence[Row]], Iterator[Any]]
    share: float
    shared: bool


SIZES = "sizes"
PARTS = {
    "exactness": Part(exactness, 80, False),
    "card": Part(card, 30, True),
    SIZES: Part(sizes, 160, True),
    "full": Part(full, 50, True),
    "points": Part(points, 30, True),
    "profile": Part(profiled, 30, True),
    # A recording that fails may harm its process.
    "replay": Part(replay, 40, False),
    "pipeline": Part(pipeline, 60, False),
}
"""The parts in order of worth."""
LARGE_PARTS = (SIZES, "full", "points", "profile", "replay")
"""The parts that need the large reader."""


def tidy(row: Any) -> Row:
    """A row as it stands in the JSON: six digits a number, None for NaN and infinity."""
    found = row if isinstance(row, dict) else asdict(row)
    return {name: _tidied(value) for name, value in found.items()}


def _tidied(value: Any) -> Any:
    if not isinstance(value, float):
        return value
    return float(f"{value:.6g}") if math.isfinite(value) else None
