"""Adaptive decoding against a plain restatement of the paper's algorithm 1."""

import gc
import re
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small import full_attention, make_reader, ran, some_tokens
from tokenizers import Tokenizer, decoders, models
from torch import Tensor
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from utaca.decoding.loop import Batch, generate, generate_together, stream
from utaca.decoding.options import Decoding, Sampling
from utaca.decoding.policies import Policy, Set, Sub, parse
from utaca.decoding.triggers import Agreement, Detected, Every, Margin, Replayed, Trigger
from utaca.detection.detector import Detector
from utaca.detection.signal import Seen
from utaca.detection.signals import SIGNALS
from utaca.detection.signals.retrieval import diffuseness
from utaca.errors import UserError
from utaca.memory import Branch, prefill
from utaca.methods.window import WindowOnly
from utaca.readers.load import Reader
from utaca.readers.tokenizer import Pieces
from utaca.sentences import completed
from utaca.settings import schema
from utaca.settings.schema import MemorySettings
from utaca.trace import Generation, NotFiniteError, Token

BUDGET = 12


class Count(NamedTuple):
    seen: int


class Scripted:
    """A detector that distrusts by a rule on the margin and on how many committed tokens it has seen."""

    settings = schema.DetectorSettings()

    def check(self, reader: Reader) -> None:
        """It judges the tokens of any reader."""

    def to(self, device: torch.device) -> Self:
        return self

    def distrusts(self, p: torch.Tensor) -> torch.Tensor:
        return p[..., 0] > p[..., 1]

    def initial_state(self, batch: int) -> Count:
        return Count(0)

    def step(self, margin: torch.Tensor, embedding: torch.Tensor, state: Count) -> tuple[torch.Tensor, Count]:
        distrust = (int(margin.item() * 1000) + state.seen) % 3 == 0
        return torch.tensor([[0.9, 0.1, 0.0] if distrust else [0.1, 0.9, 0.0]]), Count(state.seen + 1)


@pytest.fixture(scope="module")
def memory():
    return prefill(make_reader(), some_tokens(300))


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[torch.Size]:
    """Rows and tokens of the passes of the model."""
    shapes, forward = [], Reader.forward
    monkeypatch.setattr(Reader, "forward", lambda self, *a: (shapes.append(a[0].shape), forward(self, *a))[1])
    return shapes


def tokens_of(found: Generation) -> list[tuple[int, int, bool]]:
    return [(t.token, t.k, t.rolled_back) for t in found.trace]


def logits_after(memory, accepted: Sequence[tuple[int, int]], k: int) -> Tensor:
    """Logits [V] under budget ``k`` behind an answer's tokens, each with its own budget, replayed from scratch."""
    prompt = memory.reader.encode_question("Who?")
    branch, token = Branch(memory, 400), prompt[-1:]
    branch.commit(ran(branch, prompt[:-1], memory.settings.prefill_budget))
    for earlier, budget in accepted:
        branch.commit(ran(branch, token, budget))
        token = torch.tensor([earlier])
    return memory.reader.logits(ran(branch, token, k).hidden[-1])


def distrusted(number: int, k: int, at: Callable[[int], Tensor]) -> bool:
    best = at(k).topk(2).values
    return (int((best[0] - best[1]).item() * 1000) + number) % 3 == 0


RULES = {
    "detected": (Detected(Scripted()), distrusted),
    "agreement": (Agreement(), lambda number, k, at: at(k).argmax() != at(BUDGET).argmax()),
    "agreement.3": (Agreement(np.int64(3)), lambda number, k, at: k != 3 and at(k).argmax() != at(3).argmax()),
    "every.1": (Every(1), lambda number, k, at: True),
    "every.4": (Every(4), lambda number, k, at: number % 4 == 0),
    "never": (Every(0), lambda number, k, at: False),
}
"""Triggers, and whether they expand the token of a number and a budget below K_max, by the logits under any budget."""


@pytest.mark.parametrize(
    ("rule", "policy"),
    [
        *(("detected", policy) for policy in (Set(1), Set(np.int64(4)), Sub(1), Sub(5))),
        *(("agreement", policy) for policy in (Set(1), Sub(5))),
        *((rule, Sub(5)) for rule in ("agreement.3", "every.1", "every.4", "never")),
    ],
)
def test_adaptive_decoding_is_algorithm_1(memory, passes, rule: str, policy: Policy) -> None:
    trigger, expands = RULES[rule]
    found = generate(memory, "Who?", budget=BUDGET, policy=policy, trigger=trigger, max_new_tokens=25)
    # An expansion to the budget that was tried beside has no pass of its own.
    assert len(passes) == 1 + len(found.trace) + (found.rollbacks if rule != "agreement" else 0)
    k, accepted, tried = BUDGET, [], []
    for number, token in enumerate(found.trace):

        def at(budget: int) -> Tensor:
            return logits_after(memory, accepted, budget)

        other = trigger.second_budget(k, BUDGET) if k < BUDGET else 0
        back = k < BUDGET and bool(expands(number, k, at))
        tried.append(sum({k, other, BUDGET if back else 0}))
        assert (token.rolled_back, token.intervened) == (back, False)
        assert (token.gdm is None) == (rule != "detected")
        assert (token.probe.k if token.probe else 0) == (other if other != BUDGET or not back else 0)
        k = BUDGET if back else k
        accepted.append((int(at(k).argmax()), k))
        assert (token.token, token.k) == accepted[-1]
        k = k if back else policy.update(k, BUDGET, None)
        for one in filter(None, (token, token.tentative, token.probe)):
            assert one.token == one.top_tokens[0]
            assert one.margin == one.signals["margin"] == pytest.approx(one.top_logits[0] - one.top_logits[1])
            assert one.scores.shape == one.selected.shape == (3, one.k)
            # 4 initial tokens, the blocks, a window of 24 to 31 tokens.
            assert 28 <= one.attended - one.k * 8 <= 35
    assert rule in ("every.1", "never") or 0 < found.rollbacks < len(found.trace)
    assert found.mean_selected_tokens == sum(budget for _, budget in accepted) * 8 / len(accepted)
    assert found.mean_selected_with_tentative == pytest.approx(sum(tried) * 8 / len(tried))


TEXTS = {
    "": 0,
    "The hobby of Ann is chess": 0,
    "The hobby of Ann is chess.": 0,
    "The hobby of Ann is chess. ": 0,
    "The hobby of Ann is chess. T": 0,
    "The hobby of Ann is chess. The": 1,
    "The hobby of Ann is chess. Theo": 0,
    "The employer of Ann is Ivory Sand Co. Ltd": 0,
    "The hobbies of Ann are:\nchess": 0,
    "The hobby of Ann is chess.\n": 1,
    "The hobby of Ann is chess\n\n": 1,
    "\n\nThe hobby of Ann is chess": 0,
    "Dr. Ann lives in St. Louis, and J. Smith, too": 0,
    "She won 3.5 million. He won 2. Then": 1,
    "One here.\nTwo here.\nThree here. Four": 2,
}


@pytest.mark.parametrize("text", TEXTS)
def test_sentences_that_are_complete(text: str) -> None:
    assert completed(text) == TEXTS[text]


@pytest.mark.parametrize("drafts", [0, 4])
@pytest.mark.parametrize("text", ["It is one. It is two. It is three.", "It is one.\nIt is two.\n\nIt is three"])
def test_an_answer_ends_after_as_many_sentences_as_were_asked_for(
    memory, text: str, drafts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The token that begins a further sentence is no part of the answer, but its pass was run."""
    pieces = re.findall(r"\s*\S+", text)
    reader = memory.reader
    monkeypatch.setattr(reader, "stop_tokens", frozenset())
    plain = generate(memory, "Who?", budget=4, max_new_tokens=40)
    monkeypatch.setattr(
        Pieces, "add", lambda self, token: (self._ids.append(token), (pieces * 9)[len(self._ids) - 1])[1]
    )
    found = generate(memory, "Who?", budget=4, max_new_tokens=40, most_sentences=2, drafts=drafts)
    assert found.finish == "sentences"
    assert re.sub(r"\s+", " ", found.text.strip()) == "It is one. It is two."
    n = len(found.trace)
    assert [token.token for token in found.trace] == [token.token for token in plain.trace[:n]]
    everything = generate(memory, "Who?", budget=4, max_new_tokens=40)
    assert everything.finish == "length"
    streamed = [token.text for token in stream(memory, "Who?", budget=4, max_new_tokens=40, most_sentences=2)]
    assert "".join(streamed) == found.text


@pytest.mark.parametrize("form", ["text", "ids"])
def test_an_answer_goes_on_from_its_prefix(form: str) -> None:
    """Under a budget of everything and a window as long as the document it is full attention, greedy."""
    reader = make_reader(memory=MemorySettings(n_init=4, n_local=400, block_size=8, prefill_chunk=16))
    document = some_tokens(60)
    ids = reader.encode_question("Who?")
    question = "Who?" if form == "text" else tuple(ids.tolist())
    found = generate(prefill(reader, document), question, budget=1, prefix=" Answer:", max_new_tokens=12)
    tokens = torch.cat((document, ids, reader.encode(" Answer:")))
    for token in found.trace:
        assert token.token == full_attention(reader, tokens)[-1].argmax()
        tokens = torch.cat((tokens, torch.tensor([token.token])))
    assert found.text == reader.tokenizer.decode([token.token for token in found.trace])


LINEAR = {"kind": "linear", "signals": [], "lstm": False, "classes": 2}


@pytest.mark.parametrize("kind", [{}, {"signals": [], "lstm": False}, LINEAR])
def test_a_detector_judges_both_passes_from_the_same_state(memory, kind: dict[str, Any]) -> None:
    torch.manual_seed(0)
    detector = Detector(schema.DetectorSettings(**kind), memory.reader.width).eval()
    # It trusts every token, so that the fourth is below K_max.
    detector.head.bias.data[1] += 2
    trigger = Replayed(Detected(detector), {3: True})
    found = generate(memory, "Who?", budget=9, policy=Sub(3), trigger=trigger, max_new_tokens=12)
    assert found.trace[3].rolled_back
    state = detector.initial_state(1)
    for token in found.trace:
        # The rejected pass leaves no trace in the detector either.
        (tried, _), (_, state) = (
            detector.step(
                torch.tensor([[one.margin]])[:, : len(detector.settings.signals)],
                one.embeddings["attention"][None],
                state,
            )
            for one in (token.tentative or token, token)
        )
        assert torch.tensor(token.gdm).allclose(tried[0], atol=1e-5)


def test_margin_and_sites() -> None:
    tokens = some_tokens(100)
    reader, seen = make_reader(), {}
    last = reader.model.model.layers[-1]
    last.self_attn.register_forward_hook(lambda m, i, o: seen.update(attention=o[0][0, -1]))
    last.mlp.register_forward_hook(lambda m, i, o: seen.update(mlp=o[0, -1]))
    last.register_forward_hook(lambda m, i, o: seen.update(residual=o[0, -1]))
    memory = prefill(reader, tokens[:99])
    assert all(x.untyped_storage().nbytes() == x.nbytes for x in reader.embeddings().values()), "of last rows alone"
    step = ran(Branch(memory, 1), tokens[99:], 3)
    assert all(torch.equal(step.embeddings[site], seen[site]) for site in schema.SITES)


def test_retrieval_signal_is_the_entropy_of_all_far_blocks() -> None:
    tokens, reader = some_tokens(140), make_reader()
    memory = prefill(reader, tokens[:139])
    step = ran(Branch(memory, 1, captures={"retrieval": diffuseness}), tokens[139:], 2)
    everything = ran(Branch(memory, 1), tokens[139:], 10**6)
    heads, width = 4, 16
    # The queries of the first layer do not depend on the budget, those of the others do.
    p = (everything.scores[0] / (heads * width**0.5)).softmax(0)
    expected = -(p * p.log()).sum() / torch.tensor(float(memory.layout.n_far(139))).log()
    torch.testing.assert_close(step.captured["retrieval"][0], expected)
    value = SIGNALS["retrieval"].value(Seen(torch.zeros(10), step.hidden[0], step.captured["retrieval"]))
    torch.testing.assert_close(value, step.captured["retrieval"].mean())
    # Blocks that are not far score -inf and have no part in it; one far block stands out from none.
    scores = torch.tensor([[1.0, 2.0, 3.0, -torch.inf]])
    torch.testing.assert_close(diffuseness(scores, torch.tensor([3]), 1.0), diffuseness(scores[:, :3], 3, 1.0))
    assert diffuseness(scores[:, :1], 1, 1.0).tolist() == [0.0]


def test_every_token_is_tried_under_the_expanded_budget_too(memory, passes) -> None:
    plain = generate(memory, "Who?", budget=1, max_new_tokens=10).trace
    passes.clear()
    found = generate(memory, "Who?", budget=1, max_new_tokens=10, expanded=9, measured=True).trace
    assert len(passes) == 1 + len(found)
    assert [t.token for t in found] == [t.token for t in plain]
    assert any(t.probe.token != t.token for t in found)
    for number, token in enumerate(found):
        # The compact answer up to here, then one step under the expanded budget.
        replayed = generate(memory, "Who?", budget=[1] * number + [9], max_new_tokens=number + 1).trace[-1]
        assert (token.probe.token, token.probe.k) == (replayed.token, 9)
        assert token.probe.logprob == pytest.approx(replayed.logprob, abs=1e-4)
        assert 0 < token.signals["retrieval"] < 1


@pytest.mark.parametrize(
    "options",
    [
        {"measured": True},
        {"policy": Set(2), "trigger": Detected(Scripted())},
        {"policy": Set(2), "trigger": Agreement()},
    ],
)
def test_an_answer_leaves_nothing_that_holds_its_document(options: dict[str, Any]) -> None:
    """A document that only a search for rings would free stays: such searches are rare in a large process."""
    gc.disable()
    try:
        read = prefill(make_reader(), some_tokens(300))
        generate_together([Decoding(read, "Who?", budget, max_new_tokens=8, **options) for budget in (2, BUDGET)])
        next(stream(read, "Who?", budget=2, max_new_tokens=8))
        held = weakref.ref(read)
        del read
        assert held() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("each", [list, tuple, torch.tensor, np.array])
def test_a_budget_for_every_step_replays_a_trace(memory, each: Callable[[list[int]], Any]) -> None:
    adaptive = generate(memory, "Who?", budget=BUDGET, policy=Sub(3), trigger=Detected(Scripted()), max_new_tokens=25)
    replayed = generate(memory, "Who?", budget=each([t.k for t in adaptive.trace]), max_new_tokens=25)
    assert [(t.token, t.k, t.margin) for t in replayed.trace] == [(t.token, t.k, t.margin) for t in adaptive.trace]
    assert [t.k for t in generate(memory, "Who?", budget=each([5, 2]), max_new_tokens=4).trace] == [5, 2, 2, 2]
    assert [t.k for t in generate(memory, "Who?", budget=each([5, 2])[-1], max_new_tokens=2).trace] == [2, 2]


def test_the_same_answer_several_times_takes_the_rows_of_one(memory, passes) -> None:
    one = Decoding(memory, "Who?", BUDGET, Set(2), Detected(Scripted()), max_new_tokens=20)
    (alone,), (first, *others) = generate_together([one]), generate_together([one] * 8)
    assert sum(rows for rows, _ in passes) == 2 * (1 + len(alone.trace) + alone.rollbacks)
    for copy in (first, *others):
        assert tokens_of(copy) == tokens_of(alone)
        assert [token.margin for token in copy.trace] == [token.margin for token in alone.trace]


class Giving(Policy):
    """Gives the budgets that it is made with."""

    def __init__(self, update: float, expand: float) -> None:
        self.given = update, expand

    def update(self, k: int, k_max: int, token: Token | None) -> int:
        return self.given[0]

    def expand(self, k: int, k_max: int, token: Token | None) -> int:
        return self.given[1]


EXPANDED = {"budget": 8, "trigger": Replayed(Every(0), {2: True})}


def answered(**options: Any) -> Callable[[Any], Generation]:
    """Answers from a memory under these options."""
    return lambda memory: generate(memory, **({"question": "Who?", "budget": 2} | options))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (answered(budget=True), "budget must be a whole number, not True"),
        (answered(budget=[2, 1.5]), "budget must be a whole number, not 1.5"),
        (answered(budget=0), "at least 1"),
        (answered(budget=None), "block memory needs a budget in blocks"),
        (answered(max_new_tokens=8.0), "max_new_tokens must be a whole number, not 8.0"),
        (answered(max_new_tokens=10**12), "the answer's keys and values need .*; lower max_new_tokens, or shorten the"),
        (answered(expanded=9, policy=Set(1), trigger=Every(2)), "expanded is only for fixed budgets"),
        (
            answered(budget=[3, 2], policy=Set(1), trigger=Every(2)),
            "a list of budgets cannot be combined with a policy",
        ),
        (answered(policy=Set(1)), "needs a policy and a trigger"),
        (answered(trigger="every.2", policy=Sub(1)), r"trigger must be a utaca\.Trigger such as utaca\.Detected"),
        (answered(question=["Who?"]), "question must be a string"),
        (answered(question=(5, 97)), "the question has token id 97, but the reader's vocabulary has 97 entries"),
        (
            answered(budget=8, policy=Sub(1), trigger=Agreement(9)),
            "trigger Agreement.* returned the budget 9, .* 0 to 8",
        ),
        *((answered(policy=Giving(update, 8), **EXPANDED), "from 1 to 8") for update in (0, 9)),
        *((answered(policy=Giving(2, expand), **EXPANDED), "from 3 to 8") for expand in (2, 9)),
        *(
            (lambda memory, x=x: Margin(x), r"a threshold in logits, such as utaca\.Margin\(2\.5\)")
            for x in ("7", np.nan)
        ),
        (lambda memory: Agreement(-2), "has a negative number"),
        (lambda memory: Replayed(Every(0), [3]), "Replayed needs a trigger, and a mapping of steps to decisions"),
        (lambda memory: Replayed(Every(0), {"3": True}), "a step of Replayed must be a whole number, not '3'"),
        (lambda memory: Detected("model.safetensors"), r"load one with utaca\.load_detector\(path\)"),
        (lambda memory: Sub("16"), "must be"),
        (lambda memory: parse("sub.0"), r"set\.N or sub\.N"),
        (lambda memory: Sampling(0.7, seed=2**64), r"sampling: seed must be at least -2\*\*63 and below 2\*\*64"),
        (lambda memory: Sampling("0.7"), r"sampling: temperature and top_p must be numbers, such as utaca\.Sampling\("),
        (lambda memory: Sampling(temperature=0.0), "sampling: temperature must be above 0"),
        (lambda memory: Sampling(top_p=1.1), "sampling: top_p must be above 0 and at most 1"),
        (lambda memory: prefill("tiny", "a document"), "the first argument must be a reader"),
        (lambda memory: generate(memory.reader, "Who?", budget=2), r"was read, such as utaca\.prefill"),
        *(
            (lambda memory, x=x: generate_together(x), r"a list with at least one utaca\.Decoding")
            for x in ([], iter([]), 3)
        ),
        (
            lambda memory: generate_together([Decoding(x, "Who?", 3) for x in (memory, replace(memory, reader=1))]),
            "answers of different readers",
        ),
    ],
)
def test_what_cannot_be_is_one_sentence(memory, make: Callable[[Any], Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        make(memory)


def test_policies() -> None:
    assert [parse("sub.16").update(k, 64, None) for k in (64, 17, 16, 1)] == [48, 1, 1, 1]
    assert [parse("set.3").update(k, 2, None) for k in (2, 1)] == [2, 2]


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda memory: Trigger().expands(2, 8, None), "Trigger must have a method expands"),
        (lambda memory: generate(memory, "Who?", budget=8, policy=Policy(), trigger=Every(2)), "have a method update"),
        (lambda memory: WindowOnly().state(None, 1, 9), "a cache cannot go back"),
        (lambda memory: memory.reader.rotary.at(range(9000), torch.float32), "reserved; call reserve first"),
        (lambda memory: ran(Branch(memory, 1), some_tokens(2), 3), "has room for 1 more tokens, not for 2"),
    ],
)
def test_what_only_a_program_can_do_wrong_is_no_sentence_for_users(memory, wrong, words: str) -> None:
    with pytest.raises((IndexError, TypeError, ValueError), match=words):
        wrong(memory)


def test_interventions_replace_the_detectors_decision(memory) -> None:
    options = {"budget": BUDGET, "policy": Set(2), "max_new_tokens": 25}
    found = generate(memory, "Who?", trigger=Detected(Scripted()), **options)
    at = next(i for i, t in enumerate(found.trace) if t.rolled_back)
    without = generate(memory, "Who?", trigger=Replayed(Detected(Scripted()), {at: False}), **options)
    assert tokens_of(without)[:at] == tokens_of(found)[:at]
    kept = without.trace[at]
    assert (kept.token, kept.k, kept.rolled_back, kept.intervened) == (found.trace[at].tentative.token, 2, False, True)
    assert kept.gdm == found.trace[at].gdm


def test_rollbacks_count_as_effective_where_the_blocks_are_others(memory) -> None:
    # Three blocks are far at first, and more once the answer has made some.
    short = prefill(memory.reader, some_tokens(50))
    forced = {1: True, 3: True, 20: True}
    found = generate(short, "Who?", budget=BUDGET, policy=Set(3), trigger=Replayed(Every(0), forced), max_new_tokens=25)
    for token in found.trace:
        if token.rolled_back:
            assert token.effective == (token.tentative.selected.tolist() != token.selected.tolist())
    assert 0 < found.effective_rollbacks < found.rollbacks


def test_a_sealed_memory_keeps_the_settings_it_was_read_with() -> None:
    reader = make_reader()
    document = prefill(reader, some_tokens(300))
    before = generate(document, "Who?", budget=3, max_new_tokens=5)
    reader.settings = replace(reader.settings, memory=schema.MemorySettings(block_size=4, n_init=1, n_local=9))
    assert tokens_of(generate(document, "Who?", budget=3, max_new_tokens=5)) == tokens_of(before)


def test_answers_join_and_leave_a_batch_between_passes_and_read_a_question_once(memory, passes) -> None:
    other = prefill(memory.reader, some_tokens(90, 5))
    wanted = [
        Decoding(memory, "Who?", BUDGET, Sub(4), Detected(Scripted()), max_new_tokens=20),
        Decoding(memory, "Who?", BUDGET, Set(2), Agreement(), max_new_tokens=12),
        Decoding(other, "Who is it?", 2, max_new_tokens=11),
        Decoding(memory, "Who is it?", 1, max_new_tokens=14),
        Decoding(memory, "Who?", 3, max_new_tokens=30),
    ]
    apart = [generate_together([one])[0] for one in wanted]
    passes.clear()
    batch = Batch()
    first = batch.add(wanted[0])
    seen = {first: []}
    while batch:
        for answer, token in batch.step():
            seen[answer].append(token)
        if len(seen[first]) == 5 and len(seen) == 1:
            seen |= {batch.add(decoding): [] for decoding in wanted[1:]}
            last = [*seen][-1]
            assert len(batch) == len(wanted)
        if len(seen) > 1 and len(seen[last]) == 4:
            batch.drop(last)
    for answer, alone in zip(seen, apart, strict=True):
        count = 4 if answer is last else len(alone.trace)
        assert tokens_of(answer.result()) == tokens_of(alone)[:count]
        margins = [t.margin for t in answer.generation.trace]
        assert margins == pytest.approx([t.margin for t in alone.trace[:count]], abs=1e-4)
        assert seen[answer] == answer.generation.trace
        assert answer.generation.finish == ("" if answer is last else alone.finish)
    batch.drop(last)
    # "Who?" before the others join and, for two of them, after; "Who is it?" of either document.
    assert sum(rows for rows, tokens in passes if tokens > 1) == 4


def test_an_error_of_one_answer_ends_no_other(memory) -> None:
    batch = Batch()
    fails = batch.add(Decoding(memory, "Who?", 8, Giving(2.5, 8), Every(0), max_new_tokens=4))
    goes_on = batch.add(Decoding(memory, "Who?", 3, max_new_tokens=4))
    while batch:
        batch.step()
    with pytest.raises(UserError, match=r"returned the budget 2\.5"):
        fails.result()
    assert tokens_of(goes_on.result()) == tokens_of(generate(memory, "Who?", budget=3, max_new_tokens=4))


def test_sampling_follows_the_distribution_and_its_seed(memory) -> None:
    logits = torch.tensor([0.0, 2.0, 1.0, -1.0])
    # The best token holds 0.64 of the mass and the next 0.24: both are needed for 0.7.
    nucleus = torch.tensor([0.0, 0.731, 0.269, 0.0])
    for sampling, expected in (
        (Sampling(2.0, seed=1), (logits / 2).softmax(-1)),
        (Sampling(top_p=0.7, seed=1), nucleus),
    ):
        drawn = torch.stack([choose(logits) for choose in islice(sampling.draws(), 4000)])
        assert torch.allclose(torch.bincount(drawn, minlength=4) / 4000, expected, atol=0.03)
    drawn = [*(Sampling(3.0, seed=seed) for seed in (np.int64(5), 5, 2**63)), Sampling(top_p=1e-9), Sampling(1e-310)]
    one, same, other, *best = (
        tokens_of(generate(memory, "Who?", budget=4, sampling=sampling, max_new_tokens=20))
        for sampling in (*drawn, None)
    )
    assert one == same != other
    assert best == best[-1:] * 3


def test_logits_that_are_no_numbers_stop_the_run_and_keep_the_trace() -> None:
    broken = prefill(make_reader(), some_tokens(300))
    whole = generate(broken, "Who?", budget=4, max_new_tokens=12)
    layer = broken.reader.model.model.layers[1]
    passes = []

    def poison(module, inputs, output):
        passes.append(1)
        # The question's pass is the first one.
        return output * torch.nan if len(passes) > 4 else output

    layer.mlp.register_forward_hook(poison)
    with pytest.raises(
        NotFiniteError, match=r"reader test gave logits .* at step 3 of an answer, first in layer 1;"
    ) as told:
        generate(broken, "Who?", budget=4, max_new_tokens=12)
    assert [t.token for t in told.value.trace] == [t.token for t in whole.trace[:3]]


TINY = AutoTokenizer.from_pretrained(Path(__file__).parents[2] / "data" / "readers" / "tiny")


@settings(max_examples=200, deadline=None)
@given(text=st.text(st.sampled_from(" aZ.,ØÍÉñ–東😀\n"), min_size=1, max_size=40))
def test_pieces_of_text_add_up_whatever_characters_are_parted(text: str) -> None:
    ids = TINY.encode(text, add_special_tokens=False)
    answer = Pieces(TINY)
    pieces = [answer.add(token) for token in ids]
    assert "".join(pieces) == text
    assert not any("\ufffd" in piece for piece in pieces)


@settings(max_examples=300, deadline=None)
@given(ids=st.lists(st.integers(0, len(TINY) - 1), max_size=40))
def test_pieces_are_those_of_the_whole_text_whatever_the_tokens(ids: list[int]) -> None:
    answer = Pieces(TINY)
    given_out = ""
    for end, token in enumerate(ids, start=1):
        whole = TINY.decode(ids[:end], skip_special_tokens=True, clean_up_tokenization_spaces=False)
        piece = answer.add(token)
        assert piece == ("" if whole.endswith("\ufffd") else whole[len(given_out) :])
        given_out += piece


def test_pieces_of_a_tokenizer_that_drops_a_texts_first_space() -> None:
    words = {"<unk>": 0, "\u2581a": 1, "\u2581b": 2, "c": 3}
    made = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    made.decoder = decoders.Metaspace()
    answer = Pieces(PreTrainedTokenizerFast(tokenizer_object=made))
    assert [answer.add(token) for token in (1, 2, 3, 1, 1)] == ["a", " b", "c", " a", " a"]
