"""How fast the engine is, and how much memory it takes.

``python bench/engine.py [QUESTION ...]`` prints a Markdown table; ``--help`` lists the questions. Documents are random
tokens and detectors have random weights: times depend on neither. Leave the machine to it meanwhile.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from itertools import pairwise
from multiprocessing import get_context
from typing import Any

import torch
from report import Row, compared
from torch import Tensor
from transformers import AutoModelForCausalLM, LlamaConfig
from transformers.generation.streamers import BaseStreamer

import utaca
from utaca.decoding.loop import generate_together
from utaca.decoding.options import Decoding
from utaca.decoding.triggers import Detected, Replayed
from utaca.detection.detector import Detector
from utaca.settings import schema

ASKED = "Summarize the birth date of Emma Thompson."
FIXED, ADAPTIVE, EVERY = (8, 16, 32), (32, 48, 64, 96), 11
"""The paper's points with Llama-3.1-8B: K of InfLLM; K_max of UT-ACA, here with every 11th step expanded."""
WARM_UP = 4
"""First tokens of an answer that are not timed; the first one waits for the question to be read."""
RANDOM_8B = "random-8b"


class Bench:
    """A reader with a random document and a random detector, and the sizes of a run (``options``)."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.reader = random_8b() if options.reader == RANDOM_8B else utaca.load_reader(options.reader)
        settings = self.reader.settings
        memory = replace(settings.memory, storage="host") if options.host else settings.memory
        self.reader.settings = replace(settings, memory=memory)
        # Answers are to be of one length.
        self.reader.stop_tokens = frozenset()
        torch.manual_seed(0)
        self.detector = Detector(schema.DetectorSettings(), self.reader.width).eval().to(self.reader.device)

    def read(self, length: int) -> tuple[Any, float]:
        """The memory of a document of ``length`` tokens, and the seconds that reading it takes."""
        tokens = self.tokens(length)
        started = time.perf_counter()
        memory = utaca.prefill(self.reader, tokens)
        if tokens.is_cuda:
            torch.cuda.synchronize()
        return memory, time.perf_counter() - started

    def tokens(self, length: int) -> Tensor:
        """Random token ids [length]."""
        generator = torch.Generator().manual_seed(0)
        return torch.randint(self.reader.model.config.vocab_size, (length,), generator=generator).to(self.reader.device)

    def answer(self, memory: Any, budget: int, **adaptive: Any) -> tuple[float, float]:
        """Seconds of an answer of ``options.tokens`` tokens, and of one of its tokens, the median."""
        marks = [time.perf_counter()]
        for _ in utaca.stream(memory, ASKED, budget=budget, max_new_tokens=self.options.tokens, **adaptive):
            marks.append(time.perf_counter())
        return marks[-1] - marks[0], median_step(marks)

    def adaptive(self, policy: Any, expanded: Callable[[int], bool]) -> dict[str, Any]:
        """Options of an answer by UT-ACA that expands the steps for which ``expanded`` holds, and no others."""
        decisions = {step: expanded(step) for step in range(self.options.tokens)}
        return {"policy": policy, "trigger": Replayed(Detected(self.detector), decisions)}


def points(bench: Bench) -> Iterator[Row]:
    """Seven operating points from one prefill, and three in shared passes, against one of them."""
    length = bench.options.decode[1]
    tokens = bench.options.tokens
    memory, reading = bench.read(length)
    fixed = [bench.answer(memory, budget)[0] for budget in FIXED]
    judged = bench.adaptive(utaca.Sub(16), lambda step: step % EVERY == EVERY - 1)
    adaptive = [bench.answer(memory, budget, **judged)[0] for budget in ADAPTIVE]
    what = f"{len(fixed + adaptive)} points of {tokens} tokens from one prefill of {length}"
    yield Row(what, reading + sum(fixed + adaptive), f"K={FIXED[-1]} alone", reading + fixed[-1])
    started = time.perf_counter()
    generate_together([Decoding(memory, ASKED, budget=budget, max_new_tokens=tokens) for budget in FIXED])
    together = time.perf_counter() - started
    yield Row(f"{len(FIXED)} points in shared passes behind {length}", together, f"K={FIXED[-1]} alone", fixed[-1])


def growth(bench: Bench) -> Iterator[Row]:
    """How a decoded token, and a token of a prefill, grow with the context."""
    short, long = bench.options.decode
    few, many = bench.options.prefill
    budget = bench.options.budget
    one, other = (bench.answer(bench.read(length)[0], budget)[1] for length in (short, long))
    yield Row(f"decode a token behind {long}, K={budget}", other, f"behind {short}", one)
    one, other = (bench.read(length)[1] / length for length in (few, many))
    yield Row(f"prefill a token of {many}", other, f"of {few}", one)


def detector(bench: Bench) -> Iterator[Row]:
    """What detector and policy add to a step that is not expanded."""
    _, length = bench.options.decode
    k = bench.options.budget
    memory, _ = bench.read(length)
    judged = bench.adaptive(utaca.Set(k), lambda step: False)
    fixed = bench.answer(memory, k)[1]
    with_detector = bench.answer(memory, 2 * k, **judged)[1]
    yield Row(f"decode a token behind {length} with detector and policy, K={k}", with_detector, "without", fixed)


def full(bench: Bench) -> Iterator[Row]:
    """Hugging Face's full attention with the same weights, against block memory."""
    length = bench.options.full
    k = bench.options.budget
    memory, reading = bench.read(length)
    token = bench.answer(memory, k)[1]
    del memory
    first, later = full_attention(bench.reader, bench.tokens(length), bench.options.tokens)
    yield Row(f"prefill of {length} by full attention", first, "by block memory", reading)
    yield Row(f"decode a token behind {length} by full attention", later, f"by block memory, K={k}", token)


def memory(bench: Bench) -> Iterator[Row]:
    """Peak memory of a process that reads a document and answers: of the GPU where there is one."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        peak, loaded = pool.submit(peak_bytes, bench.options).result()
    yield Row(f"peak memory, {bench.options.document} tokens read", peak, "with the reader loaded", loaded, "B")


QUESTIONS = {question.__name__: question for question in (points, growth, detector, full, memory)}


def peak_bytes(options: argparse.Namespace) -> tuple[int, int]:
    """Bytes at the peak, and once the reader is loaded."""
    from utaca.generation.peak import PeakMemory

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    with PeakMemory(device) as peak:
        with PeakMemory(device) as loaded:
            bench = Bench(options)
        bench.answer(bench.read(options.document)[0], options.budget)
    return peak.bytes, loaded.bytes


class _Clock(BaseStreamer):
    """Notes when ``generate`` of transformers starts and when each token is there."""

    def __init__(self) -> None:
        self.marks: list[float] = []

    def put(self, value: Tensor) -> None:
        self.marks.append(time.perf_counter())

    def end(self) -> None:
        pass


@torch.inference_mode()
def full_attention(reader: Any, tokens: Tensor, new: int) -> tuple[float, float]:
    """Seconds until the first token after ``tokens`` [T], and of a token after it, the median.

    By transformers' scaled dot product attention ("sdpa"), which keeps no matrix of T x T, and its default cache.
    """
    from utaca.readers.attention import ATTENTION

    model = reader.model
    clock = _Clock()
    longest = model.config.max_position_embeddings
    model.config.max_position_embeddings = len(tokens) + new
    model.set_attn_implementation("sdpa")
    try:
        model.generate(
            tokens[None],
            attention_mask=torch.ones_like(tokens[None]),
            max_new_tokens=new,
            min_new_tokens=new,
            do_sample=False,
            streamer=clock,
        )
    finally:
        model.set_attn_implementation(ATTENTION)
        model.config.max_position_embeddings = longest
    return clock.marks[1] - clock.marks[0], median_step(clock.marks)


def median_step(marks: list[float]) -> float:
    """Median seconds between marks, those of the first tokens left out."""
    return statistics.median(after - before for before, after in pairwise(marks[WARM_UP:]))


def llama_8b() -> LlamaConfig:
    """The shape of Llama-3.1-8B (its config.json)."""
    return LlamaConfig(
        vocab_size=128256,
        hidden_size=4096,
        intermediate_size=14336,
        num_hidden_layers=32,
        num_attention_heads=32,
        num_key_value_heads=8,
        max_position_embeddings=131072,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 500000.0},
    )


def random_8b() -> Any:
    """A reader of the shape of Llama-3.1-8B with random weights; it needs no download."""
    from utaca.machine import natural_dtype
    from utaca.readers.attention import ATTENTION
    from utaca.readers.load import Reader

    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = natural_dtype(device)
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(llama_8b(), dtype=getattr(torch, dtype), attn_implementation=ATTENTION)
    settings = schema.ReaderSettings(name=RANDOM_8B, path="", dtype=dtype, device=device)
    # The tokenizer serves the question alone; its ids are in the model's vocabulary.
    return Reader(model.eval().requires_grad_(False), utaca.load_reader("tiny").tokenizer, settings)


def parsed(arguments: list[str] | None) -> argparse.Namespace:
    """The command line; contexts must be longer than what the widest budget retrieves, answers than the warm-up."""
    asked = "\n".join(f"  {name:9} {question.__doc__}" for name, question in QUESTIONS.items())
    parser = argparse.ArgumentParser(
        prog="python bench/engine.py",
        description="Measure speed and memory of the engine.",
        epilog=f"questions:\n{asked}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("questions", nargs="*", metavar="QUESTION", help="one of those below (default: all)")
    parser.add_argument("--reader", default="tiny", help=f"name, folder or hub id, or {RANDOM_8B} (default: tiny)")
    parser.add_argument("--host", action="store_true", help="keep documents in host memory")
    two = {"nargs": 2, "type": int, "metavar": ("SHORT", "LONG")}
    parser.add_argument("--decode", **two, default=[8192, 131072], help="contexts to decode behind (%(default)s)")
    parser.add_argument("--prefill", **two, default=[32768, 262144], help="documents to read (%(default)s)")
    sizes = {"full": (65536, "context of full attention"), "document": (400_000, "document of the peak memory")}
    sizes |= {"budget": (32, "blocks retrieved"), "tokens": (55, "tokens of an answer"), "rounds": (3, "repeats")}
    for name, (default, meaning) in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=default, help=f"{meaning} (%(default)s)")
    parser.add_argument("--json", action="store_true", help="print the rows of every round as JSON")
    options = parser.parse_args(arguments)
    if unknown := set(options.questions) - set(QUESTIONS):
        parser.error(f"no question is called {', '.join(sorted(unknown))}; ask {', '.join(QUESTIONS)}")
    if options.tokens <= WARM_UP + 1:
        parser.error(f"an answer of {options.tokens} tokens is too short to time; give it {WARM_UP + 2} or more")
    return options


def check(bench: Bench) -> None:
    """Raise :class:`utaca.UserError` where the shortest context has no more far blocks than the widest budget."""
    options = bench.options
    m = bench.reader.settings.memory
    least = m.n_init + m.n_local + max(*ADAPTIVE, 2 * options.budget) * m.block_size
    if (shortest := min(*options.decode, *options.prefill, options.full)) <= least:
        raise utaca.UserError(f"the shortest context has {shortest} tokens; give it more than {least}")


def main(arguments: list[str] | None = None) -> None:
    options = parsed(arguments)
    try:
        bench = Bench(options)
        check(bench)
    except utaca.UserError as error:
        sys.exit(f"Error: {error}")
    bench.answer(bench.read(options.decode[0])[0], options.budget)
    rounds: list[list[Row]] = []
    for number in range(options.rounds):
        rounds.append([])
        for name in options.questions or QUESTIONS:
            print(f"round {number + 1} of {options.rounds}: {name}", file=sys.stderr, flush=True)
            rounds[-1] += QUESTIONS[name](bench)
    if options.json:
        print(json.dumps(rounds))
        return
    settings = bench.reader.settings
    cuda = bench.reader.device.type == "cuda"
    place = torch.cuda.get_device_name() if cuda else f"{torch.get_num_threads()} threads"
    print(f"Reader {settings.name}, {bench.reader.dtype}, {place}; rounds: {options.rounds}\n")
    print(compared(rounds))


if __name__ == "__main__":
    main()
