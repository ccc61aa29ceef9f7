"""Adapters merged into a reader's weights."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from configs import planned
from conftest import ROOT
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from small import SmallTokenizer, full_attention, make_reader, some_tokens
from transformers import AutoModelForCausalLM

from utaca.data_files import sha256
from utaca.errors import UserError
from utaca.readers import lora, shelf
from utaca.readers.identity import identity_of
from utaca.readers.load import check, load
from utaca.settings import runs
from utaca.settings.checks import load as typed
from utaca.settings.compose import compose
from utaca.settings.schema import Reader as ReaderSettings


def small_folder(folder: Path, seed: int = 0, kind: str = "llama") -> Path:
    """A small random reader, saved."""
    reader = make_reader(kind, seed=seed)
    reader.model.config.dtype = "float32"
    reader.model.save_pretrained(folder)
    SmallTokenizer().save_pretrained(folder)
    return folder


def make_adapter(base: Path, folder: Path) -> Path:
    """An adapter of the reader in a folder that changes every layer."""
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    identity = identity_of(model)
    torch.manual_seed(7)
    adapted = get_peft_model(model, LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", task_type="CAUSAL_LM"))
    for name, parameter in adapted.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.2)
    adapted.save_pretrained(folder)
    (folder / lora.BASE).write_text(json.dumps({"identity": identity}))
    return folder


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_folder(tmp_path_factory.mktemp("base") / "reader")


@pytest.fixture(scope="module")
def adapter(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_adapter(base, tmp_path_factory.mktemp("adapter") / "lora")


def settings(base: Path, adapter: Path | None, **other: Any) -> ReaderSettings:
    named = {"name": "small", "path": str(base), "adapter": str(adapter or ""), "dtype": "float32"}
    return ReaderSettings(**named | other)


def test_a_merged_adapter_computes_as_an_unmerged_one(base: Path, adapter: Path) -> None:
    tokens = some_tokens(30)
    unmerged = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32), adapter)
    with torch.no_grad():
        expected = unmerged(tokens[None]).logits[0]
    plain, reader = load(settings(base, None)), load(settings(base, adapter))
    assert torch.allclose(full_attention(reader, tokens), expected, atol=1e-4)
    assert not torch.allclose(full_attention(plain, tokens), expected, atol=0.1)
    assert reader.identity != plain.identity
    assert plain.identity == json.loads((adapter / lora.BASE).read_text())["identity"]
    assert not any("lora" in name for name, _ in reader.model.named_parameters())
    assert not any(parameter.requires_grad for parameter in reader.model.parameters())


def test_a_merged_reader_in_bfloat16_keeps_its_attention_and_frequencies(base: Path, adapter: Path) -> None:
    exact = load(settings(base, adapter))
    rounded, plain = (load(settings(base, each, dtype="bfloat16")) for each in (adapter, None))
    assert rounded.dtype == torch.bfloat16
    assert rounded.identity == exact.identity, "rounded once"
    for own, other in zip(rounded.model.parameters(), exact.model.parameters(), strict=True):
        assert torch.equal(own, other.bfloat16())
    assert rounded.model.config._attn_implementation == plain.model.config._attn_implementation
    frequencies = [reader.model.model.rotary_emb.inv_freq for reader in (rounded, plain)]
    assert frequencies[0].dtype == torch.float32
    assert torch.equal(*frequencies)


def test_an_identity_is_told_from_stored_weights(base: Path, adapter: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = load(settings(base, None)).identity
    seen = []
    monkeypatch.setattr(lora, "check_base", lambda adapter, path, identity: seen.append(identity))
    check(settings(base, adapter))
    assert seen == [known]


@pytest.fixture
def broken(adapter: Path, tmp_path: Path) -> Path:
    """A copy of the adapter to break."""
    folder = tmp_path / "lora"
    shutil.copytree(adapter, folder)
    return folder


def said(reader: ReaderSettings) -> str:
    with pytest.raises(UserError) as caught:
        check(reader)
    return str(caught.value)


@pytest.mark.parametrize("name", lora.FILES)
def test_an_adapter_that_is_not_whole_is_refused(base: Path, broken: Path, name: str) -> None:
    (broken / name).unlink()
    assert f"has no {name}; an adapter's folder holds" in said(settings(base, broken))
    (broken / name).write_text("[]")
    assert f"{name} " in said(settings(base, broken))


def test_an_adapter_that_lacks_a_part_is_refused(base: Path, adapter: Path, broken: Path) -> None:
    weights = load_file(broken / lora.WEIGHTS)
    save_file({name: value for name, value in weights.items() if ".1.mlp." not in name}, broken / lora.WEIGHTS)
    with pytest.raises(UserError, match=r"cannot be merged \(UserWarning: Found missing adapter keys .*mlp.* anew$"):
        load(settings(base, broken))
    save_file({name: value for name, value in weights.items() if "o_proj.lora_A" not in name}, broken / lora.WEIGHTS)
    assert "has half of what changes model.layers.0.self_attn.o_proj; copy" in said(settings(base, broken))
    for name in lora.FILES:
        (broken / name).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n")
    for name in (lora.CONFIG, lora.BASE, lora.WEIGHTS):
        assert f"{name} is the pointer that Git LFS keeps in its place" in said(settings(base, broken))
        shutil.copy(adapter / name, broken / name)


def test_an_adapter_of_another_model_is_refused(base: Path, adapter: Path, tmp_path: Path) -> None:
    other = small_folder(tmp_path / "other", seed=1)
    assert "is an adapter of another base model: it was trained on" in said(settings(other, adapter))
    wide = small_folder(tmp_path / "wide", kind="llama-wide")
    found = said(settings(wide, adapter))
    assert "is for 64 outputs of model.layers.0.mlp.down_proj, which has 96 in" in found


def test_weights_that_are_none_of_the_model_are_refused(base: Path, broken: Path) -> None:
    save_file({"base_model.model.model.layers.9.mlp.up_proj.lora_A.weight": torch.zeros(4, 64)}, broken / lora.WEIGHTS)
    assert "changes model.layers.9.mlp.up_proj, which" in said(settings(base, broken))
    save_file({"x": torch.zeros(1)}, broken / lora.WEIGHTS)
    assert "holds no LoRA weights" in said(settings(base, broken))


def test_what_is_no_adapter_is_refused(
    base: Path, broken: Path, adapter: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "is no folder" in said(settings(base, tmp_path / "none"))
    (broken / lora.CONFIG).write_text(json.dumps({"peft_type": "PROMPT_TUNING"}))
    assert "is of an adapter of type PROMPT_TUNING" in said(settings(base, broken))
    monkeypatch.setattr(lora, "find_spec", lambda name: None)
    assert 'needs the package peft, not installed here; run: pip install "utaca[adapters]"' in said(
        settings(base, adapter)
    )


def test_a_run_is_made_from_its_adapter_too(base: Path, adapter: Path) -> None:
    own = {"name": "mine", "path": str(base), "adapter": str(adapter), "memory": {"n_local": "256", "n_init": "32"}}
    config = compose({"reader": own}, ROOT)
    plan = planned(ROOT, reader=own)
    assert {str(adapter / name) for name in lora.FILES} <= set(plan.INPUTS)
    assert str(base / "model.safetensors") in plan.INPUTS
    assert plan.READER["adapter"] == str(adapter)
    told = runs.manifest(config, map(Path, plan.INPUTS), ROOT)
    assert told["model"]["adapter"]["files"].keys() >= set(lora.FILES)
    assert told["inputs"][str(adapter / lora.WEIGHTS)] == sha256(adapter / lora.WEIGHTS)
    check(typed(config).reader)


def test_a_shipped_adapter_is_found_from_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    seen = []
    monkeypatch.setattr(shelf, "load", seen.append)
    shelf.load_reader("smollm2_tuned")
    assert seen[0].adapter == str(ROOT / "data" / "readers" / "smollm2-tuned")
    shelf.load_reader("tiny")
    assert seen[1].adapter == ""
