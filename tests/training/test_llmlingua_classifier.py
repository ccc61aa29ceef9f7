"""The classifier that the project trains for LLMLingua-2."""

import random
from pathlib import Path

import pytest
from transformers import AutoModelForTokenClassification, AutoTokenizer

from training import llmlingua_classifier as classifier
from utaca.biographies.people import people

PROSE = [f"qqq {'qq ' * n}qqqq, qq." for n in range(20, 40)]
"""No name, value or wording of a fact holds a q twice."""


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, size in {"TOLD": 300, "WORDS": 500, "PIECES": 500, "LENGTH": 256, "BATCH": 2}.items():
        monkeypatch.setattr(classifier, name, size)


def test_it_learns_is_a_function_of_its_seed_and_keeps_facts(tmp_path: Path) -> None:
    losses = [classifier.train(PROSE, tmp_path / name, 25, 3) for name in "ab"]
    assert losses[0] == losses[1]
    assert sum(losses[0][-5:]) < sum(losses[0][:5]) * 0.7
    assert len({(tmp_path / name / "model.safetensors").read_bytes() for name in "ab"}) == 1
    model = AutoModelForTokenClassification.from_pretrained(tmp_path / "a")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "a")
    fact, _ = classifier.passage(next(people("test", 0)), random.Random(1))
    encoded = tokenizer(PROSE[0] + " " + fact, return_tensors="pt", return_offsets_mapping=True)
    starts = encoded.pop("offset_mapping")[0, 1:-1, 0]
    keep = model(**encoded).logits.softmax(-1)[0, 1:-1, 1]
    assert model.config.id2label[1] == "keep"
    assert keep[starts > len(PROSE[0])].mean() > keep[starts < len(PROSE[0])].mean() + 0.1
