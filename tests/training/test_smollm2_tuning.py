"""The tuning of SmolLM2: its examples are what they say, and a step sees what full attention sees."""

from __future__ import annotations

import csv
import json
import os
import random
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml
from small import full_attention, make_reader
from transformers import AutoTokenizer

from training.settings import load
from training.smollm2 import recipe, tuning
from training.smollm2.examples import (
    ABSTAINED,
    APART,
    DOUBTS,
    FACTS,
    UNKNOWN,
    VALUE,
    Asking,
    Example,
    Examples,
    _without_a_sentence,
    date,
    lines,
    squad,
)
from training.smollm2.tuning import Stage, loss_of, tune
from utaca.errors import UserError
from utaca.readers.attention import Rotary
from utaca.readers.prompts import Prompts, question

WORDINGS = Path(__file__).parents[2] / "data" / "readers" / "smollm2-tuned"
TINY = Path(__file__).parents[2] / "data" / "readers" / "tiny"
PROSE = ["The river rises in the hills and falls into the lake after forty miles of meadow and marsh."] * 3
SQUAD = [
    {
        "title": "Rivers",
        "paragraphs": [
            {
                "context": "The Wend rises near Holm and meets the sea at Farrow.",
                "qas": [
                    {"question": "Where does the Wend rise?", "answers": [{"text": "near Holm"}, {"text": "Holm"}]},
                    {"question": "How long is it?", "answers": [], "is_impossible": True},
                ],
            }
        ],
    }
]


@pytest.fixture(scope="module")
def prompts() -> Prompts:
    return Prompts(AutoTokenizer.from_pretrained(TINY))


@pytest.fixture(scope="module")
def examples(prompts: Prompts) -> Examples:
    return Examples(prompts, WORDINGS, PROSE, SQUAD, 0)


def text_of(prompts: Prompts, tokens: list[int]) -> str:
    return prompts._tokenizer.decode(tokens, skip_special_tokens=False)


def test_wordings_are_as_many_as_they_should_be_and_whole() -> None:
    passages, sentences = lines(WORDINGS / "passages.jsonl"), lines(WORDINGS / "sentences.jsonl")
    assert len(passages) >= 40
    assert len(sentences) >= 400
    texts = [row["text"] for row in (*passages, *sentences)]
    assert len(set(texts)) == len(texts)
    for text in texts:
        plain = re.sub(r"\[\[(\d:)?[^\[\]]+\]\]|\{(full|first|last|he|him|his|himself|He|His)\d?\}", "", text)
        assert not re.search(r"[{}]|\[\[|\]\]", plain), text


def test_an_example_is_a_function_of_its_number(examples: Examples, prompts: Prompts) -> None:
    again = Examples(prompts, WORDINGS, PROSE, SQUAD, 0)
    assert [again.example(n, 300) for n in (5, 3)] == [examples.example(n, 300) for n in (5, 3)]
    assert Examples(prompts, WORDINGS, PROSE, SQUAD, 1).example(5, 300) != examples.example(5, 300)


@pytest.mark.parametrize(("asking", "abstained"), [(FACTS, ABSTAINED), (DOUBTS, DOUBTS.abstained)])
def test_values_stand_in_the_document_and_absent_ones_are_unknown(
    examples: Examples, prompts: Prompts, asking: Asking, abstained: float
) -> None:
    present = absent = 0
    for number in range(60):
        example = examples.example(number, 400, asking)
        document = text_of(prompts, example.document)
        for asked in example.asked:
            assert len(asked.tokens) == len(asked.weights)
            for first, end, stated in asked.values:
                value = text_of(prompts, asked.tokens[first:end]).strip().rstrip(".")
                assert min(asked.weights[first:end]) >= (VALUE if stated else min(ABSTAINED, abstained))
                if stated:
                    assert value in document
                    present += 1
                else:
                    assert value == UNKNOWN
                    absent += 1
            assert asked.tokens[-1] == prompts.end
            assert asked.weights[0] == 0
    assert present > 100
    assert absent > 20
    assert (absent > present / 4) == (asking == DOUBTS)


def test_a_passage_without_a_sentence_no_longer_states_what_that_stated() -> None:
    template = (
        "{full} was born in [[birth place]] on [[birth date]]. {He} read [[major]] with {full2}. "
        "{full2} had come from [[2:birth place]]. {first} left for [[company]] in the year that followed."
    )
    found = []
    for seed in range(40):
        text, absent = _without_a_sentence(template, random.Random(seed))
        found.append(text)
        for number, attributes in absent.items():
            assert attributes
            for attribute in attributes:
                assert f"[[{'' if number == '1' else number + ':'}{attribute}]]" not in text
        assert "{full}" in text
        assert "{full2}" in text
        assert absent or text == template
    # The first sentence alone names the one person, the second and third name the other.
    assert set(found) == {
        template,
        template.replace("{full2} had come from [[2:birth place]]. ", ""),
        template.replace("{He} read [[major]] with {full2}. ", ""),
        template.replace(" {first} left for [[company]] in the year that followed.", ""),
    }


def test_validation_sees_passages_that_training_never_does(examples: Examples) -> None:
    kept, trained = examples._passages[True], examples._passages[False]
    assert kept
    assert not {row["text"] for row in kept} & {row["text"] for row in trained}


def test_dates_are_written_in_many_ways() -> None:
    rng = random.Random(0)
    found = [date(rng) for _ in range(400)]
    shapes = {re.sub(r"[A-Za-z]+", "w", re.sub(r"\d", "9", one)) for one in found}
    assert len(shapes) >= 15


def test_real_questions_are_asked_with_the_shortest_answer(examples: Examples, prompts: Prompts) -> None:
    texts = [text_of(prompts, asked.tokens) for n in range(40) for asked in examples._from_squad(_rng(n), 100).asked]
    assert any("Where does the Wend rise?" in text and text.count("near") == 0 for text in texts)
    assert any("How long is it?" in text and UNKNOWN in text for text in texts)


def _rng(number: int):
    return random.Random(number)


@pytest.mark.parametrize("kind", ["llama", "llama-wide"])
def test_a_packed_example_has_the_logits_of_full_attention(kind: str) -> None:
    reader = make_reader(kind)
    examples = Examples(reader.prompts, WORDINGS, [], SQUAD, 0)
    example = examples._from_squad(_rng(1), 40)
    (first, *_) = example.asked
    # Two questions of other lengths and words; a question's first token follows nothing of it.
    lengths, tokens = (40, 25), (first.tokens, first.tokens[::-1])
    asked = [
        replace(first, tokens=own[:n], weights=[0.0] + [1.0] * (len(own[:n]) - 1))
        for own, n in zip(tokens, lengths, strict=True)
    ]
    example = Example(example.document, asked)
    logits, tokens, _ = tuning._logits(reader, reader.model, Rotary(reader.model), example)
    at = 0
    for one in example.asked:
        whole = full_attention(reader, torch.tensor([*example.document, *one.tokens]))
        n = len(one.tokens) - 1
        assert tokens[at : at + n].tolist() == one.tokens[1:]
        torch.testing.assert_close(logits[at : at + n], whole[len(example.document) : -1], atol=2e-4, rtol=1e-3)
        at += n
    assert at == len(logits)


def test_tuning_lowers_the_loss_and_resumes_where_it_was_killed(tmp_path: Path, monkeypatch) -> None:
    pytest.importorskip("peft")
    monkeypatch.setattr(tuning, "TOKENS", 300)
    monkeypatch.setattr(tuning, "LEARNING_RATE", 5e-3)
    monkeypatch.setattr(tuning, "VALIDATED", 1)
    monkeypatch.setattr(tuning, "CALIBRATED", 1)
    schedule = [(Stage(4, (60,)),), (Stage(2, (60,), DOUBTS),)]

    def run(folder: Path, seed: int = 0) -> list[dict[str, float]]:
        reader = make_reader()
        examples = Examples(reader.prompts, WORDINGS, [], SQUAD, 0)
        monkeypatch.setattr(examples, "example", lambda number, *_, validation=False: _short(examples, number))
        return tune(reader, examples, folder, schedule=schedule, seed=seed, checkpoint_every=2, validate_every=6)[1]

    whole = run(tmp_path / "whole")
    assert whole[-1]["loss"] < whole[0]["loss"]
    assert {"value found", "false abstention", "true abstention"} <= whole[-1].keys()

    calls, step = [], tuning.loss_of

    def killed(*args):
        calls.append(1)
        if len(calls) > 12:
            raise KeyboardInterrupt
        return step(*args)

    monkeypatch.setattr(tuning, "loss_of", killed)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "cut")
    monkeypatch.setattr(tuning, "loss_of", step)
    assert [row["loss"] for row in run(tmp_path / "cut")] == [row["loss"] for row in whole]
    weights = [(tmp_path / name / "adapter_model.safetensors").read_bytes() for name in ("whole", "cut")]
    assert weights[0] == weights[1]

    monkeypatch.setattr(tuning, "LEARNING_RATE", 1e-3)
    with pytest.raises(UserError, match="other settings"):
        run(tmp_path / "cut")


def _short(examples: Examples, number: int) -> Example:
    example = examples._from_squad(_rng(number), 40)
    return Example(example.document, example.asked[:2])


def test_each_round_has_a_warm_up_and_ends_at_nothing() -> None:
    rates = tuning._rates(40)
    assert len(rates) == 40
    assert max(rates) == rates[tuning.WARM_UP] == 1
    assert rates[: tuning.WARM_UP + 1] == sorted(rates[: tuning.WARM_UP + 1])
    assert rates[tuning.WARM_UP :] == sorted(rates[tuning.WARM_UP :], reverse=True)
    assert rates[-1] < 0.01
    assert len(tuning._rates(3)) == 3


def test_calibration_shifts_the_logit_of_unknown() -> None:
    made = [tuning.Decision(True, -0.3, True), tuning.Decision(True, 0.2, True), tuning.Decision(True, 1.0, False),
            tuning.Decision(False, 0.4, False), tuning.Decision(False, -2.0, False)]  # fmt: skip
    rows = {row["bias"]: row for row in tuning.calibration(made)}
    assert rows[0.0]["value found"] == rows[0.0]["present"] / 9 == pytest.approx(1 / 3)
    assert (rows[0.0]["false abstention"], rows[0.0]["true abstention"]) == (pytest.approx(2 / 3), 0.5)
    assert (rows[-0.25]["value found"], rows[-0.25]["false abstention"]) == (pytest.approx(2 / 3), pytest.approx(1 / 3))
    assert (rows[-1.05]["false abstention"], rows[-1.05]["true abstention"]) == (0, 0)


def test_decisions_are_those_of_greedy_decoding() -> None:
    """The margin of "unknown" where a value begins, and whether its tokens are the most likely."""
    reader = make_reader("llama-wide")
    examples = Examples(reader.prompts, WORDINGS, [], [], 0)
    rotary = Rotary(reader.model)
    (first, second) = (reader.encode(text)[0].item() for text in ("unknown", " unknown"))
    found, at = tuning.decisions(reader, reader.model, rotary, examples, 1, 60), 0
    example = examples.example(0, 60, DOUBTS, validation=True)
    for asked in example.asked:
        whole = full_attention(reader, torch.tensor([*example.document, *asked.tokens]))[len(example.document) :]
        for begin, _, stated in asked.values:
            logits = whole[begin - 1]
            others = [n for n in range(len(logits)) if n not in (first, second)]
            margin = max(logits[first], logits[second]) - logits[others].max()
            assert found[at].stated == stated
            assert found[at].margin == pytest.approx(float(margin), abs=1e-3)
            at += 1
    assert at == len(found) > 0


def test_the_shipped_bias_is_that_of_the_shipped_calibration() -> None:
    with (WORDINGS / "calibration.csv").open(encoding="utf-8") as file:
        rows = [{key: float(value) for key, value in row.items()} for row in csv.DictReader(file)]
    chosen = next(row["bias"] for row in rows if row["false abstention"] <= tuning.MOST_FALSE)
    config = yaml.safe_load((WORDINGS.parents[2] / "config" / "reader" / "smollm2_tuned.yaml").read_text())
    assert set(config["logit_bias"].values()) == {chosen}
    assert {text.strip() for text in config["logit_bias"]} == {UNKNOWN}


def test_loss_counts_answers_alone() -> None:
    reader = make_reader()
    example = Examples(reader.prompts, WORDINGS, [], SQUAD, 0)._from_squad(_rng(1), 40)
    _, weight = loss_of(reader, reader.model, Rotary(reader.model), example)
    assert weight.item() == pytest.approx(sum(w for asked in example.asked for w in asked.weights))


def test_questions_are_asked_in_the_pattern() -> None:
    assert question(["major"], "Ann", "compact") == "Summarize the major of Ann."


def test_a_missing_file_of_the_recipe_is_named(tmp_path: Path) -> None:
    config = yaml.safe_load((WORDINGS.parents[2] / "training" / "config.yaml").read_text(encoding="utf-8"))
    config["adapter"]["squad"] = str(tmp_path / "no.json")
    with pytest.raises(UserError, match=r"adapter\.squad=.*is no file"):
        recipe.make(load(config), tmp_path / "out")


def test_the_shipped_adapter_is_small_and_says_what_it_was_trained_on() -> None:
    weights = WORDINGS / "adapter_model.safetensors"
    if not weights.is_file():
        pytest.skip("no adapter is shipped yet")
    assert weights.stat().st_size <= 25e6
    assert re.fullmatch(r"[0-9a-f]{16}", json.loads((WORDINGS / "base.json").read_text())["identity"])
    assert "full attention alone" in (WORDINGS / "README.md").read_text(encoding="utf-8")


@pytest.fixture
def shared() -> Path:
    """A folder with SQuAD's and XQuAD's files in `qa`."""
    folder = Path(os.environ.get("UTACA_DATA", Path(__file__).parents[3] / "shared" / "data"))
    if not (folder / "qa" / "xquad_en.json").is_file():
        pytest.skip("needs SQuAD's and XQuAD's files; UTACA_DATA names the folder that has them in qa")
    return folder


def test_training_leaves_out_what_benchmarks_ask(shared: Path) -> None:
    qa = shared / "qa"
    plain = lambda text: " ".join(text.split())  # noqa: E731
    kept = squad(qa / "squad_dev_v2_cs224n.json", qa / "xquad_en.json")
    assert kept
    assert not {article["title"] for article in kept} & set(APART)
    asked = {
        plain(p["context"]) for a in json.loads((qa / "xquad_en.json").read_text())["data"] for p in a["paragraphs"]
    }
    assert not {plain(p["context"]) for article in kept for p in article["paragraphs"]} & asked
