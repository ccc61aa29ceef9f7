"""Block memory against Hugging Face full attention and against a brute-force statement of retrieval."""

import functools
import itertools
import random
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from brute_methods import infllm
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from small import SETTINGS, SIZES, contents, full_attention, in_float64, make_reader, ran, some_tokens

from utaca.errors import UserError
from utaca.memory import Branch, prefill
from utaca.memory.attention import best
from utaca.memory.passes import BlockStep, RowGroup
from utaca.memory.store import Store
from utaca.readers.load import Reader
from utaca.readers.room import check_blocks
from utaca.settings.schema import MemorySettings
from utaca.sizes import Sizes


@pytest.mark.parametrize("chunk", [5, 16, 64, 300])
@pytest.mark.parametrize("kind", list(SIZES))
def test_all_blocks_at_true_positions_equal_full_attention(kind: str, chunk: int) -> None:
    """In float64 to its rounding; in float32 as near to that as Hugging Face's own float32 is, within a factor."""
    memory = replace(SETTINGS, prefill_chunk=chunk)
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
            step = ran(branch, piece, budget=10**6)
            branch.commit(step)
            found.append(step.hidden.double() @ reader.model.lm_head.weight.T.double())
        assert step.n_far > branch.n_whole
        assert (torch.cat(found) - truth).abs().max() < tolerance


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
        scores[0, rng.randrange(blocks)] = torch.nan
        chosen = best(scores, budget)
        assert len(set(chosen[0].tolist())) == min(budget, blocks)
        assert budget == 0 or scores[0, chosen[0]].isnan().any()
        assert chosen[1].tolist() == sorted(expected[1])


@pytest.mark.parametrize("representatives", ["attention_mass", "tokens"])
@pytest.mark.parametrize("prefill_budget", [0, 2])
def test_no_pass_waits_for_the_device(representatives: str, prefill_budget: int, monkeypatch) -> None:
    """Tensors on device meta have no values: an operation that takes one to the host, or a shape from one, fails."""
    m = replace(SETTINGS, prefill_budget=prefill_budget, representatives=representatives)
    on_cpu = make_reader("llama", m)
    reader = Reader(on_cpu.model.to("meta"), on_cpu.tokenizer, on_cpu.settings)
    monkeypatch.setattr(Reader, "document", lambda self, tokens: tokens)
    branch = Branch(prefill(reader, some_tokens(300).to("meta")), 20)
    for tokens in (torch.zeros(9, dtype=torch.long, device="meta"), torch.zeros(1, dtype=torch.long, device="meta")):
        step = ran(branch, tokens, budget=3)
        branch.commit(step)


def held(branch: Branch) -> list[torch.Tensor]:
    """Everything that a branch holds: its window, its blocks, and what they are made from."""
    return [branch.window, branch.tail, branch.representatives, branch.attention_mass]


@pytest.mark.parametrize(("runs", "dtype", "storage"), [(1000, torch.float32, "device"), (100, torch.bfloat16, "host")])
def test_random_sequences_equal_their_accepted_only_runs(runs: int, dtype: torch.dtype, storage: str) -> None:
    """Up to three steps each, accepted or rejected; logits are a function of the hidden states that are compared.

    A block leaves the window where two are accepted.
    """
    reader = make_reader(memory=replace(SETTINGS, storage=storage))
    reader.model.to(dtype)
    document = prefill(reader, some_tokens(201))
    sealed = [x.clone() for x in contents(document)]
    choices = [(torch.tensor([token]), budget) for token in (5, 9) for budget in (1, 20)]

    @functools.cache
    def accepted_only(path: tuple[int, ...]) -> tuple[Branch, list[BlockStep]]:
        branch, steps = Branch(document, 4), []
        for choice in path:
            steps.append(ran(branch, *choices[choice]))
            branch.commit(steps[-1])
        return branch, steps

    rng = random.Random(0)
    for _ in range(runs):
        branch, path = Branch(document, 4), ()
        pointers = [x.data_ptr() for x in held(branch)]
        for _ in range(rng.randint(1, 3)):
            choice = rng.randrange(len(choices))
            step = ran(branch, *choices[choice])
            expected = accepted_only((*path, choice))[1][-1]
            assert torch.equal(step.embeddings["attention"], expected.embeddings["attention"])
            assert all(torch.equal(getattr(step, x), getattr(expected, x)) for x in ("hidden", "selected", "scores"))
            if rng.random() < 0.5:
                branch.commit(step)
                path = (*path, choice)
        plain = accepted_only(path)[0]
        assert all(torch.equal(a, b) for a, b in zip(held(branch), held(plain), strict=True))
        assert pointers == [x.data_ptr() for x in held(branch)]
    assert document.layout.n_far(203) > document.layout.n_far(201)
    assert all(torch.equal(x, y) for x, y in zip(sealed, contents(document), strict=True))


def test_no_query_is_kept_if_no_block_will_leave_the_window() -> None:
    branch = Branch(prefill(make_reader(), some_tokens(9)), 12)
    for token in some_tokens(12).split(1):
        branch.commit(ran(branch, token, 1))
    assert branch._queries == []


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
    step = ran(Branch(document, 1), torch.tensor([5]), 3)
    for store, ids in zip(document.stores, step.selected, strict=True):
        kept = torch.zeros(300, dtype=torch.bool)
        kept[(20 + ids[:, None] * 8 + torch.arange(8)).flatten()] = True
        kept[:20] = True
        with torch.inference_mode():
            store.tokens[:, :, ~kept] = torch.nan
    few, many = (ran(Branch(document, 1), torch.tensor([5]), budget) for budget in (3, 9))
    assert torch.equal(step.hidden, few.hidden)
    assert not many.hidden.isfinite().all(), "other blocks are read from there"


@pytest.mark.parametrize(
    ("storage", "device", "cuda", "cpu", "words"),
    [
        ("device", "cpu", 0, [40], ""),
        ("host", "cuda", 20, [40], ""),
        # What the process has freed but kept is given back before the refusal.
        ("device", "cpu", 0, [30, 40], ""),
        (
            "device",
            "cuda",
            20,
            [40],
            r"need 32\.\d GiB, but only 20\.0 GiB are free on cuda; set reader\.memory\.storage=h",
        ),
        ("host", "cuda", 1, [40], r"need 2\.\d GiB, but only 1\.0 GiB are free on cuda; shorten the document$"),
        ("host", "cuda", 20, [30], r"need 32\.0 GiB, but only 30\.0 GiB are free on cpu; shorten the document$"),
    ],
)
def test_room_is_checked_where_the_document_will_lie(
    storage: str, device: str, cuda: int, cpu: list[int], words: str, monkeypatch
) -> None:
    """An 8B reader, 252k tokens: 30.8 GiB of keys and values, 2.0 of representatives and relevance, 0.2 of a pass."""
    looks = itertools.chain(cpu, itertools.repeat(cpu[-1]))
    monkeypatch.setattr("utaca.readers.room._free_on_gpu", lambda device: cuda * 2**30)
    monkeypatch.setattr("utaca.readers.room.free_memory", lambda: next(looks) * 2**30)
    reader = SimpleNamespace(
        sizes=Sizes(32, 32, 8, 128, 4096, 14336), dtype=torch.bfloat16, device=torch.device(device)
    )
    with pytest.raises(UserError, match=words) if words else nullcontext():
        check_blocks(reader, MemorySettings(storage=storage), 252_000, 1)


def test_a_document_that_does_not_fit_is_not_read(monkeypatch) -> None:
    monkeypatch.setattr("utaca.readers.room.free_memory", lambda: 10_000)
    sentence = r"need 0\.0 GiB, but only 0\.0 GiB are free on cpu; set reader\.dtype=bfloat16, or shorten the document$"
    with pytest.raises(UserError, match=sentence):
        prefill(make_reader(), some_tokens(300))


@settings(max_examples=25, deadline=None, derandomize=True, phases=[Phase.generate])
@given(data=st.data())
def test_the_whole_rule_is_the_brute_force_one(data) -> None:
    """Prefill with retrieval or chunks side by side, representatives, selection, clipped distances, blocks of the
    continuation itself: hidden states and selected blocks of every token."""
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
    length = data.draw(st.one_of(st.integers(1, 8), st.integers(20, 70), st.just(150)))
    budgets = [data.draw(st.integers(0, 9)) for _ in range(data.draw(st.sampled_from([3, 30, 60])))]
    reader = make_reader(data.draw(st.sampled_from(["llama", "llama-wide"])), m, data.draw(st.integers(0, 3)))
    in_float64(reader)
    tokens = some_tokens(length, data.draw(st.integers(0, 99)))
    continuation = list(zip(some_tokens(len(budgets), 7).tolist(), budgets, strict=True))
    with torch.no_grad():
        expected = infllm(reader.model, m, tokens, continuation)
    document = prefill(reader, tokens)
    branch = Branch(document, len(budgets))
    for (token, budget), (hidden, selected) in zip(continuation, expected, strict=True):
        step = ran(branch, torch.tensor([token]), budget)
        branch.commit(step)
        assert step.selected.tolist() == selected
        assert (step.hidden[-1] - hidden).abs().max() < 1e-9
        assert step.attended <= m.n_init + (budget + 1) * m.block_size + m.n_local, "the window stays bounded"


@settings(max_examples=20, deadline=None, derandomize=True, phases=[Phase.generate])
@given(data=st.data())
def test_top_p_is_the_brute_force_one(data) -> None:
    """A token attends to the fewest best blocks that reach p, at most its budget: hidden states, blocks, counts."""
    m = MemorySettings(
        block_size=4,
        n_init=data.draw(st.integers(0, 5)),
        n_local=data.draw(st.integers(4, 14)),
        representatives=data.draw(st.sampled_from(["tokens", "attention_mass"])),
        n_representatives=2,
        prefill_chunk=16,
        storage=data.draw(st.sampled_from(["device", "host"])),
    )
    length = data.draw(st.integers(1, 90))
    p = data.draw(st.floats(0.05, 0.99))
    budgets = [data.draw(st.integers(1, 20)) for _ in range(20)]
    reader = make_reader("llama-wide", m, data.draw(st.integers(0, 3)))
    in_float64(reader)
    tokens = some_tokens(length, data.draw(st.integers(0, 99)))
    continuation = list(zip(some_tokens(len(budgets), 7).tolist(), budgets, strict=True))
    with torch.no_grad():
        expected = infllm(reader.model, m, tokens, continuation, p)
    document = prefill(reader, tokens)
    branch, second = (Branch(document, len(budgets), block_top_p=p) for _ in range(2))
    for (token, budget), (hidden, selected) in zip(continuation, expected, strict=True):
        step = branch.plan(torch.tensor([token]), budget)
        # A row of a different budget shares the pass.
        other = second.plan(torch.tensor([token]), 2)
        Branch.run([step, other])
        branch.commit(step)
        second.commit(other)
        assert [[block for block in layer if block >= 0] for layer in step.selected.tolist()] == selected
        assert (step.hidden[-1] - hidden).abs().max() < 1e-9
        assert step.retrieved == sum(map(len, selected)) / len(selected)


@pytest.mark.parametrize(
    ("storage", "representatives", "far_positions"),
    [
        ("device", "attention_mass", "clipped"),
        ("host", "attention_mass", "packed"),
        ("device", "tokens", "packed"),
    ],
)
@pytest.mark.parametrize(("length", "n_init"), [(13, 0), (30, 6)])
def test_points_that_share_a_pass_are_the_brute_force_ones(
    storage: str, representatives: str, far_positions: str, length: int, n_init: int, monkeypatch
) -> None:
    """Continuations of a document under budgets of their own, one of them ahead, until blocks leave their windows: the
    document's, which points share, and of the longer ones their own, which they do not."""
    m = MemorySettings(n_init=n_init, n_local=12, block_size=4, prefill_chunk=16, prefill_budget=1, n_representatives=2,
               representatives=representatives, far_positions=far_positions, storage=storage)  # fmt: skip
    reader, rows, attend = make_reader("llama-wide", m), [], RowGroup.attend
    in_float64(reader)
    monkeypatch.setattr(RowGroup, "attend", lambda self, *x: (rows.append(len(self.branches)), attend(self, *x))[1])
    document, ahead = prefill(reader, some_tokens(60)), (0, 0, 3)
    rng = random.Random(1)
    texts = [
        list(zip(some_tokens(length, seed).tolist(), rng.choices((0, 1, 2, 5, 11), k=length), strict=True))
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
        steps = [branch.plan(text[at : at + size], 10**6) for text, (at, branch) in zip(texts, behind, strict=True)]
        Branch.run(steps)
        for step, logits, (at, branch) in zip(steps, expected, behind, strict=True):
            assert (step.hidden @ reader.model.lm_head.weight.T - logits[at : at + size]).abs().max() < 1e-10
            branch.commit(step)
        done += size


@pytest.mark.parametrize(
    ("kind", "storage", "representatives", "far_positions"),
    [
        *((kind, "device", "attention_mass", "clipped") for kind in SIZES),
        ("llama", "host", "attention_mass", "packed"),
        ("llama", "device", "tokens", "packed"),
        ("qwen3", "host", "tokens", "clipped"),
    ],
)
def test_rows_of_several_documents_equal_each_document_alone(
    kind: str, storage: str, representatives: str, far_positions: str
) -> None:
    """Documents of several lengths, each under budgets of its own, one shorter than the window, to float64's rounding.

    A row is rolled back in either pass now and then, and decoded under another budget; blocks leave the windows.
    """
    memory = replace(SETTINGS, storage=storage, representatives=representatives, far_positions=far_positions)
    reader = make_reader(kind, memory)
    in_float64(reader)
    documents = [prefill(reader, some_tokens(length, seed=length)) for length in (150, 90, 9, 213)]
    together, alone = ([Branch(document, 120) for document in documents] for _ in range(2))
    rng, apart = random.Random(0), 0.0
    for _ in range(30):
        size = rng.choice((1, 1, 1, 5))
        tokens = [some_tokens(size, rng.randrange(99)) for _ in documents]
        budgets = [rng.choice((0, 1, 3, 50)) for _ in documents]
        pieces = list(zip(tokens, budgets, strict=True))
        steps = [branch.plan(*piece) for branch, piece in zip(together, pieces, strict=True)]
        Branch.run(steps)
        for row, step in enumerate(steps):
            expected = ran(alone[row], *pieces[row])
            assert torch.equal(step.selected, expected.selected)
            assert step.attended == expected.attended
            found = {"hidden": step.hidden, "scores": step.scores, **step.embeddings}
            wanted = {"hidden": expected.hidden, "scores": expected.scores, **expected.embeddings}
            for name in wanted:
                assert found[name].shape == wanted[name].shape
                assert not found[name].numel() or (found[name] - wanted[name]).abs().max() < 1e-10, name
            apart = max(apart, (step.hidden - steps[row - 1].hidden[-1]).abs().max())
            if rng.random() < 0.7:
                together[row].commit(step)
                alone[row].commit(expected)
    for document, step in zip(documents, steps, strict=True):
        assert step.n_far > document.layout.blocks(len(document)), "blocks behind the document are far"
    assert apart > 1e-2, "rows differ from each other"


@pytest.mark.parametrize(
    ("settings_", "sizes", "budget"),
    [
        ({"question_budget": 0}, [16, 16, 7], 2),
        ({"question_budget": 5}, [16, 16, 7], 5),
        ({"question_budget": -1, "question_chunk": 3}, [3] * 13, 3),
    ],
)
def test_pieces_of_a_question_retrieve_under_its_own_budget(
    settings_: dict[str, int], sizes: list[int], budget: int
) -> None:
    memory = prefill(make_reader(memory=replace(SETTINGS, **settings_)), some_tokens(200))
    _, pieces, last = memory.begin(some_tokens(40), 4, 3, {})
    assert [(len(piece), own) for piece, own in pieces] == [(size, budget) for size in sizes]
    assert len(last) == 1
    unclipped = prefill(memory.reader, some_tokens(200), clipped=False)
    # All blocks behind 4 initial tokens: at true positions a question has full attention.
    assert {own for _, own in unclipped.begin(some_tokens(40), 4, 3, {})[1]} == {(240 - 4) // 8}
