"""Where the models of a family keep their parts: one adapter a family, by Hugging Face's ``model_type``."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn


@dataclass(frozen=True)
class Family:
    """Where a causal language model of transformers keeps its parts, as dotted names of its modules.

    ``body`` is the model without its head; ``layers``, ``norm`` (the last one), ``embedding`` and ``rotary`` are names
    within the body, ``attention_output`` (the projection that ends the attention sub-layer) and ``mlp`` within a layer,
    ``head`` within the whole model.

    The models of the family must call the attention function that their config names, and make logits by the head's
    matrix alone. Of a query or key they must turn the first dimensions, as many as the tables of ``rotary`` are wide,
    dimension i together with the one half of them further. ``docs/extending.md`` says how a family is added and tested.
    """

    body: str = "model"
    layers: str = "layers"
    attention_output: str = "self_attn.o_proj"
    mlp: str = "mlp"
    norm: str = "norm"
    embedding: str = "embed_tokens"
    rotary: str = "rotary_emb"
    head: str = "lm_head"

    def parts(self, model: nn.Module) -> Parts:
        """The modules of ``model`` that the names stand for."""
        body = model.get_submodule(self.body)
        layers = body.get_submodule(self.layers)
        last = layers[-1]
        return Parts(
            body=body,
            layers=layers,
            sites={
                "attention": last.get_submodule(self.attention_output),
                "mlp": last.get_submodule(self.mlp),
                "residual": last,
            },
            norm=body.get_submodule(self.norm),
            embedding=body.get_submodule(self.embedding),
            rotary=body.get_submodule(self.rotary),
            head=model.get_submodule(self.head),
        )


@dataclass(frozen=True)
class Parts:
    """The modules of a model; ``sites`` are those of the last layer whose outputs are embeddings, by site."""

    body: nn.Module
    layers: nn.ModuleList
    sites: dict[str, nn.Module]
    norm: nn.Module
    embedding: nn.Module
    rotary: nn.Module
    head: nn.Linear


FAMILIES = {"llama": Family(), "mistral": Family(), "qwen2": Family(), "qwen3": Family()}
"""The adapters by ``model_type``."""


def parts(model: nn.Module) -> Parts:
    """The parts of a model whose family is known."""
    return FAMILIES[model.config.model_type].parts(model)
