"""Budgets that are shares of the document's blocks: what they mean, and that they decode as the number does."""

import re
from dataclasses import replace
from decimal import ROUND_FLOOR, Decimal
from pathlib import Path
from typing import Any

import pytest
import torch
from configs import point
from hypothesis import given
from hypothesis import strategies as st
from small import SETTINGS, contents, make_reader, some_tokens
from test_trajectories import asked, decoded, documents

import utaca
from utaca.decoding.options import Decoding
from utaca.errors import UserError
from utaca.memory import BlockMemory, prefill
from utaca.memory.saved import SavedDocuments, path_of
from utaca.methods import build
from utaca.methods.infllm import InfLLM
from utaca.methods.window import WindowOnly
from utaca.readers.load import Reader
from utaca.records.journal import Journal
from utaca.settings.budgets import checked, in_order, in_words, resolve
from utaca.settings.schema import OWN
from utaca.trace import Generation

MALFORMED = [
    "0%",
    "0.0%",
    "100.1%",
    "120%",
    "-5%",
    "5 %",
    " 5%",
    "5%\n",
    "05%",
    ".5%",
    "5.%",
    "%",
    "",
    "5",
    "a%",
    "5%%",
]
QUESTION = "Who was it?"
LENGTH = 221


@pytest.fixture(scope="module")
def reader() -> Reader:
    return make_reader()


@pytest.fixture(scope="module")
def memory(reader: Reader) -> BlockMemory:
    return prefill(reader, some_tokens(LENGTH))


def blocks_of(length: int) -> int:
    """Whole blocks of a document, counted one by one."""
    count = 0
    end = SETTINGS.n_init + SETTINGS.block_size
    while end <= length:
        count += 1
        end += SETTINGS.block_size
    return count


def answer(memory: BlockMemory, **options: Any) -> Generation:
    return utaca.generate(memory, QUESTION, max_new_tokens=12, **options)


def decodes(generation: Generation) -> list[tuple[Any, ...]]:
    """All that a budget decides about each token, to the last bit."""
    tokens = []
    for token in generation.trace:
        first = token.tentative.k if token.tentative else None
        tokens.append((token.token, token.k, first, token.logprob, token.blocks, token.probe and token.probe.token))
    return tokens


# What a share means


@given(hundredths=st.integers(1, 10_000), blocks=st.integers(0, 10**6))
def test_a_share_is_rounded_down_to_whole_blocks(hundredths: int, blocks: int) -> None:
    text = str(Decimal(hundredths) / 100)
    exact = Decimal(hundredths) * blocks / 10_000
    wanted = max(1, int(exact.to_integral_value(ROUND_FLOOR)))
    assert resolve(f"{text}%", blocks) == wanted
    assert 1 <= wanted <= max(1, blocks)


def test_shares_are_exact() -> None:
    # In floating point 0.07 * 100 is above 7 and 0.29 * 100 below 29.
    assert [resolve(f"{percent}%", 100) for percent in range(1, 101)] == list(range(1, 101))
    assert [resolve("7%", blocks) for blocks in (0, 1, 14, 15, 28, 29)] == [1, 1, 1, 1, 1, 2]
    assert resolve(8, 0) == resolve(torch.tensor(8), 3) == 8


@pytest.mark.parametrize("text", MALFORMED)
def test_what_is_no_share_is_refused_in_a_sentence(text: str, memory: BlockMemory) -> None:
    for use in (
        lambda: resolve(text, 100),
        lambda: checked(text),
        lambda: utaca.generate(memory, QUESTION, budget=text),
        lambda: utaca.score(memory, QUESTION, "Eve", budget=text),
        lambda: utaca.custom_generate(budget=text),
    ):
        with pytest.raises(UserError, match=r"^budget must be a whole number, or a share of") as raised:
            use()
        assert repr(text) in str(raised.value)
    with pytest.raises(UserError, match=r"^expanded must be a whole number, or a share"):
        utaca.generate(memory, QUESTION, budget=2, expanded=text)


def test_numbers_stay_numbers() -> None:
    assert checked(8) == 8
    for wrong in (0, -1):
        with pytest.raises(UserError, match=f"budget must be at least 1, not {wrong}"):
            checked(wrong)
    for kind in (True, 1.5, None, [5]):
        with pytest.raises(UserError, match="budget must be a whole number"):
            checked(kind)


def test_budgets_have_an_order_and_words() -> None:
    budgets = ["12%", 64, "2.5%", 8, "100%", "9%"]
    assert sorted(budgets, key=in_order) == [8, 64, "2.5%", "9%", "12%", "100%"]
    assert [in_words(budget) for budget in (8, "5%")] == ["8 blocks", "5% of the document's blocks"]


# Decoding


def test_tokens_are_those_under_the_number(memory: BlockMemory) -> None:
    number = blocks_of(LENGTH) // 4
    assert number == 6
    assert memory.blocks == blocks_of(LENGTH)
    share, whole, other = (answer(memory, budget=each) for each in ("25%", number, 2))
    assert decodes(share) == decodes(whole) != decodes(other)
    assert {token.k for token in share.trace} == {number}
    assert Decoding(memory, QUESTION, "25%").budget == number


@pytest.mark.parametrize("trigger", [utaca.Margin(0.8), utaca.Every(3), utaca.Agreement()], ids=str)
def test_a_share_may_be_k_max(memory: BlockMemory, trigger: utaca.Trigger) -> None:
    options = {"policy": utaca.Sub(3), "trigger": trigger, "drafts": 3}
    share, whole = (answer(memory, budget=each, **options) for each in ("37.5%", 10))
    assert decodes(share) == decodes(whole)
    assert share.rollbacks


def test_compared_and_guessing_budgets_may_be_shares(memory: BlockMemory) -> None:
    # Of 27 blocks: 8 %, 25 % and 50 % are 2, 6 and 13.
    for shares, numbers in (
        ({"budget": "8%", "expanded": "50%"}, {"budget": 2, "expanded": 13}),
        ({"budget": "25%", "drafts": 3, "draft_budget": "8%"}, {"budget": 6, "drafts": 3, "draft_budget": 2}),
    ):
        first, second = (answer(memory, **options) for options in (shares, numbers))
        assert decodes(first) == decodes(second)
        assert first.passes == second.passes
    with pytest.raises(UserError, match="draft_budget is 6, but must be less than the budget, 2"):
        utaca.generate(memory, QUESTION, budget="8%", drafts=3, draft_budget="25%")


def test_each_document_has_its_own_number(reader: Reader) -> None:
    for length in (10, 60, 100, 400):
        memory = prefill(reader, some_tokens(length))
        number = max(1, blocks_of(length) // 5)
        assert Decoding(memory, QUESTION, "20%").budgets == [number]
        batch = [Decoding(memory, QUESTION, budget, max_new_tokens=4) for budget in ("20%", number)]
        first, second = utaca.generate_together(batch)
        assert decodes(first) == decodes(second)


def test_scores_are_those_under_the_number(memory: BlockMemory) -> None:
    share, whole = (utaca.score(memory, QUESTION, "It is Eve.", budget=each) for each in ("25%", 6))
    assert share.budget == whole.budget == 6
    assert [token.logprob for token in share.tokens] == [token.logprob for token in whole.tokens]


def test_a_method_without_blocks_takes_a_share_of_tokens(reader: Reader) -> None:
    reading = WindowOnly(budget=50).read(reader, some_tokens(100), 60)
    assert reading.blocks == 100
    assert Decoding(reading, QUESTION, "50%").budgets == [50]
    with pytest.raises(UserError, match="keeps the budget that it read the document with"):
        Decoding(reading, QUESTION, "51%")


def test_methods_without_blocks_take_no_share(reader: Reader) -> None:
    for make, said in (
        (lambda: build("window", {"budget": "5%"}), "methods.window.budget must be a whole number, not '5%'"),
        (
            lambda: build("utaca", {"budget": "5%", "base": build("tokenselect", {})}),
            "tokenselect has no blocks, so its budget is no",
        ),
        (lambda: build("infllm", {"budget": "0%"}), "methods.infllm.budget is '0%' but must be a whole number of at"),
        (lambda: InfLLM("120%"), "budget must be a whole number, or a share of the document's blocks"),
        (lambda: InfLLM(0), "budget must be at least 1"),
    ):
        with pytest.raises(UserError, match=re.escape(said)):
            make()
    assert build("infllm", {"budget": "5%"}).budget == InfLLM("5%").budget == "5%"


def test_a_document_is_read_under_its_number(tmp_path: Path) -> None:
    reader = make_reader(memory=replace(SETTINGS, prefill_budget=OWN))
    tokens = some_tokens(LENGTH)
    share, whole, other = (prefill(reader, tokens, budget=each) for each in ("25%", 6, 1))
    for a, b in zip(contents(share), contents(whole), strict=True):
        assert torch.equal(a, b)
    assert any(not torch.equal(a, b) for a, b in zip(contents(share), contents(other), strict=True))
    assert share.settings.prefill_budget == 6
    # In a cache they are one document.
    assert path_of(tmp_path, reader, tokens, "25%") == path_of(tmp_path, reader, tokens, 6)
    saved = SavedDocuments(tmp_path)
    assert not saved.read(reader, tokens, "25%").found
    assert saved.read(reader, tokens, 6).found


# Operating points


@pytest.mark.parametrize("together", [True, False])
def test_points_decode_as_the_number_and_say_both(reader: Reader, tmp_path: Path, together: bool) -> None:
    questions = asked(reader, documents(2))
    blocks = {len(reader.document(one.text)): blocks_of(len(reader.document(one.text))) for one in questions}
    adaptive = {"method": "utaca", "policy": "sub.1", "trigger": "every.2"}
    points = [
        point("infllm", "10%", name="share"),
        point(budget="50%", **adaptive, name="wide"),
        point("top_p", "10%", "top_p.0.9", name="top"),
    ]
    found = decoded(reader, questions, points, Journal(tmp_path / "journal", "x"), together=together)
    for label, percent in (("share", 10), ("wide", 50), ("top", 10)):
        rows = found.answers[label].to_pylist()
        assert {row["share"] for row in rows} == {f"{percent}%"}
        for row in rows:
            number = max(1, percent * blocks[row["n_context"]] // 100)
            assert row["budget"] == number
            traced = [step for step in found.traces[label].to_pylist() if step["document"] == row["document"]]
            assert max(step["k"] for step in traced) <= number
    # One document of a number, which is that of the first document's share.
    row = found.answers["share"].to_pylist()[0]
    number = point("infllm", row["budget"], name="number")
    whole = decoded(reader, questions[:1], [number], Journal(tmp_path / "other", "x"), together=together)
    other = whole.answers["number"].to_pylist()[0]
    assert (other["text"], other["budget"], other["share"]) == (row["text"], row["budget"], "")
    # A journal gives the same rows again.
    again = decoded(reader, questions, points, Journal(tmp_path / "journal", "x"), together=together)
    tables = [given.answers["wide"].drop_columns(["decode_seconds"]) for given in (again, found)]
    assert tables[0].equals(tables[1])
