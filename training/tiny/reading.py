"""What a training batch of the tiny reader attends to: block memory, differentiable and for many questions at once.

The tests hold it against the engine, token by token.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from training.tiny.examples import Batch
from utaca.readers.attention import Rotary
from utaca.settings.schema import MemorySettings


class ReadingBatch:
    """Attention of a training batch: documents and the questions about them in one sequence [B, N + R].

    Documents are read through a window that grows over each chunk of ``n_local`` tokens, plus the initial tokens.
    A token of a question sees the window that ends with it and, from the last of its prompt on, the ``budget``
    blocks that its query ranks highest. Where ``forced``, the blocks of the asked value join them.

    Beside the answer, first heads and block ranking are taught. In the layer before ``copying``, where a document
    tells a value, the first head attends to the end of the name of whom it is told. Layers from ``copying`` on rank
    the asked block first among all, and their first head attends to the very token to be written next. ``budget`` and
    ``forced`` are [B, R].
    """

    def __init__(
        self, memory: MemorySettings, rotary: Rotary, batch: Batch, budget: Tensor, forced: Tensor, copying: int
    ) -> None:
        self.memory = memory
        self.rotary = rotary
        self.batch = batch
        self.copying = copying
        self.retrieval_losses: list[Tensor] = []
        self.copy_losses: list[Tensor] = []
        self.name_losses: list[Tensor] = []
        m = memory
        device = batch.document.device
        n = self.length = batch.document.shape[1]
        rotary.reserve(n + batch.tokens.shape[1])
        self.position = n + batch.place
        blocks = max(0, (n - m.n_init) // m.block_size)
        # A block is far for a token once all of it lies outside of the token's window.
        n_far = ((self.position + 1 - m.n_local - m.n_init) // m.block_size).clamp(0, blocks)
        window = torch.where(n_far > 0, m.n_init + n_far * m.block_size, 0)
        self.blocks = int(n_far.max())
        self.local_start = int(window.min())
        near = torch.arange(self.local_start, n, device=device)
        same = batch.question[:, :, None] == batch.question[:, None]
        own = same & (batch.place[:, None] <= batch.place[:, :, None])
        seen = near >= window[..., None]
        self.visible = torch.cat((seen, own), -1)
        self.near = near
        self.rows = _padded(batch.decoding)
        first, end = (self._row(x) for x in batch.source.unbind(-1))
        self.weight = self._row(torch.cat((batch.weight[:, 1:], batch.weight[:, :1]), 1))
        here = near.expand(*first.shape, -1)
        nowhere = first.new_full((*first.shape, batch.place.shape[1]), -1)
        keys = torch.cat((here, nowhere), -1)
        if self.blocks:
            self.budget = self._row(budget)
            self.forced = self._row(forced)
            self.n_far = n_far
            low = torch.arange(self.blocks, device=device) * m.block_size + m.n_init
            self.exists = torch.arange(self.blocks, device=device) < self._row(n_far)[..., None]
            self.gold = (first[..., None] < low + m.block_size) & (end[..., None] > low) & self.exists
            self.edge = m.n_init + self.blocks * m.block_size
            far = torch.arange(self.edge, device=device).expand(*first.shape, -1)
            keys = torch.cat((far, keys), -1)
        self.asked = (keys >= first[..., None]) & (keys < end[..., None])
        self.reached = torch.zeros_like(first, dtype=torch.bool)

    def answerable(self) -> Tensor:
        """Tokens [B, R] whose next one is to be copied from nowhere or from what a copying layer attended to."""
        nowhere = self._row(self.batch.source[..., 0]) < 0
        return torch.ones_like(self.batch.decoding).scatter(1, self.rows, self.reached | nowhere)

    def _row(self, x: Tensor) -> Tensor:
        """``x`` [B, R] at the tokens that retrieve, [B, R']; a batch row with fewer repeats its last."""
        return x.gather(1, self.rows)

    def _rows(self, x: Tensor) -> Tensor:
        """``x`` [B, R, K] at the tokens that retrieve, [B, R', K]."""
        return x.gather(1, self.rows[..., None].expand(-1, -1, x.shape[-1]))

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        b, h, t, d = query.shape
        g = key.shape[1]
        n = self.length
        grouped = (query * scaling).view(b, g, h // g, t, d)
        document, mass = self._read(layer, grouped[..., :n, :], key[:, :, :n], value[:, :, :n])
        answers = self._answer(layer, grouped[..., n:, :], key, value, mass)
        return torch.cat((document, answers), dim=3).view(b, h, t, d)

    def _read(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """The documents' own attention, and the attention mass [B, G, N] that each token was given."""
        n = self.length
        local = self.memory.n_local
        init = self.memory.n_init
        device = query.device
        positions = torch.arange(n, device=device)
        if n <= 2 * local:
            visible = positions <= positions[:, None]
            out, logits, p = _attention(
                [self.rotary(query, positions)], [self.rotary(key, positions)], [value], _additive(visible, query)
            )
            self._bind(layer, logits[:, 0, 0], self.batch.named)
            return out, p.detach().sum((2, 3), dtype=torch.float32)
        # Chunks become a dimension of their own; each sees the initial tokens, the chunk before and itself.
        b, g, _, d = key.shape
        chunks = n // local
        where = torch.arange(2 * local, device=device)

        def before_and_own(x: Tensor) -> Tensor:
            x = x.view(b, g, chunks, local, d)
            return torch.cat((x.roll(1, 2), x), dim=3)

        q = query.view(b, g, -1, chunks, local, d).transpose(2, 3)
        visible = torch.ones(chunks, local, init + 2 * local, dtype=torch.bool, device=device)
        visible[:, :, init:] = where <= where[local:, None]
        visible[:2, :, :init] = False
        visible[0, :, init : init + local] = False
        out, logits, p = _attention(
            [self.rotary(q, where[local - 1 : local]), self.rotary(q, where[local:])],
            [
                key[:, :, None, :init].expand(b, g, chunks, init, d),
                self.rotary(before_and_own(key), where),
            ],
            [value[:, :, None, :init].expand(b, g, chunks, init, d), before_and_own(value)],
            _additive(visible, query)[:, None],
        )
        # The window of chunk c begins with chunk c - 1.
        named = self.batch.named.view(b, chunks, local)
        at = named - (torch.arange(chunks, device=device)[:, None] - 1) * local
        self._bind(layer, logits[:, 0, :, 0], torch.where((named >= 0) & (at >= 0), at + init, -1))
        mass = p.detach()[..., init:].sum((3, 4), dtype=torch.float32).view(b, g, chunks, 2, local)
        later = torch.cat((mass[:, :, 1:, 0], torch.zeros_like(mass[:, :, :1, 0])), 2)
        return out.transpose(2, 3).reshape(query.shape), (mass[:, :, :, 1] + later).view(b, g, n)

    def _answer(self, layer: int, query: Tensor, key: Tensor, value: Tensor, mass: Tensor) -> Tensor:
        n = self.length
        m = self.memory
        near_query = self.rotary(query, self.position[:, None, None])
        near_keys = torch.cat(
            (
                self.rotary(key[:, :, self.local_start : n], self.near),
                self.rotary(key[:, :, n:], self.position[:, None]),
            ),
            2,
        )
        near_values = value[:, :, self.local_start :]
        if not self.blocks:
            out, logits, _ = _attention(
                [near_query], [near_keys], [near_values], _additive(self.visible, query)[:, None, None]
            )
            self._teach(layer, self._rows(logits[:, 0, 0]), self.asked)
            return out
        # First as if none retrieved: initial tokens and window.
        far_query = self.rotary(query, torch.tensor([m.n_local - 1], device=query.device))
        initial = (self.n_far > 0)[..., None].expand(-1, -1, m.n_init)
        out, _, _ = _attention(
            [far_query, near_query],
            [key[:, :, : m.n_init], near_keys],
            [value[:, :, : m.n_init], near_values],
            _additive(torch.cat((initial, self.visible), -1), query)[:, None, None],
        )
        rows = self.rows[:, None, None, :, None].expand(*query.shape[:3], -1, query.shape[-1])
        far_query = far_query.gather(3, rows)
        near_query = near_query.gather(3, rows)
        chosen = self._select(layer, far_query, key, mass)
        visible = torch.cat(
            (self._rows(initial), chosen.repeat_interleave(m.block_size, -1), self._rows(self.visible)), -1
        )
        decoded, logits, _ = _attention(
            [far_query, near_query],
            [key[:, :, : self.edge], near_keys],
            [value[:, :, : self.edge], near_values],
            _additive(visible, query)[:, None, None],
        )
        self._teach(layer, logits[:, 0, 0], self.asked & visible)
        return out.scatter(3, rows, decoded)

    def _bind(self, layer: int, logits: Tensor, named: Tensor) -> None:
        """Add the loss of the layer before the copying ones: minus log of what its first head gives to the name.

        ``logits`` [..., T, K]; ``named`` [..., T] is the name's place among the keys, or -1.
        """
        taught = named >= 0
        if layer == self.copying - 1 and taught.any():
            self.name_losses.append(F.cross_entropy(logits[taught].float(), named[taught]))

    def _teach(self, layer: int, logits: Tensor, asked: Tensor) -> None:
        """Add the loss of a copying layer's first head: minus log of what it gives to the asked keys [B, R', K]."""
        if layer < self.copying:
            return
        taught = asked.any(-1)
        self.reached |= taught
        if taught.any():
            given = logits[taught].float().log_softmax(-1).masked_fill(~asked[taught], -math.inf).logsumexp(-1)
            weight = self.weight[taught]
            self.copy_losses.append(-(given * weight).sum() / weight.sum())

    def _select(self, layer: int, far: Tensor, key: Tensor, mass: Tensor) -> Tensor:
        """Blocks that each retrieving token attends to, [B, R', blocks]; adds this layer's contrastive loss.

        ``far`` [B, G, H / G, R', D] are the queries at the clipped distance.
        """
        m = self.memory
        _, g, heads, _, d = far.shape
        representatives = key[:, :, m.n_init : self.edge].unflatten(2, (self.blocks, m.block_size))
        if m.n_representatives < m.block_size:
            given = mass[:, :, m.n_init : self.edge].unflatten(2, (self.blocks, m.block_size))
            best = given.topk(min(m.n_representatives, m.block_size), dim=3).indices
            representatives = representatives.gather(3, best[..., None].expand(-1, -1, -1, -1, d))
        representatives = representatives.mean(3)
        scores = torch.einsum("bgrd,bgnd->brn", far.sum(2), representatives).float()
        scores = scores.masked_fill(~self.exists, -math.inf)
        asked = self.gold.any(-1)
        if layer >= self.copying and asked.any():
            logits = scores[asked] / math.sqrt(g * heads)
            target = logits.masked_fill(~self.gold[asked], -math.inf)
            self.retrieval_losses.append((logits.logsumexp(-1) - target.logsumexp(-1)).mean())
        with torch.no_grad():
            place = (self.budget - 1).clamp(max=self.blocks - 1)[..., None]
            least = scores.sort(-1, descending=True).values.gather(-1, place)
            return ((scores >= least) | (self.gold & self.forced[..., None])) & self.exists


def _attention(
    queries: Sequence[Tensor], keys: Sequence[Tensor], values: Sequence[Tensor], mask: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Attention over several segments under one softmax: its output, logits and probabilities.

    Queries are scaled, [..., heads, T, D] with the ``heads`` that share keys and values [..., n, D].
    """
    shape = queries[0].shape
    logits = _joined([q.flatten(-3, -2) @ k.mT for q, k in zip(queries, keys, strict=True)], -1)
    logits = logits.unflatten(-2, shape[-3:-1]) + mask
    with torch.autocast(logits.device.type, enabled=False):
        probabilities = logits.softmax(-1)
    return (probabilities.flatten(-3, -2) @ _joined(values, -2)).view(shape), logits, probabilities


def _joined(parts: Sequence[Tensor], dim: int) -> Tensor:
    """The parts in one; a single one without a copy."""
    return torch.cat(list(parts), dim) if len(parts) > 1 else parts[0]


def _padded(flags: Tensor) -> Tensor:
    """Indices of the set flags [B, R] a row, [B, most of a row]; shorter rows repeat their last."""
    count = flags.sum(1)
    order = flags.int().argsort(dim=1, descending=True, stable=True)
    at = torch.arange(int(count.max()), device=flags.device).minimum(count[:, None] - 1)
    return order.gather(1, at)


def _additive(visible: Tensor, like: Tensor) -> Tensor:
    return torch.zeros(visible.shape, dtype=like.dtype, device=like.device).masked_fill(~visible, -math.inf)
