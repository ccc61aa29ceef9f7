"""Loading a reader: any Llama, Qwen2, Qwen3 or Mistral of Hugging Face, by hub id or folder."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import cached_file

from utaca.errors import UserError
from utaca.readers.attention import ATTENTION, Rotary
from utaca.readers.onednn import onednn
from utaca.readers.prompts import frame
from utaca.settings.machine import keep_freed_memory
from utaca.settings.schema import SITES
from utaca.settings.schema import Reader as ReaderSettings

SUPPORTED = ("llama", "mistral", "qwen2", "qwen3")

# Rotary types whose frequencies do not depend on the positions seen, so that we may place keys as we like.
FIXED_ROTARY = ("default", "linear", "llama3", "yarn")


@dataclass
class Reader:
    """A loaded model with its tokenizer, ready for block memory."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    settings: ReaderSettings

    def __post_init__(self) -> None:
        self.rotary = Rotary(self.model)
        self.before, self.after = frame(self.tokenizer)
        self._embeddings: dict[str, Tensor] = {}
        last = self.model.model.layers[-1]
        for site, module in zip(SITES, (last.self_attn.o_proj, last.mlp, last), strict=True):
            module.register_forward_hook(partial(self._keep, site))

    def _keep(self, site: str, _module: object, _inputs: object, output: Tensor) -> None:
        self._embeddings[site] = output[:, -1]

    @property
    def width(self) -> int:
        """Width of the residual stream, and so of the embedding."""
        return self.model.config.hidden_size

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    @cached_property
    def head(self) -> Tensor:
        """The output projection in float32: margins of bfloat16 logits would be quantised to an eighth."""
        return self.model.lm_head.weight.detach().float()

    @cached_property
    def stop_tokens(self) -> frozenset[int]:
        """Tokens that end an answer."""
        configured = self.model.generation_config.eos_token_id
        ids = configured if isinstance(configured, list) else [configured, self.tokenizer.eos_token_id]
        return frozenset(i for i in ids if i is not None)

    @cached_property
    def identity(self) -> str:
        """Short hex digest of the model's weights: their names and shapes, and the first numbers of each in bfloat16.

        It is the same whatever dtype, device and path the model was loaded with.
        """
        named = list(self.model.named_parameters())
        digest = hashlib.sha256(repr([(name, list(weight.shape)) for name, weight in named]).encode())
        some = torch.cat([weight.detach().flatten()[:64].bfloat16() for _, weight in named])
        digest.update(some.cpu().view(torch.int16).numpy().tobytes())
        return digest.hexdigest()[:16]

    @property
    def dtype(self) -> torch.dtype:
        return self.model.dtype

    @property
    def shape(self) -> tuple[int, int, int, int]:
        c = self.model.config
        return (
            c.num_hidden_layers,
            c.num_attention_heads,
            c.num_key_value_heads,
            getattr(c, "head_dim", None) or c.hidden_size // c.num_attention_heads,
        )

    def encode_document(self, text: str) -> Tensor:
        return self.encode(self.before + text)

    def encode_question(self, text: str) -> Tensor:
        return self.encode("\n\n" + text + self.after)

    @property
    def positions(self) -> int:
        """Positions that it was trained for, see ``reader.positions``."""
        return self.settings.positions or self.model.config.max_position_embeddings

    def encode(self, text: str) -> Tensor:
        """Token ids [T] of text that already carries its special tokens."""
        ids = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        return torch.tensor(ids, dtype=torch.long, device=self.device)

    def forward(self, tokens: Tensor, attending: object) -> Tensor:
        """Last hidden states [B, T, D] of tokens [B, T] under the given attention."""
        positions = tokens.new_zeros(1, tokens.shape[1])
        with onednn(tokens.numel() > 1):
            return self.model.model(
                tokens, position_ids=positions, use_cache=False, attending=attending
            ).last_hidden_state

    def logits(self, hidden: Tensor) -> Tensor:
        """Float32 logits [..., V] of hidden states [..., D]."""
        return hidden.float() @ self.head.T

    def first_not_finite(self, run) -> int:
        faulty: list[int] = []
        layers = self.model.model.layers

        def note(layer: int):
            return lambda module, inputs, output: None if output.isfinite().all() else faulty.append(layer)

        hooks = [layer.register_forward_hook(note(number)) for number, layer in enumerate(layers)]
        try:
            run()
        finally:
            for hook in hooks:
                hook.remove()
        return min(faulty, default=len(layers))

    def embeddings(self) -> dict[str, Tensor]:
        """Embeddings [B, D] of the last tokens of the latest pass, by site (paper, appendix B.3)."""
        return dict(self._embeddings)


def check(settings: ReaderSettings) -> None:
    """Raise :class:`UserError` where the reader cannot be had or is not supported, before its weights are read."""
    if settings.graphs and settings.memory.storage == "host":
        raise UserError(
            "reader.graphs=true cannot decode with reader.memory.storage=host, for which every pass waits; set "
            "reader.graphs=false, or reader.memory.storage=device"
        )
    where = f"reader {settings.name!r} (reader.path={settings.path})"
    local = Path(settings.path)
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
    if config.model_type not in SUPPORTED:
        raise UserError(f"{where} is a {config.model_type} model; supported are {', '.join(SUPPORTED)}")
    rope = (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default")
    if rope not in FIXED_ROTARY:
        raise UserError(f"{where} uses {rope} rotary scaling; supported are {', '.join(FIXED_ROTARY)}")
    layers = getattr(config, "layer_types", None) or []
    if "sliding_attention" in layers or (config.model_type == "mistral" and config.sliding_window):
        raise UserError(f"{where} uses sliding-window attention, which block memory does not support")
    if settings.device == "cuda" and not torch.cuda.is_available():
        raise UserError("reader.device=cuda, but no CUDA device is visible; set reader.device=auto or cpu")


def resolve_device(device: str) -> str:
    """cpu or cuda, whatever ``auto`` stands for here."""
    if device != "auto":
        return device
    return "cuda" if torch.cuda.is_available() else "cpu"


def load(settings: ReaderSettings) -> Reader:
    """Load a reader for inference. Raises :class:`UserError` as :func:`check` does, before reading weights."""
    check(settings)
    device = resolve_device(settings.device)
    if device == "cpu":
        keep_freed_memory()
    revision = settings.revision or None
    tokenizer = AutoTokenizer.from_pretrained(settings.path, revision=revision)
    model = AutoModelForCausalLM.from_pretrained(
        settings.path, revision=revision, dtype=getattr(torch, settings.dtype), attn_implementation=ATTENTION
    )
    return Reader(model.to(device).eval().requires_grad_(False), tokenizer, settings)
