"""Adaptive decoding against a plain restatement of the paper's algorithm 1."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
from small import make_reader, some_tokens

from utaca.decoding.generate import generate, stream
from utaca.decoding.policies import Policy, Set, Sub, parse
from utaca.detection.detector import Detector
from utaca.errors import UserError
from utaca.memory import Branch, prefill
from utaca.readers.prompts import SEPARATOR
from utaca.settings import schema

BUDGET = 12


class Count(NamedTuple):
    seen: int


class Scripted:
    """A detector that distrusts by a rule on the margin and on how many committed tokens it has seen."""

    def initial_state(self, batch: int) -> Count:
        return Count(0)

    def step(self, margin: torch.Tensor, embedding: torch.Tensor, state: Count) -> tuple[torch.Tensor, Count]:
        distrust = (int(margin.item() * 1000) + state.seen) % 3 == 0
        return torch.tensor([[0.9, 0.1, 0.0] if distrust else [0.1, 0.9, 0.0]]), Count(state.seen + 1)


@pytest.fixture(scope="module")
def memory():
    return prefill(make_reader(), some_tokens(300))


def algorithm_1(memory, question: str, policy: Policy, detector: Scripted, steps: int) -> list[tuple[int, int, bool]]:
    """Token, budget of the accepted pass and rollback, restated by replaying every prefix from scratch."""
    reader = memory.reader
    prompt = reader.encode(SEPARATOR + question + reader.after)
    accepted: list[tuple[int, int, bool]] = []
    k = BUDGET
    for t in range(steps):

        def run(k_now: int) -> tuple[int, float]:
            branch = Branch(memory, 400)
            branch.commit(branch.step(prompt[:-1], memory.settings.prefill_budget))
            token = prompt[-1:]
            for earlier, k_earlier, _ in accepted:
                branch.commit(branch.step(token, k_earlier))
                token = torch.tensor([earlier])
            logits = reader.logits(branch.step(token, k_now).hidden[-1])
            best = logits.topk(2)
            return int(best.indices[0]), float(best.values[0] - best.values[1])

        token, margin = run(k)
        p, _ = detector.step(torch.tensor([margin]), torch.zeros(1, 1), Count(t))
        if p[0, 0] > p[0, 1] and k < BUDGET:
            k = BUDGET
            token, _ = run(k)
            accepted.append((token, k, True))
        else:
            accepted.append((token, k, False))
            k = policy.update(k, BUDGET)
        if token in reader.stop_tokens:
            break
    return accepted


@pytest.mark.parametrize("policy", [Set(1), Set(4), Sub(1), Sub(5)])
def test_adaptive_decoding_is_algorithm_1(memory, policy: Policy) -> None:
    detector = Scripted()
    found = generate(memory, "Who?", budget=BUDGET, policy=policy, detector=detector, max_new_tokens=25)
    expected = algorithm_1(memory, "Who?", policy, detector, 25)
    assert [(t.token, t.k, t.rolled_back) for t in found.trace] == expected
    assert 0 < found.rollbacks < len(found.trace)
    assert found.trace[0].k == BUDGET


def test_counts_are_those_of_the_trace(memory) -> None:
    found = generate(memory, "Who?", budget=BUDGET, policy=Set(2), detector=Scripted(), max_new_tokens=25)
    accepted = [t.k * 8 for t in found.trace]
    tried = [t.tentative.k * 8 for t in found.trace if t.tentative]
    assert found.mean_selected_tokens == sum(accepted) / len(accepted)
    assert found.mean_selected_with_tentative == (sum(accepted) + sum(tried)) / len(accepted)
    # 4 initial tokens, the blocks, a window of 24 to 31 tokens.
    assert all(4 + t.k * 8 + 24 <= t.attended <= 4 + t.k * 8 + 31 for t in found.trace)
    assert all(len(layer) == t.k for t in found.trace for layer in t.selected)


def test_fixed_budget_never_rolls_back(memory) -> None:
    found = generate(memory, "Who?", budget=3, max_new_tokens=10)
    assert [t.k for t in found.trace] == [3] * len(found.trace)
    assert found.rollbacks == 0
    assert found.mean_selected_tokens == 24


def test_a_budget_of_everything_is_the_same_for_every_policy(memory) -> None:
    plain = generate(memory, "Who?", budget=10**6, max_new_tokens=10)
    everything = generate(memory, "Who?", budget=10**6, policy=Set(10**6), detector=Scripted(), max_new_tokens=10)
    assert [t.token for t in plain.trace] == [t.token for t in everything.trace]


def test_streaming_and_text_agree(memory) -> None:
    pieces = [token.text for token in stream(memory, "Who?", budget=2, max_new_tokens=8)]
    found = generate(memory, "Who?", budget=2, max_new_tokens=8)
    assert "".join(pieces) == found.text
    assert found.finish in ("eos", "length")


def test_real_detector_sees_margin_and_embedding(memory) -> None:
    torch.manual_seed(0)
    detector = Detector(schema.Detector(), memory.reader.width).eval()
    found = generate(memory, "Who?", budget=9, policy=Sub(3), detector=detector, max_new_tokens=12)
    margin = torch.tensor([[t.margin for t in found.trace]])
    embedding = torch.stack([t.embedding for t in found.trace])[None]
    with torch.no_grad():
        expected = detector.probabilities(detector(margin, embedding))[0]
    for token, p in zip(found.trace, expected, strict=True):
        if not token.rolled_back:
            assert torch.tensor(token.gdm).allclose(p, atol=1e-5)


def test_margin_and_sites() -> None:
    tokens = some_tokens(100)
    for site in ("attention", "mlp", "residual"):
        reader = make_reader(site=site)
        seen = {}
        last = reader.model.model.layers[-1]
        last.self_attn.register_forward_hook(lambda m, i, o: seen.update(attention=o[0][0, -1]))  # noqa: B023
        last.mlp.register_forward_hook(lambda m, i, o: seen.update(mlp=o[0, -1]))  # noqa: B023
        last.register_forward_hook(lambda m, i, o: seen.update(residual=o[0, -1]))  # noqa: B023
        step = Branch(prefill(reader, tokens[:99]), 1).step(tokens[99:], 3)
        assert torch.equal(reader.embedding(), seen[site])
        assert step.hidden.shape == (1, 64)


def test_policies() -> None:
    assert [parse("sub.16").update(k, 64) for k in (64, 17, 16, 1)] == [48, 1, 1, 1]
    assert [parse("set.3").update(k, 2) for k in (2, 1)] == [2, 2]
    for wrong in ("sub", "sub.0", "sub.-1", "add.3", "set.1.5", ""):
        with pytest.raises(UserError, match=r"set\.N or sub\.N"):
            parse(wrong)


def test_mistakes_are_told(memory) -> None:
    with pytest.raises(UserError, match="both a policy and a detector"):
        generate(memory, "Who?", budget=3, policy=Set(1))
    with pytest.raises(UserError, match="at least 1"):
        generate(memory, "Who?", budget=0)
    with pytest.raises(UserError, match="empty"):
        prefill(memory.reader, some_tokens(0))
