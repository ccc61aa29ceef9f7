"""The product with a bfloat16 output matrix on a CPU: exact for the best tokens, whatever the weights."""

import pytest
import torch

from utaca.readers import head


def exact_of(hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return hidden.double() @ weight.double().T


@pytest.mark.parametrize("rows", [1, 2, head.FEW])
@pytest.mark.parametrize("scale", [0.01, 1.0, 30.0])
def test_the_best_tokens_have_exact_logits(rows: int, scale: float) -> None:
    torch.manual_seed(rows)
    hidden = (scale * torch.randn(rows, 96)).bfloat16()
    weight = torch.randn(5000, 96).bfloat16()
    found = head.best_exact(hidden, weight)
    assert found is not None
    exact = exact_of(hidden, weight)
    best = exact.topk(head.EXACT)
    assert torch.equal(found.topk(head.EXACT).indices, best.indices)
    error = (found - exact).abs()
    assert error.gather(1, best.indices).max() < 1e-4 * scale
    # The others are rounded to bfloat16: their share of the log-sum-exp is off by less than one of them.
    assert (error / exact.abs().clamp(min=scale)).max() < 2**-8
    assert (found.logsumexp(-1) - exact.logsumexp(-1)).abs().max() < 1e-3 * max(1, scale)
    assert torch.equal(head.products(hidden, weight), found)


def test_many_tokens_that_are_nearly_alike_all_get_exact_logits() -> None:
    torch.manual_seed(0)
    hidden = torch.randn(1, 96).bfloat16()
    weight = (torch.randn(96) + 1e-3 * torch.randn(5000, 96)).bfloat16()
    assert head.best_exact(hidden, weight) is None
    assert (head.products(hidden, weight) - exact_of(hidden, weight)).abs().max() < 1e-4


def test_many_rows_and_small_vocabularies_all_get_exact_logits() -> None:
    torch.manual_seed(0)
    for rows, vocabulary in ((head.FEW + 1, 5000), (1, 300)):
        hidden = torch.randn(rows, 96).bfloat16()
        weight = torch.randn(vocabulary, 96).bfloat16()
        assert (head.products(hidden, weight) - exact_of(hidden, weight)).abs().max() < 1e-4
