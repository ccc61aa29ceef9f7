"""What a training batch of the tiny reader attends to: block memory, differentiable and for many questions at once.

The tests hold it against the engine, token by token.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from utaca.readers.attention import Rotary
from utaca.readers.tiny.examples import Batch
from utaca.settings.schema import Memory


class ReadingBatch:
    """Attention of a training batch: documents and the questions about them in one sequence [B, N + Q * S].

    Documents are read through a window that grows over each chunk of ``n_local`` tokens, plus the initial tokens;
    questions see the window that ends with them and, from the last prompt token on, the blocks that their own
    query ranks highest, ``budget`` of them. Layers from ``retrieving`` on are taught to rank the asked block first.
    Here a block is represented by the mean of its keys, whatever the memory does later: every key gets a gradient.
    """

    def __init__(
        self, memory: Memory, rotary: Rotary, batch: Batch, budget: Tensor, forced: Tensor, retrieving: int
    ) -> None:
        self.memory, self.rotary, self.batch, self.retrieving = memory, rotary, batch, retrieving
        self.retrieval_losses: list[Tensor] = []
        self.length = batch.document.shape[1]
        self.questions, self.width = batch.question.shape[1:]
        m, n, s = memory, self.length, self.width
        position = torch.arange(n, n + s)
        blocks = max(0, (n - m.n_init) // m.block_size)
        # A block is far for a token once all of it lies outside of the token's window.
        n_far = ((position + 1 - m.n_local - m.n_init) // m.block_size).clamp(0, blocks)
        window = m.n_init + n_far * m.block_size
        window[position + 1 <= m.n_local + m.n_init] = 0
        self.blocks = int(n_far.max())
        self.local_start = int(window.min())
        self.n_far, self.position, self.window = n_far, position, window
        self.budget, self.forced = budget, forced
        if self.blocks:
            first, end = batch.source[..., 0], batch.source[..., 1]
            low = torch.arange(self.blocks) * m.block_size + m.n_init
            self.gold = (first[..., None] < low + m.block_size) & (end[..., None] > low)

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        groups = query.shape[1] // key.shape[1]
        n = self.length
        full_key, full_value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
        document = self._read(query[:, :, :n], full_key[:, :, :n], full_value[:, :, :n], scaling)
        answers = self._answer(layer, query[:, :, n:], key, full_key, full_value, scaling)
        return torch.cat((document, answers), dim=2)

    def _read(self, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        n, local, init = self.length, self.memory.n_local, self.memory.n_init
        positions = torch.arange(n)
        if n <= 2 * local:
            q, k = self.rotary(query, positions), self.rotary(key, positions)
            return F.scaled_dot_product_attention(q, k, value, is_causal=True, scale=scaling)
        # Chunks become rows of the batch: [B, H, chunks, local, D]; each sees the chunk before and the initial tokens.
        b, h, _, d = query.shape
        chunks = n // local
        where = torch.arange(2 * local)

        def before_and_own(x: Tensor) -> Tensor:
            x = x.view(b, h, chunks, local, d)
            return torch.cat((x.roll(1, 2), x), dim=3)

        q = query.reshape(b, h, chunks, local, d)
        near = self.rotary(q, where[local:])
        far = self.rotary(q, torch.tensor([local - 1]))
        near_keys = self.rotary(before_and_own(key), where)
        keys = torch.cat((_widen(key[:, :, None, :init].expand(b, h, chunks, init, d), 1), _widen(near_keys, 0)), 3)
        values = torch.cat((value[:, :, None, :init].expand(b, h, chunks, init, d), before_and_own(value)), 3)
        visible = torch.ones(chunks, local, init + 2 * local, dtype=torch.bool)
        visible[:, :, init:] = where[None, None] <= where[None, local:, None]
        visible[:2, :, :init] = False
        visible[0, :, init : init + local] = False
        shape = (b * h, chunks)
        out = F.scaled_dot_product_attention(
            torch.cat((near, far), -1).reshape(*shape, local, 2 * d),
            keys.reshape(*shape, init + 2 * local, 2 * d),
            F.pad(values, (0, d)).reshape(*shape, init + 2 * local, 2 * d),
            attn_mask=_additive(visible, query.dtype),
            scale=scaling,
        )
        return out[..., :d].reshape(b, h, n, d)

    def _answer(
        self, layer: int, query: Tensor, key: Tensor, full_key: Tensor, full_value: Tensor, scaling: float
    ) -> Tensor:
        n, s, m, start = self.length, self.width, self.memory, self.local_start
        b, h, _, d = query.shape
        questions = self.questions
        q = query.view(b, h, questions, s, d)
        own_key = full_key[:, :, n:].view(b, h, questions, s, d)
        own_value = full_value[:, :, n:].view(b, h, questions, s, d)
        near = self.rotary(q, self.position)
        local_positions = torch.arange(start, n)
        seen = local_positions[None] >= self.window[:, None]
        own = torch.tril(torch.ones(s, s, dtype=torch.bool))

        def shared(x: Tensor) -> Tensor:
            return x[:, :, None].expand(b, h, questions, *x.shape[2:])

        keys = [shared(self.rotary(full_key[:, :, start:n], local_positions)), self.rotary(own_key, self.position)]
        values = [shared(full_value[:, :, start:n]), own_value]
        visible = [seen.expand(b, questions, s, -1), own.expand(b, questions, s, s)]
        if not self.blocks:
            out = F.scaled_dot_product_attention(
                near.reshape(b, h * questions, s, d),
                torch.cat(keys, 3).reshape(b, h * questions, -1, d),
                torch.cat(values, 3).reshape(b, h * questions, -1, d),
                attn_mask=_additive(torch.cat(visible, -1)[:, None], query.dtype)
                .expand(b, h, questions, s, -1)
                .reshape(b, h * questions, s, -1),
                scale=scaling,
            )
            return out.view(b, h, questions * s, d)
        far = self.rotary(q, torch.tensor([m.n_local - 1]))
        edge = m.n_init + self.blocks * m.block_size
        chosen = self._select(layer, far, key, scaling)
        far_keys = full_key[:, :, :edge]
        init = (self.window > 0)[:, None].expand(b, questions, s, m.n_init)
        visible = [init, chosen.repeat_interleave(m.block_size, -1), *visible]
        keys = [_widen(shared(far_keys), 1), *(_widen(k, 0) for k in keys)]
        values = [shared(full_value[:, :, :edge]), *values]
        mask = _additive(torch.cat(visible, -1), query.dtype)
        out = F.scaled_dot_product_attention(
            torch.cat((near, far), -1).transpose(1, 2).reshape(b * questions, h, s, 2 * d),
            torch.cat(keys, 3).transpose(1, 2).reshape(b * questions, h, -1, 2 * d),
            F.pad(torch.cat(values, 3), (0, d)).transpose(1, 2).reshape(b * questions, h, -1, 2 * d),
            attn_mask=mask.reshape(b * questions, 1, s, -1),
            scale=scaling,
        )
        out = out[..., :d].view(b, questions, h, s, d).transpose(1, 2)
        return out.reshape(b, h, questions * s, d)

    def _select(self, layer: int, far: Tensor, key: Tensor, scaling: float) -> Tensor:
        """Blocks that each token attends to, [B, Q, S, blocks]; adds this layer's contrastive loss."""
        m, (b, h, questions, s, d) = self.memory, far.shape
        g = key.shape[1]
        representatives = key[:, :, m.n_init : m.n_init + self.blocks * m.block_size]
        representatives = representatives.reshape(b, g, self.blocks, m.block_size, d).mean(3)
        summed = far.view(b, g, h // g, questions, s, d).sum(2)
        scores = torch.einsum("bgqsd,bgnd->bqsn", summed, representatives).float()
        exists = torch.arange(self.blocks) < self.n_far[:, None]
        scores = scores.masked_fill(~exists, -math.inf)
        gold = self.gold & exists
        asked = gold.any(-1)
        if layer >= self.retrieving and asked.any():
            logits = scores[asked] * scaling / math.sqrt(h)
            target = logits.masked_fill(~gold[asked], -math.inf)
            self.retrieval_losses.append((logits.logsumexp(-1) - target.logsumexp(-1)).mean())
        with torch.no_grad():
            place = (self.budget - 1).clamp(max=self.blocks - 1)[..., None, None].expand(b, questions, s, 1)
            least = scores.sort(-1, descending=True).values.gather(-1, place)
            chosen = scores >= least
            chosen |= gold & self.forced[..., None, None]
            return chosen & exists & self.batch.decoding[..., None]


def _widen(x: Tensor, half: int) -> Tensor:
    """Put ``x`` [..., D] into one half of [..., 2 D]: queries carry the local rotation in half 0, the far one in 1."""
    d = x.shape[-1]
    return F.pad(x, (d, 0) if half else (0, d))


def _additive(visible: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.zeros(visible.shape, dtype=dtype).masked_fill(~visible, -math.inf)
