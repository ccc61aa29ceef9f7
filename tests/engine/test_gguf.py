"""GGUF files as readers: conversion, its cache, and files that are none."""

import math
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import gguf as format
import numpy as np
import pytest
import torch
import transformers
from packaging.version import Version
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, LlamaConfig, PretrainedConfig, PreTrainedModel, Qwen2Config, Qwen3Config
from transformers.convert_slow_tokenizer import bytes_to_unicode

import utaca
from utaca.errors import UserError
from utaca.readers import gguf, packed
from utaca.readers.checks import check
from utaca.readers.files import fetch
from utaca.readers.load import load
from utaca.readers.tokenizer import load_tokenizer
from utaca.settings.checks import build_reader
from utaca.settings.schema import ReaderSettings

LETTERS = [bytes_to_unicode()[byte] for byte in range(256)]
VOCABULARY = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *LETTERS, "ĊĊ", "Ġa", "12"]
MERGES = ["Ċ Ċ", "Ġ a", "1 2"]
A, SPACE_A, BREAKS, DIGITS = 100, 260, 259, (52, 53)
TOKENS = {"a a\n\n12": (A, SPACE_A, BREAKS, *DIGITS), "é<|im_end|>": (3 + 0xC3, 3 + 0xA9, 2)}
TEMPLATE = "{% for message in messages %}<|im_start|>{{ message['content'] }}<|im_end|>{% endfor %}"
CONFIG = Qwen2Config(
    vocab_size=len(VOCABULARY),
    hidden_size=64,
    intermediate_size=96,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=128,
    rms_norm_eps=1e-5,
    rope_parameters={"rope_type": "default", "rope_theta": 500.0},
    tie_word_embeddings=False,
)


def original(seed: int = 0, config: PretrainedConfig = CONFIG) -> PreTrainedModel:
    """A model whose weights neither eight bits a weight nor bfloat16 round: small integers of one scale."""
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config).eval().requires_grad_(False)
    for weight in model.parameters():
        if weight.ndim == 2:
            numbers = (torch.randn(weight.shape) * 40).round().clamp(-127, 127)
            # Of every block of 32 one is the largest, by which the others are scaled.
            numbers[:, ::32] = 127 * numbers[:, ::32].sign().where(numbers[:, ::32] != 0, 1)
            weight.copy_(numbers / 512)
        else:
            weight.copy_((torch.randn(weight.shape) * 40).round() / 64)
    return model


ONES = np.ones(32, np.float32)


@cache
def stored_name(name: str, kind: str = "qwen2") -> str:
    """The name in a GGUF file of a weight of transformers, of a model whose architecture is called ``kind``."""
    names = format.get_tensor_name_map(format.MODEL_ARCH[kind.upper()], 99)
    return names.get_name(name, try_suffixes=(".weight", ".bias"))


def eight_bits(_: str, weight: torch.Tensor) -> tuple[np.ndarray, format.GGMLQuantizationType]:
    """A matrix as a file holds it, in eight bits a weight, and its type."""
    kind = format.GGMLQuantizationType.Q8_0
    return format.quantize(weight.numpy(), kind), kind


def write_gguf(
    path: Path,
    name: str = "qwen2",
    tensors: dict[str, np.ndarray] | None = None,
    without: str = "",
    seed: int = 0,
    keys: dict[str, Any] | None = None,
    model: PreTrainedModel | None = None,
    quantised: Callable[[str, torch.Tensor], tuple[np.ndarray, format.GGMLQuantizationType]] = eight_bits,
    **changes: Any,
) -> Path:
    """A GGUF file of a ``model``, else of :func:`original`, whose architecture is called ``name``.

    ``changes`` are values of keys by the names of the writer's methods, ``keys`` of further ones by their own names;
    ``quantised`` gives a matrix, by its name in transformers, as the file holds it.
    """
    model = model or original(seed)
    writer, config = format.GGUFWriter(path, name), model.config
    types = [format.TokenType.CONTROL] * 3 + [format.TokenType.NORMAL] * (len(VOCABULARY) - 3)
    values = {
        "block_count": config.num_hidden_layers,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "head_count": config.num_attention_heads,
        "head_count_kv": config.num_key_value_heads,
        "layer_norm_rms_eps": config.rms_norm_eps,
        "rope_freq_base": config.rope_parameters["rope_theta"],
        "vocab_size": config.vocab_size,
        "tokenizer_model": "gpt2",
        "tokenizer_pre": "qwen2",
        "token_list": VOCABULARY,
        "token_types": types,
        "token_merges": MERGES,
        **{"bos_token_id": 1, "eos_token_id": 2, "unk_token_id": 0, "pad_token_id": 2},
        "chat_template": TEMPLATE,
    }
    for key, value in (values | changes).items():
        if key != without:
            getattr(writer, f"add_{key}")(value)
    for key, value in (keys or {}).items():
        kinds = {bool: "bool", int: "uint32", float: "float32", str: "string", list: "array"}
        getattr(writer, f"add_{kinds[type(value)]}")(key, value)
    for tensor, numbers in (tensors or {}).items():
        writer.add_tensor(tensor, numbers)
    for weight_name, weight in model.named_parameters():
        place = stored_name(weight_name, model.config.model_type)
        if weight.ndim == 2:
            held, kind = quantised(weight_name, weight)
            writer.add_tensor(place, held, raw_dtype=kind)
        else:
            writer.add_tensor(place, weight.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UTACA_CACHE", str(tmp_path / "cache"))


def test_a_converted_model_is_the_original(tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "small.gguf")
    folder = gguf.converted(file)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    assert not hasattr(model.config, "quantization_config")
    assert {str(tensor.dtype) for tensor in load_file(folder / "model.safetensors").values()} == {"torch.bfloat16"}
    ids = torch.tensor([[*range(3, 60, 5), 1, 2]])
    with torch.no_grad():
        expected, logits = original()(ids).logits, model(ids).logits
    assert torch.allclose(expected, logits, atol=1e-4)
    tokenizer = load_tokenizer(str(file))
    for text, numbers in TOKENS.items():
        assert tokenizer(text, add_special_tokens=False)["input_ids"] == list(numbers)
        assert tokenizer.decode(list(numbers)) == text


def interleaved(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """Rows of a query or key projection in the order of a Llama's GGUF file: the two that are rotated together."""
    return weight.view(heads, 2, -1, weight.shape[-1]).transpose(1, 2).reshape(weight.shape)


def frequency_factors(config: PretrainedConfig) -> np.ndarray:
    """What a GGUF file holds of a Llama's rotary scaling, as llama.cpp's conversion computes it."""
    rope = config.rope_parameters
    found = []
    for number in range(0, config.head_dim, 2):
        length = 2 * math.pi * rope["rope_theta"] ** (number / config.head_dim)
        trained = rope["original_max_position_embeddings"]
        if length < trained / rope["high_freq_factor"]:
            found.append(1.0)
        elif length > trained / rope["low_freq_factor"]:
            found.append(rope["factor"])
        else:
            smooth = trained / length - rope["low_freq_factor"]
            smooth /= rope["high_freq_factor"] - rope["low_freq_factor"]
            found.append(1 / ((1 - smooth) / rope["factor"] + smooth))
    return np.array(found, np.float32)


LLAMA3 = {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA3 |= {"original_max_position_embeddings": 8192}
PLAIN = {"rope_type": "default", "rope_theta": 500.0}


def family(config: type[PretrainedConfig], rope: dict[str, Any], tied: bool, **sizes: int) -> PretrainedConfig:
    own = {"rope_parameters": rope, "tie_word_embeddings": tied, **sizes}
    names = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
    names += ("num_key_value_heads", "max_position_embeddings", "rms_norm_eps")
    return config(**{name: getattr(CONFIG, name) for name in names} | own)


@pytest.mark.parametrize("weights", ["plain", "packed"])
@pytest.mark.parametrize(
    ("config", "rule", "digits"),
    [
        (family(LlamaConfig, LLAMA3, True, head_dim=32), "llama-bpe", [DIGITS]),
        (family(LlamaConfig, PLAIN, False), "llama-bpe", [DIGITS]),
        # As Mistral-Nemo has it: heads that are not the residual stream's share.
        (family(LlamaConfig, PLAIN, False, head_dim=8), "tekken", DIGITS),
        (family(Qwen3Config, PLAIN, True, head_dim=32), "qwen2", DIGITS),
        (family(Qwen3Config, PLAIN, False, head_dim=16), "qwen2", DIGITS),
    ],
)
def test_each_family_is_read_as_it_is(
    weights: str, config: PretrainedConfig, rule: str, digits: Any, tmp_path: Path
) -> None:
    model = original(0, config)
    kind = config.model_type
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}

    def stored(name: str, weight: torch.Tensor) -> tuple[np.ndarray, format.GGMLQuantizationType]:
        part = name.split(".")[-2]
        return eight_bits(name, interleaved(weight, heads[part]) if kind == "llama" and part in heads else weight)

    scaled = config.rope_parameters["rope_type"] == "llama3"
    keys = dict.fromkeys(("rope.dimension_count", "attention.key_length", "attention.value_length"), config.head_dim)
    file = write_gguf(
        tmp_path / "small.gguf",
        name=kind,
        model=model,
        quantised=stored,
        tokenizer_pre=rule,
        rope_freq_base=config.rope_parameters["rope_theta"],
        tensors={"rope_freqs.weight": frequency_factors(config)} if scaled else None,
        keys={f"{kind}.{key}": value for key, value in keys.items()},
    )
    settings = {"name": "small", "path": str(file), "weights": weights, "device": "cpu"}
    if weights == "packed" and (why := packed.fault()):
        pytest.skip(why)
    reader = load(build_reader(settings | {"dtype": "bfloat16" if weights == "packed" else "float32"}))
    assert reader.model.config.rope_parameters == config.rope_parameters
    assert reader.shape == (2, 4, 2, config.head_dim)
    ids = torch.tensor([*range(3, 120, 5), 1, 2])
    with torch.inference_mode():
        expected = model(ids[None]).logits[0]
        reader.model.set_attn_implementation("sdpa")
        found = reader.logits(reader.model.base_model(ids[None], use_cache=False).last_hidden_state[0])
    assert ((found - expected).norm() / expected.norm()) < (0.02 if weights == "packed" else 1e-5)
    # A rule takes up to three digits together, and then no word that is a token apart.
    assert reader.encode("a a").tolist() == [A, SPACE_A]
    together = 259 + 2
    assert reader.encode("12").tolist() == ([together] if digits == [DIGITS] else list(DIGITS))
    assert reader.encode("a\n\n12")[:2].tolist() == [A, BREAKS]


def test_another_rotary_scaling_is_refused(tmp_path: Path) -> None:
    model = original(0, family(LlamaConfig, LLAMA3, False, head_dim=32))
    factors = frequency_factors(model.config)
    factors[3] *= 1.01
    file = write_gguf(
        tmp_path / "small.gguf",
        name="llama",
        model=model,
        tokenizer_pre="llama-bpe",
        rope_freq_base=5e5,
        tensors={"rope_freqs.weight": factors},
        keys={"llama.attention.key_length": 32},
    )
    assert "has rope_freqs.weight of another scaling than Llama 3's" in message(file)


def test_a_file_is_a_reader_by_its_path_and_so_is_a_folder_of_such_a_name(tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "small.GGUF")
    check(ReaderSettings(name="small", path=str(file)))
    assert not (tmp_path / "cache").exists(), "a check converts nothing"
    reader = utaca.load_reader(file, dtype="float32")
    assert fetch(reader.settings) == f"{file} is here; its model is in {gguf.converted(file)}"
    assert reader.stop_tokens == {2}
    assert reader.encode_document("a").tolist() == [1, A]
    assert reader.shape == (2, 4, 2, 16)
    shutil.copytree(gguf.converted(file), tmp_path / "folder.gguf")
    assert utaca.load_reader(tmp_path / "folder.gguf", dtype="float32").identity == reader.identity


def test_a_file_is_converted_once_wherever_it_lies(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write_gguf(tmp_path / "small.gguf")
    with ThreadPoolExecutor(2) as both:
        folder, other = both.map(gguf.converted, [file, file])
    assert folder == other
    assert capsys.readouterr().err.count(f"converting {file}") == 1
    inode = (folder / "model.safetensors").stat().st_ino
    (tmp_path / "there").mkdir()
    assert gguf.converted(shutil.copy(file, tmp_path / "there" / "other.gguf")) == folder
    assert (folder / "model.safetensors").stat().st_ino == inode
    assert not capsys.readouterr().err
    assert sorted(path.name for path in folder.parent.iterdir()) == [folder.name, f"{folder.name}.lock"]
    assert gguf.conversion(write_gguf(tmp_path / "other.gguf", seed=1)) != folder


_CONVERTING = """
import sys, time
from pathlib import Path
from utaca.readers import gguf, packed
import utaca

file, begun, go = map(Path, sys.argv[1:])
convert = gguf._convert

def slowly(path, folder):
    begun.touch()
    while not go.exists():
        time.sleep(0.01)
    convert(path, folder)

gguf._convert = slowly
print(utaca.load_reader(file, dtype="float32").identity)
"""
"""Loads a GGUF file as a reader; its conversion begins and waits until another process wants it too."""


def test_of_two_processes_one_converts_and_both_load_the_same_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, begun, go = write_gguf(tmp_path / "small.gguf"), tmp_path / "begun", tmp_path / "go"
    command = [sys.executable, "-c", _CONVERTING, *map(str, (file, begun, go))]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=environment, **pipes) as other, ThreadPoolExecutor(1) as here:
        deadline = time.monotonic() + 120
        while not begun.exists():
            assert other.poll() is None, other.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.01)
        waiting = here.submit(gguf.converted, file)
        try:
            with pytest.raises(TimeoutError):
                waiting.result(0.3)
        finally:
            go.touch()
        folder = waiting.result(120)
        identity, said = other.communicate(timeout=120)
    assert other.returncode == 0, said
    assert f"converting {file}, once, into {folder}" in said
    assert "converting" not in capsys.readouterr().err
    assert utaca.load_reader(file, dtype="float32").identity == identity.strip()
    assert sorted(path.name for path in folder.parent.iterdir()) == [folder.name, f"{folder.name}.lock"]


def message(path: Path) -> str:
    """What loading and checking say of a file alike."""
    with pytest.raises(UserError) as checked:
        check(ReaderSettings(name="small", path=str(path)))
    with pytest.raises(UserError) as loaded:
        load(ReaderSettings(name="small", path=str(path)))
    assert str(checked.value) == str(loaded.value)
    assert not list((path.parent / "cache").rglob("*.safetensors"))
    return str(checked.value)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            {"name": "llama"},
            "is a llama model with tokenizer qwen2, but only llama-bpe or tekken can be read; set reader.path",
        ),
        ({"tokenizer_pre": "tekken"}, "is a qwen2 model with tokenizer tekken"),
        ({"tokenizer_model": "llama"}, "has a tokenizer of type llama, but only gpt2 can be read from GGUF files"),
        ({"name": "gemma3"}, "only llama, qwen2, qwen3 can be read"),
        (
            {"name": "clip"},
            "is the part of a model that reads images (mmproj); set reader.path to the language model's",
        ),
        ({"keys": {"general.type": "mmproj"}}, "is the part of a model that reads images (mmproj)"),
        ({"keys": {"general.type": "adapter"}}, "is an adapter; merge it into its base model (llama-export-lora)"),
        ({"keys": {"general.type": "imatrix"}}, "is a file of type imatrix, not a model"),
        ({"keys": {"split.count": 2, "split.no": 0}}, "is part 1 of 2 of a split file; merge them (llama-gguf-split"),
        ({"tensors": {"blk.0.attn_q_norm.weight": ONES}}, "has unknown weights (1: blk.0.attn_q_norm.weight, ...)"),
        ({"without": "head_count_kv"}, "has qwen2.attention.head_count_kv=nothing, which must be a whole number"),
        ({"head_count_kv": [2, 2]}, "has qwen2.attention.head_count_kv=nothing, which must be a whole number"),
        ({"head_count_kv": 3}, "has sizes of heads that do not divide each other"),
        ({"block_count": 2**31}, "lacks weights of its 2147483648 layers"),
        ({"feed_forward_length": 95}, "has blk.0.ffn_gate.weight of size [96, 64], not [95, 64]"),
        ({"layer_norm_rms_eps": float("nan")}, "layer_norm_rms_epsilon=nan, which must be a number above 0"),
        ({"rope_freq_base": 0.0}, "has qwen2.rope.freq_base=0, which must be a number above 0"),
        ({"vocab_size": 5}, f"has qwen2.vocab_size=5, but {len(VOCABULARY)} tokens"),
        ({"eos_token_id": 9999}, f"has tokenizer.ggml.eos_token_id=9999, but {len(VOCABULARY)} tokens"),
        ({"keys": {"tokenizer.ggml.eot_token_id": 9999}}, "has tokenizer.ggml.eot_token_id=9999, but"),
        ({"token_list": VOCABULARY[:-1]}, "has token_embd.weight of size [262, 64], not [261, 64]"),
        ({"without": "token_merges"}, "has no merges of its tokenizer"),
        ({"without": "token_types"}, f"has types of 0 tokens, but {len(VOCABULARY)} tokens"),
        ({"token_merges": ["zz yy"]}, "has a tokenizer that transformers cannot read ("),
        (
            {
                "token_list": ["<|x|>", *VOCABULARY[1:]],
                "chat_template": "{% for m in messages %}<|endoftext|>{{ m['content'] }}{% endfor %}",
            },
            "has a tokenizer with token 262 ('<|endoftext|>'), but its model has vocab_size=262",
        ),
        ({"chat_template": "{% if %}"}, "small.gguf' cannot be rendered (TemplateSyntaxError"),
        ({"chat_template": "hello"}, "small.gguf' renders the user message 0 times"),
        pytest.param(
            {
                "token_list": ["<｜user｜>", *VOCABULARY[1:]],
                "chat_template": "{% for m in messages %}<｜user｜>{{ m['content'] }}{% endfor %}",
            },
            "has a chat template with the token '<｜user｜>', which transformers cannot read",
            marks=pytest.mark.skipif(
                Version(transformers.__version__) < Version("5.18"), reason="this transformers reads such a token"
            ),
        ),
        *(
            ({"keys": {f"qwen2.{key}": value}}, f"has qwen2.{key}{said}, ")
            for key, value, said in [
                ("rope.scale_linear", 4.0, "=4"),
                ("rope.scaling.factor", 2.0, "=2"),
                ("rope.scaling.type", "longrope", "=longrope"),
                ("rope.scaling.attn_factor", 2.0, "=2"),
                ("rope.dimension_count", 8, "=8"),
                ("attention.key_length", 32, "=32"),
                ("attention.value_length", 32, "=32"),
                ("attention.causal", False, "=false"),
                ("attention.sliding_window", 64, "=64"),
                ("attention.scale", 0.5, "=0.5"),
                ("attention.clamp_kqv", 1.0, "=1"),
                ("attention.max_alibi_bias", 8.0, "=8"),
                ("attn_logit_softcapping", 30.0, "=30"),
                ("final_logit_softcapping", 30.0, "=30"),
                ("logit_scale", 0.1, "=0.1"),
                ("embedding_scale", 2.0, "=2"),
                ("residual_scale", 2.0, "=2"),
                ("expert_count", 8, "=8"),
                ("pooling_type", 3, "=3"),
                ("use_parallel_residual", True, "=true"),
                ("rope.freq_base_swa", 1e4, ""),
                ("rope.dimension_sections", [1, 2, 3], ""),
                ("rope.scaling.yarn_ext_factor", 1.0, ""),
                ("nextn_predict_layers", 1, ""),
                ("anything.new", 1, ""),
            ]
        ),
        ({"block_count": 3}, "lacks weights (12: blk.2.attn_k.bias, ...)"),
        ({"tensors": {"rope_freqs.weight": ONES}}, "has unknown weights (1: rope_freqs.weight, ...)"),
        ({"without": "layer_norm_rms_eps"}, "has qwen2.attention.layer_norm_rms_epsilon=nothing"),
        ({"without": "chat_template"}, "has no chat template; take the file of an instruction-tuned model"),
        (
            {"rope_scaling_type": format.RopeScalingType.YARN},
            "rope.scaling.type=yarn, but it can be read from GGUF files only if it is none or linear",
        ),
    ],
)
def test_a_model_that_would_be_misread_is_refused(changes: dict[str, Any], expected: str, tmp_path: Path) -> None:
    assert expected in message(write_gguf(tmp_path / "small.gguf", **changes))


def test_keys_that_change_nothing_are_taken(tmp_path: Path) -> None:
    keys = {
        **dict.fromkeys(("rope.scale_linear", "rope.scaling.factor", "rope.scaling.attn_factor", "logit_scale"), 1.0),
        "rope.scaling.type": "none",
        "rope.scaling.original_context_length": 64,
        **dict.fromkeys(("rope.dimension_count", "attention.key_length", "attention.value_length"), 16),
        **dict.fromkeys(("expert_count", "expert_used_count", "attention.sliding_window", "pooling_type"), 0),
        **dict.fromkeys(("attn_logit_softcapping", "final_logit_softcapping", "attention.clamp_kqv"), 0.0),
        "attention.causal": True,
        "use_parallel_residual": False,
    }
    others = {
        "general.type": "model",
        "split.count": 0,
        "llama.rope.scaling.factor": 4.0,
        "tokenizer.ggml.add_space_prefix": True,
        "tokenizer.ggml.eot_token_id": 0,
    }
    file = write_gguf(tmp_path / "small.gguf", keys={f"qwen2.{key}": each for key, each in keys.items()} | others)
    # Ollama keeps files without the ending.
    blob = file.rename(tmp_path / "sha256-6a0746a1ec1a")
    assert gguf.is_gguf(blob)
    reader = utaca.load_reader(blob, dtype="float32")
    assert reader.model.config.rope_parameters == {"rope_type": "default", "rope_theta": 500.0}
    assert reader.stop_tokens == {0, 2}, "the end of a turn too"
    with pytest.raises(UserError, match=r"reader\.revision is v2, but reader\.path="):
        build_reader({"name": "x", "path": str(blob), "revision": "v2"})


def test_a_part_of_a_split_file_is_told_to_be_merged(tmp_path: Path) -> None:
    """By its key, or, where the program that split it wrote none, by its name; a whole file of such a name is read."""
    for number, count, name in ((1, 3, "other.gguf"), (0, 0, "m-00002-of-00003.gguf")):
        writer = format.GGUFWriter(tmp_path / name, "x")
        if count:
            writer.add_uint16("split.no", number)
            writer.add_uint16("split.count", count)
        writer.add_tensor("blk.1.attn_q.bias", torch.ones(32).numpy())
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        assert f"{name} is part 2 of 3 of a split file; merge them" in message(tmp_path / name)
    assert utaca.load_reader(write_gguf(tmp_path / "m-00001-of-00002.gguf"), dtype="float32")


@pytest.mark.parametrize(
    ("first", "said"),
    [
        (b"GGUF\x01\0\0\0", "is a GGUF file of version 1, but only versions 2 and 3 can be read; convert its model"),
        (b"GGUF\x63\0\0\0", "is a GGUF file of version 99, but only versions 2 and 3 can be read"),
        (b"GGUF\0\0\0\x03", "is a GGUF file for big-endian machines; convert it: gguf-convert-endian"),
        (b"tjgg\x03\0\0\0", "has a format that is older than GGUF; convert its model with a current llama.cpp"),
        (b"GGUF", "is not a complete GGUF file"),
        (b"GGUF\x03\0\0\0", "has no general.architecture"),
    ],
)
def test_what_another_version_or_machine_wrote_is_told_apart(first: bytes, said: str, tmp_path: Path) -> None:
    for name in ("small.gguf", "blob"):
        (tmp_path / name).write_bytes(first.ljust(24, b"\0") if len(first) > 4 else first)
        if name == "small.gguf" or first.startswith(b"GGUF"):
            assert said in message(tmp_path / name)


def test_what_is_no_readable_gguf_file_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text, absent, cut = (tmp_path / f"{name}.gguf" for name in ("text", "absent", "cut"))
    text.write_text("a pointer or a page")
    assert message(text).endswith("is not a GGUF file (its first bytes are not GGUF); copy or download it again")
    assert "absent.gguf does not exist" in message(absent)
    file = write_gguf(tmp_path / "small.gguf")
    cut.write_bytes(file.read_bytes()[:-100])
    assert "cut.gguf is not a complete GGUF file" in message(cut)
    with pytest.raises(
        UserError, match=r"a folder with 3 GGUF files; set reader\.path to one of them, such as .*\.gguf$"
    ):
        utaca.load_reader(tmp_path)
    with pytest.raises(UserError, match=r"reader\.revision is v2, but reader\.path="):
        build_reader({"name": "x", "path": "x.gguf", "revision": "v2"})
    with monkeypatch.context() as patched:
        patched.setattr(gguf, "find_spec", lambda name: None if name == "gguf" else name)
        assert message(file) == 'reading GGUF files needs gguf, not installed here; run: pip install "utaca[gguf]"'

    def refuse(_: Path) -> str:
        raise PermissionError(13, "Permission denied")

    gguf._digest.cache_clear()
    monkeypatch.setattr(gguf, "sha256", refuse)
    remedy = "small.gguf cannot be read (Permission denied); correct its permissions, or copy it again"
    assert message(file).endswith(remedy)


@pytest.mark.parametrize("weights", ["packed", "plain"])
def test_a_conversion_that_lost_files_is_a_sentence(weights: str, tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "small.gguf")
    folder = gguf.converted(file, weights == "packed")
    (folder / "model.safetensors").unlink()
    settings = build_reader({"name": "small", "path": str(file), "weights": weights, "dtype": "bfloat16"})
    for look in (check, load):
        with pytest.raises(
            UserError, match=f"^the converted model {folder} is damaged .*; delete it, and the next run conv"
        ):
            look(settings)
    shutil.rmtree(folder)
    assert utaca.load_reader(file, dtype="float32").stop_tokens == {2}


def test_a_killed_conversion_leaves_nothing_for_good(tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "small.gguf")
    scratch = Path(f"{gguf.conversion(file)}.making")
    scratch.mkdir(parents=True)
    (scratch / "model-00001-of-00002.safetensors").write_text("half")
    assert "model-00001-of-00002.safetensors" not in {path.name for path in gguf.converted(file).iterdir()}
    assert not scratch.exists()


def test_a_cache_without_room_or_leave_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write_gguf(tmp_path / "small.gguf")
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("UTACA_CACHE", str(tmp_path / "file"))
    with pytest.raises(UserError, match=r"cannot be written to .*; set UTACA_CACHE to a folder"):
        gguf.converted(file)
    monkeypatch.setenv("UTACA_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(1, 1, 2**10))
    assert "0 MiB, but only 0 MiB are free" in message(file)
