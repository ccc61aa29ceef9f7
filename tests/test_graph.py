"""Passes of fixed shapes against the steps whose shapes grow."""

from __future__ import annotations

import random
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from small import in_float64, make_reader, some_tokens
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from utaca.decoding.loop import Decoding, generate, generate_together
from utaca.decoding.policies import Set, Sub
from utaca.detection.signals.retrieval import diffuseness
from utaca.errors import UserError
from utaca.memory import BlockMemory, Branch, Step, prefill
from utaca.memory.graph import Graph, GraphBranch
from utaca.readers.attention import Rotary
from utaca.readers.load import Reader, check
from utaca.settings.schema import Memory
from utaca.settings.schema import Reader as ReaderSettings

NEW = 40
CAPTURES = {"retrieval": diffuseness}


def graphs(document: BlockMemory) -> BlockMemory:
    """The same document, decoded from by passes of fixed shapes."""
    return replace(document, branches=GraphBranch)


def results(step: Step) -> list[Tensor]:
    """All that a step gives but ids."""
    return [
        step.branch.memory.reader.logits(step.hidden),
        *step.embeddings.values(),
        step.scores,
        *step.captured.values(),
        *step.keys,
        *step.rotated,
        *step.values,
    ]


@pytest.mark.parametrize(
    ("representatives", "far_positions"),
    [("attention_mass", "clipped"), ("mean", "packed"), ("tokens", "packed")],
)
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
def test_passes_of_fixed_shapes_give_what_steps_give(
    kind: str, length: int, clipped: bool, representatives: str, far_positions: str
) -> None:
    """In float64, so that no more than the order of sums may differ; blocks leave the window, tries are rolled back."""
    m = Memory(n_init=4, n_local=24, block_size=8, prefill_chunk=16, prefill_budget=2, representatives=representatives,
               far_positions=far_positions)  # fmt: skip
    reader, rng = make_reader(kind, m), random.Random(length)
    in_float64(reader, rotary=False)
    tokens = some_tokens(length + NEW)
    document = prefill(reader, tokens[:length], clipped=clipped)
    plain, fixed = Branch(document, NEW, 99, CAPTURES), GraphBranch(document, NEW, 99, CAPTURES)
    for branch in (plain, fixed):
        branch.commit(branch.step(tokens[length : length + 5], 2))
    seen, fars, pointers = [], set(), None
    for at in range(length + 5, length + NEW):
        tried = [(rng.randrange(1, 97), rng.choice([0, 1, 3, 7, 99])) for _ in range(rng.randint(0, 2))]
        for token, budget in [*tried, (int(tokens[at]), rng.choice([0, 1, 3, 7, 99]))]:
            expected = plain.step(torch.tensor([token]), budget)
            # Alone, or as a row beside another try of the same token.
            steps = [fixed.plan(torch.tensor([token]), budget) for budget in (budget, 2)[: rng.randint(1, 2)]]
            fixed.run(steps)
            step = steps[0]
            assert step.selected.tolist() == expected.selected.tolist()
            assert step.embeddings.keys() == expected.embeddings.keys()
            assert step.captured.keys() == expected.captured.keys()
            for a, b in zip(results(step), results(expected), strict=True):
                assert a.shape == b.shape
                assert (a - b).abs().max() < 1e-9 if a.numel() else True
            seen.append((step, [x.clone() for x in results(step)]))
        plain.commit(expected)
        fixed.commit(step)
        assert torch.allclose(plain.given, fixed.given, rtol=1e-9, atol=1e-9)
        assert torch.allclose(plain.representatives, fixed.representatives, rtol=1e-9, atol=1e-9)
        fars.add(step.n_far)
        if at == length + 20:
            pointers = addresses(fixed)
    assert len(fars) > 1
    assert pointers == addresses(fixed)
    # A step keeps its results whatever runs later at the same addresses.
    assert all(torch.equal(a, b) for step, kept in seen for a, b in zip(results(step), kept, strict=True))


def addresses(branch: GraphBranch) -> dict[str, tuple[int, torch.Size]]:
    """Where all that a branch's passes read lies, and of what shape it is."""
    found = {"window": branch.window, "tail": branch.tail, "representatives": branch.representatives}
    for rows in (1, 2):
        made = ("in_window", "has_far", "window_place")
        own = vars(branch.graph(rows)).items()
        found |= {f"{rows} {name}": x for name, x in own if isinstance(x, Tensor) and name not in made}
    return {name: (x.data_ptr(), x.shape) for name, x in found.items()}


def test_bfloat16_rounds_no_worse_in_fixed_shapes() -> None:
    """Every block is attended to, so that no near tie of two blocks decides; float32 with the same weights is the
    truth."""
    tokens, logits = some_tokens(160), {}
    for dtype, kind in ((torch.float32, Branch), (torch.bfloat16, Branch), (torch.bfloat16, GraphBranch)):
        reader = make_reader()
        reader.model.to(torch.bfloat16).to(dtype)
        branch, found = kind(prefill(reader, tokens[:120]), 40, 99), []
        for token in tokens[120:].split(1):
            step = branch.step(token, 99)
            branch.commit(step)
            found.append(reader.logits(step.hidden[-1]))
        logits[dtype, kind] = torch.stack(found)
    truth = logits[torch.float32, Branch]
    plain, fixed = ((logits[torch.bfloat16, kind] - truth).norm() for kind in (Branch, GraphBranch))
    assert 0 < fixed < 1.5 * plain < 0.2 * truth.norm()


@pytest.mark.parametrize("kind", ["llama", "mistral", "qwen2", "qwen3"])
@pytest.mark.parametrize("length", [20, 120])
@pytest.mark.parametrize("rows", [1, 2])
def test_a_pass_traced_once_serves_every_later_step(kind: str, length: int, rows: int) -> None:
    """As a captured graph does: operations on tensors, at the addresses and in the shapes of the first step.

    Tracing fails where a value is taken to the host. What a step's numbers decided in Python would be baked in.
    """
    reader = make_reader(kind)
    in_float64(reader, rotary=False)
    tokens = some_tokens(length + NEW)
    document = prefill(reader, tokens[:length])
    # Tracing takes no tensors of inference mode.
    document.representatives = [x.clone() for x in document.representatives]
    for store in document.stores:
        store._rows, store.initial = store._rows.clone(), store.initial.clone()
    branch = Branch(document, NEW, 9)
    graph, budgets = Graph(branch, rows), [4, 9][:rows]

    def numbers(step: Step) -> list[Tensor]:
        return [step.tokens, *(torch.tensor([x]) for x in (step.n_far, step.start, step.behind))]

    def outcome(token: Tensor, n_far: Tensor, start: Tensor, behind: Tensor) -> list[Tensor]:
        graph.tokens, graph.budgets = token.expand(rows, 1), torch.tensor(budgets)[:, None]
        graph.n_far, graph.start, graph.behind = n_far, start, behind
        made = graph.compute()
        return [made.hidden, torch.stack(list(made.embeddings.values())), made.rotated, made.chosen, made.scores]

    traced = None
    for token in tokens[length:].split(1):
        steps = [branch.plan(token, budget) for budget in budgets]
        branch.run(steps)
        with torch.no_grad():
            if traced is None:
                traced = make_fx(outcome)(*numbers(steps[0]))
            hidden, embeddings, rotated, chosen, scores = traced(*numbers(steps[0]))
        for row, step in enumerate(steps):
            assert (reader.logits(hidden[row]) - reader.logits(step.hidden)).abs().max() < 1e-9
            assert (embeddings[:, row] - torch.stack(list(step.embeddings.values()))).abs().max() < 1e-9
            assert (rotated[:, row] - step.rotated).abs().max() < 1e-9
            selected, order = chosen[:, row, : step.k].sort(-1)
            assert torch.equal(selected, step.selected)
            assert step.k == 0 or (scores[:, row].gather(1, order) - step.scores).abs().max() < 1e-9
        branch.commit(steps[-1])
    assert document.layout.n_far(length + NEW) > document.layout.n_far(length)


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
    monkeypatch.setattr(Reader, "document", lambda self, tokens: tokens)
    branch = GraphBranch(prefill(reader, some_tokens(300).to("meta")), 20, 3, CAPTURES)
    for _ in range(20):
        branch.commit(branch.step(torch.zeros(1, dtype=torch.long, device="meta"), 3))
    for rows in (1, 2):
        with Devices() as devices, torch.inference_mode():
            branch.graph(rows).compute()
        assert devices.seen == {"meta"}


def test_a_pass_keeps_its_rotary_tables() -> None:
    """A longer document has the reader's tables made anew; a graph would read where the old ones lay."""
    memory = Memory(n_init=4, n_local=1100, block_size=8, prefill_chunk=600, prefill_budget=2)
    reader, tokens = make_reader(memory=memory), some_tokens(901)
    branch = GraphBranch(prefill(reader, tokens[:900]), 1, 3)
    expected = branch.step(tokens[900:], 3).hidden
    reader.rotary.reserve(5000)
    reader.rotary._tables = tuple(x.fill_(torch.nan) for x in Rotary(reader.model)._compute(5000))
    with torch.inference_mode():
        assert torch.equal(branch.graph(1).compute().hidden[0], expected)


@pytest.mark.parametrize("options", [{}, {"expanded": 9}, {"policy": Sub(2), "agreement": True}])
def test_answers_are_the_same_tokens(options: dict) -> None:
    memory = prefill(make_reader(memory=Memory(n_init=4, n_local=64, block_size=8, prefill_chunk=16)), some_tokens(400))
    memory.reader.stop_tokens = frozenset()
    plain = generate(memory, "Where?", budget=5, max_new_tokens=40, **options)
    fixed = generate(graphs(memory), "Where?", budget=5, max_new_tokens=40, **options)
    for a, b in zip(plain.trace, fixed.trace, strict=True):
        assert (a.token, a.k, a.attended, a.rolled_back) == (b.token, b.k, b.attended, b.rolled_back)
        assert torch.equal(a.selected, b.selected)
        assert a.margin == pytest.approx(b.margin, abs=1e-3)
        assert (a.probe is None) == (b.probe is None)
        assert a.probe is None or a.probe.top_tokens == b.probe.top_tokens
    assert any(token.rolled_back for token in fixed.trace) == ("agreement" in options)


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
    made = Graph.__init__

    def init(self: Graph, branch: Branch, rows: int) -> None:
        made(self, branch, rows)
        self.captured = True

    monkeypatch.setattr(Graph, "__init__", init)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Recorded)
    monkeypatch.setattr(torch.cuda, "graph", lambda graph: graph)
    for name in ("Stream", "current_stream"):
        monkeypatch.setattr(torch.cuda, name, lambda: SimpleNamespace(wait_stream=lambda other: None))
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    monkeypatch.setattr(Recorded, "made", 0)
    return Recorded


@pytest.fixture
def forwards(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Rows of every pass that calls the model."""
    seen, forward = [], Reader.forward
    monkeypatch.setattr(Reader, "forward", lambda self, *a: (seen.append(len(a[0])), forward(self, *a))[1])
    return seen


@pytest.mark.parametrize("length", [20, 130])
def test_answers_by_captured_passes_are_the_same_tokens(
    captured: type[Recorded], forwards: list[int], length: int
) -> None:
    """One pass is captured for all budgets, and its modules are called no more: what it reads lies where it lay."""
    memory = prefill(
        make_reader(memory=Memory(n_init=4, n_local=24, block_size=8, prefill_chunk=16)), some_tokens(length)
    )
    reader, options = memory.reader, {"policy": Sub(2), "agreement": True, "max_new_tokens": 40, "measured": True}
    reader.stop_tokens = frozenset()
    plain = generate(memory, "Where?", budget=7, **options)
    forwards.clear()
    fixed = generate(graphs(memory), "Where?", budget=7, **options)
    for a, b in zip(plain.trace, fixed.trace, strict=True):
        assert (a.token, a.k, a.attended, a.rolled_back) == (b.token, b.k, b.attended, b.rolled_back)
        assert torch.equal(a.selected, b.selected)
        assert a.signals == pytest.approx(b.signals, abs=1e-3)
        assert torch.allclose(a.embeddings["attention"], b.embeddings["attention"], atol=1e-3)
    # One pass of the question; the pass of a token is warmed up and captured.
    assert forwards == [1, 1, 1]
    assert captured.made == 1
    assert length == 20 or len({one.k for token in fixed.trace for one in token.passes}) > 2
    assert fixed.rollbacks > 0


def test_paired_tries_are_captured_as_one_pass_of_two_rows(captured: type[Recorded], forwards: list[int]) -> None:
    memory = prefill(make_reader(memory=Memory(n_init=4, n_local=24, block_size=8)), some_tokens(130))
    memory.reader.stop_tokens = frozenset()
    options = {"policy": Set(2), "agreement": True, "max_new_tokens": 40, "budget": 7}
    plain = generate(memory, "Where?", **options)
    forwards.clear()
    paired = generate(graphs(memory), "Where?", paired=True, **options)
    assert [(t.token, t.k, t.rolled_back) for t in plain.trace] == [(t.token, t.k, t.rolled_back) for t in paired.trace]
    assert 0 < paired.rollbacks < len(paired.trace)
    # The question; tokens at K_max, which are tried alone; all others, in two rows.
    assert forwards == [1, 1, 1, 2, 2]
    assert captured.made == 2


def test_answers_that_share_a_question_have_graphs_of_their_own(captured: type[Recorded], forwards: list[int]) -> None:
    memory = prefill(make_reader(memory=Memory(n_init=4, n_local=24, block_size=8)), some_tokens(130))
    memory.reader.stop_tokens = frozenset()
    policies = [{}, {"policy": Set(2), "agreement": True}, {"policy": Sub(3), "agreement": True}]
    options = [{"max_new_tokens": 40, "budget": 7, **policy} for policy in policies]
    plain = [generate(memory, "Where?", **own) for own in options]
    forwards.clear()
    document = graphs(memory)
    together = generate_together([Decoding(document, "Where?", **own) for own in options])
    for one, other in zip(plain, together, strict=True):
        assert [(t.token, t.k, t.rolled_back) for t in one.trace] == [
            (t.token, t.k, t.rolled_back) for t in other.trace
        ]
    assert forwards[0] == 1
    assert captured.made == 3


def test_a_capture_that_fails_is_told(captured: type[Recorded], monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(graph: Recorded) -> None:
        raise RuntimeError("CUDA error: operation not permitted when stream is capturing\nand more")

    monkeypatch.setattr(torch.cuda, "graph", fail)
    memory = graphs(prefill(make_reader(), some_tokens(100)))
    with pytest.raises(UserError, match=r"not permitted when stream is capturing\); set reader"):
        generate(memory, "?", budget=2, max_new_tokens=2)


def test_the_layer_at_fault_is_found_by_a_pass_that_calls_the_modules(captured: type[Recorded]) -> None:
    """Which a replayed graph does not."""
    memory = graphs(prefill(make_reader(), some_tokens(100)))
    branch, *_ = memory.begin(some_tokens(3), 2, 2, {})
    branch.step(some_tokens(1), 2)
    memory.reader.model.model.layers[1].mlp.down_proj.weight.fill_(torch.nan)
    with pytest.raises(UserError, match="first in layer 1"):
        generate(memory, "?", budget=2, max_new_tokens=2)


def test_blocks_in_host_memory_are_refused(tmp_path) -> None:
    settings = ReaderSettings(name="r", path=str(tmp_path), graphs=True, memory=Memory(storage="host"))
    with pytest.raises(UserError, match=r"reader\.graphs=true cannot decode with reader\.memory\.storage=host"):
        check(settings)


def test_a_budget_that_the_passes_were_not_made_for_is_refused() -> None:
    branch = GraphBranch(prefill(make_reader(), some_tokens(200)), 2, most=3)
    with pytest.raises(ValueError, match="made for budgets of at most 3, not of 4"):
        branch.step(some_tokens(1), 4)


def test_readers_with_graphs_seal_documents_that_decode_by_them() -> None:
    reader = make_reader()
    reader.settings = replace(reader.settings, graphs=True)
    assert prefill(reader, some_tokens(60)).branches is GraphBranch
