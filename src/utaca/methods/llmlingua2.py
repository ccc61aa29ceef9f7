"""LLMLingua-2: the document's text is shortened before the reader sees it."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from transformers import AutoConfig

from utaca.methods.bases.dense import Dense, DenseMethod
from utaca.methods.full import Everything
from utaca.readers.load import Reader
from utaca.records.texts import whole_characters
from utaca.settings.schema import CLASSIFIER

KINDS = {"xlm-roberta": "xlm-roberta-large", "bert": "bert-base-multilingual-cased"}
"""Types of token classifiers, and the names by which the package recognises each type in a model's path."""


@dataclass(frozen=True)
class LLMLingua2(DenseMethod):
    """A token classifier drops words of the document; the reader attends to all that is left.

    Pan et al., ACL Findings 2024; package llmlingua 0.2.2 (microsoft/LLMLingua, MIT), an extra of this package. Each
    chunk of at most 510 classifier tokens keeps the words that most likely matter, a share ``rate``, and the
    ``force_tokens``. ``rate`` counts the reader's tokens (llmlingua counts OpenAI's, and would download their
    tokenizer). If ``budget`` is not 0, it replaces the rate: about ``budget`` tokens of the document are left, and no
    token is forced, since already the forced tokens exceed a small budget. Nominal tokens are the document's tokens
    left. A document beyond the reader's trained length is cut before it is compressed, as the paper's must have been
    (its 32k are 25% of 128k). The question stays as it is. ``model``: hub id or folder of a classifier whose label 1 is
    "keep".
    """

    name: ClassVar[str] = "llmlingua2"
    state = Everything

    # The paper's rate; the package authors' model and the tokens that their evaluation forces.
    budget: int = 0
    rate: float = 0.25
    model: str = "microsoft/llmlingua-2-xlm-roberta-large-meetingbank"
    force_tokens: tuple[str, ...] = ("\n", "?", "!", ".")

    def __post_init__(self) -> None:
        self.require(self.budget >= 0, "budget must not be negative; 0 means the rate")
        # The package counts in whole hundredths and keeps one less.
        self.require(0.01 < self.rate <= 1, f"rate={self.rate} must be above 0.01 and at most 1")

    @property
    def reading(self) -> LLMLingua2:
        """Not that of the base class: every setting changes which text is read."""
        return self

    def missing(self) -> str:
        """Sentence on the package or classifier that this machine lacks; "" if nothing is missing or compressed."""
        if not self.budget and self.rate >= 1:
            return ""
        needs = [] if find_spec("llmlingua") else ["package llmlingua: pip install -e '.[llmlingua]'"]
        if self.model == CLASSIFIER and not _kind(self.model):
            needs.append(f"model {CLASSIFIER}: snakemake -s training/Snakefile --cores all llmlingua_classifier")
        elif not needs and not _kind(self.model):
            name = Path(self.model).name
            needs.append(f"model {name} at path or hub id {self.model}; get it, or set model to its folder")
        return "; ".join(f"needs {need}" for need in needs)

    def files(self) -> list[Path]:
        """The classifier's files, if ``model`` is a folder."""
        return sorted(path for path in Path(self.model).glob("*") if path.is_file())

    def check(self, reader: Reader) -> None:
        self.require(not self.missing(), self.missing())
        if self.budget or self.rate < 1:
            kind = _kind(self.model)
            self.require(kind in KINDS, f"model={self.model} is of type {kind}; choose one of {', '.join(KINDS)}")

    @torch.inference_mode()
    def read(self, reader: Reader, document: str | Tensor, room: int) -> Dense:
        """Compress the document's text and read what is left under full attention.

        Token ids are decoded to a text first. If they begin with the chat template's opening, only the text after it is
        compressed, and the opening is put before it again.
        """
        content = document if isinstance(document, str) else self._without_opening(reader, document)
        whole = reader.encode(content) if isinstance(content, str) else content
        tokens, dropped = self.tokens(reader, whole, room)
        n = len(tokens)
        rate = self.budget / n if self.budget else self.rate
        self.require(rate > 0.01, f"budget={self.budget} is not above a hundredth of the document's {n} tokens")
        if rate >= 1:
            return super().read(reader, document, room)
        text = content if isinstance(content, str) and not dropped else reader.tokenizer.decode(tokens.tolist())
        short = self._compressed(reader, whole_characters(text), rate)
        # The reader puts the opening before a text, not before token ids.
        reading = super().read(reader, short if isinstance(content, str) else reader.encode(short), room)
        reading.dropped += dropped
        return reading

    @staticmethod
    def _without_opening(reader: Reader, document: Tensor) -> str | Tensor:
        """The text after the chat template's opening, if the document's token ids begin with it; else the token ids.

        In a compressed text, the opening's control tokens would be plain characters.
        """
        document = reader.document(document)
        opening = reader.encode_document("")
        if len(opening) and document[: len(opening)].equal(opening):
            return reader.tokenizer.decode(document[len(opening) :].tolist())
        return document

    def _compressed(self, reader: Reader, text: str, rate: float) -> str:
        """The text with a share ``rate`` of its tokens left, as the package compresses it."""
        with _undisturbed():
            compressor = _compressor(self.model, reader.device.type)
            compressor.oai_tokenizer = SimpleNamespace(encode=reader.encode)
            forced = [] if self.budget else list(self.force_tokens)
            compressed = compressor.compress_prompt_llmlingua2([text], rate=rate, force_tokens=forced)
        return compressed["compressed_prompt"]

    def nominal(self, state: Everything) -> float:
        """The document's tokens that are left after compression."""
        return state.start


@lru_cache
def _kind(model: str) -> str | None:
    """Type of a model, as its config.json names it; None if the folder or hub has no such model."""
    folder = Path(model)
    if folder.is_dir() and not [*folder.glob("*.safetensors"), *folder.glob("*.bin")]:
        return None
    try:
        return AutoConfig.from_pretrained(model, trust_remote_code=False).model_type
    except (OSError, ValueError):
        return None


@lru_cache(1)
def _compressor(model: str, device: str) -> Any:
    """The package's compressor, built as by its constructor, but without downloading OpenAI's tokenizer."""
    from llmlingua import PromptCompressor

    compressor = PromptCompressor.__new__(PromptCompressor)
    compressor.model_name = KINDS[_kind(model)]
    compressor.load_model(model, device, {"trust_remote_code": False})
    compressor.init_llmlingua2()
    compressor.model.eval()
    return compressor


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Restore the states of all random generators and of cuDNN on exit, because the package seeds and sets them."""
    of_random = random.getstate()
    of_numpy = np.random.get_state()
    hash_seed = os.environ.get("PYTHONHASHSEED")
    of_cudnn = torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark
    try:
        with torch.random.fork_rng():
            yield
    finally:
        random.setstate(of_random)
        np.random.set_state(of_numpy)
        torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = of_cudnn
        os.environ.pop("PYTHONHASHSEED", None)
        if hash_seed is not None:
            os.environ["PYTHONHASHSEED"] = hash_seed
