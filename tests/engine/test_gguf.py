"""GGUF files as readers: conversion, its cache, and files that are none."""

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import gguf as format
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, PreTrainedModel, Qwen2Config
from transformers.convert_slow_tokenizer import bytes_to_unicode

import utaca
from utaca.errors import UserError
from utaca.readers import gguf
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


def original(seed: int = 0) -> PreTrainedModel:
    """A model whose weights neither eight bits a weight nor bfloat16 round: small integers of one scale."""
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(CONFIG).eval().requires_grad_(False)
    for weight in model.parameters():
        if weight.ndim == 2:
            numbers = (torch.randn(weight.shape) * 40).round().clamp(-127, 127)
            # Of every block of 32 one is the largest, by which the others are scaled.
            numbers[:, ::32] = 127 * numbers[:, ::32].sign().where(numbers[:, ::32] != 0, 1)
            weight.copy_(numbers / 512)
        else:
            weight.copy_((torch.randn(weight.shape) * 40).round() / 64)
    return model


def stored_name(name: str) -> str:
    """The name in a GGUF file of a weight of transformers."""
    names = format.get_tensor_name_map(format.MODEL_ARCH.QWEN2, 99)
    return names.get_name(name, try_suffixes=(".weight", ".bias"))


def write_gguf(
    path: Path, name: str = "qwen2", tensors: tuple[str, ...] = (), without: str = "", seed: int = 0, **changes: Any
) -> Path:
    """A GGUF file of :func:`original`; ``name`` stands for its architecture, ``changes`` are values of further keys."""
    model = original(seed)
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
    for tensor in tensors:
        writer.add_tensor(tensor, torch.ones(32).numpy())
    for weight_name, weight in model.state_dict().items():
        if weight.ndim == 2:
            kind = format.GGMLQuantizationType.Q8_0
            writer.add_tensor(stored_name(weight_name), format.quantize(weight.numpy(), kind), raw_dtype=kind)
        else:
            writer.add_tensor(stored_name(weight_name), weight.numpy())
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
        ({"name": "llama"}, "is a llama model with a qwen2 tokenizer; of GGUF files only qwen2 is read"),
        ({"tokenizer_pre": "tekken"}, "is a qwen2 model with a tekken tokenizer"),
        ({"block_count": 3}, "lacks weights (12: blk.2.attn_k.bias, ...)"),
        ({"tensors": ("rope_freqs.weight",)}, "has unknown weights (1: rope_freqs.weight, ...)"),
        ({"without": "layer_norm_rms_eps"}, "has qwen2.attention.layer_norm_rms_epsilon=nothing"),
        ({"without": "chat_template"}, "has no chat template; take the file of an instruction-tuned model"),
        (
            {"rope_scaling_type": format.RopeScalingType.YARN},
            "rope.scaling.type=yarn, which is not read of GGUF files unless it is none or linear",
        ),
    ],
)
def test_a_model_that_would_be_misread_is_refused(changes: dict[str, Any], expected: str, tmp_path: Path) -> None:
    assert expected in message(write_gguf(tmp_path / "small.gguf", **changes))


def test_what_is_no_readable_gguf_file_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text, absent, cut = (tmp_path / f"{name}.gguf" for name in ("text", "absent", "cut"))
    text.write_text("a pointer or a page")
    assert message(text).endswith("is no GGUF file, by its first bytes; copy or download it anew")
    assert "absent.gguf is not here" in message(absent)
    file = write_gguf(tmp_path / "small.gguf")
    cut.write_bytes(file.read_bytes()[:-100])
    assert "cut.gguf is no whole GGUF file" in message(cut)
    with pytest.raises(UserError, match=r"a folder with a GGUF file; set reader\.path=.*\.gguf$"):
        utaca.load_reader(tmp_path)
    with pytest.raises(UserError, match=r"reader\.revision is v2, a version on a hub"):
        build_reader({"name": "x", "path": "x.gguf", "revision": "v2"})
    with monkeypatch.context() as patched:
        patched.setattr(gguf, "find_spec", lambda name: None if name == "gguf" else name)
        assert message(file) == 'reading GGUF files needs gguf, not installed here; run: pip install "utaca[gguf]"'

    def refuse(_: Path) -> str:
        raise PermissionError(13, "Permission denied")

    gguf._digest.cache_clear()
    monkeypatch.setattr(gguf, "sha256", refuse)
    mend = "small.gguf cannot be read (Permission denied); let this user read it, or copy it anew"
    assert message(file).endswith(mend)


def test_a_conversion_that_lost_files_is_a_sentence(tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "small.gguf")
    folder = gguf.converted(file)
    (folder / "model.safetensors").unlink()
    for look in (check, load):
        with pytest.raises(UserError, match=f"^{folder}, which {file} was .* is spoilt .*; remove it, and it is made"):
            look(ReaderSettings(name="small", path=str(file)))
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
    assert "0 MiB, but 0 MiB are free" in message(file)
