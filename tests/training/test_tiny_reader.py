"""The tiny reader's training: it sees what the engine will show it, and it is a function of its seed."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from small import make_reader, ran, some_tokens
from transformers import AutoModelForCausalLM, AutoTokenizer

from training.settings import Settings, Tiny
from training.tiny import training
from training.tiny.examples import Batch, Shape
from training.tiny.reading import ReadingBatch
from training.tiny.tokenizer import train_tokenizer
from training.tiny.training import Stage, train
from utaca.errors import UserError
from utaca.memory import Branch, prefill
from utaca.settings.schema import MemorySettings

TINY = Path(__file__).parents[2] / "data" / "readers" / "tiny"
PROSE = [
    f"The {noun} of the valley was described by travellers as {kind} and rather {mood}. Few of them stayed for long."
    for noun in ("river", "mill", "bridge", "chapel")
    for kind in ("wide", "old", "crooked")
    for mood in ("quiet", "cold", "famous")
]


def asked_batch(document: torch.Tensor, prompts: list[int], answers: list[int]) -> Batch:
    """Questions of random tokens about one document; padding of three tokens."""
    widths = [p + a for p, a in zip(prompts, answers, strict=True)]
    rows = sum(widths) + 3
    number = [q for q, width in enumerate(widths) for _ in range(width)] + [-1] * 3
    place = [i for width in widths for i in range(width)] + [0] * 3
    decoding = [i >= prompts[q] - 1 if q >= 0 else False for q, i in zip(number, place, strict=True)]
    nowhere = torch.full((1, rows, 2), -1)
    row = [torch.tensor(x)[None] for x in (number, place)]
    nothing, tokens = torch.full_like(document[None], -1), some_tokens(rows, 2)[None]
    decoding = torch.tensor(decoding)[None]
    return Batch(document[None], nothing, nothing, tokens, *row, torch.zeros(1, rows), decoding, nowhere)


@pytest.mark.parametrize(("length", "n_local"), [(24, 16), (64, 16), (96, 16), (64, 1000)])
def test_training_attends_as_the_engine_does(length: int, n_local: int) -> None:
    sizes = {"n_init": 4, "block_size": 4, "prefill_chunk": 16, "prefill_budget": 0, "n_representatives": 4}
    memory = MemorySettings(n_local=n_local, **sizes)
    reader = make_reader("llama", memory)
    budgets = [2, 5]
    batch = asked_batch(some_tokens(length), [6, 4], [8, 9])
    budget = torch.tensor([*budgets, 1])[batch.question]
    # Whatever is not reserved fails.
    reader.rotary._tables = reader.rotary._compute(1)
    reading = ReadingBatch(memory, reader.rotary, batch, budget, torch.zeros_like(budget, dtype=torch.bool), 1)
    together = reader.forward(torch.cat((batch.document, batch.tokens), 1), reading)[0, length:]

    sealed = prefill(reader, batch.document[0])
    for q, k in enumerate(budgets):
        branch = Branch(sealed, 20)
        for row in (batch.question[0] == q).nonzero().flatten():
            step = ran(branch, batch.tokens[0, row : row + 1], k if batch.decoding[0, row] else 0)
            branch.commit(step)
            assert torch.allclose(step.hidden[0], together[row], atol=1e-4), (q, row)


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer([*PROSE, "The hobby of Ann Lee is Chess. Summarize the hobby of Ann Lee."], 400)


def test_training_is_a_function_of_its_seed_and_resumes(tokenizer, tmp_path, monkeypatch) -> None:
    memory = MemorySettings(n_init=4, n_local=32, block_size=8, prefill_chunk=32, prefill_budget=0, n_representatives=8)
    tiny = Tiny("cpu", 32, 2, 2, 1, 48, 400, memory)
    settings = Settings(0, "", 1.0, tiny)
    shapes = (Shape(2, 100, 100, 1, (1, 2), full=True), Shape(1, 128, 100, 1, (1, 2)))
    schedule = (Stage(4, shapes[:1]), Stage(4, shapes, forced=0.5, budgets=(1, 2), restart=0.5))
    options = {"schedule": schedule, "checkpoint_every": 3}

    def weights(folder: Path) -> bytes:
        return (folder / "model.safetensors").read_bytes()

    train(settings, tokenizer, PROSE, tmp_path / "a", **options)

    calls = []
    losses = training.losses

    def dying(*arguments):
        calls.append(1)
        if len(calls) == 6:
            raise KeyboardInterrupt
        return losses(*arguments)

    monkeypatch.setattr(training, "losses", dying)
    with pytest.raises(KeyboardInterrupt):
        train(settings, tokenizer, PROSE, tmp_path / "c", **options)
    for changed in ((replace(settings, seed=1), tokenizer, PROSE), (settings, tokenizer, PROSE[1:])):
        with pytest.raises(UserError, match="other settings or prose"):
            train(*changed, tmp_path / "c", **options)
    train(settings, tokenizer, PROSE, tmp_path / "c", **options)
    assert len(calls) == 6 + 5, "three steps were checkpointed"
    assert weights(tmp_path / "a") == weights(tmp_path / "c")


DOCUMENT = """\
The university of Maria Olsson is Lund University.

The birth place of Kevin Ortega is Bergen, Norway. The university of Kevin Ortega is Rice University."""


def test_the_shipped_reader_answers_in_plain_transformers() -> None:
    tokenizer = AutoTokenizer.from_pretrained(TINY)
    model = AutoModelForCausalLM.from_pretrained(TINY, dtype=torch.float32)
    for question, value in (("birth place of Kevin Ortega", "Bergen, Norway"), ("company of Maria Olsson", "unknown")):
        messages = [{"role": "user", "content": f"{DOCUMENT}\n\nSummarize the {question}."}]
        options = {"add_generation_prompt": True, "return_tensors": "pt", "return_dict": True}
        inputs = tokenizer.apply_chat_template(messages, **options)
        written = model.generate(**inputs, max_new_tokens=40)[0, inputs["input_ids"].shape[1] :]
        assert tokenizer.decode(written, skip_special_tokens=True) == f"The {question} is {value}."
