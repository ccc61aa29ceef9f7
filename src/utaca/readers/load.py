"""Readers loaded from a Hugging Face id, a folder or a GGUF file."""

import copy
import hashlib
import json
import os
import sys
import tempfile
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import asdict
from functools import cache, cached_property, partial
from itertools import chain
from os import PathLike
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from utaca.errors import UserError, in_a_sentence
from utaca.machine import keep_freed_memory, pads_single_rows, take_gpu, visible_gpus
from utaca.readers import files, gguf, hub, packed
from utaca.readers.attention import ATTENTION, Attending, OneRow, Rotary
from utaca.readers.checks import check, check_borrowed, check_gpu, check_names, check_numbers, end_tokens, resolved
from utaca.readers.families import FAMILIES
from utaca.readers.head import products
from utaca.readers.model_config import model_config
from utaca.readers.packed import PackedHead
from utaca.readers.prompts import Prompts
from utaca.readers.shortcuts import shorten
from utaca.readers.turns import in_turn
from utaca.settings.checks import build_reader
from utaca.settings.schema import MemorySettings, ReaderSettings
from utaca.sizes import Sizes

ROW_COST = 0.1
"""Time that a further row adds to a pass, as a share of what the pass takes whatever its rows.

Measured with 1.5 billion parameters in bfloat16 on two cores: eight rows took 317 ms and one 185.
"""
PACKED_ROW_COST = 0.33
"""The same with packed weights, which are smaller and take longer to multiply: eight rows 519 ms, one 158."""


class Reader:
    """A loaded model with its tokenizer, ready for block memory.

    Without a tokenizer it reads token ids only: its tokens have no text, and none of them ends an answer. ``owns``: no
    other model has these weights, so that they may be joined (:func:`utaca.readers.shortcuts.shorten`).

    ``layers`` are the layers of the model, first to last, ``sizes`` the model's sizes; ``width`` is the width of the
    residual stream and of an embedding. ``shape`` is (layers, query heads, key-value heads, width of a head).
    While it is ``watched``, hooks look at its layers, so that a pass must run them. If it ``pads``, a single token is
    computed as two equal rows, because the machine multiplies two rows faster than one.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase | None,
        settings: ReaderSettings,
        *,
        owns: bool = True,
    ) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.settings = settings
        config = model.config
        family = FAMILIES[config.model_type]
        self._parts = family.parts(model)
        if family.like_llama:
            shorten(self._parts, joins=owns)
        self.layers = self._parts.layers
        self.sizes = Sizes.of(config.to_dict())
        self.width = self.sizes.hidden
        self.shape = self.sizes[:4]
        self.rotary = Rotary(self._parts.rotary, self.device)
        if tokenizer is not None:
            # At once, because not every tokenizer can be used.
            self.prompts = Prompts(tokenizer)
        self.watched = False
        plain = settings.weights != "packed"
        self.pads = plain and self.device.type == "cpu" and self.dtype == torch.bfloat16 and pads_single_rows()
        self._embeddings: dict[str, Tensor] = {}
        for site, module in self._parts.sites.items():
            module.register_forward_hook(partial(self._keep, site))

    def __repr__(self) -> str:
        return f"Reader({self.settings.name!r}, {self.precision}, on {self.device})"

    def _keep(self, site: str, _module: object, _inputs: object, output: Tensor) -> None:
        """Keep the last tokens' embeddings of a site; a forward hook of the site's module."""
        # A view would keep the output for all tokens of the pass in memory.
        self._embeddings[site] = output[:, -1].clone()

    @cached_property
    def prompts(self) -> Prompts:
        """The encoder of texts; raises :class:`UserError` without a tokenizer."""
        raise UserError(f"reader {self.settings.name} has no tokenizer; give it token ids instead of text")

    @property
    def before(self) -> str:
        """The text that the chat template writes before a user's text."""
        return self.prompts.before

    @property
    def after(self) -> str:
        """The text that the chat template writes after a user's text."""
        return self.prompts.after

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        """Type of weights, keys, values and hidden states."""
        return next(self.model.parameters()).dtype

    @property
    def precision(self) -> str:
        """What results depend on by rounding: the type, and whether weights are packed, as in "bfloat16, packed"."""
        kind = str(self.dtype).removeprefix("torch.")
        return f"{kind}, packed" if self.settings.weights == "packed" else kind

    @property
    def row_cost(self) -> float:
        """What a row of a pass is taken to cost, as a share of what a pass costs whatever its rows."""
        return PACKED_ROW_COST if self.settings.weights == "packed" else ROW_COST

    @property
    def positions(self) -> int:
        """Number of positions that the model was trained for: ``reader.positions``, else as in ``config.json``."""
        return self.settings.positions or self.model.config.max_position_embeddings

    @cached_property
    def stop_tokens(self) -> frozenset[int]:
        """Ids of tokens that end an answer: the end tokens of generation config, tokenizer and chat template.

        A reader without a tokenizer has none.
        """
        if self.tokenizer is None:
            return frozenset()
        return self.prompts.stop_tokens.union(end_tokens(self.model.generation_config))

    @cached_property
    def identity(self) -> str:
        """16 hex digits that identify model and weights, independent of their folder and compute type.

        The digits are a digest of the sizes and of at most three rows of every weight, rounded to bfloat16: these rows
        distinguish any two trainings, and are at most some megabytes of a large model.
        """
        config = self.model.config
        rows = []
        about = dict(zip(("layers", "heads", "kv_heads", "head_size"), self.shape, strict=True))
        about |= {"type": config.model_type, "width": self.width, "vocabulary": config.vocab_size}
        for weight in self.model.parameters():
            flat = weight.detach().reshape(-1, weight.shape[-1])
            # The first row, one in the middle and, of an odd number of rows, the last.
            rows.append(flat[:: max(1, len(flat) // 2)].to(torch.bfloat16).flatten())
        digest = hashlib.sha256(json.dumps(about, sort_keys=True).encode())
        digest.update(torch.cat(rows).cpu().view(torch.int16).numpy().tobytes())
        return digest.hexdigest()[:16]

    def encode(self, text: str) -> Tensor:
        """Encode a plain text to token ids [T], none of which is a control token."""
        return self._tensor(self.prompts.text(text))

    def encode_document(self, text: str) -> Tensor:
        """Encode the chat template's opening and a document to ids [N]; only the template yields control tokens."""
        return self._tensor(self.prompts.document(text))

    def encode_question(self, text: str, prefix: str = "") -> Tensor:
        """Encode a question after a document, the chat template's closing and an answer's ``prefix`` to ids [T]."""
        return self._tensor(self.prompts.question(text, prefix))

    def document(self, document: object, kind: str = "document") -> Tensor:
        """Convert a document, given as text or token ids, to token ids [N]; :meth:`encode_document` encodes a text.

        Ids have shape [N], or [1, N] as a tokenizer returns for one text, in a tensor, array, list or tokenizer's
        output. Raises :class:`UserError` for anything else, an empty document, and ids outside the vocabulary; the
        message calls the document by its ``kind``.
        """
        tokens = self.encode_document(document) if isinstance(document, str) else _ids(document, kind).to(self.device)
        if not len(tokens) or (isinstance(document, str) and not document):
            raise UserError(f"the {kind} is empty; give at least one token of text")
        low = int(tokens.min())
        high = int(tokens.max())
        rows = self.model.config.vocab_size
        if low < 0 or high >= rows:
            raise UserError(
                f"the {kind} has token id {low if low < 0 else high}, but the reader's vocabulary has {rows} "
                "entries; encode it with the reader's own tokenizer"
            )
        return tokens

    def _tensor(self, ids: list[int]) -> Tensor:
        """Token ids as a tensor [T] on the reader's device."""
        return torch.tensor(ids, dtype=torch.long, device=self.device)

    def forward(self, tokens: Tensor, attending: Attending) -> Tensor:
        """Compute the last hidden states [B, T, D] of tokens [B, T] under ``attending``."""
        if self.pads and tokens.numel() == 1:
            twice = self.embed(tokens.expand(2, 1))
            return self.norm(self._run(self.layers, twice, OneRow(attending)))[:1]
        return self.norm(self._run(self.layers, self.embed(tokens), attending))

    def embed(self, tokens: Tensor) -> Tensor:
        """Input [..., T, D] of the first layer for tokens [..., T]."""
        return self._parts.embedding(tokens)

    def through(self, layers: slice, hidden: Tensor, attending: Attending) -> Tensor:
        """Run ``hidden`` [T, D] through a slice of the ``layers``; return the output [T, D] of the last of these."""
        return self._run(self.layers[layers], hidden[None], attending)[0]

    def _run(self, layers: Iterable[nn.Module], hidden: Tensor, attending: Attending) -> Tensor:
        """Run ``hidden`` [B, T, D] through ``layers``, at position zero.

        The model itself then rotates nothing; ``attending`` rotates (:mod:`utaca.readers.attention`).
        """
        zero, unturned = self._at_zero
        for layer in layers:
            hidden = layer(
                hidden, position_ids=zero, position_embeddings=unturned, use_cache=False, attending=attending
            )
        return hidden

    @cached_property
    def _at_zero(self) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Position zero [1, 1], and cosine and sine [1, 1, R] of the rotation to it."""
        zero = torch.zeros(1, 1, dtype=torch.long, device=self.device)
        return zero, self._parts.rotary(torch.empty(0, dtype=self.dtype, device=self.device), zero)

    def norm(self, hidden: Tensor) -> Tensor:
        """Normalise the output [..., T, D] of the last layer to the last hidden states [..., T, D]."""
        return self._parts.norm(hidden)

    def logits(self, hidden: Tensor) -> Tensor:
        """Compute float32 logits [..., V] of hidden states [..., D]; in bfloat16, logit margins would be quantised.

        On a CPU, few rows of a bfloat16 model have exact logits for their best tokens, and for the others logits that
        are rounded to bfloat16; see :func:`utaca.readers.head.best_exact`.
        """
        head = self._parts.head
        rows = hidden.reshape(-1, self.width)
        found = head.logits(rows) if isinstance(head, PackedHead) else products(rows, head.weight.detach())
        return found.view(*hidden.shape[:-1], -1)

    def first_not_finite(self, run: Callable[[], None]) -> int:
        """Index of the first layer whose output is not finite when ``run`` calls the model; the layer count if none."""
        # Indices of the layers whose outputs are not finite.
        faulty: list[int] = []

        def note(layer: int) -> Callable[[object, object, Tensor], None]:
            """A forward hook that notes the layer; it returns None, which leaves the layer's output as it is."""
            return lambda _module, _inputs, output: None if output.isfinite().all() else faulty.append(layer)

        self.watched = True
        hooks = [layer.register_forward_hook(note(number)) for number, layer in enumerate(self.layers)]
        try:
            run()
        finally:
            self.watched = False
            for hook in hooks:
                hook.remove()
        return min(faulty, default=len(self.layers))

    def embeddings(self) -> dict[str, Tensor]:
        """Embeddings [B, D] of the last tokens of the most recent pass, by site (paper, appendix B.3)."""
        return dict(self._embeddings)


def _ids(document: object, kind: str) -> Tensor:
    """Copy the token ids of one document, as :meth:`Reader.document` accepts them, to an int64 tensor [N]."""
    wanted = f"a {kind} must be a string or a sequence of token ids, not {type(document).__name__}"
    if isinstance(document, bytes | bytearray | PathLike):
        way = "read_text()" if isinstance(document, PathLike) else "decode()"
        raise UserError(f"{wanted}; pass its text with {way}")
    if isinstance(document, Mapping) and "input_ids" in document:
        document = document["input_ids"]
    try:
        ids = torch.as_tensor(document)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise UserError(f"{wanted}") from error
    if ids.ndim == 2 and len(ids) == 1:
        ids = ids[0]
    if ids.ndim != 1:
        raise UserError(f"{wanted}; the ids have the shape {list(ids.shape)}, so pass those of one document")
    if len(ids) and (ids.dtype == torch.bool or ids.is_floating_point() or ids.is_complex()):
        raise UserError(f"{wanted}; the ids are {str(ids.dtype).removeprefix('torch.')}, so pass whole numbers")
    return ids.to(torch.long, copy=True)


@cache
def own_gpu() -> tuple[int, IO[str]] | None:
    """Make ``cuda`` the first GPU that no other utaca process uses, for the life of this process.

    If other processes use all GPUs, ``cuda`` stays the first GPU, which is then shared. Returns index and lock file.
    """
    gpu = take_gpu(visible_gpus(torch.cuda.device_count()), Path(tempfile.gettempdir()))
    if gpu is not None:
        torch.cuda.set_device(gpu[0])
    return gpu


@in_turn
def load(settings: ReaderSettings) -> Reader:
    """Load a reader for inference; if there are several GPUs, onto one that no other process uses (:func:`own_gpu`).

    Raises :class:`UserError` as :func:`check` does, before weights are read, and then as :func:`check_names` and
    :func:`check_numbers` do.
    """
    tokenizer = check(settings)
    settings, where = resolved(settings), files.where(settings)
    if tokenizer is None:
        # A GGUF file that was not converted yet: the model is checked after its conversion.
        gguf.converted(settings.path, settings.weights == "packed")
        tokenizer = check(settings)
    if settings.device == "cpu":
        keep_freed_memory()
    else:
        own_gpu()
        check_gpu(settings, files.parameters(files.weights(settings)) * getattr(torch, settings.dtype).itemsize)
    config_file = files.config_file(settings)
    assert config_file is not None, "check has read it"
    remedy = "copy or download the model again"
    with hub.asked_once(settings.path, settings.revision), in_a_sentence(f"{where} cannot be loaded", remedy):
        model, missing, unexpected = _read(settings, model_config(config_file))
        end_tokens(model.generation_config)
        model = model.to(settings.device).eval().requires_grad_(False)
    # If the files of a hub model were downloaded only now, check could not compare their weights.
    check_names(where, missing, unexpected, {})
    check_numbers(where, model)
    return Reader(model, tokenizer, settings)


def _read(
    settings: ReaderSettings, config: PretrainedConfig
) -> tuple[PreTrainedModel, Collection[str], Collection[str]]:
    """Load the model; also returns the names of the weights that the files lack, and of those that the model lacks."""
    if settings.weights == "packed":
        (file,) = files.weights(settings)
        return packed.load(file, config)
    model, about = AutoModelForCausalLM.from_pretrained(
        str(files.folder_of(settings) or settings.path),
        config=config,
        revision=settings.revision or None,
        dtype=getattr(torch, settings.dtype),
        attn_implementation=ATTENTION,
        use_safetensors=True,
        trust_remote_code=False,
        output_loading_info=True,
    )
    return model, about["missing_keys"], about["unexpected_keys"]


def _keys_of(path: str) -> dict[str, Any]:
    """Config keys and values for a path or hub id: those of the listed reader whose model it is, else the defaults.

    Raises :class:`UserError` if nothing exists at this path, and it can be neither a hub id nor a GGUF file.
    """
    if not (os.path.lexists(path) or hub.is_id(path) or gguf.is_gguf(path)):
        raise UserError(files.absent(path))
    if name := files.listed_of(path):
        print(f"{path} is the model of reader {name}, and gets that reader's settings.", file=sys.stderr, flush=True)
        return files.listed_keys(name) | {"path": path}
    return {"name": os.path.basename(os.path.abspath(path)), "path": path, "prompt": "instruct"}


def load_reader(
    name_or_path: str | Path,
    *,
    dtype: str | torch.dtype | None = None,
    device: str | torch.device | None = None,
    memory: MemorySettings | None = None,
) -> Reader:
    """Load a reader by the name of its config (``tiny``, ``llama31_8b``, ...), Hugging Face id, folder or GGUF file.

    ``dtype`` is "float32" or "bfloat16", ``device`` "cpu" or "cuda", ``memory`` the settings of its block memory. The
    defaults are the config's values. An id or path whose model no config names, by id or by the digest of its file, is
    loaded onto CUDA if there is a GPU, else the CPU, in the type of :func:`utaca.machine.natural_dtype`, with
    InfLLM's block memory. ``utaca fetch NAME`` fetches a public reader first. Raises
    :class:`utaca.errors.UserError`, before weights are read, if the reader is not available or not supported, or if a
    value is out of range.
    """
    if not isinstance(name_or_path, str | Path):
        raise UserError(
            f"{name_or_path!r} is not the name of a reader, a Hugging Face id or a folder; give one of them"
        )
    if not isinstance(memory, MemorySettings | None):
        raise UserError(
            f"memory must be a utaca.MemorySettings such as utaca.MemorySettings(n_local=256), not {memory!r}"
        )
    name = str(name_or_path)
    values = files.listed_keys(name) or _keys_of(os.path.expanduser(name))
    overrides = {
        "dtype": dtype if dtype is None else str(dtype).removeprefix("torch."),
        "device": device if device is None else str(device),
        "memory": memory if memory is None else asdict(memory),
    }
    return load(build_reader(values | {key: value for key, value in overrides.items() if value is not None}))


def borrowed(model: PreTrainedModel, memory: MemorySettings | None = None) -> Reader:
    """Wrap a ``model`` that the caller loaded as a reader without a tokenizer; weights are shared, not copied.

    The reader has modules of its own, so that the model's attention, hooks and config stay as they are. ``memory`` are
    the settings of its block memory, by default those of the listed reader with this model, otherwise InfLLM's.
    Raises :class:`UserError` as :func:`check_borrowed` does, or if a setting is out of range.
    """
    if not isinstance(memory, MemorySettings | None):
        raise UserError(
            f"memory must be a utaca.MemorySettings such as utaca.MemorySettings(n_local=256), not {memory!r}"
        )
    check_borrowed(model)
    path = model.name_or_path or model.config.model_type
    listed = files.listed_of(path)
    keys = files.listed_keys(listed) if listed else {"name": os.path.basename(os.path.abspath(path))}
    here = {"path": path, "dtype": str(model.dtype).removeprefix("torch."), "device": model.device.type}
    given = {} if memory is None else {"memory": asdict(memory)}
    settings = build_reader(keys | here | given)
    # A deep copy does not copy the objects that its memo has: it takes them as they are.
    shared = {id(tensor): tensor for tensor in chain(model.parameters(), model.buffers())}
    own = copy.deepcopy(model, shared).eval()
    own.set_attn_implementation(ATTENTION)
    return Reader(own, None, settings, owns=False)
