"""Bytes on paper against those that tensors really hold, and against the README."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from small import make_reader, ran, some_tokens
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from utaca.memory import Branch, prefill
from utaca.methods.full import FullAttention
from utaca.readers.files import model
from utaca.readers.load import Reader
from utaca.settings.schema import MemorySettings, ReaderSettings
from utaca.sizes import Model, Sizes, Work, chunks, document_bytes, shown_bytes, whole_bytes

SMALL = Sizes(layers=4, heads=8, kv_heads=2, head_size=32, hidden=256, intermediate=896)
"""Of the proportions of an 8B model."""


def reader_of(memory: MemorySettings) -> Reader:
    """A reader of the small sizes with random weights of float32."""
    sizes = {"hidden_size": 256, "intermediate_size": 896, "num_hidden_layers": 4, "num_attention_heads": 8}
    reader = make_reader(memory=memory, num_key_value_heads=2, max_position_embeddings=8192, **sizes)
    reader.rotary.reserve(8192)
    return reader


class Held(TorchDispatchMode):
    """The most bytes that tensors made within it hold at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.peak, self._living = 0, {}

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        out = operator(*args, **(kwargs or {}))
        # What shares memory with what was there before is a view.
        before = {x.untyped_storage()._cdata for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)}
        for made in (x.untyped_storage() for x in tree_leaves(out) if isinstance(x, torch.Tensor)):
            if made._cdata not in before:
                self._living[made._cdata] = StorageWeakRef(made), made.nbytes()
        self.peak = max(self.peak, self.bytes)
        return out

    @property
    def bytes(self) -> int:
        self._living = {key: one for key, one in self._living.items() if not one[0].expired()}
        return sum(size for _, size in self._living.values())


@pytest.mark.parametrize(
    ("storage", "rule", "budget"),
    [("device", "attention_mass", 10**6), ("host", "attention_mass", 2), ("device", "tokens", 0)],
)
def test_bytes_of_a_document_are_those_that_its_prefill_holds(storage: str, rule: str, budget: int) -> None:
    m = MemorySettings(
        n_init=16, n_local=512, prefill_chunk=256, prefill_budget=budget, storage=storage, representatives=rule
    )
    reader, length = reader_of(m), 5000
    needed = document_bytes(SMALL, m, length, 4, "cpu", chunks(m))["cpu"]
    with Held() as held:
        memory = prefill(reader, some_tokens(length))
        stays = held.bytes
        assert 0.85 < held.peak / needed < 1.1
        assert stays > SMALL.cache_bytes(length, 4) == sum(store.tokens.nbytes for store in memory.stores)
        branch = Branch(memory, 100)
        for token in some_tokens(30).split(1):
            branch.commit(ran(branch, token, 20))
        window = SMALL.cache_bytes(m.n_local + m.block_size + 100, 4)
        assert held.bytes - stays == pytest.approx(window, rel=0.1), "with room for the answer"


def test_bytes_of_full_attention_are_those_that_it_holds() -> None:
    reader, length = reader_of(MemorySettings()), 4000
    needed = whole_bytes(SMALL, length, 4)
    with Held() as held:
        FullAttention().read(reader, some_tokens(length), 100)
    assert 0.9 < held.peak / needed < 1.1


def test_a_job_asks_for_its_documents_that_are_read_whole_and_for_embeddings(root: Path) -> None:
    job = model(
        ReaderSettings(name="tiny", path=str(root / "data" / "readers" / "tiny"), device="cpu", dtype="float32")
    )
    work = Work(documents=1, length=900, tokens=9, points=2)
    more = job.memory_bytes(replace(work, whole=1)) - job.memory_bytes(work)
    assert more == pytest.approx(1.25 * whole_bytes(job.sizes, 900, 4))

    def under(budget: int) -> Model:
        return replace(job, reader=replace(job.reader, memory=replace(job.reader.memory, prefill_budget=budget)))

    own = under(-1)
    several = replace(work, budgets=(2, 8, 8), length=10**6)
    assert own.memory_bytes(several) == under(8).memory_bytes(several)
    assert own.minutes(several) - job.minutes(several) == pytest.approx(10**6 * 4 * job.parameters / 20e9 / 60, abs=1)
    assert shown_bytes(2 * 10**6, 64) - shown_bytes(10**6, 64) == pytest.approx(1.25 * 6 * 64e6)


def test_the_readme_tells_the_memory_of_an_8b_reader(root: Path) -> None:
    llama, weights = Sizes(layers=32, heads=32, kv_heads=8, head_size=128, hidden=4096, intermediate=14336), 2 * 8.03e9
    needed = [document_bytes(llama, MemorySettings(storage=x), 400_000, 2, "cuda", 1) for x in ("device", "host")]
    device, host = (f"{(weights + bytes_of['cuda']) / 2**30:.0f}" for bytes_of in needed)
    readme = (root / "README.md").read_text(encoding="utf-8")
    words = " ".join(readme.split())
    assert f"For documents of 400,000 tokens, Llama needs about {device} GiB of GPU memory." in words
    assert f"these stay in main memory, and {host} GiB of GPU memory are enough" in words
