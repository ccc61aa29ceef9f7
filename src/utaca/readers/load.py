"""Loading a reader: any model of a known family of Hugging Face's, by hub id or folder."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import cache, cached_property, partial
from pathlib import Path
from typing import IO

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import cached_file

from utaca.errors import UserError
from utaca.readers import smollm2
from utaca.readers.attention import ATTENTION, Attending, Rotary
from utaca.readers.families import FAMILIES
from utaca.readers.identity import identity_of, shape_of
from utaca.readers.onednn import onednn
from utaca.readers.prompts import Prompts, frame
from utaca.settings.machine import keep_freed_memory, natural_dtype, promised_gpu, take_gpu, visible_gpus
from utaca.settings.schema import Reader as ReaderSettings

# Rotary types whose frequencies do not depend on the positions seen, so that we may place keys as we like.
FIXED_ROTARY = ("default", "linear", "llama3", "yarn")


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
        self._biased, self._bias = _biases(self.prompts, settings, self.device)
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
        configured = self.model.generation_config.eos_token_id
        ids = configured if isinstance(configured, list) else [configured]
        return self.prompts.stop_tokens.union(i for i in ids if i is not None)

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

    def _tensor(self, ids: list[int]) -> Tensor:
        return torch.tensor(ids, dtype=torch.long, device=self.device)

    def forward(self, tokens: Tensor, attending: Attending) -> Tensor:
        """Last hidden states [B, T, D] of tokens [B, T] under the given attention."""
        positions = tokens.new_zeros(1, tokens.shape[1])
        with onednn(tokens.numel() > 1):
            return self._parts.body(
                tokens, position_ids=positions, use_cache=False, attending=attending
            ).last_hidden_state

    def embed(self, tokens: Tensor) -> Tensor:
        """What the first layer is given for tokens [T]: [T, D]."""
        return self._parts.embedding(tokens)

    def through(self, layers: slice, hidden: Tensor, attending: Attending) -> Tensor:
        """Hidden states [T, D] behind some of the layers, given those before, as :meth:`forward` calls all of them."""
        hidden = hidden[None]
        zero = torch.zeros(1, 1, dtype=torch.long, device=hidden.device)
        unturned = self._parts.rotary(hidden, zero)
        with onednn(hidden.shape[1] > 1):
            for layer in self.layers[layers]:
                hidden = layer(
                    hidden, position_ids=zero, position_embeddings=unturned, use_cache=False, attending=attending
                )
        return hidden[0]

    def norm(self, hidden: Tensor) -> Tensor:
        """Last hidden states [T, D] from what the last layer gave."""
        return self._parts.norm(hidden)

    def logits(self, hidden: Tensor) -> Tensor:
        """Float32 logits [..., V] of hidden states [..., D]: margins of bfloat16 logits would be quantised.

        ``reader.logit_bias`` is in them.
        """
        weight = self._parts.head.weight
        if weight.is_cuda and weight.dtype == torch.bfloat16:
            found = torch.mm(hidden.reshape(-1, self.width), weight.T, out_dtype=torch.float32)
            found = found.view(*hidden.shape[:-1], -1)
        else:
            found = hidden.float() @ self._float32_head.T
        return (
            found.index_add_(-1, self._biased, self._bias.expand(*found.shape[:-1], -1)) if len(self._bias) else found
        )

    @cached_property
    def _float32_head(self) -> Tensor:
        return self._parts.head.weight.detach().float()

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


def _biases(prompts: Prompts, settings: ReaderSettings, device: torch.device) -> tuple[Tensor, Tensor]:
    """Ids and biases of the tokens that ``reader.logit_bias`` names; :class:`UserError` for a text of several."""
    ids = []
    for text in settings.logit_bias:
        tokens = prompts.text(text)
        if len(tokens) != 1:
            raise UserError(
                f"reader.logit_bias names {text!r}, which is {len(tokens)} tokens to reader {settings.name!r}; name one"
            )
        ids += tokens
    return torch.tensor(ids, dtype=torch.long, device=device), torch.tensor(
        list(settings.logit_bias.values()), dtype=torch.float32, device=device
    )


def check_settings(settings: ReaderSettings) -> None:
    """Raise :class:`UserError` where a reader cannot be loaded here whatever its model is."""
    if settings.graphs and settings.memory.storage == "host":
        raise UserError(
            "reader.graphs=true cannot decode with reader.memory.storage=host, for which every pass waits; set "
            "reader.graphs=false, or reader.memory.storage=device"
        )
    if settings.device == "cuda" and not torch.cuda.is_available():
        raise UserError("reader.device=cuda, but no CUDA device is visible; set reader.device=auto or cpu")
    if settings.device == "auto" and promised_gpu() and not torch.cuda.is_available():
        # On a CPU such a reader would take until the job is stopped.
        raise UserError(
            "Slurm gave this job a GPU, but torch sees no CUDA device; install a torch for CUDA (docs/install.md), or "
            "set reader.device=cpu"
        )
    if settings.adapter:
        from utaca.readers import lora

        lora.check_files(settings.adapter)


def check(settings: ReaderSettings) -> None:
    """Raise :class:`UserError` where the reader cannot be had or is not supported, before its weights are read."""
    check_settings(settings)
    where = f"reader {settings.name!r} (reader.path={settings.path})"
    local = Path(settings.path)
    if smollm2.is_fetched(settings.path) and not smollm2.is_complete(local):
        raise UserError(f"{where} is not fetched yet; run: {smollm2.COMMAND}")
    if local.is_dir():
        if not (local / "config.json").is_file():
            raise UserError(f"{where} has no config.json; point reader.path at a Hugging Face model folder")
        if not any((local / name).is_file() for name in ("tokenizer.json", "tokenizer.model", "tokenizer_config.json")):
            raise UserError(f"{where} has no tokenizer; add tokenizer.json to the folder")
        if not list(local.glob("*.safetensors")):
            raise UserError(f"{where} has no weights; add its .safetensors files to the folder")
    else:
        try:
            cached_file(settings.path, "config.json", revision=settings.revision or None)
        except (OSError, ValueError) as error:
            raise UserError(
                f"{where} is neither a local folder nor available from the hub; download it, or set reader.path to a "
                "folder (a gated model also needs HF_TOKEN)"
            ) from error
    config = AutoConfig.from_pretrained(settings.path, revision=settings.revision or None)
    if config.model_type not in FAMILIES:
        raise UserError(f"{where} is a {config.model_type} model; supported are {', '.join(FAMILIES)}")
    rope = (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default")
    if rope not in FIXED_ROTARY:
        raise UserError(f"{where} uses {rope} rotary scaling; supported are {', '.join(FIXED_ROTARY)}")
    layers = getattr(config, "layer_types", None) or []
    if "sliding_attention" in layers or (config.model_type == "mistral" and config.sliding_window):
        raise UserError(f"{where} uses sliding-window attention, which block memory does not support")
    if settings.adapter:
        from utaca.readers import lora

        lora.check(settings.adapter, settings.path, config)


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
    if len(names) < 2 or (taken := take_gpu(names, Path(tempfile.gettempdir()))) is None:
        return None
    torch.cuda.set_device(taken[0])
    return taken[1]


def load(settings: ReaderSettings) -> Reader:
    """Load a reader for inference; of several GPUs, onto one that no other process has (:func:`own_gpu`).

    Raises :class:`UserError` as :func:`check` and :func:`utaca.readers.prompts.frame` do, before weights are read.
    """
    check(settings)
    settings = resolved(settings)
    if settings.device == "cpu":
        keep_freed_memory()
    else:
        own_gpu()
    revision = settings.revision or None
    tokenizer = AutoTokenizer.from_pretrained(settings.path, revision=revision)
    frame(tokenizer)
    _biases(Prompts(tokenizer), settings, torch.device("cpu"))
    dtype = getattr(torch, settings.dtype)
    model = AutoModelForCausalLM.from_pretrained(
        settings.path,
        revision=revision,
        # An adapter is merged without rounding in between.
        dtype=torch.float32 if settings.adapter else dtype,
        attn_implementation=ATTENTION,
    )
    if settings.adapter:
        from utaca.readers import lora

        model = lora.merged(model, settings.adapter, settings.path)
        # The frequencies of rotary embedding, which are no parameters, stay in float32.
        for parameter in model.parameters():
            parameter.data = parameter.data.to(dtype)
    return Reader(model.to(settings.device).eval().requires_grad_(False), tokenizer, settings)
