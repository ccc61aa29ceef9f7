"""Block memory against Hugging Face full attention and against a brute-force statement of retrieval."""

from __future__ import annotations

import functools
import itertools
import random
from dataclasses import replace
from importlib import import_module
from types import SimpleNamespace

import pytest
import torch
from brute import infllm
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from small import SIZES, full_attention, in_float64, make_reader, some_tokens
from torch.utils._python_dispatch import TorchDispatchMode

from utaca.decoding.loop import generate
from utaca.errors import UserError
from utaca.memory import BlockMemory, Branch, Layout, Step, prefill
from utaca.memory.attention import best, ranked
from utaca.memory.passes import _Group
from utaca.memory.store import Store
from utaca.readers.load import Reader
from utaca.settings.schema import MemorySettings

reading = import_module("utaca.memory.prefill")


@pytest.mark.parametrize("chunk", [5, 16, 64, 300])
@pytest.mark.parametrize("kind", list(SIZES))
def test_all_blocks_at_true_positions_equal_full_attention(kind: str, chunk: int) -> None:
    """In float64 to its rounding; in float32 as near to that as Hugging Face's own float32 is, within a factor."""
    memory = MemorySettings(n_init=4, n_local=24, block_size=8, prefill_chunk=chunk, prefill_budget=2)
    single, double = make_reader(kind, memory), make_reader(kind, memory)
    in_float64(double, rotary=False)
    tokens = some_tokens(270)
    truth, rounded = full_attention(double, tokens)[200:], full_attention(single, tokens)[200:]
    # Yarn's scale is a float32 number of the model, which we divide out and multiply in.
    exact = 1e-4 if kind == "llama-yarn" else 1e-10
    for reader, tolerance in ((double, exact), (single, 3 * (rounded - truth).abs().max())):
        branch = Branch(prefill(reader, tokens[:200], clipped=False), 70)
        found = []
        # The window of 24 tokens leaves the document, so that blocks of the continuation are far in the end.
        for piece in (tokens[200:209], *tokens[209:].split(1)):
            step = branch.step(piece, budget=10**6)
            branch.commit(step)
            found.append(step.hidden.double() @ reader.model.lm_head.weight.T.double())
        assert step.n_far > branch.n_whole
        assert (torch.cat(found) - truth).abs().max() < tolerance


def test_few_blocks_differ_from_full_attention() -> None:
    reader = make_reader()
    tokens = some_tokens(201)
    step = Branch(prefill(reader, tokens[:200], clipped=False), 1).step(tokens[200:], budget=1)
    assert (reader.logits(step.hidden[-1]) - full_attention(reader, tokens)[-1]).abs().max() > 1e-2


def test_short_document_is_read_whole() -> None:
    reader = make_reader()
    tokens = some_tokens(27)
    step = Branch(prefill(reader, tokens[:26]), 1).step(tokens[26:], budget=3)
    assert step.k == 0
    assert step.attended == 27
    assert (reader.logits(step.hidden[-1]) - full_attention(reader, tokens)[-1]).abs().max() < 1e-4


def test_a_window_may_be_wider_than_the_positions_of_a_short_document() -> None:
    reader = make_reader(
        memory=MemorySettings(n_init=4, n_local=2000, block_size=8, prefill_chunk=16, prefill_budget=2)
    )
    tokens = some_tokens(41)
    step = Branch(prefill(reader, tokens[:40]), 1).step(tokens[40:], budget=3)
    assert (reader.logits(step.hidden[-1]) - full_attention(reader, tokens)[-1]).abs().max() < 1e-4


@pytest.mark.parametrize(("n_init", "block_size"), [(0, 8), (3, 8), (8, 8), (21, 4)])
def test_a_store_gives_the_initial_tokens_and_the_blocks_asked_for(n_init: int, block_size: int) -> None:
    """Whatever the initial tokens and the last, partial block leave of a block's size."""
    for storage, length in itertools.product(("device", "host"), (60, 63)):
        store_layout = Layout(n_init, 9, block_size)
        store = Store(store_layout, length, 2, 4, torch.empty(0), host=storage == "host")
        new = torch.randn(2, 2, length, 4)
        store.write(0, *new[:, :, :25])
        store.write(25, *new[:, :, 25:])
        assert torch.equal(store.tokens, new)
        assert torch.equal(store.window(30, length), new[:, :, 30:])
        initial = store.blocks(torch.arange(-store_layout.initial_blocks, 0)).flatten(2, 3)
        assert torch.equal(initial[:, :, store_layout.skipped :], new[:, :, :n_init])
        starts = [n_init + block * block_size for block in (4, 1)]
        expected = torch.stack([new[:, :, at : at + block_size] for at in starts], 2)
        assert torch.equal(store.blocks(torch.tensor([4, 1])), expected)
        assert store.blocks(torch.tensor([], dtype=torch.long)).shape == (2, 2, 0, block_size, 4)


@pytest.mark.parametrize("n_representatives", [2, 8])
def test_chunking_changes_no_representative_while_everything_is_near(n_representatives: int) -> None:
    """Within one window the queries that score a token do not depend on the chunks they come in."""
    tokens = some_tokens(60)
    found = []
    for chunk in (60, 7):
        m = MemorySettings(n_init=4, n_local=64, block_size=8, prefill_chunk=chunk, prefill_budget=0,
                   n_representatives=n_representatives)  # fmt: skip
        branch = Branch(prefill(make_reader("llama", m), tokens), 60)
        branch.commit(branch.step(some_tokens(60, 2), 0))
        found.append(branch.representatives)
    assert (found[0].abs().sum(1) > 0).all()
    assert torch.allclose(*found, atol=1e-5)


@pytest.mark.parametrize("representatives", ["attention_mass", "tokens"])
@pytest.mark.parametrize("kind", ["llama", "qwen2"])
def test_chunks_at_once_are_chunks_one_by_one(representatives: str, kind: str, monkeypatch) -> None:
    m = MemorySettings(n_init=4, n_local=20, block_size=4, prefill_chunk=8, prefill_budget=0,
               representatives=representatives, n_representatives=2)  # fmt: skip
    reader, tokens = make_reader(kind, m), some_tokens(150)
    in_float64(reader)
    counts, sizes = [], []
    attend = reading.Chunks.attend
    monkeypatch.setattr(
        reading.Chunks,
        "attend",
        lambda self, *a: (counts.append(self.count), sizes.append(self.size), attend(self, *a))[2],
    )
    together = prefill(reader, tokens)
    assert max(counts) > 9
    assert max(sizes) == 32, "the chunks from which no block is far are one"
    monkeypatch.setattr("utaca.sizes.TOGETHER", 1)
    counts.clear()
    apart = prefill(reader, tokens)
    assert set(counts) == {1}
    for a, b in zip(contents(together), contents(apart), strict=True):
        assert torch.allclose(a, b, rtol=1e-11, atol=1e-12)


def test_budgets_nest_at_layer_zero_and_ties_go_to_the_lowest_block() -> None:
    reader = make_reader()
    tokens = some_tokens(301)
    document = prefill(reader, tokens[:300])
    selected = [
        set(Branch(document, 1).step(tokens[300:], budget).selected[0].tolist()) for budget in (1, 2, 5, 9, 10**6)
    ]
    assert all(a < b for a, b in itertools.pairwise(selected))
    with torch.inference_mode():
        document.representatives[0][:] = 0
    assert Branch(document, 1).step(tokens[300:], 3).selected[0].tolist() == [0, 1, 2]


def test_selection_is_what_sorting_by_score_and_id_gives() -> None:
    """Over scores with many ties, with infinite ones, and with some that are no numbers; several rows at once."""
    rng = random.Random(0)
    for _ in range(300):
        blocks, budget = rng.randint(1, 40), rng.randint(0, 45)
        draw = [*range(rng.randint(1, 9)), float("-inf"), float("inf")]
        values = [[float(rng.choice(draw)) for _ in range(blocks)] for _ in range(2)]
        scores = torch.tensor(values)
        expected = [sorted(range(blocks), key=lambda b, row=row: (-row[b], b))[:budget] for row in values]
        chosen = best(scores, budget)
        assert chosen.tolist() == [sorted(row) for row in expected]
        assert ranked(scores, chosen).tolist() == expected
        scores[0, rng.randrange(blocks)] = torch.nan
        chosen = best(scores, budget)
        assert len(set(chosen[0].tolist())) == min(budget, blocks)
        assert budget == 0 or scores[0, ranked(scores, chosen)[0, 0]].isnan()
        assert chosen[1].tolist() == sorted(expected[1])


@pytest.mark.parametrize("representatives", ["attention_mass", "tokens"])
@pytest.mark.parametrize("prefill_budget", [0, 2])
def test_no_pass_waits_for_the_device(representatives: str, prefill_budget: int, monkeypatch) -> None:
    """Tensors on device meta have no values: an operation that takes one to the host, or a shape from one, fails."""
    m = MemorySettings(n_init=4, n_local=24, block_size=8, prefill_chunk=16, prefill_budget=prefill_budget,
               representatives=representatives)  # fmt: skip
    on_cpu = make_reader("llama", m)
    reader = Reader(on_cpu.model.to("meta"), on_cpu.tokenizer, on_cpu.settings)
    monkeypatch.setattr(Reader, "document", lambda self, tokens: tokens)
    branch = Branch(prefill(reader, some_tokens(300).to("meta")), 20)
    for tokens in (torch.zeros(9, dtype=torch.long, device="meta"), torch.zeros(1, dtype=torch.long, device="meta")):
        step = branch.step(tokens, budget=3)
        branch.commit(step)
        assert [len(ids) for ids in step.selected] == [3] * 3
    with pytest.raises(NotImplementedError, match="meta"):
        step.selected[0].nonzero()


def test_positions_are_reserved_where_a_pass_begins() -> None:
    """The tables of a reader begin with 1024; every position up to the branch's end may be used, and no other."""
    m = MemorySettings(n_init=0, n_local=2100, block_size=8, prefill_chunk=600, prefill_budget=0)
    for clipped in (True, False):
        reader = make_reader(memory=m)
        branch = Branch(prefill(reader, some_tokens(2000), clipped=clipped), 300)
        branch.commit(branch.step(some_tokens(300), 3))
        with pytest.raises(IndexError, match="beyond the 2300 reserved; call reserve first"):
            reader.rotary(torch.zeros(1, 1, 16), torch.tensor([2300]))
        with pytest.raises(ValueError, match="the branch has room for 0 more tokens, not for 1"):
            branch.step(some_tokens(1), 3)


def test_far_blocks_have_representatives_and_those_of_the_window_get_theirs_on_leaving_it() -> None:
    document = prefill(make_reader(), some_tokens(200))
    assert all((r.abs().sum(0) > 0).all() for r in document.representatives)
    branch = Branch(document, 30)
    assert len(document.representatives[0].T) == document.layout.n_far(200)
    for token in some_tokens(30, 3).split(1):
        branch.commit(branch.step(token, 2))
        present = branch.representatives.abs().sum((0, 1)) > 0
        count = min(document.layout.n_far(branch.position), branch.n_at_capacity) - branch.n_scored
        assert present.tolist() == [number < count for number in range(len(present))]
    assert count > 2


def test_layout_covers_every_token_once() -> None:
    for length in range(1, 90):
        layout = Layout(n_init=5, n_local=16, block_size=4)
        for position in (length, length + 1, length + 30):
            window, n_far = layout.window_start(position), layout.n_far(position)
            assert (layout.first_token(n_far) == 5 + 4 * n_far == window) if n_far else window == 0
            assert position + 1 - window <= 16 + 5 + 4
            assert n_far == 0 or position + 1 - window >= 16
            assert n_far <= layout.blocks(position)


def held(branch: Branch) -> list[torch.Tensor]:
    """Everything that a branch holds: its window, its blocks, and what they are made from."""
    return [branch.window, branch.tail, branch.representatives, branch.attention_mass]


def contents(document: BlockMemory) -> list[torch.Tensor]:
    """Everything a sealed memory holds, by layer."""
    return [*(store.tokens for store in document.stores), *document.representatives, *document.attention_mass]


@pytest.mark.parametrize(("dtype", "storage"), [(torch.float32, "device"), (torch.bfloat16, "host")])
def test_uncommitted_steps_leave_no_trace(dtype: torch.dtype, storage: str) -> None:
    m = MemorySettings(n_init=4, n_local=24, block_size=8, prefill_chunk=16, prefill_budget=2, storage=storage)
    reader = make_reader(memory=m)
    reader.model.to(dtype)
    tokens = some_tokens(260)
    document = prefill(reader, tokens[:220])
    sealed = [x.clone() for x in contents(document)]
    tried, plain = Branch(document, 40), Branch(document, 40)
    rng = random.Random(0)
    for i in range(220, 260):
        token = tokens[i : i + 1]
        for _ in range(rng.randint(0, 2)):
            tried.step(some_tokens(1, i), rng.choice([1, 7, 99]))
        pointers = [x.data_ptr() for x in held(tried)]
        budget = rng.choice([1, 3, 20])
        a, b = tried.step(token, budget), plain.step(token, budget)
        assert torch.equal(a.hidden, b.hidden)
        assert torch.equal(a.selected, b.selected)
        tried.commit(a)
        plain.commit(b)
        assert pointers == [x.data_ptr() for x in held(tried)]
    assert all(torch.equal(x, y) for x, y in zip(held(tried), held(plain), strict=True))
    assert all(torch.equal(x, y) for x, y in zip(sealed, contents(document), strict=True))


def test_a_thousand_random_sequences_equal_their_accepted_only_runs() -> None:
    """Up to three steps each, accepted or rejected; logits are a function of the hidden states that are compared."""
    document = prefill(make_reader(), some_tokens(200))
    choices = [(torch.tensor([token]), budget) for token in (5, 9) for budget in (1, 20)]

    @functools.cache
    def accepted_only(path: tuple[int, ...]) -> tuple[Branch, list[Step]]:
        branch, steps = Branch(document, 4), []
        for choice in path:
            steps.append(branch.step(*choices[choice]))
            branch.commit(steps[-1])
        return branch, steps

    rng, rejected = random.Random(0), 0
    for _ in range(1000):
        branch, path = Branch(document, 4), ()
        pointers = [x.data_ptr() for x in held(branch)]
        for _ in range(rng.randint(1, 3)):
            choice = rng.randrange(len(choices))
            step = branch.step(*choices[choice])
            expected = accepted_only((*path, choice))[1][-1]
            assert torch.equal(step.hidden, expected.hidden)
            assert torch.equal(step.embeddings["attention"], expected.embeddings["attention"])
            for name in ("selected", "scores"):
                assert torch.equal(getattr(step, name), getattr(expected, name))
            if rng.random() < 0.5:
                branch.commit(step)
                path = (*path, choice)
            else:
                rejected += 1
        plain = accepted_only(path)[0]
        assert branch.length == plain.length
        assert all(torch.equal(a, b) for a, b in zip(held(branch), held(plain), strict=True))
        assert pointers == [x.data_ptr() for x in held(branch)]
    assert rejected > 900


class Written(TorchDispatchMode):
    """The storages that operations write to."""

    def __init__(self) -> None:
        super().__init__()
        self.storages: set[int] = set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        given = {**dict(zip([a.name for a in function._schema.arguments], args, strict=False)), **(kwargs or {})}
        for argument in function._schema.arguments:
            if argument.alias_info is not None and argument.alias_info.is_write and argument.name in given:
                self.storages.add(given[argument.name].untyped_storage().data_ptr())
        return function(*args, **(kwargs or {}))


def test_a_step_writes_to_nothing_that_stays_and_a_commit_to_the_tail_alone() -> None:
    """Dropping a step is all that rejecting it takes, so there is nothing to copy back."""
    document = prefill(make_reader(), some_tokens(200))
    branch = Branch(document, 4)
    branch.step(torch.tensor([5]), 3)
    tail = {x.untyped_storage().data_ptr() for x in held(branch)}
    sealed = {x.untyped_storage().data_ptr() for x in contents(document)}
    with Written() as written:
        step = branch.step(torch.tensor([5]), 3)
    assert not written.storages & (tail | sealed)
    with Written() as written:
        branch.commit(step)
    assert written.storages <= tail
    assert branch.window.untyped_storage().data_ptr() in written.storages


@pytest.mark.parametrize("kind", ["llama", "mistral", "qwen2", "qwen3"])
def test_branches_that_share_a_pass_equal_full_attention(kind: str) -> None:
    """Two continuations of one document and one of another, at their true positions, each token's logits."""
    reader = make_reader(kind)
    in_float64(reader, rotary=False)
    one, other = some_tokens(150), some_tokens(90, 2)
    texts = [torch.cat((document, some_tokens(14, seed))) for document, seed in ((one, 3), (one, 4), (other, 5))]
    expected = [full_attention(reader, text) for text in texts]
    memories = [prefill(reader, document, clipped=False) for document in (one, other)]
    branches = [Branch(memory, 14) for memory in (memories[0], *memories)]
    done = 0
    for size in (6, 1, 1, 5, 1):
        behind = [(len(branch.memory) + done, branch) for branch in branches]
        steps = [Step(branch, text[at : at + size], 10**6) for text, (at, branch) in zip(texts, behind, strict=True)]
        Branch.run(steps)
        for step, logits, (at, branch) in zip(steps, expected, behind, strict=True):
            assert (step.hidden @ reader.model.lm_head.weight.T - logits[at : at + size]).abs().max() < 1e-10
            branch.commit(step)
        done += size


@pytest.mark.parametrize("prefill_budget", [0, 2])
def test_host_storage_leaves_the_device_the_window_and_what_is_retrieved(prefill_budget: int, monkeypatch) -> None:
    m = MemorySettings(
        n_init=20, n_local=24, block_size=8, prefill_chunk=16, prefill_budget=prefill_budget, storage="host"
    )
    widths, leave = [], Store.leave
    monkeypatch.setattr(
        Store, "leave", lambda self, start: (leave(self, start), widths.append(self._window.shape[2]))[0]
    )
    document = prefill(make_reader(memory=m), some_tokens(300))
    assert max(widths) < 20 + 24 + 8
    step = Branch(document, 1).step(torch.tensor([5]), 3)
    for store, ids in zip(document.stores, step.selected, strict=True):
        kept = torch.zeros(300, dtype=torch.bool)
        kept[(20 + ids[:, None] * 8 + torch.arange(8)).flatten()] = True
        kept[:20] = True
        with torch.inference_mode():
            store.tokens[:, :, ~kept] = torch.nan
    again = Branch(document, 1).step(torch.tensor([5]), 3)
    assert torch.equal(step.hidden, again.hidden)
    assert not Branch(document, 1).step(torch.tensor([5]), 9).hidden.isfinite().all(), (
        "other blocks are read from there"
    )


def test_room_is_checked_where_the_document_will_lie(monkeypatch) -> None:
    """An 8B reader, 252k tokens: 30.8 GiB of keys and values, 2.0 of representatives and relevance, 0.2 of a pass."""
    free = {"cuda": 40, "cpu": 40}
    monkeypatch.setattr("utaca.memory.store._free_on_gpu", lambda device: free["cuda"] * 2**30)
    monkeypatch.setattr("utaca.memory.store.free_memory", lambda: free["cpu"] * 2**30)

    def check(storage: str, device: str = "cuda", kind: torch.dtype = torch.bfloat16) -> None:
        config = SimpleNamespace(intermediate_size=14336, hidden_size=4096)
        reader = SimpleNamespace(shape=(32, 32, 8, 128), dtype=kind, device=torch.device(device))
        reader.model = SimpleNamespace(config=config)
        reading._check_room(reader, MemorySettings(storage=storage), 252_000, 1)

    for device, storage in itertools.product(("cpu", "cuda"), ("device", "host")):
        check(storage, device)
    free["cuda"] = 20
    check("host")
    with pytest.raises(
        UserError, match=r"need 32\.\d GiB, but 20\.0 GiB are free on cuda; set reader\.memory\.storage=host,"
    ):
        check("device")
    free["cuda"] = 1
    with pytest.raises(UserError, match=r"need 2\.\d GiB, but 1\.0 GiB are free on cuda; shorten the document$"):
        check("host")
    free.update(cuda=20, cpu=30)
    with pytest.raises(UserError, match=r"need 32\.0 GiB, but 30\.0 GiB are free on cpu; shorten the document$"):
        check("host")
    with pytest.raises(
        UserError, match=r"6\d\.\d GiB.* free on cpu; set reader\.dtype=bfloat16, or shorten the document$"
    ):
        check("device", "cpu", torch.float32)
    # What the process has freed but kept is given back before it is told that there is no room.
    looks = iter((30, 40))
    monkeypatch.setattr("utaca.memory.store.free_memory", lambda: next(looks) * 2**30)
    check("device", "cpu")


def whole_rule(m: MemorySettings, kind: str, seed: int, length: int, text: int, budgets: list[int]) -> None:
    """Hold every token of a continuation, hidden states and selected blocks, against the brute-force statement."""
    reader = make_reader(kind, m, seed)
    in_float64(reader)
    tokens = some_tokens(length, text)
    continuation = list(zip(some_tokens(len(budgets), 7).tolist(), budgets, strict=True))
    with torch.no_grad():
        expected = infllm(reader.model, m, tokens, continuation)
    document = prefill(reader, tokens)
    branch = Branch(document, len(budgets))
    for (token, budget), (hidden, selected) in zip(continuation, expected, strict=True):
        step = branch.step(torch.tensor([token]), budget)
        branch.commit(step)
        assert step.selected.tolist() == selected
        assert (step.hidden[-1] - hidden).abs().max() < 1e-9


@settings(max_examples=25, deadline=None, derandomize=True, phases=[Phase.generate])
@given(data=st.data())
def test_the_whole_rule_is_the_brute_force_one(data) -> None:
    """Prefill with retrieval, representatives, selection, clipped distances, blocks of the continuation itself."""
    block_size = data.draw(st.integers(2, 6))
    m = MemorySettings(
        block_size=block_size,
        n_init=data.draw(st.integers(0, 5)),
        n_local=data.draw(st.integers(block_size, 14)),
        representatives=data.draw(st.sampled_from(["tokens", "attention_mass"])),
        far_positions=data.draw(st.sampled_from(["clipped", "packed"])),
        n_representatives=data.draw(st.integers(1, block_size)),
        prefill_chunk=data.draw(st.integers(3, 15)),
        prefill_budget=data.draw(st.integers(0, 3)),
        storage=data.draw(st.sampled_from(["device", "host"])),
    )
    kind, seed = data.draw(st.sampled_from(["llama", "llama-wide"])), data.draw(st.integers(0, 3))
    length = data.draw(st.one_of(st.integers(1, 8), st.integers(20, 70)))
    budgets = [data.draw(st.integers(1, 9)) for _ in range(data.draw(st.sampled_from([3, 30])))]
    whole_rule(m, kind, seed, length, data.draw(st.integers(0, 99)), budgets)


@pytest.mark.parametrize(
    ("storage", "representatives", "far_positions"),
    [
        ("device", "attention_mass", "clipped"),
        ("host", "attention_mass", "packed"),
        ("device", "tokens", "packed"),
    ],
)
@pytest.mark.parametrize(("length", "n_init"), [(13, 8), (30, 6)])
def test_points_that_share_a_pass_are_the_brute_force_ones(
    storage: str, representatives: str, far_positions: str, length: int, n_init: int, monkeypatch
) -> None:
    """Continuations of a document under budgets of their own, one of them ahead, until blocks leave their windows: the
    document's, which points share, and of the longer ones their own, which they do not."""
    m = MemorySettings(n_init=n_init, n_local=12, block_size=4, prefill_chunk=16, prefill_budget=1, n_representatives=2,
               representatives=representatives, far_positions=far_positions, storage=storage)  # fmt: skip
    reader, rows, attend = make_reader("llama-wide", m), [], _Group.attend
    in_float64(reader)
    monkeypatch.setattr(_Group, "attend", lambda self, *x: (rows.append(len(self.branches)), attend(self, *x))[1])
    document, ahead = prefill(reader, some_tokens(60)), (0, 0, 3)
    rng = random.Random(1)
    texts = [
        list(zip(some_tokens(length, seed).tolist(), rng.choices((1, 2, 5, 11), k=length), strict=True))
        for seed in (1, 2, 3)
    ]
    with torch.no_grad():
        expected = [infllm(reader.model, m, document.tokens, text) for text in texts]
    branches = [Branch(document, length) for _ in texts]
    shared = 0
    for at in range(-3, length - 3):
        going = [n for n, first in enumerate(ahead) if at + first >= 0]
        steps = []
        for n in going:
            token, budget = texts[n][at + ahead[n]]
            steps.append(branches[n].plan(torch.tensor([token]), budget))
        Branch.run(steps)
        for n, step in zip(going, steps, strict=True):
            shared += step.n_far <= document.layout.blocks(60)
            branches[n].commit(step)
            hidden, selected = expected[n][at + ahead[n]]
            assert step.selected.tolist() == selected
            assert (step.hidden[-1] - hidden).abs().max() < 1e-9
    assert {1, 2, 3} == set(rows)
    assert document.layout.n_far(60 + 9) > document.layout.n_far(60), "blocks have left the windows"
    assert sum(rows) == reader.sizes.layers * (3 * length - 6)
    assert (shared < 3 * length - 6) == (length == 30), "a branch with blocks behind the document attends by itself"


@pytest.mark.parametrize("representatives", ["attention_mass", "tokens"])
def test_a_long_answer_goes_on_making_blocks(representatives: str) -> None:
    """500 tokens behind a document of 40: nearly all blocks are the answer's, and the window stays bounded."""
    m = MemorySettings(n_init=4, n_local=12, block_size=4, prefill_chunk=16, prefill_budget=1, n_representatives=2,
               representatives=representatives)  # fmt: skip
    rng = random.Random(0)
    whole_rule(m, "llama", 0, 40, 3, [rng.randint(1, 6) for _ in range(500)])
    reader = make_reader("llama", m)
    branch = Branch(prefill(reader, some_tokens(40)), 500)
    for token in some_tokens(500, 7).split(1):
        step = branch.step(token, 3)
        branch.commit(step)
        assert step.attended <= 4 + 3 * 4 + 12 + 4


@pytest.mark.parametrize("prefill_budget", [0, 1])
def test_at_true_positions_question_and_answer_have_full_attention(prefill_budget: int) -> None:
    m = MemorySettings(n_init=4, n_local=24, block_size=8, prefill_chunk=16, prefill_budget=prefill_budget)
    reader = make_reader(memory=m)
    document, question = some_tokens(150), "Who is it? " * 3
    memory = prefill(reader, document, clipped=False)
    answer = generate(memory, question, budget=100, max_new_tokens=3)
    tokens = torch.cat((document, reader.encode_question(question)))
    for token in answer.trace:
        expected = full_attention(reader, tokens)[-1]
        torch.testing.assert_close(torch.tensor(token.top_logits), expected.topk(10).values, atol=1e-4, rtol=1e-4)
        tokens = torch.cat((tokens, torch.tensor([token.token])))


def test_a_question_retrieves_under_its_own_budget() -> None:
    retrieved = {}
    for budget in (0, 5, -1):
        m = MemorySettings(
            n_init=4, n_local=24, block_size=8, prefill_chunk=16, prefill_budget=2, question_budget=budget
        )
        memory = prefill(make_reader(memory=m), some_tokens(200))
        _, pieces, last = memory.begin(some_tokens(40), 4, 3, {})
        retrieved[budget] = {own for _, own in pieces}
        assert sum(len(piece) for piece, _ in pieces) + len(last) == 40
    assert retrieved == {0: {2}, 5: {5}, -1: {3}}


def test_tokens_of_a_question_retrieve_together_as_many_as_are_asked_to() -> None:
    sizes = {}
    for chunk in (0, 3):
        m = MemorySettings(n_init=4, n_local=24, block_size=8, prefill_chunk=16, prefill_budget=2, question_chunk=chunk)
        _, pieces, _ = prefill(make_reader(memory=m), some_tokens(200)).begin(some_tokens(40), 4, 3, {})
        sizes[chunk] = [len(piece) for piece, _ in pieces]
    assert sizes == {0: [16, 16, 7], 3: [3] * 13}


def test_a_question_under_the_budget_of_its_answer_leaves_out_what_is_tried_beside() -> None:
    m = MemorySettings(n_init=4, n_local=24, block_size=8, prefill_chunk=16, prefill_budget=2, question_budget=-1)
    memory = prefill(make_reader(memory=m), some_tokens(200))
    compact, both = (generate(memory, "Who is it?" * 4, budget=3, expanded=wide, max_new_tokens=4) for wide in (0, 9))
    assert [token.token for token in compact.trace] == [token.token for token in both.trace]
    assert compact.trace[0].margin == pytest.approx(both.trace[0].margin, abs=1e-4)
    memory.settings = replace(memory.settings, question_budget=9)
    other = generate(memory, "Who is it?" * 4, budget=3, max_new_tokens=4)
    assert other.trace[0].margin != pytest.approx(compact.trace[0].margin, abs=1e-4)
