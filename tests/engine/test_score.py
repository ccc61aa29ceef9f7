"""Scores of a given answer are those that its tokens had when they were generated."""

from typing import Any

import pytest
import torch
from small import SETTINGS, full_attention, make_detector, make_reader, some_tokens

import utaca
from utaca.decoding.score import AnswerScores
from utaca.detection.detector import Detector
from utaca.errors import UserError
from utaca.memory import BlockMemory, prefill
from utaca.methods.window import WindowOnly
from utaca.readers.load import Reader
from utaca.trace import Generation

QUESTION = "Who was it?"
BUDGET = 4
LONGEST = 40


@pytest.fixture(scope="module")
def memory() -> BlockMemory:
    return prefill(make_reader(), some_tokens(300))


@pytest.fixture(scope="module")
def detector(memory: BlockMemory) -> Detector:
    return make_detector(memory.reader)


def ids(generation: Generation) -> list[int]:
    return [token.token for token in generation.trace]


def same(scores: AnswerScores, generation: Generation) -> bool:
    """Whether tokens, budgets, margins, log-probabilities, GDMs and verdicts are those of the answer's trace."""
    assert [token.token for token in scores.tokens] == ids(generation)
    for scored, token in zip(scores.tokens, generation.trace, strict=True):
        assert (scored.k, scored.text, scored.rolled_back) == (token.k, token.text, token.rolled_back)
        assert scored.margin == pytest.approx(token.margin, abs=1e-4)
        assert scored.logprob == pytest.approx(token.logprob, abs=1e-4)
        assert scored.top_tokens[0] == token.top_tokens[0]
        assert scored.gdm == (None if token.gdm is None else pytest.approx(token.gdm, abs=1e-4))
    return True


@pytest.mark.parametrize("rows", [1, 3, 8])
def test_scores_are_those_of_generating(memory: BlockMemory, rows: int) -> None:
    generation = utaca.generate(memory, QUESTION, budget=BUDGET, max_new_tokens=LONGEST)
    scores = utaca.score(memory, QUESTION, ids(generation), budget=BUDGET, rows=rows)
    assert same(scores, generation)
    if rows == 1:
        assert scores.passes == len(generation.trace)
    else:
        # A pass ends early where a further block is far for the next token.
        assert len(generation.trace) / rows <= scores.passes < len(generation.trace) * 2 / 3
    threshold = memory.reader.settings.margin
    assert scores.doubted == [token.margin < threshold for token in generation.trace]


@pytest.mark.parametrize("rows", [1, 8])
def test_a_detector_gives_the_gdm_of_generating(memory: BlockMemory, detector: Detector, rows: int) -> None:
    trigger = utaca.Detected(detector)
    # A policy that keeps to K_max: the budget is fixed, and every token is judged.
    fixed = utaca.generate(
        memory, QUESTION, budget=BUDGET, policy=utaca.Set(BUDGET), trigger=trigger, max_new_tokens=LONGEST
    )
    scores = utaca.score(memory, QUESTION, ids(fixed), budget=BUDGET, detector=detector, rows=rows)
    assert same(scores, fixed)
    assert all(token.gdm for token in scores.tokens)
    assert scores.doubted == [token.distrusted for token in fixed.trace]
    assert 0 < sum(scores.doubted) < len(scores.doubted)
    plain = utaca.generate(memory, QUESTION, budget=BUDGET, max_new_tokens=LONGEST)
    assert ids(plain) == ids(fixed)


@pytest.mark.parametrize("rows", [1, 8])
def test_an_adaptive_answer_has_its_budgets_again(memory: BlockMemory, detector: Detector, rows: int) -> None:
    for trigger in (utaca.Detected(detector), utaca.Margin(0.8), utaca.Every(3)):
        options: dict[str, Any] = {"budget": 12, "policy": utaca.Sub(4), "trigger": trigger}
        generation = utaca.generate(memory, QUESTION, max_new_tokens=LONGEST, **options)
        assert generation.rollbacks
        assert same(utaca.score(memory, QUESTION, ids(generation), rows=rows, **options), generation)


def test_another_answer_has_its_own_probabilities() -> None:
    """All blocks at true positions are full attention, which gives the distributions."""
    reader = make_reader()
    document, question, answer = some_tokens(120), some_tokens(9, seed=2), some_tokens(20, seed=3)
    memory = prefill(reader, document, clipped=False)
    scores = utaca.score(memory, tuple(question.tolist()), answer, budget=100)
    logprobs = full_attention(reader, torch.cat((document, question, answer))).log_softmax(-1)[-21:-1]
    wanted = logprobs.gather(1, answer[:, None])[:, 0]
    assert [token.logprob for token in scores.tokens] == pytest.approx(wanted.tolist(), abs=1e-3)
    assert scores.logprob == pytest.approx(float(wanted.sum()), abs=1e-2)
    entropies = -(logprobs.exp() * logprobs).sum(-1)
    assert scores.entropies == pytest.approx(entropies.tolist(), abs=1e-3)


def test_a_text_is_the_tokens_that_follow_its_question(memory: BlockMemory) -> None:
    scores = utaca.score(memory, QUESTION, "It is Eve.", budget=BUDGET)
    assert scores.text == "It is Eve."
    question = tuple(memory.reader.prompts.question(QUESTION))
    again = utaca.score(memory, question, memory.reader.prompts.text("It is Eve."), budget=BUDGET)
    assert [token.logprob for token in again.tokens] == [token.logprob for token in scores.tokens]


def test_spans_are_runs_of_doubted_tokens(memory: BlockMemory) -> None:
    tokens = utaca.score(memory, QUESTION, "bcdefg", budget=BUDGET).tokens
    scores = AnswerScores(tokens, [0.0] * 6, [True, False, True, True, False, True], 1, BUDGET)
    assert scores.spans == [range(1), range(2, 4), range(5, 6)]
    assert [scores.span_text(span) for span in scores.spans] == ["b", "de", "g"]


def test_a_method_without_chains_scores_a_token_a_pass() -> None:
    reader: Reader = make_reader(memory=SETTINGS)
    reading = WindowOnly().read(reader, some_tokens(100), 60)
    generation = utaca.generate(reading, QUESTION, max_new_tokens=6)
    scores = utaca.score(reading, QUESTION, ids(generation))
    assert same(scores, generation)
    assert scores.passes == len(generation.trace)


@pytest.mark.parametrize(
    ("answer", "options", "sentence"),
    [
        ("", {}, "the answer is empty"),
        ([5, 0, 5], {}, "tokens after its first end token"),
        ([5, 97], {}, "the answer has token id 97"),
        ("b", {"rows": 0}, "rows must be at least 1"),
        ("b", {"budget": 0}, "must be at least 1"),
        ("b", {"policy": utaca.Sub(2)}, "needs a policy and a trigger"),
        ("b", {"policy": utaca.Sub(2), "trigger": utaca.Agreement()}, "use another trigger"),
        ("b", {"detector": "both", "trigger": utaca.Every(2)}, "not both"),
        ("b", {"detector": "no detector"}, "Detected needs a utaca.Detector"),
    ],
)
def test_what_cannot_be_scored_is_a_sentence(
    memory: BlockMemory, answer: Any, options: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(UserError, match=sentence):
        utaca.score(memory, QUESTION, answer, **{"budget": BUDGET} | options)
    with pytest.raises(UserError, match="a document that was read"):
        utaca.score("a document", QUESTION, "b")
