"""The methods by name, and their construction from config."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from utaca.errors import UserError
from utaca.methods.adakv import AdaKV
from utaca.methods.fastkv import FastKV
from utaca.methods.freqkv import FreqKV
from utaca.methods.full import ClosedBook, FullAttention
from utaca.methods.h2o import H2O
from utaca.methods.infllm import InfLLM
from utaca.methods.infllm_v2 import InfLLMV2
from utaca.methods.llmlingua2 import LLMLingua2
from utaca.methods.method import Method
from utaca.methods.omnikv import OmniKV
from utaca.methods.retrieval_attention import RetrievalAttention
from utaca.methods.snapkv import SnapKV
from utaca.methods.tokenselect import TokenSelect
from utaca.methods.utaca import UTACA, NoDetector, TokenAgreement
from utaca.methods.window import WindowOnly
from utaca.settings.models import build_plain
from utaca.settings.schema import Point

METHODS: dict[str, type[Method] | type[UTACA]] = {
    method.name: method
    for method in (
        FullAttention,
        ClosedBook,
        WindowOnly,
        SnapKV,
        AdaKV,
        RetrievalAttention,
        OmniKV,
        InfLLMV2,
        H2O,
        TokenSelect,
        FreqKV,
        FastKV,
        LLMLingua2,
        InfLLM,
        UTACA,
        TokenAgreement,
        NoDetector,
    )
}


def build(name: str, settings: Mapping[str, Any]) -> Method | UTACA:
    """The method ``name`` under the given settings, its own defaults for the others.

    Raises :class:`UserError`, in one sentence, for a method or setting that does not exist, for a value of another
    type, and for a budget that the method cannot meet.
    """
    if name not in METHODS:
        raise UserError(f"there is no method {name!r}; known are {', '.join(METHODS)}")
    return build_plain(METHODS[name], settings, f"methods.{name}")


def method_of(point: Point, methods: Mapping[str, Mapping[str, Any]]) -> Method | UTACA:
    """The method of an operating point: its settings of the config, and the point's budget where it names one.

    Raises :class:`UserError` for settings that the method does not know and budgets that it cannot meet.
    """
    named = {name: value for name in ("budget", "policy", "every", "witness") if (value := getattr(point, name))}
    if point.in_blocks:
        return build(point.kind, named)
    if not point.base:
        return build(point.method, {**methods[point.method], **named})
    return METHODS[point.kind](**named, base=build(point.base, methods[point.base]))
