"""Weights of GGUF files that are read packed: the same values, products and logits as dequantised."""

from dataclasses import replace
from pathlib import Path

import gguf as format
import numpy as np
import pytest
import torch
from test_gguf import CONFIG, VOCABULARY, write_gguf
from transformers import AutoModelForCausalLM, PreTrainedModel, Qwen2Config

import utaca
from utaca.errors import UserError
from utaca.memory.saved import path_of
from utaca.readers import files, gguf, gguf_blocks, gguf_faults, head, packed
from utaca.readers.attention import ATTENTION
from utaca.readers.checks import check, resolved
from utaca.readers.load import Reader, load
from utaca.reporting.words import reader_in_words
from utaca.runs.record import manifest
from utaca.settings.checks import build_reader
from utaca.settings.schema import ReaderSettings

KINDS = tuple(gguf_blocks.KINDS)
FLOAT16 = format.GGMLQuantizationType.F16
WIDTH = 512

pytestmark = pytest.mark.skipif(bool(packed.fault()), reason=packed.fault())


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UTACA_CACHE", str(tmp_path / "cache"))


def random_rows(kind: str, rows: int, columns: int = WIDTH, seed: int = 0) -> np.ndarray:
    """Rows of a matrix in random blocks of a type, whose weights are about 1/16 in size."""
    about = gguf_blocks.KINDS[kind]
    chance = np.random.default_rng(seed)
    raw = chance.integers(0, 256, (rows, columns // about.weights * about.bytes), dtype=np.uint8)
    blocks = raw.reshape(-1, about.bytes)
    halves = {"Q6_K": [208]}.get(kind, [0, 2] if kind in ("Q4_1", "Q5_1", "Q4_K", "Q5_K") else [0])
    size = {"Q4_K": 63, "Q5_K": 63, "Q6_K": 127}.get(kind, 1) * 2.0 ** (about.bits + 3)
    for place in halves:
        numbers = chance.uniform(0.5, 1, (len(blocks), 1)) / size
        # Minima lie where they centre the codes, as in weights of a model.
        numbers *= (
            2.0 ** (about.bits - 1) if place and kind.endswith("K") else -(2.0 ** (about.bits - 1)) if place else 1
        )
        blocks[:, place : place + 2] = numbers.astype(np.float16).view(np.uint8)
    return raw


@pytest.mark.parametrize("kind", KINDS)
def test_values_are_those_of_the_package_gguf_to_the_bit(kind: str) -> None:
    raw = random_rows(kind, 5)
    values = gguf_blocks.groups(torch.from_numpy(raw), kind).values().numpy()
    expected = format.dequantize(raw, format.GGMLQuantizationType[kind])
    assert np.array_equal(values.view(np.int32), expected.view(np.int32)), "and zeros have the same sign"
    assert gguf_faults.PACKABLE[kind] == format.GGMLQuantizationType[kind]


def layer_of(kind: str, rows: int) -> tuple[packed.PackedLinear, torch.Tensor]:
    """A layer with a packed matrix, and the exact matrix."""
    weights = gguf_blocks.groups(torch.from_numpy(random_rows(kind, rows)), kind)
    return packed.PackedLinear(WIDTH, rows, packed.pack(weights, gguf_blocks.KINDS[kind].bits)), weights.values()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("outputs", [1, 64, 200])
@pytest.mark.parametrize("many", [torch.float32, torch.bfloat16])
def test_products_by_digits_and_by_the_unpacked_matrix_are_those_of_the_exact_one(
    kind: str, outputs: int, many: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packed, "MANY", many)
    layer, exact = layer_of(kind, outputs)
    torch.manual_seed(0)
    few = packed.FEW[layer.digits]
    hidden = torch.randn(few + 1, WIDTH).bfloat16()
    expected = hidden.double() @ exact.double().T
    # Rounding to bfloat16, of the result and of scales and zeros, by at most 2^-9 each.
    size = hidden.double().norm(dim=1, keepdim=True) * exact.double().norm(dim=1)
    for count in (1, 3, few, few + 1):
        found = layer(hidden[:count])
        assert found.shape == (count, outputs)
        assert ((found - expected[:count]).abs() / size[:count]).max() < 2**-8
    assert torch.equal(layer(hidden[:6].view(2, 3, -1)), layer(hidden[:6]).view(2, 3, -1))
    error = layer.unpacked(many).T[:outputs].float() - exact
    assert error.norm() < 2**-7 * exact.norm()


def test_a_type_without_minima_is_rounded_in_its_scales_only() -> None:
    for kind in ("Q4_0", "Q5_0", "Q6_K"):
        layer, exact = layer_of(kind, 64)
        assert not layer.scales[..., 1].any(), "a zero of zero, which rounding leaves"
        zero = exact == 0
        assert zero.any()
        assert not layer.unpacked(packed.MANY).T[zero].any()


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("rows", [1, 3, packed.FEW[2] + 1])
def test_the_best_tokens_logits_are_exact(rows: int, tied: bool) -> None:
    raw = packed.Raw("Q6_K", torch.from_numpy(random_rows("Q6_K", 5000)))
    digits, errors = packed._packed(raw)
    exact = packed.PackedRows(**packed._rows(raw))
    module = packed.PackedHead(WIDTH, digits, errors, None if tied else exact)
    if tied:
        module.tie(exact)
    torch.manual_seed(0)
    for hidden in (torch.randn(rows, WIDTH).bfloat16(), (exact.values(slice(7, 8)) + torch.zeros(rows, 1)).bfloat16()):
        expected = hidden.double() @ exact.values(slice(None)).double().T
        best = expected.topk(head.EXACT)
        found = module.logits(hidden)
        assert torch.equal(found.topk(head.EXACT).indices, best.indices)
        assert (found.gather(1, best.indices) - best.values).abs().max() < 1e-4 * best.values.abs().max()
        assert (found - expected).abs().max() < 2**-7 * expected.abs().max()


def test_the_bound_on_a_packed_product_holds() -> None:
    raw = packed.Raw("Q4_K", torch.from_numpy(random_rows("Q4_K", 300)))
    digits, errors = packed._packed(raw)
    layer = packed.PackedLinear(WIDTH, 300, digits)
    exact = gguf_blocks.groups(raw.rows, "Q4_K").values()
    for row in range(0, 300, 29):
        # The input for which the bound is nearly reached: the difference of packed and exact row.
        difference = torch.eye(WIDTH).bfloat16() @ layer.unpacked(torch.bfloat16)
        hidden = (difference[:, row].float() - exact[row])[None].bfloat16() * 1e3
        error = (layer.product(hidden).float() - hidden.float() @ exact.T).abs()
        assert (error <= hidden.float().norm() * errors + 2**-7 * (hidden.float() @ exact.T).abs() + 1e-2).all()


def small(path: Path, weights: str = "auto", dtype: str = "bfloat16") -> Reader:
    return load(build_reader({"name": "small", "path": str(path), "weights": weights, "dtype": dtype, "device": "cpu"}))


Blocks = dict[str, tuple[str, np.ndarray]]
"""Matrices by their names in transformers: the type of each, and its rows as a file holds them."""


def model_of(*kinds: str, tied: bool = False, **sizes: int) -> tuple[PreTrainedModel, Blocks]:
    """A random model whose matrices are of the ``kinds``, in turn, with the values of their blocks; float32."""
    base = {"hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 8, "tie_word_embeddings": tied}
    torch.manual_seed(0)
    config = Qwen2Config(**CONFIG.to_dict() | base | sizes)
    model = AutoModelForCausalLM.from_config(config).eval().requires_grad_(False)
    blocks: Blocks = {}
    for number, (name, weight) in enumerate(model.named_parameters()):
        if weight.ndim == 1:
            weight.copy_(torch.randn(weight.shape).bfloat16() / 4 + name.endswith("norm.weight"))
            continue
        kind = kinds[number % len(kinds)]
        blocks[name] = kind, random_rows(kind, *weight.shape, seed=number)
        weight.copy_(torch.from_numpy(format.dequantize(blocks[name][1], format.GGMLQuantizationType[kind])))
    return model, blocks


def file_of(path: Path, model: PreTrainedModel, blocks: Blocks) -> Path:
    def held(name: str, _: torch.Tensor) -> tuple[np.ndarray, format.GGMLQuantizationType]:
        kind, rows = blocks[name]
        return rows, format.GGMLQuantizationType[kind]

    return write_gguf(path, model=model, quantised=held)


def logits_of(reader: Reader, tokens: torch.Tensor) -> torch.Tensor:
    """Logits [T, V] of a reader under Hugging Face's own attention."""
    reader.model.set_attn_implementation("sdpa")
    try:
        return reader.logits(reader.model.base_model(tokens[None], use_cache=False).last_hidden_state[0])
    finally:
        reader.model.set_attn_implementation(ATTENTION)


def tokens_of(count: int) -> torch.Tensor:
    return torch.randint(3, len(VOCABULARY), (count,), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(
    ("kinds", "tied"),
    [
        (("Q4_K",), False),
        (("Q4_K", "Q6_K", "Q5_K"), False),
        (("Q6_K", "Q4_K"), True),
        (("Q8_0",), True),
        (KINDS, False),
    ],
)
@pytest.mark.parametrize("count", [1, packed.FEW[1] - 1])
def test_logits_are_those_of_the_dequantised_model(
    kinds: tuple[str, ...], tied: bool, count: int, tmp_path: Path
) -> None:
    model, blocks = model_of(*kinds, tied=tied)
    file = file_of(tmp_path / "small.gguf", model, blocks)
    tokens = tokens_of(count)
    with torch.inference_mode():
        exact = model(tokens[None]).logits[0]
        reader = small(file)
        found = logits_of(reader, tokens)
        plain = logits_of(small(file, "plain"), tokens)
    assert reader.settings.weights == "packed"
    assert isinstance(reader.model.lm_head, packed.PackedHead)
    assert sum(isinstance(each, packed.PackedLinear) for each in reader.model.modules()) == 15
    size = exact.std()
    errors = [((each - exact).square().mean().sqrt() / size).item() for each in (found, plain)]
    # Packed weights are rounded in their scales, plain ones each by itself, and both models compute in bfloat16.
    assert errors[0] < max(0.02, 2 * errors[1])
    divergence = (exact.softmax(-1) * (exact.log_softmax(-1) - found.log_softmax(-1))).sum(-1)
    assert divergence.mean() < 0.02 * size**2
    first, second = exact.topk(2).values.unbind(-1)
    clear = first - second > 0.1 * size
    assert torch.equal(found.argmax(-1)[clear], exact.argmax(-1)[clear])


def test_a_packed_reader_is_the_plain_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its identity, its type and what it says; only what it computes is rounded otherwise."""
    for number, (kinds, tied) in enumerate([(("Q4_K", "Q6_K"), False), (("Q8_0", "Q4_1"), True)]):
        file = file_of(tmp_path / f"small{number}.gguf", *model_of(*kinds, tied=tied))
        reader = small(file)
        plain = small(file, "plain")
        assert [each.settings.weights for each in (reader, plain)] == ["packed", "plain"]
        assert reader.identity == plain.identity, "detectors of one are those of the other"
        assert reader.dtype == plain.dtype == torch.bfloat16
        assert reader.stop_tokens == plain.stop_tokens
        tokens = tokens_of(9)
        assert torch.equal(reader.embed(tokens), plain.embed(tokens))
        assert path_of(tmp_path, reader, tokens) != path_of(tmp_path, plain, tokens), "keys are rounded otherwise"
        assert [each.precision for each in (reader, plain)] == ["bfloat16, packed", "bfloat16"]
        for each in (reader, plain):
            assert "with packed weights" in reader_in_words(each.settings) or each is plain
            document = utaca.prefill(each, "one document")
            assert utaca.generate(document, "two", budget=2, max_new_tokens=3).trace
    assert "-packed" in capsys.readouterr().err.split("once, into ")[1]
    config = {"run": "x", "reader": {"name": "small", "path": str(file), "dtype": "bfloat16", "device": "cpu"}}
    for form, settings in (("packed", {}), ("plain", {"weights": "plain"})):
        assert manifest(config | {"reader": config["reader"] | settings}, [], tmp_path)["weights"] == form


def test_a_packed_conversion_is_small_and_counts_the_models_parameters(tmp_path: Path) -> None:
    model, blocks = model_of("Q4_K")
    file = file_of(tmp_path / "small.gguf", model, blocks)
    reader = small(file)
    (weights,) = files.weights(reader.settings)
    count = sum(weight.numel() for weight in model.parameters())
    assert files.parameters([weights]) == count
    assert files.model(reader.settings).parameters == count
    assert files.model(replace(reader.settings, weights="plain")).parameters == count, "where another form is here"
    matrices = sum(rows.nbytes for _, rows in blocks.values())
    assert weights.stat().st_size < 1.7 * matrices
    with pytest.raises(
        UserError, match=r"is the conversion of a GGUF file with packed weights; set reader\.path to the GGUF file$"
    ):
        utaca.load_reader(weights.parent)


def test_auto_is_plain_where_packed_weights_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = file_of(tmp_path / "small.gguf", *model_of("Q4_K"))
    halves = write_gguf(tmp_path / "halves.gguf", quantised=lambda _, weight: (weight.half().numpy(), FLOAT16))
    assert small(file).settings.weights == "packed"
    assert small(file, dtype="float32").settings.weights == "plain"
    assert small(halves).settings.weights == "plain", "it holds nothing to pack"
    assert resolved(ReaderSettings(name="x", path="x", dtype="bfloat16", device="cpu")).weights == "plain", "a folder"
    assert resolved(ReaderSettings(name="x", path=str(file), dtype="bfloat16", device="cuda")).weights == "plain"
    gguf._fault_said.cache_clear()
    monkeypatch.setattr(packed, "fault", lambda: "no kernel")
    capsys.readouterr()
    try:
        for _ in range(2):
            assert small(file).settings.weights == "plain"
        assert capsys.readouterr().err.count("weights are read as bfloat16, not packed: no kernel") == 1
        with pytest.raises(UserError, match=r"cannot keep packed weights: no kernel; leave reader\.weights out$"):
            small(file, "packed")
    finally:
        gguf._fault_said.cache_clear()


def test_what_cannot_be_packed_is_a_sentence(tmp_path: Path) -> None:
    file = file_of(tmp_path / "small.gguf", *model_of("Q4_K"))
    halves = write_gguf(tmp_path / "halves.gguf", quantised=lambda _, weight: (weight.half().numpy(), FLOAT16))
    for settings, expected in (
        ({"path": str(halves)}, "has no weights of a type that can be packed (Q4_0, Q4_1,"),
        ({"path": str(file), "dtype": "float32"}, "works only in bfloat16, but reader 'x' "),
        ({"path": str(tmp_path)}, "is not one; leave reader.weights out"),
    ):
        with pytest.raises(UserError) as caught:
            check(build_reader({"name": "x", "weights": "packed", "dtype": "bfloat16", "device": "cpu"} | settings))
        assert expected in str(caught.value)
        assert str(caught.value).rpartition("; ")[2].startswith("leave reader.weights out")


def test_a_processor_with_other_digits_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernels for other processors take a matrix of another layout, and would give other products."""
    packed.fault.cache_clear()
    packs = packed.pack
    try:
        monkeypatch.setattr(
            packed, "pack", lambda *matrix: (digits := packs(*matrix))._replace(codes=digits.codes.roll(1))
        )
        assert "in another way" in packed.fault()
    finally:
        packed.fault.cache_clear()


def test_the_header_alone_says_which_types_a_file_holds(tmp_path: Path) -> None:
    file = file_of(tmp_path / "small.gguf", *model_of("Q4_K", "Q6_K"))
    assert gguf_faults.tensor_kinds(file) == {0, 12, 14}
    for cut in (3, 20, 200, 3000):
        (tmp_path / "cut").write_bytes(file.read_bytes()[:cut])
        assert gguf_faults.tensor_kinds(tmp_path / "cut") == frozenset()
