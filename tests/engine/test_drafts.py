"""Decoding with drafts gives Algorithm 1's answer, token for token, whatever is guessed."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small import SETTINGS, make_detector, make_reader, some_tokens

from utaca.decoding import loop
from utaca.decoding.drafts import CompactPasses, PromptLookup
from utaca.decoding.loop import generate, generate_together
from utaca.decoding.options import Decoding, Sampling
from utaca.decoding.policies import Policy, Set, Sub
from utaca.decoding.triggers import Agreement, Detected, Every, Margin, Trigger
from utaca.detection.detector import Detector
from utaca.errors import UserError
from utaca.memory import BlockMemory, prefill
from utaca.methods.window import WindowOnly
from utaca.readers.load import Reader
from utaca.settings.schema import PACKED, TOKENS, MemorySettings
from utaca.trace import Generation

K_MAX = 12
LONGEST = 40


class Told(PromptLookup):
    """Guesses of the tokens of ``answer``; every fifth one is wrong."""

    answer: list[int]

    def __init__(self, *_: Any) -> None:
        self._count = 0

    def add(self, token: int) -> None:
        self._count += 1

    def guesses(self, also: int | None = None) -> list[int]:
        numbers = range(self._count, min(self._count + 7, len(self.answer)))
        return [self.answer[number] if number % 5 else (self.answer[number] + 1) % 97 for number in numbers]


class Unsure(Policy):
    """A policy that looks at the token, so that its next budgets cannot be known before."""

    def update(self, k: int, k_max: int, token: Any) -> int:
        return max(1, k - 1 - token.token % 3)


class Thrice(Trigger):
    """Expands every third token of the vocabulary, to a budget that was tried already in half of the cases."""

    def second_budget(self, k: int, k_max: int) -> int:
        return k_max if k % 2 else 3

    def expands(self, step: int, token: Any, second: Any) -> bool:
        return token.token % 3 == 0


@pytest.fixture(scope="module")
def memory() -> BlockMemory:
    return prefill(make_reader(), some_tokens(300))


@pytest.fixture(scope="module")
def detector(memory: BlockMemory) -> Detector:
    return make_detector(memory.reader)


def triggers(detector: Detector) -> dict[str, Trigger]:
    return {
        "detector": Detected(detector),
        "margin": Margin(0.8),
        "agreement": Agreement(),
        "agreement.3": Agreement(3),
        "every.4": Every(4),
        "never": Every(0),
        "third": Thrice(),
    }


def alike(drafted: Generation, plain: Generation) -> None:
    """Both answers have the same tokens, budgets, rollbacks, blocks and numbers."""
    assert drafted.finish == plain.finish
    assert drafted.text == plain.text
    for ours, theirs in zip(drafted.trace, plain.trace, strict=True):
        assert (ours.token, ours.k, ours.attended) == (theirs.token, theirs.k, theirs.attended)
        assert [one.k for one in ours.passes] == [one.k for one in theirs.passes]
        assert (ours.rolled_back, ours.effective, ours.distrusted) == (
            theirs.rolled_back, theirs.effective, theirs.distrusted,
        )  # fmt: skip
        assert torch.equal(ours.selected, theirs.selected)
        assert ours.margin == pytest.approx(theirs.margin, abs=1e-3)
        assert ours.logprob == pytest.approx(theirs.logprob, abs=1e-3)
        assert (ours.gdm is None) == (theirs.gdm is None)
        if ours.gdm is not None:
            assert ours.gdm == pytest.approx(theirs.gdm, abs=1e-4)


def both(memory: BlockMemory, monkeypatch: pytest.MonkeyPatch, **options: Any) -> tuple[Generation, Generation]:
    """The answer with drafts, nearly all of them right, and without."""
    plain = generate(memory, "Who?", max_new_tokens=LONGEST, **options)
    monkeypatch.setattr(Told, "answer", [token.token for token in plain.trace], raising=False)
    monkeypatch.setattr(loop, "PromptLookup", Told)
    return generate(memory, "Who?", max_new_tokens=LONGEST, drafts=7, **options), plain


@pytest.mark.parametrize(
    "policy",
    [Set(1), Sub(1), Sub(5), Unsure()],
    ids=lambda policy: type(policy).__name__ + str(vars(policy).get("n", "")),
)
@pytest.mark.parametrize("trigger", ["detector", "margin", "agreement", "agreement.3", "every.4", "never", "third"])
def test_an_adaptive_answer_is_the_same_with_drafts(
    memory: BlockMemory, detector: Detector, trigger: str, policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    rule = triggers(detector)[trigger]
    drafted, plain = both(memory, monkeypatch, budget=K_MAX, policy=policy, trigger=rule)
    alike(drafted, plain)
    rows = sum(token.rows for token in drafted.trace)
    used = sum(len(token.passes) for token in drafted.trace)
    # Tokens of equal budgets share a step without a second one.
    assert rows - len(drafted.rejected) == used
    assert plain.passes == len(plain.trace) + sum(
        token.rolled_back and token.k != rule.second_budget(token.tentative.k, K_MAX) for token in plain.trace
    )
    if trigger == "never" and not isinstance(policy, Unsure):
        assert drafted.passes < len(drafted.trace) / 2.5
        assert drafted.mean_selected_with_tentative > plain.mean_selected_with_tentative


FIXED: dict[str, dict[str, Any]] = {
    "greedy": {"budget": 4},
    "sampled": {"budget": 4, "sampling": Sampling(0.8, 0.9, seed=5)},
    "sampled and rolled back": {"budget": K_MAX, "policy": Sub(3), "trigger": Every(3), "sampling": Sampling(1.5)},
    "a budget a step": {"budget": [1, 7, 3, 2, 9, 4, 4, 1]},
    "a second pass": {"budget": 2, "expanded": K_MAX},
    "a prefix": {"budget": 4, "prefix": "It is "},
    "all signals": {"budget": 4, "measured": True},
}


@pytest.mark.parametrize("options", FIXED)
@pytest.mark.parametrize(
    "settings",
    [
        SETTINGS,
        replace(SETTINGS, far_positions=PACKED),
        replace(SETTINGS, representatives=TOKENS),
        replace(SETTINGS, n_local=16, block_size=4),
    ],
    ids=["clipped", "packed", "tokens", "small blocks"],
)
@pytest.mark.parametrize("length", [20, 41, 300])
def test_a_fixed_budget_answers_alike_with_drafts_whatever_the_memory(
    options: str, settings: MemorySettings, length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = make_reader(memory=settings)
    reader.stop_tokens = frozenset()
    memory = prefill(reader, some_tokens(length))
    drafted, plain = both(memory, monkeypatch, **FIXED[options])
    alike(drafted, plain)
    if options == "greedy":
        assert drafted.passes < len(drafted.trace) / 2
        signals = [token.signals for token in drafted.trace]
        assert [list(one) for one in signals] == [list(token.signals) for token in plain.trace]


def test_answers_of_a_batch_have_chains_of_their_own(
    memory: BlockMemory, detector: Detector, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = prefill(memory.reader, some_tokens(200, seed=7))
    asked = [
        Decoding(document, question, K_MAX, policy, Detected(detector), max_new_tokens=LONGEST, drafts=drafts)
        for document, drafts in ((memory, 5), (other, 3), (memory, 0))
        for question in ("Who?", "When was it?")
        for policy in (Sub(2), Set(2))
    ]
    plain = [generate_together([replace(one, drafts=0)])[0] for one in asked]
    for drafted, alone in zip(generate_together(asked), plain, strict=True):
        alike(drafted, alone)
    # The same answers twice share rows.
    twice = generate_together([*asked[:2], *asked[:2]])
    for drafted, alone in zip(twice, [*plain[:2], *plain[:2]], strict=True):
        alike(drafted, alone)


def test_what_a_chain_costs_is_counted(memory: BlockMemory, monkeypatch: pytest.MonkeyPatch) -> None:
    passes: list[int] = []
    forward = Reader.forward
    monkeypatch.setattr(
        Reader, "forward", lambda self, tokens, *more: (passes.append(len(tokens)), forward(self, tokens, *more))[1]
    )
    drafted, plain = both(memory, monkeypatch, budget=4)
    question = 1 + (len(passes) - drafted.passes - plain.passes) // 2 - 1
    assert len(passes) == drafted.passes + plain.passes + 2 * question
    assert plain.passes == len(plain.trace)
    assert sum(passes[-drafted.passes :]) == sum(token.rows for token in drafted.trace)
    cost = sum(token.k for token in drafted.trace) + sum(row.retrieved for row in drafted.rejected)
    assert drafted.mean_selected_with_tentative == 8 * cost / len(drafted.trace)
    assert drafted.mean_selected_tokens == plain.mean_selected_tokens
    assert drafted.rejected
    assert not plain.rejected


def test_drafts_are_for_block_memory(memory: BlockMemory) -> None:
    reading = WindowOnly(budget=64).read(memory.reader, some_tokens(100), 60)
    with pytest.raises(UserError, match="drafts need block memory; set drafts=0"):
        Decoding(reading, "Who?", drafts=3)
    with pytest.raises(UserError, match="drafts and draft_budget must be at least 0"):
        Decoding(memory, "Who?", 4, drafts=-1)


# Guesses by the model


COMPACT: dict[str, dict[str, Any]] = {name: FIXED[name] for name in ("sampled", "a prefix", "all signals")}


@pytest.mark.parametrize("options", [{}, *COMPACT.values()], ids=["greedy", *COMPACT])
@pytest.mark.parametrize(
    "settings",
    [SETTINGS, replace(SETTINGS, far_positions=PACKED), replace(SETTINGS, representatives=TOKENS)],
    ids=["clipped", "packed", "tokens"],
)
@pytest.mark.parametrize("length", [20, 41, 300])
def test_passes_under_few_blocks_guess_what_the_budget_then_verifies(
    options: dict[str, Any], settings: MemorySettings, length: int
) -> None:
    reader = make_reader(memory=settings)
    reader.stop_tokens = frozenset()
    memory = prefill(reader, some_tokens(length))
    options = {**options, "budget": K_MAX, "max_new_tokens": LONGEST}
    plain = generate(memory, "Who?", **options)
    drafted = generate(memory, "Who?", drafts=5, draft_budget=2, **options)
    alike(drafted, plain)
    verifications = sum(token.rows > 0 for token in drafted.trace)
    if length == 20 and options.get("sampling") is None:
        # Few blocks are far, so that both budgets often give the same token.
        assert verifications < len(drafted.trace)
    assert drafted.passes > verifications, "Guessing takes passes of its own."


def test_a_compact_guess_follows_the_guesses_before_it() -> None:
    """The model guesses what it would answer under the compact budget, although nothing is committed in between."""
    reader = make_reader()
    reader.stop_tokens = frozenset()
    memory = prefill(reader, some_tokens(302))
    compact = generate(memory, "Who?", budget=2, max_new_tokens=8)
    state, pieces, tokens = memory.begin(memory.reader.encode_question("Who?"), 8, K_MAX, {})
    for piece, budget in pieces:
        step = state.plan(piece, budget)
        state.run([step])
        state.commit(step)
    guessing = CompactPasses(2, 7, frozenset()).guess(state, tokens)
    try:
        while True:
            state.run(next(guessing))
    except StopIteration as ended:
        answer, steps = ended.value
    assert answer == [token.token for token in compact.trace[: len(answer)]]
    assert len(answer) == min(7, state.longest_chain - 1) > 2
    assert [step.attended for step in steps] == [token.attended for token in compact.trace[: len(answer)]]


def test_compact_guesses_of_a_batch_and_their_cost(memory: BlockMemory) -> None:
    other = prefill(memory.reader, some_tokens(200, seed=7))
    asked = [
        Decoding(document, question, K_MAX, max_new_tokens=LONGEST, drafts=drafts, draft_budget=2 if drafts else 0)
        for document, drafts in ((memory, 5), (other, 3), (memory, 0))
        for question in ("Who?", "When was it?")
    ]
    plain = [generate_together([replace(one, drafts=0, draft_budget=0)])[0] for one in asked]
    for drafted, alone in zip(generate_together(asked), plain, strict=True):
        alike(drafted, alone)
    twice = generate_together([*asked[:2], *asked[:2]])
    for drafted, alone in zip(twice, [*plain[:2], *plain[:2]], strict=True):
        alike(drafted, alone)
    drafted = twice[0]
    rows = sum(token.rows for token in drafted.trace)
    assert rows == len(drafted.trace) + len(drafted.rejected)
    assert {row.retrieved for row in drafted.rejected} == {2, K_MAX}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"draft_budget": 2}, "also set drafts"),
        ({"draft_budget": 4, "drafts": 3}, "draft_budget is 4, but must be less than the budget, 4"),
        ({"draft_budget": -1, "drafts": 3}, "must be at least 0"),
        (
            {"draft_budget": 2, "drafts": 3, "policy": Sub(1), "trigger": Every(2)},
            "draft_budget is only for fixed budgets",
        ),
    ],
)
def test_a_draft_budget_that_makes_no_sense_is_refused(
    memory: BlockMemory, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        Decoding(memory, "Who?", 4, **options)


# What is guessed


def following(tokens: list[int], count: int) -> list[int]:
    """The tokens behind the last place that has most of the last three tokens in common."""
    for length in (3, 2, 1):
        for end in range(len(tokens) - 2, length - 2, -1):
            if tokens[end - length + 1 : end + 1] == tokens[-length:] and len(tokens) > length:
                return tokens[end + 1 : end + 1 + count]
    return []


@settings(max_examples=300, deadline=None)
@given(tokens=st.lists(st.integers(0, 4), min_size=1, max_size=30), count=st.integers(1, 8))
def test_guesses_follow_the_last_place_with_most_in_common(tokens: list[int], count: int) -> None:
    assert PromptLookup._following(np.array(tokens), count) == following(tokens, count)


def test_guessing_stops_where_guesses_are_wrong_and_begins_again_where_they_are_right() -> None:
    document = torch.arange(50).repeat(3)
    together = 1
    lookup = PromptLookup(
        [document, torch.tensor([7, 8])], most=7, longest=400, row_cost=0.1, together=lambda: together
    )
    assert lookup.guesses()[:2] == [9, 10]
    generator = np.random.default_rng(0)
    for token in generator.integers(0, 50, 60):
        lookup.add(int(token))
    assert lookup.guesses() == []
    for token in range(40):
        lookup.add(token)
    assert lookup.guesses() == [40, 41, 42, 43, 44, 45, 46]
    assert lookup.guesses(also=3) == [3, 4, 5, 6, 7, 8, 9]


def test_answers_that_share_passes_guess_less() -> None:
    together = 1
    known = [torch.arange(50).repeat(3), torch.tensor([7, 8])]
    lookup = PromptLookup(known, most=7, longest=400, row_cost=0.1, together=lambda: together)
    alone = len(lookup.guesses())
    together = 16
    assert 0 <= len(lookup.guesses()) < alone
    dear = PromptLookup(known, most=7, longest=400, row_cost=0.4, together=lambda: 1)
    assert 0 < len(dear.guesses()) < alone, "of a reader whose rows cost more"
