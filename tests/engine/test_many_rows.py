"""Products of many bfloat16 rows on a CPU: those of the layer, whatever the type that they are computed in."""

import pytest
import torch
from torch import nn

from utaca.readers import many_rows


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("many", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [1, many_rows.FEW, many_rows.FEW + 1, 300])
def test_products_are_those_of_the_layer(
    rows: int, many: torch.dtype, bias: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(many_rows, "MANY", many)
    torch.manual_seed(0)
    layer = nn.Linear(96, 40, bias=bias).bfloat16().requires_grad_(False)
    hidden = torch.randn(rows, 96).bfloat16()
    exact = hidden.double() @ layer.weight.double().T + (layer.bias.double() if bias else 0)
    found = many_rows.linear(layer, hidden)
    assert found.dtype == torch.bfloat16
    # One rounding to bfloat16, and that of the sum.
    assert (found - exact).abs().max() < 2**-8 * exact.abs().max()
    assert torch.equal(many_rows.linear(layer, hidden[None]), found[None])


def test_a_product_in_float32_is_rounded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(many_rows, "MANY", torch.float32)
    torch.manual_seed(0)
    layer = nn.Linear(96, 40).bfloat16().requires_grad_(False)
    hidden = torch.randn(100, 96).bfloat16()
    exact = hidden.float() @ layer.weight.float().T + layer.bias.float()
    assert torch.equal(many_rows.linear(layer, hidden), exact.bfloat16())


def test_memory_is_shared_within_a_thread_and_grows() -> None:
    small = many_rows.shared(10, torch.float32)
    assert many_rows.shared(5, torch.float32).data_ptr() == small.data_ptr()
    large = many_rows.shared(1000, torch.float32)
    assert many_rows.shared(10, torch.float32).data_ptr() == large.data_ptr()
    other = many_rows.shared(10, torch.bfloat16)
    assert (other.dtype, len(other)) == (torch.bfloat16, 10)
