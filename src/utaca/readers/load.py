"""Loading a reader: any model of a known family of Hugging Face's, by hub id or folder."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from functools import cache, cached_property, partial
from os import PathLike
from pathlib import Path
from typing import IO

import torch
from torch import Tensor
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    GenerationConfig,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import cached_file

from utaca.data_files import root
from utaca.errors import UserError, in_a_sentence
from utaca.readers import files, gguf, names, public
from utaca.readers.attention import ATTENTION, Attending, Rotary
from utaca.readers.families import FAMILIES
from utaca.readers.identity import identity_of, shape_of
from utaca.readers.prompts import Prompts
from utaca.readers.tokenizer import load_tokenizer
from utaca.readers.whole import check_names, check_numbers, check_stored, check_tokenizer, empty
from utaca.settings.checks import build_reader
from utaca.settings.machine import in_turn, keep_freed_memory, natural_dtype, promised_gpu, take_gpu, visible_gpus
from utaca.settings.schema import MemorySettings, ReaderSettings

# Rotary types whose frequencies do not depend on the positions seen, so that we may place keys as we like.
FIXED_ROTARY = ("default", "linear", "llama3", "yarn")
HEAD_ROWS = 256
"""Rows of a bfloat16 output matrix that are float32 at once."""


class Reader:
    """A loaded model with its tokenizer, ready for block memory.

    ``family`` is the adapter of the model's family, ``shape`` and ``width`` (of the residual stream, and so of an
    embedding) are its sizes. ``before`` and ``after`` are what its chat template writes around a user's text.
    """

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, settings: ReaderSettings) -> None:
        self.model, self.tokenizer, self.settings = model, tokenizer, settings
        config = model.config
        self.family = FAMILIES[config.model_type]
        self._parts = self.family.parts(model)
        self.width: int = config.hidden_size
        self.shape = shape_of(model)
        self.rotary = Rotary(model)
        self.prompts = Prompts(tokenizer)
        self.before, self.after = self.prompts.before, self.prompts.after
        self._embeddings: dict[str, Tensor] = {}
        for site, module in self._parts.sites.items():
            module.register_forward_hook(partial(self._keep, site))

    def _keep(self, site: str, _module: object, _inputs: object, output: Tensor) -> None:
        # A view would keep the whole pass's rows alive.
        self._embeddings[site] = output[:, -1].clone()

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        """Type of the weights, and so of keys, values and hidden states."""
        return next(self.model.parameters()).dtype

    @property
    def layers(self) -> torch.nn.ModuleList:
        """The model's layers, first to last."""
        return self._parts.layers

    @property
    def positions(self) -> int:
        """Positions that it was trained for, see ``reader.positions``."""
        return self.settings.positions or self.model.config.max_position_embeddings

    @cached_property
    def stop_tokens(self) -> frozenset[int]:
        """Tokens that end an answer: those of the generation config, of the tokenizer and of the chat template."""
        return self.prompts.stop_tokens.union(_ends(self.model.generation_config.eos_token_id))

    @cached_property
    def identity(self) -> str:
        """16 hex digits that name model and weights, see :func:`utaca.readers.identity.identity_of`."""
        return identity_of(self.model)

    def encode(self, text: str) -> Tensor:
        """Token ids [T] of a plain text: no control token comes out, whatever the text says."""
        return self._tensor(self.prompts.text(text))

    def encode_document(self, text: str) -> Tensor:
        """Token ids [N] of the chat template's opening and a document: control tokens are the template's alone."""
        return self._tensor(self.prompts.document(text))

    def encode_question(self, text: str, prefix: str = "") -> Tensor:
        """Token ids [T] of a question with the chat template's closing, as they follow a document's, and of the
        answer's beginning where it is given."""
        return self._tensor(self.prompts.question(text, prefix))

    def document(self, document: object) -> Tensor:
        """Token ids [N] of a document: of its text, as :meth:`encode_document`, or its ids as they are.

        Ids may be [N], or [1, N] as a tokenizer gives them for one text, in a tensor, an array, a list or in what a
        tokenizer returns. Raises :class:`UserError` for anything else, for none, and for ids outside the vocabulary.
        """
        tokens = self.encode_document(document) if isinstance(document, str) else _ids(document).to(self.device)
        if not len(tokens):
            raise UserError("the document is empty; give at least one token of text")
        low, high, rows = int(tokens.min()), int(tokens.max()), self.model.config.vocab_size
        if low < 0 or high >= rows:
            raise UserError(
                f"the document has token id {low if low < 0 else high}, but the reader's vocabulary has {rows} "
                "entries; encode it with the reader's own tokenizer"
            )
        return tokens

    def _tensor(self, ids: list[int]) -> Tensor:
        return torch.tensor(ids, dtype=torch.long, device=self.device)

    def forward(self, tokens: Tensor, attending: Attending) -> Tensor:
        """Last hidden states [B, T, D] of tokens [B, T] under the given attention."""
        positions = tokens.new_zeros(1, tokens.shape[1])
        return self._parts.body(tokens, position_ids=positions, use_cache=False, attending=attending).last_hidden_state

    def embed(self, tokens: Tensor) -> Tensor:
        """What the first layer is given for tokens [T]: [T, D]."""
        return self._parts.embedding(tokens)

    def through(self, layers: slice, hidden: Tensor, attending: Attending) -> Tensor:
        """Hidden states [T, D] behind some of the layers, given those before, as :meth:`forward` calls all of them."""
        hidden = hidden[None]
        zero = torch.zeros(1, 1, dtype=torch.long, device=hidden.device)
        unturned = self._parts.rotary(hidden, zero)
        for layer in self.layers[layers]:
            hidden = layer(
                hidden, position_ids=zero, position_embeddings=unturned, use_cache=False, attending=attending
            )
        return hidden[0]

    def norm(self, hidden: Tensor) -> Tensor:
        """Last hidden states [T, D] from what the last layer gave."""
        return self._parts.norm(hidden)

    def logits(self, hidden: Tensor) -> Tensor:
        """Float32 logits [..., V] of hidden states [..., D]: margins of bfloat16 logits would be quantised."""
        return self._product(hidden.reshape(-1, self.width)).view(*hidden.shape[:-1], -1)

    def _product(self, hidden: Tensor) -> Tensor:
        """Float32 products [N, V] of hidden states [N, D] and the output matrix."""
        weight = self._parts.head.weight.detach()
        if weight.dtype == torch.float32:
            return hidden.float() @ weight.T
        if weight.is_cuda:
            return torch.mm(hidden, weight.T, out_dtype=torch.float32)
        # In parts: a float32 copy of all of it is a quarter of a small model with a large vocabulary.
        columns = hidden.float().T.contiguous()
        products = columns.new_empty(len(weight), len(hidden))
        part = columns.new_empty(HEAD_ROWS, self.width)
        for rows, out in zip(weight.split(HEAD_ROWS), products.split(HEAD_ROWS), strict=True):
            torch.mm(part[: len(rows)].copy_(rows), columns, out=out)
        return products.T.contiguous()

    def first_not_finite(self, run: Callable[[], None]) -> int:
        """The first layer whose output is not finite when ``run`` calls the model; the number of layers if none is."""
        faulty: list[int] = []

        def note(layer: int) -> Callable[[object, object, Tensor], None]:
            return lambda _module, _inputs, output: None if output.isfinite().all() else faulty.append(layer)

        hooks = [layer.register_forward_hook(note(number)) for number, layer in enumerate(self.layers)]
        try:
            run()
        finally:
            for hook in hooks:
                hook.remove()
        return min(faulty, default=len(self.layers))

    def embeddings(self) -> dict[str, Tensor]:
        """Embeddings [B, D] of the last tokens of the latest pass, by site (paper, appendix B.3)."""
        return dict(self._embeddings)


def _ids(document: object) -> Tensor:
    """Token ids [N] from whatever holds those of one document, see :meth:`Reader.document`."""
    wanted = f"a document is its text, or token ids [N], whole numbers; this is of type {type(document).__name__}"
    if isinstance(document, bytes | bytearray | PathLike):
        way = "read_text()" if isinstance(document, PathLike) else "decode()"
        raise UserError(f"{wanted}: give its text, by {way}")
    if isinstance(document, Mapping) and "input_ids" in document:
        document = document["input_ids"]
    try:
        ids = torch.as_tensor(document)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise UserError(f"{wanted}: give one of these") from error
    if ids.ndim == 2 and len(ids) == 1:
        ids = ids[0]
    if ids.ndim != 1:
        raise UserError(f"{wanted}, and its shape is {list(ids.shape)}: give those of one document")
    if len(ids) and (ids.dtype == torch.bool or ids.is_floating_point() or ids.is_complex()):
        raise UserError(f"{wanted}, and holds {str(ids.dtype).removeprefix('torch.')}: give whole numbers")
    return ids.long()


def check_settings(settings: ReaderSettings) -> None:
    """Raise :class:`UserError` where a reader cannot be loaded here whatever its model is."""
    if settings.device == "cuda" and not torch.cuda.is_available():
        raise UserError("reader.device=cuda, but no CUDA device is visible; set reader.device=auto or cpu")
    if settings.device == "auto" and promised_gpu() and not torch.cuda.is_available():
        # On a CPU such a reader would take until the job is stopped.
        raise UserError(
            "Slurm gave this job a GPU, but torch sees no CUDA device; install a torch for CUDA (docs/install.md), or "
            "set reader.device=cpu"
        )


def check(settings: ReaderSettings) -> None:
    """Raise :class:`UserError` where the reader cannot be had or is not supported, before its weights are read.

    Of weights that are here, names and shapes are compared with the model's own; of a GGUF file that is not converted
    yet, what :func:`utaca.readers.gguf.check` compares.
    """
    if gguf.is_gguf(settings.path) and files.folder_of(settings.path) is None:
        check_settings(settings)
        _check_gguf(settings)
    else:
        _checked(settings)


def _checked(settings: ReaderSettings) -> PreTrainedTokenizerBase:
    """The tokenizer of a reader that passes :func:`check`."""
    check_settings(settings)
    where, revision = files.where(settings), settings.revision or None
    path = str(files.folder_of(settings.path) or settings.path)
    with in_a_sentence(f"{where} cannot be read", "copy or download the model anew"):
        with gguf.made_anew(settings.path):
            _check_place(settings)
        with in_a_sentence(f"{where} has a config.json that makes no model", "copy or download it anew"):
            config = AutoConfig.from_pretrained(path, revision=revision, trust_remote_code=False)
            model = empty(config)
        _check_attention(where, config)
        with in_a_sentence(f"{where} has a generation_config.json that cannot be used", "mend or remove it"):
            _ends(model.generation_config.eos_token_id)
            if (Path(path) / "generation_config.json").is_file():
                _ends(GenerationConfig.from_pretrained(path).eos_token_id)
        with in_a_sentence(f"{where} has a tokenizer that cannot be used", "copy or download its files anew"):
            tokenizer = load_tokenizer(path, settings.revision)
            prompts = Prompts(tokenizer)
            check_tokenizer(where, tokenizer, prompts, config.vocab_size)
        with gguf.made_anew(settings.path):
            if (stored := files.stored_weights(settings)) is not None:
                check_stored(where, model, stored)
    return tokenizer


def _check_place(settings: ReaderSettings) -> None:
    """Raise :class:`UserError` where no plain model of a known family lies at the reader's path."""
    where, folder = files.where(settings), files.folder_of(settings.path)
    if folder is not None:
        files.check_folder(settings)
        config = folder / "config.json"
    elif Path(settings.path).is_file():
        raise UserError(f"{where} is a file; set reader.path to the folder that it lies in, or to a GGUF file")
    else:
        try:
            config = Path(cached_file(settings.path, "config.json", revision=settings.revision or None))
        except (OSError, ValueError) as error:
            raise UserError(
                f"{where} is neither a local folder nor available from the hub; download it, or set reader.path to a "
                "folder (a gated model also needs HF_TOKEN)"
            ) from error
    kind = files.read_object(config).get("model_type")
    if not isinstance(kind, str):
        raise UserError(f"{config} has no model_type; copy or download it anew")
    if kind not in FAMILIES:
        raise UserError(f"{where} is a {kind} model; supported are {', '.join(FAMILIES)}")
    files.check_config(config)


def _check_gguf(settings: ReaderSettings) -> None:
    """Raise :class:`UserError` where a GGUF file is not here, or :func:`utaca.readers.gguf.check` raises it."""
    if not Path(settings.path).is_file() and public.entry(settings.path):
        shipped_name = (root() / "config" / "reader" / f"{settings.name}.yaml").is_file()
        name = settings.name if shipped_name else "NAME, without which it lists the names"
        raise UserError(f"{files.where(settings)} is not fetched yet; run: {public.COMMAND} {name}")
    gguf.check(settings.path)


def _check_attention(where: str, config: PretrainedConfig) -> None:
    """Raise :class:`UserError` where a model attends in a way that block memory cannot."""
    rope = getattr(config, "rope_parameters", None) or {}
    kind = rope.get("rope_type", "default")
    if kind not in FIXED_ROTARY:
        raise UserError(f"{where} uses {kind} rotary scaling; supported are {', '.join(FIXED_ROTARY)}")
    layers = getattr(config, "layer_types", None) or []
    if "sliding_attention" in layers or (config.model_type == "mistral" and config.sliding_window):
        raise UserError(f"{where} uses sliding-window attention, which block memory does not support")


def _ends(configured: int | list[int] | None) -> list[int]:
    """The tokens of an ``eos_token_id``; raises :class:`ValueError` where there are none in it."""
    ids = configured if isinstance(configured, list) else [] if configured is None else [configured]
    if not all(type(number) is int for number in ids):
        raise ValueError(f"eos_token_id is {configured!r}, but must be a token id or several")
    return ids


def resolve_device(device: str) -> str:
    """cpu or cuda, whatever ``auto`` stands for here."""
    if device != "auto":
        return device
    return "cuda" if torch.cuda.is_available() else "cpu"


def resolved(settings: ReaderSettings) -> ReaderSettings:
    """The settings with what ``auto`` stands for here, as device and as dtype."""
    device, dtype = resolve_device(settings.device), settings.dtype
    if dtype == "auto":
        dtype = natural_dtype(device)
    return replace(settings, device=device, dtype=dtype)


@cache
def own_gpu() -> IO[str] | None:
    """Make ``cuda`` one GPU of several that no other process of this project has, for the life of this one.

    Where all are taken it stays the first one, which is shared.
    """
    names = visible_gpus(torch.cuda.device_count())
    if len(names) < 2 or (gpu := take_gpu(names, Path(tempfile.gettempdir()))) is None:
        return None
    torch.cuda.set_device(gpu[0])
    return gpu[1]


@in_turn
def load(settings: ReaderSettings) -> Reader:
    """Load a reader for inference; of several GPUs, onto one that no other process has (:func:`own_gpu`).

    Raises :class:`UserError` as :func:`check` does, before weights are read, and where those that were read are not
    the model's.
    """
    if gguf.is_gguf(settings.path):
        check_settings(settings)
        _check_gguf(settings)
        gguf.converted(settings.path)
    tokenizer = _checked(settings)
    settings, where = resolved(settings), files.where(settings)
    if settings.device == "cpu":
        keep_freed_memory()
    else:
        own_gpu()
    dtype, path = getattr(torch, settings.dtype), str(files.folder_of(settings.path) or settings.path)
    with in_a_sentence(f"{where} cannot be loaded", "copy or download the model anew"):
        model, about = AutoModelForCausalLM.from_pretrained(
            path,
            revision=settings.revision or None,
            dtype=dtype,
            attn_implementation=ATTENTION,
            use_safetensors=True,
            trust_remote_code=False,
            output_loading_info=True,
        )
        _ends(model.generation_config.eos_token_id)
    # A hub model's files may have come just now.
    check_names(where, about["missing_keys"], about["unexpected_keys"], {})
    model = model.to(settings.device).eval().requires_grad_(False)
    check_numbers(where, model)
    return Reader(model, tokenizer, settings)


def load_reader(
    name_or_path: str | Path,
    *,
    dtype: str | torch.dtype | None = None,
    device: str | torch.device | None = None,
    memory: MemorySettings | None = None,
) -> Reader:
    """Load a reader by the name of its config (``tiny``, ``llama31_8b``, ...), Hugging Face id, folder or GGUF file.

    ``dtype`` is "float32" or "bfloat16", ``device`` "cpu" or "cuda", ``memory`` the settings of its block memory. What
    is left out is as the config says; a bare id or path is loaded onto CUDA where there is one, else the CPU, in the
    type of :func:`utaca.settings.machine.natural_dtype`, with InfLLM's block memory. ``utaca fetch NAME`` fetches a
    public reader before. Raises :class:`utaca.errors.UserError`, before weights are read, where the reader
    cannot be had or is not supported, and for values out of range.
    """
    if not isinstance(name_or_path, str | Path):
        raise UserError(f"a reader has a name, a Hugging Face id or a folder, and {name_or_path!r} is none of these")
    if not isinstance(memory, MemorySettings | None):
        raise UserError(f"memory must be a utaca.MemorySettings, as utaca.MemorySettings(n_local=256), not {memory!r}")
    name = str(name_or_path)
    values = names.keys(name) or {"name": Path(name).name, "path": name, "prompt": "instruct"}
    overrides = {
        "dtype": dtype if dtype is None else str(dtype).removeprefix("torch."),
        "device": device if device is None else str(device),
        "memory": memory if memory is None else asdict(memory),
    }
    return load(build_reader(values | {key: value for key, value in overrides.items() if value is not None}))
