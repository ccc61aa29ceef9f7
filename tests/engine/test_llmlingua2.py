"""LLMLingua-2 by its package, with a small random token classifier, against a statement of its rule."""

import os
import random
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from brute_methods import Loop
from small import make_reader
from transformers import BertConfig, BertForTokenClassification, BertTokenizer

from utaca.errors import UserError
from utaca.generation.answers import Answers
from utaca.methods import build
from utaca.methods.llmlingua2 import _kind
from utaca.settings.schema import CLASSIFIER

WORDS = [f"w{i}{'xyz'[: i % 4]}" for i in range(200)]


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a BERT of random weights, a word a token."""
    folder = tmp_path_factory.mktemp("classifier")
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS, *".!?"]
    (folder / "vocab.txt").write_text("\n".join(vocabulary))
    BertTokenizer(str(folder / "vocab.txt"), do_lower_case=False).save_pretrained(folder)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    torch.manual_seed(0)
    BertForTokenClassification(BertConfig(vocab_size=len(vocabulary), initializer_range=0.5, **sizes)).save_pretrained(
        folder
    )
    return folder


def kept(folder: Path, chunk: list[str], rate: float, forced: str) -> list[str]:
    """The words of a chunk above the percentile that leaves the rate, a word counting once a character."""
    tokenizer, model = BertTokenizer.from_pretrained(folder), BertForTokenClassification.from_pretrained(folder).eval()
    ids = torch.tensor([tokenizer.convert_tokens_to_ids(["[CLS]", *chunk, "[SEP]"])])
    # Chunks are padded to 512.
    padded = torch.nn.functional.pad(ids, (0, 512 - ids.shape[1]))
    with torch.no_grad():
        logits = model(padded, attention_mask=(padded > 0).long()).logits[0, 1 : len(chunk) + 1]
    worth = [1.0 if word in forced else float(p) for word, p in zip(chunk, logits.softmax(-1)[:, 1], strict=True)]
    weighted = sorted(p for p, word in zip(worth, chunk, strict=True) for _ in word)
    place = (len(weighted) - 1) * int(100 * (1 - rate) + 1) / 100
    low, high = weighted[int(place)], weighted[min(int(place) + 1, len(weighted) - 1)]
    threshold = low + (high - low) * (place - int(place))
    return [word for word, p in zip(chunk, worth, strict=True) if p > threshold or p == threshold == 1]


@pytest.mark.parametrize("case", range(4))
def test_kept_words_and_logits_equal_a_statement_of_the_rule(case: int, classifier: Path) -> None:
    pytest.importorskip("llmlingua", reason="the extra llmlingua is not installed")
    rng, reader = random.Random(case), make_reader()
    rate, forced = rng.choice([0.1, 0.25, 0.5, 0.8]), ["", ".!"][case % 2]
    words = [rng.choice([*WORDS, "."]) for _ in range(rng.randint(30, 120))]
    document = " ".join(words)
    given = {"budget": round(rate * len(document))} if case < 2 else {"rate": rate}
    method = build("llmlingua2", {"model": str(classifier), "force_tokens": list(forced), **given})
    reading = method.read(reader, document, 50)
    rate = given.get("rate", given.get("budget", 0) / len(document))
    forced = "" if "budget" in given else forced
    expected = reader.encode_document(" ".join(kept(classifier, words, rate, forced)).replace(" .", "."))
    assert reader.tokenizer.decode(reading.tokens.tolist()) == reader.tokenizer.decode(expected.tolist())
    answer = Answers(reader, document).answer(method, "what is it", 4)
    prompt = reader.encode_question("what is it")
    loop = Loop(reader.model)
    chosen = loop.run(torch.cat((expected, prompt)), loop.full)[-1].argmax()
    assert answer.generation.trace[0].token == chosen
    assert [token.attended for token in answer.generation.trace] == [len(expected) + len(prompt) + i for i in range(4)]
    assert {token.k for token in answer.generation.trace} == {len(expected)} == {answer.n_context}


class Halving:
    """In the place of the package's compressor; it seeds all random numbers, as that does."""

    model = SimpleNamespace(eval=lambda: None)

    def load_model(self, *_: object) -> None:
        random.seed(7)
        np.random.seed(7)
        torch.manual_seed(7)
        os.environ["PYTHONHASHSEED"] = "42"

    def init_llmlingua2(self) -> None:
        """The last step of making it."""

    def compress_prompt_llmlingua2(self, texts: list[str], rate: float, force_tokens: list[str]) -> dict[str, str]:
        return {"compressed_prompt": texts[0][: int(rate * len(texts[0]))]}


def test_a_long_document_is_cut_and_shortened_and_random_numbers_go_on_as_before(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def states() -> tuple[object, ...]:
        drawn = np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
        return random.getstate(), *drawn, os.environ.get("PYTHONHASHSEED")

    monkeypatch.setenv("PYTHONHASHSEED", "1")
    monkeypatch.setitem(sys.modules, "llmlingua", SimpleNamespace(PromptCompressor=Halving))
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    (tmp_path / "model.safetensors").touch()
    reader, method, before = make_reader(), build("llmlingua2", {"model": str(tmp_path), "rate": 0.5}), states()
    # The small tokenizer's own does not give back what it encoded.
    reader.tokenizer.decode = lambda ids: "a" * len(ids)
    text = "a" * 1000
    for document, opening in ((text, "["), (reader.encode(text), ""), (reader.encode_document(text), "[")):
        reading = method.read(reader, document, 100)
        left = reader.encode(opening + "a" * 462).tolist()
        assert (reading.dropped, reading.tokens.tolist()) == (1000 - 924, left)
    assert states() == before
    assert [path.name for path in method.files()] == ["config.json", "model.safetensors"]
    with pytest.raises(UserError, match="budget=9 is not above a hundredth of the document's 924 tokens"):
        build("llmlingua2", {"budget": 9}).read(reader, "a" * 1000, 100)


def test_what_is_missing_is_named_before_any_work(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    reader = make_reader()
    monkeypatch.setattr("utaca.methods.llmlingua2.find_spec", lambda _: None)
    with pytest.raises(UserError, match="method llmlingua2: needs package llmlingua"):
        build("llmlingua2", {}).check(reader)
    monkeypatch.setattr("utaca.methods.llmlingua2.find_spec", lambda _: "there")
    with pytest.raises(UserError, match=f"needs model {tmp_path.name} at path or hub id {tmp_path}; get it, or set"):
        build("llmlingua2", {"model": str(tmp_path)}).check(reader)
    monkeypatch.chdir(tmp_path)
    command = "snakemake -s training/Snakefile --cores all llmlingua_classifier"
    with pytest.raises(UserError, match=f"needs model {CLASSIFIER}: {command}"):
        build("llmlingua2", {"model": CLASSIFIER}).check(reader)
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    (tmp_path / "model.safetensors").touch()
    build("llmlingua2", {"model": str(tmp_path), "rate": 1.0}).check(reader)
    _kind.cache_clear()
    with pytest.raises(UserError, match="is of type gpt2; choose one of xlm-roberta, bert"):
        build("llmlingua2", {"model": str(tmp_path)}).check(reader)
