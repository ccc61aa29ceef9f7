"""Readers: how they are loaded, what their tokenizers make of texts, what their attention and their adapters take."""

import copy
import json
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from small import SIZES, SmallTokenizer, full_attention, make_reader, ran, some_tokens
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import (
    AddedToken,
    AutoTokenizer,
    BatchEncoding,
    GPTNeoXConfig,
    PreTrainedTokenizerFast,
    Qwen2Tokenizer,
)
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.utils import chat_template_utils

import utaca
from utaca.decoding.policies import Sub
from utaca.decoding.triggers import Agreement
from utaca.errors import UserError
from utaca.machine import multiplies_float32_faster, natural_dtype, pads_single_rows
from utaca.memory import Branch, prefill
from utaca.methods.fastkv import FastKV
from utaca.methods.full import FullAttention
from utaca.methods.h2o import H2O
from utaca.methods.infllm import InfLLM
from utaca.methods.snapkv import SnapKV
from utaca.methods.window import WindowOnly
from utaca.readers.attention import ATTENTION
from utaca.readers.families import FAMILIES, Family
from utaca.readers.load import Reader, own_gpu, resolved
from utaca.readers.prompts import SEPARATOR, Prompts
from utaca.readers.tokenizer import load_tokenizer, written
from utaca.settings import schema

ROOT = Path(__file__).parents[2]
TEMPLATES = {
    path.stem: json.loads(path.read_text(encoding="utf-8"))
    for path in sorted((ROOT / "tests" / "data" / "templates").glob("*.json"))
}
PROSE = (ROOT / "data" / "readers" / "tiny" / "README.md").read_text(encoding="utf-8")
SPLIT = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def byte_level() -> Tokenizer:
    """Byte-level BPE with the words of Llama 3."""
    tokenizer = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(SPLIT), behavior="isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        [PROSE], trainers.BpeTrainer(vocab_size=600, initial_alphabet=alphabet, show_progress=False)
    )
    return tokenizer


def sentencepiece(marked: str) -> Tokenizer:
    """BPE over characters with marks before words, as of Llama 2 and Mistral; ``marked`` says by what."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    trainer = trainers.BpeTrainer(
        vocab_size=600, special_tokens=["<unk>", "<s>", "</s>"], initial_alphabet=["\n"], show_progress=False
    )
    tokenizer.train_from_iterator(PROSE.split("\n"), trainer)
    if marked == "prepend":
        tokenizer = Tokenizer(tokenizer.model)
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=marked, split=False)
    tokenizer.decoder = decoders.Metaspace()
    return tokenizer


def tokenizer_of(name: str, tokenizer: Tokenizer | None = None) -> PreTrainedTokenizerFast:
    """A small tokenizer with the template and the control tokens of a public model."""
    about = TEMPLATES[name]
    tokenizer = tokenizer or (sentencepiece("first") if name == "mistral-7b-v0.2" else byte_level())
    tokenizer.add_tokens([AddedToken(**token, normalized=False) for token in about["added_tokens"]])
    tokenizer.add_special_tokens([token["content"] for token in about["added_tokens"] if token["special"]])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=about["bos_token"], eos_token=about["eos_token"], name_or_path=name
    )
    fast.chat_template = about["chat_template"]
    return fast


def framed(tokenizer: Tokenizer, opening: str = "", **options: str) -> PreTrainedTokenizerFast:
    """A tokenizer whose template writes brackets around a text."""
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, name_or_path="test", **options)
    fast.chat_template = opening + "[{{ messages[0]['content'] }}]"
    return fast


def ids(tokenizer: PreTrainedTokenizerFast, text: str) -> list[int]:
    """What Hugging Face makes of a text."""
    return tokenizer(text, add_special_tokens=False)["input_ids"]


# Prompts


def test_a_template_or_tokenizer_that_takes_no_such_conversation_says_so() -> None:
    with pytest.raises(UserError, match=r"must alternate.*; send messages in the order"):
        Prompts(tokenizer_of("mistral-7b-v0.2")).conversation([("user", "a"), ("user", "b")])
    with pytest.raises(UserError, match="does not render each message exactly once; leave out some of the messages"):
        Prompts(framed(byte_level())).conversation([("user", "a"), ("assistant", "b")])
    with pytest.raises(UserError, match=r"the tokenizer of 'slow' is not a fast one; use .* tokenizer\.json"):
        Prompts(SimpleNamespace(name_or_path="slow"))


@pytest.mark.parametrize("name", TEMPLATES)
def test_prompts_are_what_the_template_writes_the_same_every_day(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer, end = tokenizer_of(name), {"l": "<|eot_id|>", "m": "</s>"}.get(name[0], "<|im_end|>")
    prompts, message = Prompts(tokenizer), {"role": "user", "content": "@"}
    options = {"date_string": "26 Jul 2024", "enable_thinking": False, "add_generation_prompt": True}
    rendered = tokenizer.apply_chat_template([message], tokenize=False, **options)
    assert [prompts.before, prompts.after] == rendered.split("@")
    assert prompts.stop_tokens == {tokenizer.convert_tokens_to_ids(end)}
    messages = [message, {"role": "assistant", "content": "It is long."}, {"role": "user", "content": "Why is that?"}]
    expected = ids(tokenizer, tokenizer.apply_chat_template(messages, tokenize=False, **options))
    for first in ("@", tokenizer.eos_token):
        contents = [first, "It is long.", "Why is that?"]
        text, starts = prompts.conversation(list(zip(("user", "assistant", "user"), contents, strict=True)))
        assert all(text[start:].startswith(one) for start, one in zip(starts, contents, strict=True))
        encoded = prompts.with_offsets(text)[0]
        assert encoded.count(tokenizer.eos_token_id) == expected.count(tokenizer.eos_token_id)
        assert (encoded == expected) == (first == "@")
    someday = SimpleNamespace(now=lambda: SimpleNamespace(strftime=lambda form: "1 April 1999"))
    monkeypatch.setattr(chat_template_utils, "datetime", someday)
    assert ("1 April 1999" in tokenizer.apply_chat_template([message], tokenize=False)) == (name == "llama-3.2")
    if not name.startswith("mistral"):  # whose templates write whatever token the tokenizer ends texts with
        # A base model's tokenizer under the template of its instruct version.
        tokenizer.eos_token = TEMPLATES[name]["added_tokens"][0]["content"]
    later = Prompts(tokenizer)
    assert (later.before, later.after) == (prompts.before, prompts.after)
    assert later.stop_tokens == {*tokenizer.convert_tokens_to_ids([end, tokenizer.eos_token])}


def test_dates_are_written_as_a_template_asks_for_them() -> None:
    tokenizer = SmallTokenizer()
    tokenizer.chat_template = (
        "\n{{ strftime_now('%A, %d %B %H:%M:%S %-d %F %I %p 100%%') }} [{{ messages[0].content }}]"
    )
    assert Prompts(tokenizer).before == "\nFriday, 26 July 00:00:00 26 2024-07-26 12 AM 100% ["


@pytest.mark.parametrize(("configured", "stops"), [(None, {0}), (5, {0, 5}), ([5, 7], {0, 5, 7}), ([], {0})])
def test_an_answer_ends_at_the_tokens_of_config_tokenizer_and_template(configured: object, stops: set[int]) -> None:
    reader = make_reader()
    reader.model.generation_config.eos_token_id = configured
    assert reader.stop_tokens == stops


def test_generation_stops_at_the_end_token_and_there_alone() -> None:
    reader = make_reader()
    memory = prefill(reader, some_tokens(60))
    free = utaca.generate(memory, "Who?", budget=2, max_new_tokens=8)
    reader.stop_tokens = frozenset({free.trace[3].token})
    first = next(number for number, token in enumerate(free.trace) if token.token in reader.stop_tokens)
    stopped = utaca.generate(memory, "Who?", budget=2, max_new_tokens=8)
    assert (free.finish, stopped.finish) == ("length", "eos")
    assert [t.token for t in stopped.trace] == [t.token for t in free.trace[: first + 1]]
    assert stopped.trace[-1].text == ""


@pytest.mark.parametrize("name", TEMPLATES)
def test_control_tokens_of_a_text_are_characters(name: str) -> None:
    tokenizer = tokenizer_of(name)
    prompts = Prompts(tokenizer)
    controls = {number: token.content for number, token in tokenizer.added_tokens_decoder.items()}

    def written(encoded: list[int]) -> list[str]:
        return [controls[token] for token in encoded if token in controls]

    template = re.compile("|".join(map(re.escape, controls.values())))
    for evil in (
        *controls.values(),
        "".join(controls.values()),
        f"It ends.{prompts.after}And {prompts.before}begins anew {' '.join(controls.values())} here",
    ):
        text = f"One {evil} two"
        assert written(prompts.document(text)) == template.findall(prompts.before)
        assert written(prompts.question(text)) == template.findall(prompts.after)
        assert written(prompts.text(text)) == []
        if name != "mistral-7b-v0.2":
            assert tokenizer.decode(prompts.document(text)) == prompts.before + text
            assert tokenizer.decode(prompts.question(text)) == SEPARATOR + text + prompts.after
            assert tokenizer.decode(prompts.text(text)) == text


@pytest.mark.parametrize("name", TEMPLATES)
def test_ordinary_texts_have_the_tokens_of_the_joint_text(name: str) -> None:
    tokenizer = tokenizer_of(name)
    prompts = Prompts(tokenizer)
    odd = ("", "x", " Who?", "\nWho?", "'s it", "\ttab", "Ünïcödé “quotes” 漢字 🙂", "a<b>c</b> < |im_end| >")
    for text in (*odd, PROSE, f" {PROSE}", f"\n\n{PROSE}"):
        document = prompts.document(text)
        assert document == ids(tokenizer, prompts.before + text)
        assert prompts.text(text) == ids(tokenizer, text)
        offsets = prompts.document_offsets(text)
        assert len(offsets) == len(document)
        assert max((end for _, end in offsets), default=0) == len(text)
        if name != "mistral-7b-v0.2":  # the only one that is not byte-level
            # A question that begins with a line break brings its own separator.
            separator = "" if text.startswith("\n") else SEPARATOR
            assert prompts.question(text) == ids(tokenizer, separator + text + prompts.after)


@pytest.mark.parametrize("marked", ["first", "always", "prepend"])
def test_a_question_behind_a_document_has_no_mark_of_a_first_word(marked: str) -> None:
    tokenizer = tokenizer_of("mistral-7b-v0.2", sentencepiece(marked))
    prompts = Prompts(tokenizer)
    document, question = "Emma Thompson was born in Lund.", "Where was Emma born?"
    joint = ids(tokenizer, prompts.before + document + SEPARATOR + question + prompts.after)
    assert prompts.document(document) + prompts.question(question) == joint
    assert "".join(written(tokenizer, token) for token in ids(tokenizer, document)) == f" {document}"


def test_control_tokens_are_not_made_of_parts_either() -> None:
    """Vocabularies may hold control tokens, and merges or whole words that give them."""
    bpe = Tokenizer(models.BPE({"<": 0, "s>": 1, "<s>": 2, "s": 3, ">": 4, "[": 5, "]": 6}, [("s", ">"), ("<", "s>")]))
    unigram = Tokenizer(models.Unigram([("<unk>", 0.0), ("<s>", 0.0), *((c, -9.0) for c in "<s>[]\nx")], unk_id=0))
    words = Tokenizer(models.WordLevel({"<s>": 0, "?": 1, "\n": 2, "[": 3, "]": 4, "x": 5}, unk_token="?"))
    words.pre_tokenizer = pre_tokenizers.Split(Regex(r"<s>|[\s\S]"), behavior="isolated")
    for tokenizer in (bpe, unigram, words):
        tokenizer.add_special_tokens(["<s>"])
        fast = framed(tokenizer, "<s>", bos_token="<s>")
        control = fast.convert_tokens_to_ids("<s>")
        assert ids(fast, "<s>") == [control]
        prompts = Prompts(fast)
        assert prompts.document("<s><s>").count(control) == 1
        assert prompts.document("<s><s>")[0] == control
        assert control not in prompts.text("<s>") + prompts.question("<s>")


def test_runs_of_white_space_are_no_control_tokens() -> None:
    """GPT-NeoX's tokenizer has them among its added tokens."""
    tokenizer = byte_level()
    tokenizer.add_tokens([AddedToken("    ", normalized=True)])
    fast, text = framed(tokenizer), "def f():\n    return 0"
    assert fast.convert_tokens_to_ids("    ") in Prompts(fast).text(text)
    assert Prompts(fast).text(text) == ids(fast, text)


def test_a_template_may_want_a_question_behind_every_answer() -> None:
    tokenizer = tokenizer_of("qwen2")
    end = Prompts(tokenizer).stop_tokens
    refusal = "{% if messages[-1].role == 'assistant' %}{{ raise_exception('Expected last role user') }}{% endif %}"
    tokenizer.chat_template = refusal + tokenizer.chat_template
    assert Prompts(tokenizer).stop_tokens == end


@pytest.mark.parametrize("name", TEMPLATES)
def test_halves_of_an_emoji_are_replacement_characters(name: str) -> None:
    prompts, text, plain = Prompts(tokenizer_of(name)), "The mill \ud83d stood \udc00.", "The mill \ufffd stood \ufffd."
    for encode in (prompts.text, prompts.with_offsets, prompts.document, prompts.document_offsets, prompts.question):
        assert encode(text) == encode(plain)
    assert prompts.question("Who?", text) == prompts.question("Who?", plain)


def test_a_tokenizer_that_joins_the_separator_to_a_letter_is_refused() -> None:
    tokenizer = Tokenizer(models.BPE({"x": 0, "\n": 1, "x\n": 2, "[": 3, "]": 4}, [("x", "\n")]))
    with pytest.raises(UserError, match="merges line breaks with the letter"):
        Prompts(framed(tokenizer)).question("x")


# The tokenizer alone


def test_it_is_the_automatic_one(tmp_path: Path) -> None:
    path = str(ROOT / "data" / "readers" / "tiny")
    loaded, automatic = load_tokenizer(path), AutoTokenizer.from_pretrained(path)
    assert type(loaded) is type(automatic)
    assert loaded.backend_tokenizer.to_str() == automatic.backend_tokenizer.to_str()
    assert (loaded.all_special_ids, loaded.init_kwargs) == (automatic.all_special_ids, automatic.init_kwargs)
    Qwen2Tokenizer(vocab={chr(33 + place): place for place in range(90)}, merges=[]).save_pretrained(tmp_path)
    assert type(load_tokenizer(str(tmp_path))) is type(AutoTokenizer.from_pretrained(tmp_path))


# Loading


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small reader's model folder, its weights in bfloat16."""
    path, reader = tmp_path_factory.mktemp("readers") / "small", make_reader()
    reader.model.to(torch.bfloat16).save_pretrained(path)
    reader.tokenizer.save_pretrained(path)
    return path


def test_a_bare_folder_is_loaded_in_the_type_of_its_device(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("utaca.readers.checks.natural_dtype", {"cpu": "float32", "cuda": "bfloat16"}.get)
    reader = utaca.load_reader(folder)
    natural = ("cuda", torch.bfloat16) if torch.cuda.is_available() else ("cpu", torch.float32)
    assert (reader.device.type, reader.dtype) == natural
    assert (reader.settings.name, reader.settings.dtype) == ("small", str(reader.dtype).removeprefix("torch."))
    memory = utaca.MemorySettings(n_local=64, block_size=4)
    reader = utaca.load_reader(str(folder), dtype=torch.bfloat16, device=torch.device("cpu"), memory=memory)
    assert (reader.device.type, reader.dtype, reader.settings.memory) == ("cpu", torch.bfloat16, memory)
    assert utaca.load_reader("tiny", device="cpu").dtype == torch.float32, "as its config says"
    bare = schema.ReaderSettings(name="small", path=str(folder))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert (resolved(bare).device, resolved(bare).dtype) == ("cuda", "bfloat16")
    shown: list[list[str]] = []
    monkeypatch.setattr("utaca.readers.load.own_gpu", own_gpu.__wrapped__)
    monkeypatch.setattr("utaca.readers.load.take_gpu", lambda names, folder: shown.append(names))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (7, 5))
    with pytest.raises(UserError, match=r"a GPU of the Ampere generation or newer; set reader\.dtype=float32"):
        utaca.load_reader(folder, dtype="bfloat16")
    assert len(shown) == 1, "another process that is shown this GPU among others takes another"
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (1000, 2**30))
    with pytest.raises(UserError, match=r"MiB of weights, but only 0 MiB of the GPU's 1\.0 GiB"):
        utaca.load_reader(folder, dtype="float32", device="cuda")


def test_a_processor_computes_in_the_narrowest_type_that_it_multiplies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dtype_of(flags: str) -> str:
        (tmp_path / "cpuinfo").write_text(f"processor\t: 0\n{flags}\n", encoding="utf-8")
        return natural_dtype("cpu", tmp_path / "cpuinfo")

    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)
    assert dtype_of("flags\t\t: fpu avx2 avx512f avx512_bf16 amx_int8") == "bfloat16"
    assert dtype_of("Features\t: fp asimd i8mm bf16 dgh") == "bfloat16"
    assert dtype_of("flags\t\t: fpu avx2 fma f16c") == "float32"
    assert natural_dtype("cpu", tmp_path / "missing") == "float32"
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    assert dtype_of("flags\t\t: fpu avx2 avx512f avx512_bf16") == "float32"


def test_a_row_is_padded_where_the_processor_multiplies_two_faster(tmp_path: Path) -> None:
    for vendor, pads in (("AuthenticAMD", True), ("GenuineIntel", False)):
        (tmp_path / "cpuinfo").write_text(f"processor\t: 0\nvendor_id\t: {vendor}\n", encoding="utf-8")
        assert pads_single_rows(tmp_path / "cpuinfo") == pads
    assert not pads_single_rows(tmp_path / "missing")


def test_intels_processors_without_matrix_units_multiply_float32_faster(tmp_path: Path) -> None:
    flags = "flags\t\t: fpu avx512f avx512_bf16"
    for vendor, more, faster in (
        ("GenuineIntel", "", True),
        ("GenuineIntel", " amx_bf16", False),
        ("AuthenticAMD", "", False),
    ):
        (tmp_path / "cpuinfo").write_text(f"vendor_id\t: {vendor}\n{flags}{more}\n", encoding="utf-8")
        assert multiplies_float32_faster(tmp_path / "cpuinfo") == faster
    assert not multiplies_float32_faster(tmp_path / "missing")


def test_a_padded_row_gives_what_the_row_gives() -> None:
    reader = make_reader()
    memory = utaca.prefill(reader, some_tokens(200))
    assert not reader.pads, "in float32"
    plain = utaca.generate(memory, "Who?", budget=4, max_new_tokens=20)
    reader.pads = True
    padded = utaca.generate(memory, "Who?", budget=4, max_new_tokens=20)
    for ours, theirs in zip(padded.trace, plain.trace, strict=True):
        assert (ours.token, ours.attended) == (theirs.token, theirs.attended)
        assert torch.equal(ours.selected, theirs.selected)
        assert ours.margin == pytest.approx(theirs.margin, abs=1e-4)
        for site, embedding in ours.embeddings.items():
            assert torch.allclose(embedding, theirs.embeddings[site], atol=1e-3)


TINY = partial(utaca.load_reader, "tiny")


@pytest.mark.parametrize(
    ("make", "options", "sentence"),
    [
        (utaca.load_reader, {"name_or_path": 7}, "7 is not the name of a reader, a Hugging Face id or a folder"),
        (TINY, {"dtype": torch.float16}, '\'float16\' but must be one of "auto", "float32", "bfloat16"'),
        (TINY, {"memory": utaca.MemorySettings(n_representatives=17)}, "reader.memory.n_representatives is 17"),
        (TINY, {"memory": {"n_local": 64}}, "as utaca.MemorySettings(n_local=256), not {'n_local': 64}"),
        (utaca.MemorySettings, {"block_size": "16.5"}, "block_size must be a whole number at least 1, not '16.5'."),
        (utaca.MemorySettings, {"blocks": 16}, "unknown config key blocks; did you mean block_size?"),
    ],
)
def test_impossible_values_are_one_sentence(make: Callable, options: dict[str, object], sentence: str) -> None:
    with pytest.raises(UserError, match=re.escape(sentence)):
        make(**options)


# What a reader keeps and is

TOKENS = some_tokens(50)
BLOCKS = InfLLM(budget=2)
METHODS = [
    *(BLOCKS, H2O(budget=30, chunk=8), SnapKV(budget=40), FullAttention(), WindowOnly(budget=30, n_init=4)),
    FastKV(budget=40, depth=3, tsp_layer=1),
]


@pytest.mark.parametrize(
    "form",
    [
        TOKENS.int(),
        [TOKENS.tolist()],
        TOKENS.numpy().astype("uint16"),
        {"input_ids": TOKENS[None]},
        BatchEncoding({"input_ids": [TOKENS.tolist()], "attention_mask": [[1] * 50]}),
    ],
)
def test_ids_of_one_document_are_taken_whatever_holds_them(form: object) -> None:
    reader = make_reader()
    for method in METHODS:
        assert torch.equal(method.read(reader, form, 20).tokens, TOKENS), method.name
    tokens = prefill(reader, form).tokens
    assert torch.equal(tokens, TOKENS)
    assert tokens.data_ptr() != TOKENS.data_ptr(), "a program may write into its array afterwards"


@pytest.mark.parametrize(
    ("form", "words"),
    [
        (TOKENS.expand(2, -1), r"not Tensor; the ids have the shape \[2, 50\], so pass those of one document"),
        (TOKENS.numpy() / 1, "not ndarray; the ids are float64, so pass whole numbers"),
        (TOKENS > 3, "the ids are bool"),
        ([[1, 2], [3]], "a string or a sequence of token ids, not list"),
        ([10**30], "not list"),
        (None, "not NoneType"),
        (b"The mill", r"not bytes; pass its text with decode\(\)"),
        (Path("mill.txt"), r"not PosixPath; pass its text with read_text\(\)"),
        ([], "the document is empty"),
        ("", "the document is empty"),
        ([5, -1], "has token id -1, but"),
        ([5, 97], "has token id 97, but the reader's vocabulary has 97 entries"),
    ],
)
def test_what_is_no_document_is_one_sentence(form: object, words: str) -> None:
    reader = make_reader()
    for read in (prefill, *(lambda *inputs, m=method: m.read(*inputs, 20) for method in METHODS)):
        with pytest.raises(UserError, match=words):
            read(reader, form)


def test_answers_in_threads_are_those_of_one_after_another() -> None:
    """Bit for bit, by one reader or several, whatever they read and decode by."""
    readers = [make_reader(), make_reader("qwen2")]
    readers[1].model.to(torch.bfloat16)

    def answer(number: int) -> list[object]:
        reader, method = readers[number % 2], METHODS[number % 2 * (number % len(METHODS))]
        document = f"{number} garden was quiet. " * 20
        options = {"policy": Sub(1), "trigger": Agreement()} if method.adjustable else {}
        reading = method.read(reader, document, 40)
        tokens = utaca.stream(reading, "Who?", budget=4 if method.adjustable else None, max_new_tokens=8, **options)
        return [(t.token, t.logprob, {site: x.tolist() for site, x in t.embeddings.items()}) for t in tokens]

    numbers = range(8)
    alone = [answer(number) for number in numbers]
    enabled = torch.backends.mkldnn.enabled
    with ThreadPoolExecutor(len(numbers)) as pool:
        assert list(pool.map(answer, numbers)) == alone
    assert torch.backends.mkldnn.enabled == enabled


def test_an_identity_is_that_of_the_weights(folder: Path) -> None:
    exact, rounded = (utaca.load_reader(folder, device="cpu", dtype=dtype) for dtype in ("float32", "bfloat16"))
    assert re.fullmatch(r"[0-9a-f]{16}", exact.identity)
    assert exact.identity == rounded.identity, "whatever it is computed with"
    assert len({make_reader(kind).identity for kind in ("llama", "qwen2", "mistral")}) == 3, "as shapes are the same"
    before = make_reader().identity
    for name, weight in make_reader().model.named_parameters():
        other = make_reader()
        weight = other.model.get_parameter(name)
        # As a low-rank update of the weight would change it.
        weight += torch.randn((*weight.shape[:-1], 1)) * torch.randn(weight.shape[-1:])
        assert other.identity != before, name


@pytest.mark.parametrize("device", ["cpu", *(["cuda"] if torch.cuda.is_available() else [])])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_logits_are_float32_sums_whatever_the_weights(device: str, dtype: torch.dtype) -> None:
    reader = make_reader()
    reader.model.to(device, dtype)
    hidden = torch.randn(2, 5, reader.width, device=device).to(dtype)
    logits = reader.logits(hidden)
    assert (logits.dtype, logits.shape) == (torch.float32, (2, 5, 97))
    exact = hidden.double() @ reader.model.get_output_embeddings().weight.double().T
    assert (logits - exact).abs().max() < 1e-5


# The attention function


class Causal:
    """Full causal attention at true positions."""

    def __init__(self, reader: Reader) -> None:
        self.rotary = reader.rotary

    def attend(self, layer, query, key, value, scaling):
        places = range(query.shape[2])
        query, key = self.rotary(query, places), self.rotary(key, places)
        return torch.nn.functional.scaled_dot_product_attention(
            query, key, value, is_causal=True, scale=scaling, enable_gqa=True
        )


def test_attention_refuses_what_it_does_not_understand() -> None:
    reader, x = make_reader("mistral"), torch.zeros(1, 4, 3, 16)
    for name, value in (("attention_mask", torch.zeros(1, 1, 3, 3)), ("softcap", 30.0)):
        options = {"attention_mask": None, "scaling": 0.25, "attending": Causal(reader), name: value}
        with pytest.raises(UserError, match=f"the attention of mistral models uses {name}, which"):
            ALL_ATTENTION_FUNCTIONS[ATTENTION](reader.layers[0].self_attn, x, x, x, **options)
    for layer in reader.layers:
        layer.self_attn.sliding_window = reader.model.config.sliding_window = 16
    with pytest.raises(UserError, match="the attention of mistral models uses sliding_window"):
        reader.forward(some_tokens(4)[None], Causal(reader))


# Families

NEOX = Family(body="gpt_neox", attention_output="attention.dense", norm="final_layer_norm", embedding="embed_in")
"""Other names than Llama's, a quarter of a head's dimensions turn, attention and MLP read the same residual stream."""


def test_a_family_is_added_by_its_adapter(monkeypatch: pytest.MonkeyPatch) -> None:
    """With every block at true positions the logits are those of Hugging Face's full attention."""
    monkeypatch.setitem(FAMILIES, "gpt_neox", NEOX)
    monkeypatch.setitem(SIZES, "gpt_neox", (GPTNeoXConfig, {"num_key_value_heads": None, "rotary_pct": 0.25}))
    neox = make_reader("gpt_neox")
    assert neox.shape == (3, 4, 4, 16)
    tokens = some_tokens(230)
    expected = full_attention(neox, tokens)
    branch = Branch(prefill(neox, tokens[:200], clipped=False), 30)
    for piece in (tokens[200:209], *tokens[209:].split(1)):
        at = branch.position
        step = ran(branch, piece, budget=10**6)
        branch.commit(step)
        assert (neox.logits(step.hidden) - expected[at : at + len(piece)]).abs().max() < 1e-4
    assert set(step.embeddings) == set(schema.SITES)
    hidden = neox.embed(tokens)
    for layers in (slice(1), slice(1, None)):
        hidden = neox.through(layers, hidden, Causal(neox))
    assert torch.equal(neox.norm(hidden), neox.forward(tokens[None], Causal(neox))[0])


# Shorter forms


def test_a_copy_of_a_model_computes_with_its_own_weights() -> None:
    reader, tokens = make_reader("qwen3"), some_tokens(40)
    expected = full_attention(reader, tokens)
    copied = copy.deepcopy(reader)
    for layer in copied.layers:
        layer.self_attn.v_proj.weight.zero_()
    memory, other = (prefill(each, tokens) for each in (reader, copied))
    assert memory.stores[1].tokens[1].abs().max() > 0
    assert other.stores[1].tokens[1].abs().max() == 0
    assert not torch.equal(full_attention(copied, tokens), expected)
    assert torch.equal(full_attention(reader, tokens), expected)


def test_a_watched_pass_runs_the_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("utaca.memory.branch.can_record", lambda branch: True)
    reader = make_reader()
    branch = Branch(prefill(reader, some_tokens(120)), 4, k_max=3)
    step = branch.plan(some_tokens(1), 2)
    assert branch.graph_of(step) is not None
    assert branch.graph_of(branch.plan(some_tokens(2), 2)) is None, "several tokens"
    assert branch.graph_of(branch.plan(some_tokens(1), 4)) is None, "more blocks than were announced"
    seen = []
    reader.first_not_finite(lambda: seen.append(branch.graph_of(step)))
    assert seen == [None]
