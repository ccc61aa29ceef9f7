"""Folders that hold no whole, plain model: one sentence each, the same when a reader is loaded and before a run."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from configs import reference_config
from safetensors.torch import load_file, save_file
from small import SETTINGS, make_reader, ran, some_tokens
from transformers import AutoModelForCausalLM

import utaca
from utaca.errors import UserError
from utaca.memory import Branch, prefill
from utaca.readers.checks import check
from utaca.readers.load import Reader, load
from utaca.runs import preflight
from utaca.settings import schema
from utaca.settings.schema import MemorySettings

WEIGHTS, INDEX, SHARD = "model.safetensors", "model.safetensors.index.json", "model-00001-of-00003.safetensors"
POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"
Break = Callable[[Path], object]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small reader's folder, whole."""
    path, reader = tmp_path_factory.mktemp("readers") / "small", make_reader()
    reader.model.save_pretrained(path)
    reader.tokenizer.save_pretrained(path)
    return path


@pytest.fixture
def folder(whole: Path, tmp_path: Path) -> Path:
    """A copy of it to break."""
    return Path(shutil.copytree(whole, tmp_path / "model"))


def settings_of(path: Path) -> schema.ReaderSettings:
    return schema.ReaderSettings(name=path.name, path=str(path), prompt="instruct", device="cpu")


def refusal(path: Path) -> str:
    """What is said of the folder when it is loaded, and in the same words before a run."""
    with pytest.raises(UserError) as caught:
        utaca.load_reader(path, device="cpu")
    config = replace(reference_config(), reader=settings_of(path))
    (finding,) = [each for each in preflight.findings(config, {"generations"}) if each.name == "reader"]
    assert finding.fault == str(caught.value)
    assert "\n" not in finding.fault
    return finding.fault


def write(name: str, text: str) -> Break:
    return lambda folder: (folder / name).write_text(text)


def cut(name: str) -> Break:
    return lambda folder: (folder / name).write_bytes(
        (folder / name).read_bytes()[: (folder / name).stat().st_size // 2]
    )


def drop(*names: str) -> Break:
    return lambda folder: [(folder / name).unlink() for name in names]


def changed(name: str, **keys: Any) -> Break:
    """A JSON file with other values; None is null."""
    return lambda folder: (folder / name).write_text(json.dumps(json.loads((folder / name).read_text()) | keys))


def weights(change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]) -> Break:
    return lambda folder: save_file(change(load_file(folder / WEIGHTS)), folder / WEIGHTS, metadata={"format": "pt"})


def shards(*after: Break) -> Break:
    """The weights in three files and an index of them, and what is done to these then."""

    def change(folder: Path) -> None:
        (folder / WEIGHTS).unlink()
        make_reader().model.save_pretrained(folder, max_shard_size="150KB")
        for each in after:
            each(folder)

    return change


def only(name: str) -> Break:
    """The weights in a file of another kind."""
    return lambda folder: (folder / WEIGHTS).rename(folder / name)


CONFIG, TOKENIZER, TEMPLATE = "config.json", "tokenizer.json", "chat_template.jinja"
BROKEN: dict[str, tuple[Break, str]] = {
    # Weights
    "other names": (weights(lambda w: {f"base_model.model.{k}": v for k, v in w.items()}), "lacks 30 of the model's"),
    "a bias": (weights(lambda w: w | {"model.layers.0.self_attn.q_proj.bias": torch.ones(64)}), "q_proj.bias"),
    "other sizes": (changed(CONFIG, vocab_size=98), "model.embed_tokens.weight is [97, 64], not [98, 64]"),
    "cut weights": (cut(WEIGHTS), f"{WEIGHTS} cannot be read"),
    "a pointer as weights": (write(WEIGHTS, POINTER), f"{WEIGHTS} is only the pointer of Git LFS"),
    "no weights": (drop(WEIGHTS), "has no weights; add its .safetensors files"),
    "a pickle": (only("pytorch_model.bin"), "has no weights, but pytorch_model.bin, which is not read"),
    "other file": (only("weights.safetensors"), f"neither {WEIGHTS} nor {INDEX}"),
    "a shard lost": (shards(drop(SHARD)), f"lacks {SHARD}, which model.safetensors.index.json names"),
    "an index of nothing": (shards(changed(INDEX, weight_map={})), f"{INDEX} has no weight_map"),
    "an index that promises more": (shards(changed(INDEX, weight_map={"x": SHARD})), f"x, which {INDEX} says it has"),
    "rounded weights": (
        weights(lambda w: w | {"lm_head.weight": w["lm_head.weight"].to(torch.int8)}),
        "has lm_head.weight as I8: its weights are quantised",
    ),
    # The config
    "bitsandbytes": (
        changed(CONFIG, quantization_config={"load_in_4bit": True, "quant_method": "bitsandbytes"}),
        "quantised",
    ),
    "custom code": (
        changed(CONFIG, auto_map={"AutoModelForCausalLM": "modeling.Mine"}),
        "code of its own, which is never run",
    ),
    "no config": (drop(CONFIG), "has no config.json; point reader.path at a Hugging Face model folder"),
    "a list as config": (write(CONFIG, "[]"), "config.json holds no JSON object; copy or download it again"),
    "growing rotation": (
        changed(CONFIG, rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}),
        "uses dynamic rotary scaling; supported are",
    ),
    "a window alone": (
        changed(CONFIG, model_type="mistral", sliding_window=16),
        "uses sliding-window attention",
    ),
    "a window of nothing": (changed(CONFIG, model_type="mistral", sliding_window=0), "uses sliding-window attention"),
    "other layers": (changed(CONFIG, layer_types=["chunked_attention"] * 3), "has layers of chunked_attention"),
    "both ways": (changed(CONFIG, is_causal=False), "has is_causal=false: its tokens attend to later ones"),
    "both ways by null": (changed(CONFIG, is_causal=None), "has is_causal=null: its tokens attend to later ones"),
    "single layers": (changed(CONFIG, per_layer_config={"0": {"intermediate_size": 8}}), "has per_layer_config"),
    "another config": (changed(CONFIG, configuration_files=["config.4.json"]), "has configuration_files, which names"),
    "other weights": (changed(CONFIG, transformers_weights="x.safetensors"), "has transformers_weights, which names"),
    "no number": (changed(CONFIG, rms_norm_eps=float("nan")), "a number that is not finite in rms_norm_eps"),
    "below nothing": (changed(CONFIG, rms_norm_eps=-1.0), "has rms_norm_eps=-1.0, which must be at least 0"),
    "uneven heads": (changed(CONFIG, num_key_value_heads=3), "num_key_value_heads=3, which must divide it"),
    "countless layers": (changed(CONFIG, num_hidden_layers=10**9), "more than any model has"),
    "a base in words": (changed(CONFIG, rope_parameters=None, rope_theta="10000"), "config.json that makes no model"),
    "a base of nothing": (
        changed(CONFIG, rope_parameters={"rope_type": "default", "rope_theta": 0}),
        "has a rotary embedding whose numbers are not finite",
    ),
    "scaled by nothing": (
        changed(CONFIG, rope_parameters={"rope_type": "yarn", "factor": 2.0, "attention_factor": 0.0}),
        "has a rotary embedding whose numbers are not finite",
    ),
    "half a rotation": (
        changed(
            CONFIG,
            rope_parameters={"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0, "partial_rotary_factor": 0.5},
        ),
        "rotates 8 of the 16 dimensions of a head",
    ),
    "cut config": (cut(CONFIG), "config.json cannot be read (JSONDecodeError"),
    "no model_type": (changed(CONFIG, model_type=None), "has no model_type"),
    "another family": (
        changed(CONFIG, model_type="gpt_neox"),
        "is a gpt_neox model; supported are llama, mistral, qwen2, qwen3",
    ),
    "sizes in words": (changed(CONFIG, hidden_size="64"), 'hidden_size="64", which must be a whole number'),
    "rope_scaling is a number": (
        changed(CONFIG, rope_scaling=1, rope_parameters=None),
        "config.json that makes no model",
    ),
    "an end in words": (
        changed("generation_config.json", eos_token_id="</s>"),
        "eos_token_id is '</s>', but must be a token",
    ),
    "an adapter": (
        lambda folder: (drop(CONFIG)(folder), write("adapter_config.json", "{}")(folder)),
        "holds an adapter",
    ),
    "GGUF files": (
        lambda folder: (drop(CONFIG)(folder), write("a.gguf", "")(folder), write("b.GGUF", "")(folder)),
        "is a folder with 2 GGUF files; set reader.path to one of them, as ",
    ),
    "a GGUF file and one that reads images": (
        lambda folder: (drop(CONFIG)(folder), write("mmproj-a.gguf", "")(folder), write("z.gguf", "")(folder)),
        "z.gguf",
    ),
    "a GGUF file without the ending": (
        lambda folder: (drop(CONFIG)(folder), write("sha256-0", "GGUF")(folder)),
        "is a folder with a GGUF file; set reader.path=",
    ),
    "the parts of a GGUF file": (
        lambda folder: (drop(CONFIG)(folder), *(write(f"a-0000{n}-of-00002.gguf", "")(folder) for n in (1, 2))),
        "is a folder with the parts of a split GGUF file; merge them (llama-gguf-split --merge ",
    ),
    "a hub's cache": (
        lambda folder: (
            (folder / "snapshots" / "0a").mkdir(parents=True),
            (folder / CONFIG).rename(folder / "snapshots" / "0a" / CONFIG),
        ),
        "has no config.json; it holds one in ",
    ),
    "a GGUF file for weights": (
        lambda folder: (drop(WEIGHTS)(folder), write("a.gguf", "")(folder)),
        "has no .safetensors files, but a GGUF file; set reader.path=",
    ),
    # The tokenizer
    "no tokenizer": (drop(TOKENIZER, "tokenizer_config.json"), "has no tokenizer; add tokenizer.json"),
    "a folder as tokenizer": (
        lambda folder: (drop(TOKENIZER)(folder), (folder / TOKENIZER).mkdir()),
        "tokenizer.json cannot be read (IsADirectoryError",
    ),
    "no such tokenizer": (write(TOKENIZER, "{}"), "has a tokenizer that cannot be used"),
    "tokens without rows": (
        lambda folder: (
            weights(lambda w: {k: v[:90].clone() if v.shape[0] == 97 else v for k, v in w.items()})(folder),
            changed(CONFIG, vocab_size=90)(folder),
        ),
        "has a tokenizer that gives token 96",
    ),
    # Chat templates
    "a pointer as template": (write(TEMPLATE, POINTER), f"{TEMPLATE} is only the pointer of Git LFS"),
    "no template": (drop(TEMPLATE), "has no chat template"),
    "a template with an error": (write(TEMPLATE, "{% if %}"), "cannot be rendered (TemplateSyntaxError: "),
    "no text": (write(TEMPLATE, "Hello"), "renders a user's message 0 times"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_folder_that_holds_no_whole_plain_model_is_one_sentence(folder: Path, name: str) -> None:
    change, words = BROKEN[name]
    change(folder)
    sentence = refusal(folder)
    assert words in sentence, sentence
    assert str(folder) in sentence


# Keys that other programs, and guides to fine-tuning, write for themselves: what a model computes has none of them.
OF_NO_ACCOUNT: list[dict[str, Any]] = [
    *({key: value} for key in ("_attn_implementation", "attn_implementation", "_attn_implementation_internal")
      for value in ("sdpa", "eager", "flash_attention_2", {"": "sdpa"}, 7)),
    {"attn_config": {"attn_impl": "flash"}}, {"return_dict": False}, {"use_return_dict": False},
    {"output_attentions": True}, {"output_hidden_states": True}, {"torchscript": True}, {"use_cache": False},
    {"use_cache": "no"}, {"chunk_size_feed_forward": 2}, {"gradient_checkpointing": True}, {"is_encoder_decoder": True},
    {"add_cross_attention": True}, {"torch_dtype": "float8"}, {"dtype": 3}, {"pruned_heads": {"0": [1]}},
    {"id2label": {"x": "y"}}, {"num_labels": 1, "problem_type": "single_label_classification"}, {"temperature": "hot"},
    {"transformers_version": 5}, {"architectures": []}, {"architectures": ["BertModel"]}, {"text_config": {"a": 1}},
    {"to_dict": 1}, {"attribute_map": {"hidden_size": "x"}}, {"name_or_path": 3}, {"is_causal": True},
    {"layer_types": ["full_attention"] * 3}, {"sliding_window": 4, "use_sliding_window": True},
    {"final_logit_softcapping": 1.0}, {"per_layer_config": {}}, {"rope_interleaved": True},
]  # fmt: skip


@pytest.mark.parametrize("keys", OF_NO_ACCOUNT, ids=str)
def test_keys_for_other_programs_change_no_answer(folder: Path, keys: dict[str, Any]) -> None:
    changed(CONFIG, **keys)(folder)
    assert check(settings_of(folder))
    reader = utaca.load_reader(folder, device="cpu", dtype="float32", memory=SETTINGS)
    assert torch.equal(answered(reader), answered(make_reader()))


def answered(reader: Reader) -> torch.Tensor:
    """Logits of the last of some tokens, read as a document and as steps behind it."""
    tokens = some_tokens(40)
    branch = Branch(prefill(reader, tokens[:-3]), 3)
    for token in tokens[-3:].split(1):
        step = ran(branch, token, budget=8)
        branch.commit(step)
    return step.logits


@pytest.mark.parametrize(
    "keys",
    [
        {"hidden_act": "gelu"},
        {"rms_norm_eps": 0.5},
        {"rope_parameters": None, "rope_theta": 7.0},
        {"rope_parameters": None, "rope_scaling": {"type": "linear", "factor": 4.0}},
        {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "attention_factor": 1.5}},
        {"partial_rotary_factor": 0.5},
        {"tie_word_embeddings": True},
        {"max_position_embeddings": 8},
        {"initializer_range": 1.0, "attention_dropout": 0.5, "pretraining_tp": 2},
    ],
    ids=str,
)
def test_keys_that_a_model_computes_by_are_taken(folder: Path, keys: dict[str, Any]) -> None:
    changed(CONFIG, **keys)(folder)
    reader = utaca.load_reader(folder, device="cpu", dtype="float32", memory=MemorySettings(n_init=4, n_local=64))
    theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        expected = theirs(some_tokens(40)[None]).logits[0, -1]
    assert torch.allclose(answered(reader), expected, atol=1e-3)


def test_a_path_that_is_no_folder_of_a_model(folder: Path) -> None:
    assert "is a file; set reader.path to its folder" in refusal(folder / WEIGHTS)
    # The system refuses to look at such a name, as at a path in another user's folder.
    assert "is neither a folder nor a file that this user may read" in refusal(folder / ("x" * 300))
    assert "is not here; set reader.path" in refusal(folder / ("x" * 300 + ".gguf"))


def test_a_file_that_may_not_be_read_is_one_sentence(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cut(CONFIG)(folder)
    drop(TEMPLATE)(folder)
    monkeypatch.setattr("utaca.readers.files._is_pointer", Mock(side_effect=PermissionError))
    assert refusal(folder) == f"{folder / CONFIG} cannot be read by this user; change its permissions"


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 0.0])
def test_weights_that_are_no_models_are_refused_once_they_are_read(folder: Path, value: float) -> None:
    weights(lambda w: w | {"lm_head.weight": torch.full_like(w["lm_head.weight"], value)})(folder)
    with pytest.raises(UserError, match=r"(not finite|nothing but zeros) in lm_head\.weight; copy or download"):
        load(settings_of(folder))


def test_a_device_that_has_no_room_for_a_model_is_one_sentence(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transformers.PreTrainedModel.to", Mock(side_effect=torch.OutOfMemoryError("CUDA is full.")))
    with pytest.raises(UserError, match=r"cannot be loaded \(OutOfMemoryError.*; free memory, or use a smaller model$"):
        load(settings_of(folder))


def test_what_is_whole_is_taken(folder: Path) -> None:
    exact = utaca.load_reader(folder, device="cpu").identity
    # Other files of weights are nobody's business, nor are the buffers of old files.
    write("consolidated.safetensors", POINTER)(folder)
    buffers = {f"model.layers.{layer}.self_attn.rotary_emb.inv_freq": torch.ones(8) for layer in range(3)}
    for change in (weights(lambda w: w | buffers), shards()):
        change(folder)
        assert utaca.load_reader(folder, device="cpu").identity == exact


@pytest.mark.parametrize(
    "change",
    [
        lambda w: {name: weight for name, weight in w.items() if name != "lm_head.weight"},
        lambda w: {name: weight for name, weight in w.items() if name != "model.embed_tokens.weight"},
        lambda w: {name.removeprefix("model."): weight for name, weight in w.items() if name != "lm_head.weight"},
    ],
)
def test_one_of_two_tied_weights_is_enough_and_the_bodys_name_may_be_left_out(folder: Path, change: Any) -> None:
    changed(CONFIG, tie_word_embeddings=True)(folder)
    weights(change)(folder)
    assert utaca.load_reader(folder, device="cpu")
