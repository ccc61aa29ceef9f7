"""Adapters of model families: names of a model's modules, by Hugging Face's ``model_type``."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn


@dataclass(frozen=True)
class Family:
    """Dotted names of the modules of a causal language model of transformers.

    ``body`` is the model without its head; ``layers``, ``norm`` (the final one), ``embedding`` and ``rotary`` are names
    within the body, ``attention_output`` (the projection that ends the attention sub-layer) and ``mlp`` are names
    within a layer, and ``head`` is a name within the whole model.

    The models of the family must call the attention function that their config names, and compute logits by the head's
    matrix only. The models must rotate the first R dimensions of a query or key, dimension i together with dimension
    i + R / 2; R is the width of the tables of ``rotary``. ``docs/extending.md`` says how to add and test a family.

    ``like_llama`` lets layers run in a shorter form (:mod:`utaca.readers.shortcuts`). Their modules must then have
    Llama's names and do what Llama's do: project, normalise each head if there are ``q_norm`` and ``k_norm``, rotate,
    attend and project; multiply two projections, one of them activated, and project; divide by the root mean square.
    """

    body: str = "model"
    layers: str = "layers"
    attention_output: str = "self_attn.o_proj"
    mlp: str = "mlp"
    norm: str = "norm"
    embedding: str = "embed_tokens"
    rotary: str = "rotary_emb"
    head: str = "lm_head"
    like_llama: bool = False

    def parts(self, model: nn.Module) -> Parts:
        """Look up the modules of ``model``."""
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
    """Modules of a model; ``sites`` are the modules of the last layer whose outputs are embeddings, by site."""

    body: nn.Module
    layers: nn.ModuleList
    sites: dict[str, nn.Module]
    norm: nn.Module
    embedding: nn.Module
    rotary: nn.Module
    head: nn.Linear


_LIKE_LLAMA = Family(like_llama=True)

FAMILIES = {"llama": _LIKE_LLAMA, "mistral": _LIKE_LLAMA, "qwen2": _LIKE_LLAMA, "qwen3": _LIKE_LLAMA}
"""Adapters by ``model_type``."""
