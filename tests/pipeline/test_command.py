"""The command ``utaca``: what a user types, and what comes back."""

from __future__ import annotations

from typing import Any

import pytest

import utaca
from utaca.app.answering import BUDGETS, choose
from utaca.readers.load import Reader

DOCUMENT = " ".join(
    [
        "Emma Thompson was born on May 3, 1959.",
        *["The sea was calm and the town slept."] * 120,
        "Emma Thompson studied at Harvard University.",
        *["The sea was calm and the town slept."] * 120,
    ]
)
QUESTION = "Summarize the birth date and university of Emma Thompson."


@pytest.fixture(scope="module")
def reader() -> Reader:
    return utaca.load_reader("tiny")


@pytest.fixture(scope="module")
def memory(reader: Reader) -> Any:
    return utaca.prefill(reader, DOCUMENT)


@pytest.mark.parametrize(
    ("trigger", "expected"),
    [
        ("agreement", utaca.Agreement()),
        ("agreement.2", utaca.Agreement(2)),
        ("every.3", utaca.Every(3)),
    ],
)
def test_a_trigger_comes_with_the_proportion_of_the_papers_policy(
    reader: Reader, trigger: str, expected: utaca.Trigger
) -> None:
    choice = choose(reader, trigger=trigger)
    most = BUDGETS["tiny"]
    assert choice.options == {
        "trigger": expected, "budget": most,
        "max_new_tokens": reader.settings.max_new_tokens, "policy": utaca.Sub(most // 4),
    }  # fmt: skip


def test_never_is_a_fixed_budget(reader: Reader, memory: Any) -> None:
    choice = choose(reader, trigger="never", budget=3, max_new_tokens=5)
    assert choice.options == {"budget": 3, "max_new_tokens": 5}
    answer = utaca.generate(memory, QUESTION, **choice.options)
    assert {token.k for token in answer.trace} == {3}


def test_a_margin_expands_the_tokens_below_its_threshold(reader: Reader, memory: Any) -> None:
    always, never = (
        utaca.generate(memory, QUESTION, **choose(reader, trigger=f"margin.{threshold}", policy="set.1").options)
        for threshold in ("1000", "0")
    )
    assert all(token.k == BUDGETS["tiny"] for token in always.trace)
    assert [token.k for token in never.trace[1:]] == [1] * (len(never.trace) - 1)
    assert never.rollbacks == 0
    some = utaca.generate(memory, QUESTION, **choose(reader, trigger="margin.9", policy="set.1").options)
    assert all(token.margin >= 9 for token in some.trace if token.k == 1)
    assert all(token.tentative.margin < 9 for token in some.trace if token.rolled_back)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"budget": 0}, "budget must be at least 1, not 0"),
        ({"budget": "8"}, "budget must be a whole number, not '8'"),
        ({"max_new_tokens": -1}, "max_new_tokens must be at least 1, not -1"),
        ({"policy": "sub"}, "write set.N or sub.N"),
        ({"policy": 3, "trigger": "margin"}, "policy must be a text, as sub.8 or set.2, not 3"),
        ({"trigger": 3}, "trigger must be a text, as margin, not 3"),
        ({"trigger": "oracle"}, "there is no trigger 'oracle' for reader tiny; choose among "),
        ({"trigger": "none.safetensors"}, "none.safetensors does not exist"),
        ({"trigger": "agreement.8"}, "tries 8 blocks, but must try fewer than the budget, 8"),
    ],
)
def test_a_bad_choice_is_named_in_a_sentence(reader: Reader, options: dict[str, Any], message: str) -> None:
    with pytest.raises(utaca.UserError, match=message):
        choose(reader, **options)
