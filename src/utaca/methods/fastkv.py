"""FastKV: SnapKV, but the deeper layers read only the tokens that a middle layer selects."""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from utaca.memory.attention import attention, best
from utaca.methods.bases.dense import Dense, Whole
from utaca.methods.bases.method import Pairs
from utaca.methods.snapkv import Compressed, SnapKV, before_window
from utaca.readers.load import Reader


@dataclass
class Lower(Dense):
    """A document that has passed only the full layers: ``layers`` are their pairs, ``hidden`` [N, D] what the last of
    them puts out."""

    hidden: Tensor


class Propagating(Compressed):
    """An answer under FastKV.

    ``full`` is the number of layers that see the whole prompt, ``hidden`` the document's hidden states after them.
    ``reached`` [n] are the positions of the tokens (document and question) passed on to the deeper layers, ascending;
    the last full layer sets it when the prompt passes.
    """

    def __init__(self, reading: Lower, repeated: int, room: int) -> None:
        super().__init__(reading, repeated, room)
        self.full = len(reading.layers)
        self.hidden = reading.hidden
        # Empty in the deeper layers, whose pairs are all in ``kept``.
        self.later += [self.later[0]] * (self.reader.shape[0] - self.full)
        self.reached = torch.arange(0)

    def advance(self, tokens: Tensor) -> Tensor:
        """As in the base class; only the ``reached`` tokens of a prompt are passed on to deeper layers."""
        if self.kept:  # the prompt has passed
            return super().advance(tokens)
        self.attended = []
        of_prompt = self.reader.through(slice(self.full), self.reader.embed(tokens), self)
        # The document passed the full layers when it was read.
        in_document = self.reached[self.reached < self.start]
        in_prompt = self.reached[len(in_document) :] - self.start
        hidden = torch.cat((self.hidden[in_document], of_prompt[in_prompt]))
        hidden = self.reader.through(slice(self.full, None), hidden, self)
        self.length += len(tokens)
        return self.reader.norm(hidden)

    def look(self, layer: int, query: Tensor, scaling: float) -> Tensor:
        """As in the base class; when the prompt passes the last full layer, choose the tokens to pass on."""
        if layer == len(self.kept) == self.full - 1:
            keys = self.since(layer, 0).keys
            window_query = query[:, :, -self.method.window :]
            self.reached = torch.arange(keys.shape[2], device=keys.device)
            if len(self.reached) > self.method.tsp_length:
                votes = self.method.votes(window_query, keys, scaling).sum(0, keepdim=True)
                chosen = best(votes, self.method.tsp_length - window_query.shape[2])
                self.reached = before_window(chosen, window_query, keys)[0]
        return super().look(layer, query, scaling)

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        """As in the base class, in a full layer; in a deeper one, attend to the ``reached`` or to the kept tokens."""
        if layer < self.full:
            return super().attend(layer, query, key, value, scaling)
        is_prompt = layer == len(self.kept)  # the layer has kept nothing yet
        positions = self.reached if is_prompt else range(self.length, self.length + 1)
        rotate = self.reader.rotary.at(positions, key.dtype)
        query = rotate(query)
        pairs = Pairs(rotate(key), value)
        if not is_prompt:
            # Pairs of the answer's tokens are kept with those of the prompt.
            self.kept[layer] = self.kept[layer].then(pairs)
            self.attended.append(len(self.kept[layer]))
            return attention([self.kept[layer].under(query)], scaling)[0]
        self.compress(pairs, query, scaling)
        # From indices among the tokens that reached the layer to positions.
        self.chosen[layer] = self.reached[self.chosen[layer]]
        self.attended.append(len(pairs))
        return attention([pairs.under(query, causal=True)], scaling)[0]


@dataclass(frozen=True)
class FastKV(SnapKV):
    """As :class:`SnapKV` with ``heads`` kv, but layers after ``tsp_layer`` see ``tsp_length`` tokens of the prompt.

    Jo et al., arXiv 2502.01068; dongwonjo/FastKV, MIT (its mode "constant"). In ``tsp_layer``, the votes of all
    key-value heads are added up; only the hidden states of the best tokens and of the last ``window`` are passed on to
    deeper layers, at true positions (token-selective propagation). In every layer, each key-value head keeps ``budget``
    of the tokens that reach the layer. ``tsp_layer`` is for readers of ``depth`` layers; other readers get the same
    share of full layers, rounded up (15 of 32: the first half). The answer's tokens are all kept, outside the budget.
    The deeper layers' work on a document depends on the question, so it counts to the answer's time, not to the
    prefill's.
    """

    name: ClassVar[str] = "fastkv"
    state = Propagating

    # The paper's budget in every layer, so at least as many tokens must reach the deeper layers (the source's 2,048 are
    # too few); layer, window and kernel as in the source.
    budget: int = 4096
    window: int = 8
    heads: str = "kv"
    tsp_length: int = 4096
    tsp_layer: int = 15
    depth: int = 32

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require(self.heads == "kv", f"heads={self.heads} must be kv")
        within = self.tsp_length >= self.budget
        self.require(within, f"tsp_length={self.tsp_length} must be at least budget={self.budget}")
        within = 0 <= self.tsp_layer < self.depth - 1
        self.require(within, f"tsp_layer={self.tsp_layer} must be before the last of depth={self.depth} layers")

    def check(self, reader: Reader) -> None:
        layers = reader.shape[0]
        self.require(
            self.full(layers) < layers, f"a reader with {layers} layers has none after the full ones; lower tsp_layer"
        )

    def full(self, layers: int) -> int:
        """Number of the reader's ``layers`` that see the whole prompt."""
        return -(-(self.tsp_layer + 1) * layers // self.depth)

    @property
    def reading(self) -> Hashable:
        """The settings that say how many layers a document passes when it is read."""
        return self.name, self.tsp_layer, self.depth

    @torch.inference_mode()
    def read(self, reader: Reader, document: str | Tensor, room: int) -> Lower:
        """Pass the document through the first layers, those that get all of its tokens."""
        tokens, dropped = self.tokens(reader, document, room)
        whole = Whole(reader, len(tokens), room)
        full = slice(self.full(reader.shape[0]))
        hidden = reader.through(full, reader.embed(tokens), whole)
        return Lower(reader, tokens, dropped, self, whole.layers, hidden)
