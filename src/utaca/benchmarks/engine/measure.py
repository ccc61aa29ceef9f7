"""The engine's rows: what is measured of a reader on this machine, in one run.

Every repeat goes through all contexts, so that both sides of a ratio are measured within one repeat and a ratio's
spread is that of its repeats. Full attention, quadratic in the context, is measured once, right after the engine on the
same tokens, and compared with each repeat.
"""

from __future__ import annotations

import itertools
import logging
import statistics
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd
import torch
from torch import Tensor

from utaca.benchmarks.engine import dense, resident
from utaca.benchmarks.engine.answers import (
    WARM_UP,
    asked,
    decode,
    decode_bare,
    engine_step,
    pass_seconds,
    passes,
    pieces,
    random_detector,
    room,
    schedule,
)
from utaca.benchmarks.engine.floors import Costs, Machine, now
from utaca.benchmarks.engine.loop import BlockLoop
from utaca.benchmarks.engine.rows import BYTES, PASSES, RATIO, SECONDS, Bar, Part, Row
from utaca.benchmarks.engine.suite import suite_rows
from utaca.biographies.corpora import embedded
from utaca.biographies.corpora.topics import paper_articles
from utaca.decoding.policies import Set, Sub
from utaca.errors import UserError
from utaca.memory import BlockMemory, prefill
from utaca.readers.load import Reader
from utaca.readers.prompts import SEPARATOR
from utaca.records.progress import progress
from utaca.settings.schema import PACKED, TOKENS
from utaca.trace import Generation

FIXED, ADAPTIVE, POLICY = (8, 16, 32), (32, 48, 64, 96), Sub(16)
"""The paper's seven operating points with Llama-3.1-8B: K of InfLLM, K_max and policy of UT-ACA."""

ENGINE, FULL = "block memory", "full attention"

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Plan:
    """Sizes of a run, in tokens.

    ``decode`` and ``prefill`` are a short and a long context, compared by time a token; the long one of ``decode`` is
    the document of the operating points, the bookkeeping, the paired passes and the block loop. Full attention runs on
    the contexts ``dense``, the last of which is compared. ``resident`` is the document of the peak memory. An answer
    has ``tokens`` tokens under ``budget`` blocks; UT-ACA expands each ``every``-th step.
    """

    decode: tuple[int, int]
    prefill: tuple[int, int]
    dense: Sequence[int]
    resident: int
    budget: int
    tokens: int
    every: int
    repeats: int

    @property
    def contexts(self) -> list[int]:
        return sorted({*self.decode, *self.prefill, *self.dense})


def measure(reader: Reader, plan: Plan, machine: Machine) -> tuple[list[Row], pd.DataFrame]:
    """The rows of a reader, and its times by context length.

    The second holds a row for each ``context`` and ``reader`` (block memory or full attention): medians over repeats of
    ``prefill_s``, ``prefill_us_token`` and ``decode_ms_token``, their ``_low`` and ``_high``, and their ``_floor`` for
    block memory. Raises :class:`UserError` where the shortest context has no more far blocks than the widest budget,
    an answer is too short to be timed, or the reader's memory has rules that the block loop and the floors do not know.
    """
    m = reader.settings.memory
    if m.representatives == TOKENS or m.far_positions == PACKED:
        raise UserError(
            "the engine is timed beside InfLLM's loop over blocks, which ranks no tokens and packs no keys; set "
            "reader.memory.representatives=attention_mass and reader.memory.far_positions=clipped"
        )
    least = m.n_init + m.n_local + max(*FIXED, *ADAPTIVE, 2 * plan.budget) * m.block_size
    if plan.contexts[0] <= least:
        raise UserError(f"the shortest context has {plan.contexts[0]} tokens; give it more than {least}")
    if plan.tokens <= WARM_UP:
        raise UserError(f"an answer of {plan.tokens} tokens is too short to time; give it more than {WARM_UP}")
    # Answers are to be of one length.
    reader.stop_tokens = frozenset()
    tokens = document(reader, max(plan.contexts[-1], plan.resident))
    run = _Run(reader, plan, machine, tokens)
    run.warm_up()
    laps = [*itertools.product(range(plan.repeats), plan.contexts)]
    for repeat, context in progress(laps, total=len(laps), unit="document", description="engine"):
        run.lap(repeat, context)
    peak, loaded = resident.measure(reader, tokens[: plan.resident], plan.budget, plan.tokens, asked(reader))
    return [*run.rows(), _memory_row(run.costs, plan, peak, loaded)], run.by_context()


def document(reader: Reader, length: int) -> Tensor:
    """Token ids [length] of the embedded prose, as a document begins with them."""
    found = reader.encode_document("")
    for number, topic in enumerate(itertools.cycle(paper_articles())):
        if len(found) >= length:
            break
        (article,) = embedded.articles([topic], seed=number // len(paper_articles()))
        found = torch.cat((found, reader.encode(article["text"] + SEPARATOR)))
    return found[:length]


class _Run:
    """What is measured: lists by name and context, which hold one figure a repeat."""

    def __init__(self, reader: Reader, plan: Plan, machine: Machine, tokens: Tensor) -> None:
        self.reader, self.plan, self.machine, self.tokens = reader, plan, machine, tokens
        self.costs = Costs.of(reader)
        self.found: dict[tuple[str, int], list[float]] = defaultdict(list)
        self.long = plan.decode[1]
        self.passed = self.accepted = self.rolled_back = 0
        self.moved = 0.0
        self.detector = random_detector(reader)

    def warm_up(self) -> None:
        tokens = self.tokens[: self.plan.contexts[0]]
        decode(prefill(self.reader, tokens), self.plan.budget, WARM_UP)
        dense.generate(self.reader, tokens[:64], 2)

    def lap(self, repeat: int, context: int) -> None:
        plan, found = self.plan, self.found
        memory = self._prefill("prefill", context)
        answer = decode(memory, plan.budget, plan.tokens)
        found["decode", context].append(answer.token)
        if context == self.long:
            found["one", context].append(found["prefill", context][-1] + answer.seconds)
            self._bookkeeping(memory)
            self._paired(memory)
            self._block_loop(memory)
        # No two documents at a time.
        del memory
        if context == self.long:
            self._operating_points()
        if repeat == 0 and context in plan.dense:
            self._full_attention(context)

    def _prefill(self, name: str, context: int) -> BlockMemory:
        device = self.reader.device
        started = now(device)
        memory = prefill(self.reader, self.tokens[:context], description=f"prefill of {context} tokens")
        self.found[name, context].append(now(device) - started)
        return memory

    def _operating_points(self) -> None:
        """All from a prefill of their own, and the rows of their traces; the adaptive ones' passes are counted."""
        plan, costs = self.plan, self.costs
        memory = self._prefill("prefill for all", self.long)
        question, self.moved, generations = len(pieces(memory)) - 1, 0.0, []
        points = [(budget, None) for budget in FIXED] + [(budget, POLICY) for budget in ADAPTIVE]
        for budget, policy in points:
            options = {"policy": policy, "detector": self.detector, "interventions": schedule(plan.tokens, plan.every)}
            with passes(self.reader) as seen:
                answer = decode(memory, budget, plan.tokens, **(options if policy else {}))
            generations.append(Generation(memory.block_size, answer.trace, "length", answer.seconds))
            self.moved += sum(costs.pass_bytes(self.long, one.attended) for one in answer.passes)
            if policy:
                self.passed += seen.count - question
                self.accepted += len(answer.trace)
                self.rolled_back += sum(token.rolled_back for token in answer.trace)
        decoding = sum(generation.seconds for generation in generations)
        started = time.perf_counter()
        suite_rows(generations)
        rows = time.perf_counter() - started
        self.found["seven", self.long].append(self.found["prefill for all", self.long][-1] + decoding)
        self.found["suite", self.long].append(decoding + rows)
        self.found["suite rows", self.long].append(rows)

    def _bookkeeping(self, memory: BlockMemory) -> None:
        """The same passes bare, and with detector, policy and trace; the first of them under K_max, which is 2 K."""
        plan, k = self.plan, self.plan.budget
        step = engine_step(memory.branches(memory, room(memory, plan.tokens), 2 * k))
        bare = decode_bare(memory, step, [2 * k] + [k] * (plan.tokens - 1))
        never = dict.fromkeys(range(plan.tokens), False)
        whole = decode(memory, 2 * k, plan.tokens, policy=Set(k), detector=self.detector, interventions=never)
        self.found["bare", self.long].append(bare.token)
        self.found["whole", self.long].append(whole.token)

    def _paired(self, memory: BlockMemory) -> None:
        """A compact pass, and the same with its expansion to K_max, which is 2 K, as a second row."""
        k = self.plan.budget
        one, two = pass_seconds(memory, [[k], [k, 2 * k]], self.plan.tokens)
        self.found["one row", self.long].append(one)
        self.found["two rows", self.long].append(two)

    def _block_loop(self, memory: BlockMemory) -> None:
        k, tokens = self.plan.budget, self.plan.tokens
        loop = BlockLoop(memory, room(memory, tokens), k)
        looped = decode_bare(memory, loop.step, [k] * tokens)
        self.found["loop", self.long].append(looped.token)

    def _full_attention(self, context: int) -> None:
        log.info("full attention on %d tokens", context)
        first, steps = dense.generate(self.reader, self.tokens[:context], self.plan.tokens)
        self.found["dense prefill", context].append(first)
        self.found["dense decode", context].append(statistics.median(steps[WARM_UP:]))

    # Rows

    def rows(self) -> list[Row]:
        plan, machine, long = self.plan, self.machine, self.long
        short, far, near = plan.decode[0], plan.prefill[1], plan.prefill[0]
        full = plan.dense[-1]
        points = len(FIXED) + len(ADAPTIVE)
        token = self._token_floor(long)
        detector = sum(weight.numel() * weight.itemsize for weight in self.detector.parameters())
        suite = self.found["suite", long]
        return [
            self._ratio(
                f"{points} operating points of {plan.tokens} tokens, {long}-token document, against one of them",
                ("seven", long, "all, one prefill"),
                ("one", long, f"InfLLM K={plan.budget}, one prefill"),
                Bar("<=", 1.5),
                floor=self._reading_floor(long) + self.moved / machine.bandwidth,
                work="FLOPs of the prefill, bytes of every pass",
            ),
            Row(
                f"decoding {points} operating points of {plan.tokens} tokens, traces included, {long}-token document",
                SECONDS,
                suite,
                None,
                Part("answers and traces", statistics.median(suite)),
                Part("rows of the traces alone", statistics.median(self.found["suite rows", long])),
                self.moved / machine.bandwidth,
                "bytes of every pass",
            ),
            self._ratio(
                f"decode time a token, {long} against {short} tokens, K={plan.budget}",
                ("decode", long, f"{long} tokens"),
                ("decode", short, f"{short} tokens"),
                Bar("<=", 1.6),
                floor=token,
                work="bytes of a pass",
            ),
            self._ratio(
                f"prefill time a token, {far} against {near} tokens",
                ("prefill", far, f"{far} tokens"),
                ("prefill", near, f"{near} tokens"),
                Bar("<=", 1.2),
                floor=self._reading_floor(far) / far,
                work="FLOPs of a token",
                scale=(far, near),
            ),
            self._ratio(
                f"UT-ACA's detector, policy and trace on a pass under the same k={plan.budget}, {long} tokens",
                ("whole", long, "with bookkeeping"),
                ("bare", long, "passes alone"),
                Bar("<=", 1.1),
                floor=token + detector / machine.bandwidth,
                work="bytes of a pass and the detector",
            ),
            self._ratio(
                f"a pass of two rows, k={plan.budget} and {2 * plan.budget}, against the first alone, {long} tokens",
                ("two rows", long, "two rows"),
                ("one row", long, "one row"),
                None,
                floor=self._token_floor(long, 3 * plan.budget),
                work="bytes of the pass",
            ),
            Row(
                f"forward passes a token, sequential, {self.rolled_back} rollbacks in {self.accepted} tokens",
                PASSES,
                [self.passed / self.accepted],
                Bar("=", (self.accepted + self.rolled_back) / self.accepted),
            ),
            self._ratio(
                f"prefill of {full} tokens, Hugging Face's full attention against ours",
                ("dense prefill", full, FULL),
                ("prefill", full, ENGINE),
                Bar(">=", 5.0),
                floor=self._reading_floor(full),
                work="FLOPs",
                ours_below=True,
            ),
            self._ratio(
                f"decode time a token, {full} tokens, K={plan.budget}, Hugging Face's full attention against ours",
                ("dense decode", full, FULL),
                ("decode", full, ENGINE),
                Bar(">=", 5.0),
                floor=self._token_floor(full),
                work="bytes of a pass",
                ours_below=True,
            ),
            self._ratio(
                f"decode time a token, {long} tokens, K={plan.budget}, a Python loop over blocks against ours",
                ("loop", long, "block loop"),
                ("bare", long, ENGINE),
                Bar(">=", 5.0),
                floor=token,
                work="bytes of a pass",
                ours_below=True,
            ),
        ]

    def _ratio(
        self,
        what: str,
        above: tuple[str, int, str],
        below: tuple[str, int, str],
        bar: Bar | None,
        *,
        floor: float,
        work: str,
        scale: tuple[int, int] = (1, 1),
        ours_below: bool = False,
    ) -> Row:
        """Ratio of two measured series (name, context, name of the part), each divided by its ``scale``."""
        sides = [[x / by for x in self.found[side[:2]]] for side, by in zip((above, below), scale, strict=True)]
        if len(sides[0]) == 1:
            # Full attention is measured once.
            sides[0] *= len(sides[1])
        values = [a / b for a, b in zip(*sides, strict=True)]
        parts = [Part(side[2], statistics.median(x)) for side, x in zip((above, below), sides, strict=True)]
        ours, against = reversed(parts) if ours_below else parts
        return Row(what, RATIO, values, bar, ours, against, floor, work)

    def _reading_floor(self, context: int) -> float:
        return sum(self.costs.prefill_flops(context).values()) / self.machine.rate

    def _token_floor(self, context: int, budget: int | None = None) -> float:
        """Of a pass that retrieves ``budget`` blocks in all, the plan's unless another is given."""
        m = self.reader.settings.memory
        attended = m.n_init + m.n_local + (budget or self.plan.budget) * m.block_size
        return self.costs.pass_bytes(context, attended) / self.machine.bandwidth

    def by_context(self) -> pd.DataFrame:
        rows = []
        for context in self.plan.contexts:
            floors = {
                "prefill_s_floor": self._reading_floor(context),
                "decode_ms_token_floor": 1e3 * self._token_floor(context),
            }
            floors["prefill_us_token_floor"] = 1e6 * floors["prefill_s_floor"] / context
            for reader, read, decoded in ((ENGINE, "prefill", "decode"), (FULL, "dense prefill", "dense decode")):
                seconds = self.found.get((read, context), [])
                if not seconds:
                    continue
                row = {"context": context, "reader": reader, "repeats": len(seconds)}
                row |= _spread("prefill_s", seconds)
                row |= _spread("prefill_us_token", [1e6 * s / context for s in seconds])
                row |= _spread("decode_ms_token", [1e3 * s for s in self.found[decoded, context]])
                rows.append(row | (floors if reader == ENGINE else {}))
        return pd.DataFrame(rows)


def _spread(name: str, values: Sequence[float]) -> dict[str, float]:
    return {name: statistics.median(values), f"{name}_low": min(values), f"{name}_high": max(values)}


def _memory_row(costs: Costs, plan: Plan, peak: int, loaded: int) -> Row:
    return Row(
        f"peak resident memory of a process that reads {plan.resident} tokens and answers",
        BYTES,
        [peak],
        Bar("<=", 3 * 2**30),
        Part("peak", peak),
        Part("with the reader loaded", loaded),
        sum(costs.staying_bytes(plan.resident).values()),
        "bytes of weights, keys, values, representatives",
    )
