"""Passes of fixed shapes against the steps whose shapes grow."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from small import in_float64, make_reader, some_tokens
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from utaca.decoding import generate as generating
from utaca.decoding.benchmark.answers import passes
from utaca.decoding.generate import generate
from utaca.decoding.policies import Sub
from utaca.errors import UserError
from utaca.memory import Branch, Step, compute, prefill
from utaca.memory.static import StaticPass
from utaca.readers.attention import Rotary
from utaca.readers.load import Reader, check
from utaca.settings.schema import Memory
from utaca.settings.schema import Reader as ReaderSettings

NEW = 40


@contextmanager
def graphs(reader: Reader) -> Iterator[None]:
    """A reader that decodes by passes of fixed shapes."""
    before, reader.settings = reader.settings, replace(reader.settings, graphs=True)
    try:
        yield
    finally:
        reader.settings = before


def results(step: Step) -> list[Tensor]:
    """All that a step gives but ids."""
    return [
        step.branch.memory.reader.logits(step.hidden),
        *step.embeddings.values(),
        *step.scores,
        *step.keys,
        *step.rotated,
        *step.values,
        step.retrieval,
    ]


@pytest.mark.parametrize(
    ("kind", "length", "clipped"),
    [
        # Nothing far at first and few blocks later; fewer than the budget; as many; more; and at true positions.
        *(("llama", length, True) for length in (3, 26, 40, 90, 200)),
        *((kind, 90, True) for kind in ("mistral", "qwen2-wide", "qwen3", "llama-yarn")),
        ("llama", 26, False),
        ("llama3-rope", 90, False),
    ],
)
def test_passes_of_fixed_shapes_give_what_steps_give(kind: str, length: int, clipped: bool) -> None:
    """In float64, so that no more than the order of sums may differ; blocks leave the window, tries are rolled back."""
    reader, rng = make_reader(kind), random.Random(length)
    in_float64(reader.model)
    tokens = some_tokens(length + NEW)
    document = prefill(reader, tokens[:length], clipped=clipped)
    plain, fixed = (Branch(document, NEW, measured=True) for _ in range(2))
    for branch in (plain, fixed):
        branch.commit(branch.step(tokens[length : length + 5], 2))
    seen, fars, pointers = [], set(), None
    for at in range(length + 5, length + NEW):
        tried = [(rng.randrange(1, 97), rng.choice([0, 1, 3, 7, 99])) for _ in range(rng.randint(0, 2))]
        for token, budget in [*tried, (int(tokens[at]), rng.choice([0, 1, 3, 7, 99]))]:
            expected = plain.step(torch.tensor([token]), budget)
            with graphs(reader):
                step = fixed.step(torch.tensor([token]), budget)
            assert [x.tolist() for x in step.selected] == [x.tolist() for x in expected.selected]
            assert step.embeddings.keys() == expected.embeddings.keys()
            for a, b in zip(results(step), results(expected), strict=True):
                assert a.shape == b.shape
                assert (a - b).abs().max() < 1e-6 if a.numel() else True
            seen.append((step, [x.clone() for x in results(step)]))
        plain.commit(expected)
        fixed.commit(step)
        fars.add(step.far)
        if at == length + 20:
            pointers = addresses(fixed)
    assert (len(fars) > 1) == (length > 12)
    assert pointers == addresses(fixed)
    # A step keeps its results whatever runs later at the same addresses.
    assert all(torch.equal(a, b) for step, kept in seen for a, b in zip(results(step), kept, strict=True))


def addresses(branch: Branch) -> dict[str, tuple[int, torch.Size]]:
    """Where all that a branch's passes read lies, and of what shape it is."""
    found = {}
    for budget in (1, 3, 7, 99):
        given = branch.static(budget)
        tensors = {name: x for name, x in vars(given).items() if isinstance(x, Tensor) and not name.endswith("seen")}
        for layer, near in enumerate(given.near):
            tensors |= {f"keys {layer}": near.keys, f"values {layer}": near.values}
        found |= {f"{budget} {name}": (x.data_ptr(), x.shape) for name, x in tensors.items()}
    return found


def test_float32_and_bfloat16_round_alike() -> None:
    """A reader as it is used: logits of some tens."""
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.bfloat16, 0.05)):
        reader = make_reader()
        reader.model.to(dtype)
        tokens = some_tokens(160)
        document = prefill(reader, tokens[:120])
        plain, fixed = Branch(document, 40), Branch(document, 40)
        for token in tokens[120:].split(1):
            expected = plain.step(token, 3)
            with graphs(reader):
                step = fixed.step(token, 3)
            a, b = (reader.logits(x.hidden[-1]) for x in (step, expected))
            assert (a - b).norm() < tolerance * b.norm()
            # Of what has been committed both go on alike.
            plain.commit(expected)
            fixed.commit(expected)


@pytest.mark.parametrize(
    ("kind", "length"), [("llama", 20), ("llama", 120), ("mistral", 120), ("qwen2", 120), ("qwen3", 120)]
)
def test_a_pass_traced_once_serves_every_later_step(kind: str, length: int) -> None:
    """As a captured graph does: operations on tensors, at the addresses and in the shapes of the first step.

    Tracing fails where a value is taken to the host. What a step's numbers decided in Python would be baked in.
    """
    reader = make_reader(kind)
    in_float64(reader.model)
    tokens = some_tokens(length + NEW)
    document = prefill(reader, tokens[:length])
    # Tracing takes no tensors of inference mode.
    document.representatives = [x.clone() for x in document.representatives]
    for store in (*document.keys, *document.values):
        store._rows, store.initial = store._rows.clone(), store.initial.clone()
    branch = Branch(document, NEW)
    given = StaticPass(branch, 4)

    def numbers(step: Step) -> list[Tensor]:
        return [step.tokens, *(torch.tensor([x]) for x in (step.far, step.behind, step.place))]

    def outcome(token: Tensor, far: Tensor, behind: Tensor, place: Tensor) -> list[Tensor]:
        given.token, given.far, given.behind, given.place = token, far, behind, place
        return list(given.compute()[:-1])

    traced = None
    for token in tokens[length:].split(1):
        step = Step(branch, token, 4)
        compute([step])
        with torch.no_grad():
            if traced is None:
                traced = make_fx(outcome)(*numbers(step))
            hidden, embeddings, _, rotated, _, selected, scores = traced(*numbers(step))
        assert (reader.logits(hidden) - reader.logits(step.hidden)).abs().max() < 1e-6
        assert (embeddings - torch.stack(list(step.embeddings.values()))).abs().max() < 1e-6
        assert (rotated - torch.stack(step.rotated)).abs().max() < 1e-6
        assert torch.equal(selected[:, : step.k], torch.stack(step.selected))
        assert step.k == 0 or (scores[:, : step.k] - torch.stack(step.scores)).abs().max() < 1e-6
        branch.commit(step)
    assert branch.memory.layout.far(length + NEW) > branch.memory.layout.far(length)


class Devices(TorchDispatchMode):
    """Where the tensors lie that operations take and give."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[str] = set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        self.seen |= {x.device.type for x in tree_leaves((args, kwargs, result)) if isinstance(x, Tensor)}
        return result


def test_no_pass_of_fixed_shapes_waits_for_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors on device meta have no values: nothing can be taken to the host, and nothing is brought from there."""
    on_cpu = make_reader()
    reader = Reader(on_cpu.model.to("meta"), on_cpu.tokenizer, on_cpu.settings)
    monkeypatch.setattr("utaca.memory.blocks._check", lambda tokens, vocabulary: None)
    branch = Branch(prefill(reader, some_tokens(300).to("meta")), 20, measured=True)
    with graphs(reader):
        for _ in range(20):
            branch.commit(branch.step(torch.zeros(1, dtype=torch.long, device="meta"), 3))
        with Devices() as devices, torch.inference_mode():
            branch.static(3).compute()
    assert devices.seen == {"meta"}


def test_a_pass_keeps_its_rotary_tables() -> None:
    """A longer document has the reader's tables made anew; a graph would read where the old ones lay."""
    memory = Memory(n_init=4, n_local=1100, block_size=8, prefill_chunk=600, prefill_budget=2)
    reader, tokens = make_reader(memory=memory), some_tokens(901)
    branch = Branch(prefill(reader, tokens[:900]), 1)
    with graphs(reader):
        expected = branch.step(tokens[900:], 3).hidden
        reader.rotary.reserve(5000)
        reader.rotary._tables = tuple(x.fill_(torch.nan) for x in Rotary(reader.model)._compute(5000))
        given = branch.static(3)
        given.token.copy_(tokens[900:])
        with torch.inference_mode():
            assert torch.equal(given.compute().hidden, expected)


@pytest.mark.parametrize("options", [{}, {"expanded": 9}, {"policy": Sub(2), "oracle": True}])
def test_answers_are_the_same_tokens(options: dict) -> None:
    memory = prefill(make_reader(memory=Memory(n_init=4, n_local=64, block_size=8, prefill_chunk=16)), some_tokens(400))
    memory.reader.stop_tokens = frozenset()
    plain = generate(memory, "Where?", budget=5, max_new_tokens=40, **options)
    with graphs(memory.reader):
        fixed = generate(memory, "Where?", budget=5, max_new_tokens=40, **options)
    for a, b in zip(plain.trace, fixed.trace, strict=True):
        assert (a.token, a.k, a.attended, a.rolled_back) == (b.token, b.k, b.attended, b.rolled_back)
        assert [x.tolist() for x in a.selected] == [x.tolist() for x in b.selected]
        assert a.margin == pytest.approx(b.margin, abs=1e-3)
        assert (a.probe is None) == (b.probe is None)
        assert a.probe is None or a.probe.top_tokens == b.probe.top_tokens
    assert any(token.rolled_back for token in fixed.trace) == ("oracle" in options)


class Recorded(TorchDispatchMode):
    """A CUDA graph's part on the CPU: replays the operations of the block, at the addresses that they had."""

    made = 0

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[tuple] = []
        Recorded.made += 1

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        self.operations.append((function, args, kwargs or {}, result))
        return result

    def replay(self) -> None:
        for function, args, kwargs, result in self.operations:
            for old, new in zip(tree_leaves(result), tree_leaves(function(*args, **kwargs)), strict=True):
                if isinstance(old, Tensor) and old.data_ptr() != new.data_ptr():
                    old.copy_(new)


@pytest.fixture
def captured(monkeypatch: pytest.MonkeyPatch) -> type[Recorded]:
    """Passes of fixed shapes are captured, by :class:`Recorded`."""

    class Captured(StaticPass):
        def __init__(self, branch: Branch, budget: int) -> None:
            super().__init__(branch, budget)
            self.captured = True

    monkeypatch.setattr("utaca.memory.branch.StaticPass", Captured)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Recorded)
    monkeypatch.setattr(torch.cuda, "graph", lambda graph: graph)
    for name in ("Stream", "current_stream"):
        monkeypatch.setattr(torch.cuda, name, lambda: SimpleNamespace(wait_stream=lambda other: None))
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    monkeypatch.setattr(Recorded, "made", 0)
    return Recorded


@pytest.mark.parametrize("length", [20, 130])
def test_answers_by_captured_passes_are_the_same_tokens(captured: type[Recorded], length: int) -> None:
    """Each budget's pass is captured once, and its modules are called no more: what it reads lies where it lay."""
    memory = prefill(
        make_reader(memory=Memory(n_init=4, n_local=24, block_size=8, prefill_chunk=16)), some_tokens(length)
    )
    reader, options = memory.reader, {"policy": Sub(2), "oracle": True, "max_new_tokens": 40, "measured": True}
    reader.stop_tokens = frozenset()
    plain = generate(memory, "Where?", budget=7, **options)
    with graphs(reader), passes(reader) as seen:
        fixed = generate(memory, "Where?", budget=7, **options)
    for a, b in zip(plain.trace, fixed.trace, strict=True):
        assert (a.token, a.k, a.attended, a.rolled_back) == (b.token, b.k, b.attended, b.rolled_back)
        assert [x.tolist() for x in a.selected] == [x.tolist() for x in b.selected]
        assert (a.margin, a.retrieval) == (pytest.approx(b.margin, abs=1e-3), pytest.approx(b.retrieval, abs=1e-4))
        assert torch.allclose(a.embeddings["attention"], b.embeddings["attention"], atol=1e-3)
    # One pass of the question; each budget's is warmed up and captured.
    assert seen.count == 1 + 2 * captured.made
    if length == 130:
        assert captured.made == len({one.k for token in fixed.trace for one in token.passes}) > 2
    assert fixed.rollbacks > 0


def test_a_capture_that_fails_is_told(captured: type[Recorded], monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(graph: Recorded) -> None:
        raise RuntimeError("CUDA error: operation not permitted when stream is capturing\nand more")

    monkeypatch.setattr(torch.cuda, "graph", fail)
    memory = prefill(make_reader(), some_tokens(100))
    with graphs(memory.reader), pytest.raises(UserError, match=r"not permitted when stream is capturing\); set reader"):
        generate(memory, "?", budget=2, max_new_tokens=2)


def test_the_layer_at_fault_is_found_by_a_pass_that_calls_the_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which a replayed graph does not."""
    memory = prefill(make_reader(), some_tokens(100))
    memory.reader.model.model.layers[1].mlp.down_proj.weight.fill_(torch.nan)
    seen = []
    monkeypatch.setattr(generating, "compute", lambda steps: (seen.append(len(steps)), compute(steps)))
    with graphs(memory.reader), pytest.raises(UserError, match="first in layer 1"):
        generate(memory, "?", budget=2, max_new_tokens=2)
    assert seen == [1]


def test_blocks_in_host_memory_are_refused(tmp_path) -> None:
    settings = ReaderSettings(name="r", path=str(tmp_path), graphs=True, memory=Memory(storage="host"))
    with pytest.raises(UserError, match=r"reader\.graphs=true cannot decode with reader\.memory\.storage=host"):
        check(settings)
