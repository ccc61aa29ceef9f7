"""The tiny reader's training: it sees what the engine will show it, and it is a function of its seed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from small import make_reader, some_tokens
from transformers import AutoModelForCausalLM, AutoTokenizer

from utaca.memory import Branch, prefill
from utaca.readers.tiny import training
from utaca.readers.tiny.examples import Batch, Examples, Shape
from utaca.readers.tiny.reading import ReadingBatch
from utaca.readers.tiny.tokenizer import train_tokenizer
from utaca.readers.tiny.training import Stage, train
from utaca.settings.schema import Memory, ReaderTraining

TINY = Path(__file__).parents[1] / "data" / "readers" / "tiny"
PROSE = [
    f"The {noun} of the valley was described by travellers as {kind} and rather {mood}. Few of them stayed for long."
    for noun in ("river", "mill", "bridge", "chapel")
    for kind in ("wide", "old", "crooked")
    for mood in ("quiet", "cold", "famous")
]


@pytest.mark.parametrize("length", [24, 64, 96])
def test_training_attends_as_the_engine_does(length: int) -> None:
    memory = Memory(n_init=4, n_local=16, block_size=4, prefill_chunk=16, prefill_budget=0, representatives="mean")
    reader = make_reader("llama", memory)
    questions, width, prompt, budgets = 2, 14, 6, [2, 5]
    document, asked = some_tokens(length), some_tokens(questions * width, 2).view(questions, width)
    decoding = (torch.arange(width) >= prompt - 1).expand(1, questions, width)
    nothing = torch.full((1, questions, width, 2), -1)
    batch = Batch(document[None], asked[None], torch.zeros(1, questions, width), decoding, nothing)
    reading = ReadingBatch(memory, reader.rotary, batch, torch.tensor([budgets]), torch.zeros(1, 2, dtype=bool), 1)
    together = reader.forward(torch.cat((document, asked.flatten())), reading)[0, length:].view(questions, width, -1)

    sealed = prefill(reader, document)
    for q, budget in enumerate(budgets):
        branch = Branch(sealed, width)
        for i in range(width):
            step = branch.step(asked[q, i : i + 1], budget if i >= prompt - 1 else 0)
            branch.commit(step)
            assert torch.allclose(step.hidden[0], together[q, i], atol=1e-4), (q, i)


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer([*PROSE, "The hobby of Ann Lee is Chess. Summarize the hobby of Ann Lee."], 400)


def test_examples_point_at_the_values(tokenizer) -> None:
    examples = Examples(tokenizer, PROSE, seed=3)
    pointed = 0
    for _ in range(20):
        batch = examples.batch(Shape(1, 600, 3, 200, 2, (2, 4)))
        for q in range(3):
            ids, source = batch.question[0, q].tolist(), batch.source[0, q].tolist()
            answer_from = batch.decoding[0, q].tolist().index(True) + 1
            assert "Summarize the" in tokenizer.decode(ids[:answer_from])
            assert all(w == 0 for w in batch.weight[0, q, :answer_from])
            for span in {tuple(s) for s in source if s[0] >= 0}:
                value = tokenizer.decode([ids[i + 1] for i, s in enumerate(source[:-1]) if tuple(s) == span])
                place = tokenizer.decode(batch.document[0, span[0] : span[1]])
                assert value.rstrip(".").strip() in place or value[:-1].strip() in place
                pointed += 1
    assert pointed > 30


def test_examples_go_on_from_a_recorded_state(tokenizer) -> None:
    shape = Shape(2, 200, 2, 120, 1, (2, 3))
    first = Examples(tokenizer, PROSE, seed=1)
    for _ in range(3):
        first.batch(shape)
    second = Examples(tokenizer, PROSE, seed=1)
    second.restore(first.state())
    a, b = first.batch(shape), second.batch(shape)
    assert torch.equal(a.document, b.document)
    assert torch.equal(a.question, b.question)


def test_training_is_a_function_of_its_seed_and_resumes(tokenizer, tmp_path, monkeypatch) -> None:
    settings = ReaderTraining(hidden_size=32, layers=2, heads=2, kv_heads=1, intermediate_size=48, vocabulary=400)
    memory = Memory(n_init=4, n_local=32, block_size=8, prefill_chunk=32, prefill_budget=0, representatives="mean")
    shapes = (Shape(2, 64, 2, 60, 1, (1, 2)), Shape(1, 128, 2, 60, 1, (1, 2)))
    schedule = [Stage(4, shapes[:1]), Stage(4, shapes, forced=0.5, budgets=(1, 2))]
    options = {"schedule": schedule, "checkpoint_every": 3, "report": lambda line: None}

    def weights(folder: Path) -> bytes:
        return (folder / "model.safetensors").read_bytes()

    train(settings, memory, tokenizer, PROSE, tmp_path / "a", **options)
    train(settings, memory, tokenizer, PROSE, tmp_path / "b", **options)
    assert weights(tmp_path / "a") == weights(tmp_path / "b")

    calls = []
    losses = training.losses

    def dying(*arguments):
        calls.append(1)
        if len(calls) == 6:
            raise KeyboardInterrupt
        return losses(*arguments)

    monkeypatch.setattr(training, "losses", dying)
    with pytest.raises(KeyboardInterrupt):
        train(settings, memory, tokenizer, PROSE, tmp_path / "c", **options)
    train(settings, memory, tokenizer, PROSE, tmp_path / "c", **options)
    assert len(calls) == 6 + 5, "three steps were checkpointed"
    assert weights(tmp_path / "a") == weights(tmp_path / "c")


@pytest.mark.skipif(not (TINY / "model.safetensors").is_file(), reason="no tiny reader is shipped yet")
def test_the_shipped_reader_is_a_plain_llama() -> None:
    from utaca import load_reader

    reader = load_reader("tiny")
    tokenizer = AutoTokenizer.from_pretrained(TINY)
    model = AutoModelForCausalLM.from_pretrained(TINY, dtype=torch.float32)
    tokens = tokenizer(PROSE[0] * 8, return_tensors="pt")["input_ids"]
    expected = model(tokens).logits[0, -1]
    step = Branch(prefill(reader, tokens[0, :-1], clipped=False), 1).step(tokens[0, -1:], 10**6)
    assert (reader.logits(step.hidden[-1]) - expected).abs().max() < 1e-4
    assert sum(f.stat().st_size for f in TINY.iterdir()) < 16e6
