"""The uncertainty detector: logit margin and embedding of each token in, probabilities of its label out.

Architecture of the paper's appendix "Architecture of Uncertainty Detector", decision of its section 3.1.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional

from utaca.detection.data import Sequences, Verdicts
from utaca.errors import UserError
from utaca.records import atomic_path
from utaca.records.schemas import CORRECT, HALLUCINATED, UNKNOWN
from utaca.settings import schema


class State(NamedTuple):
    """What the LSTM remembers of the tokens so far."""

    hidden: torch.Tensor  # [B, width]
    cell: torch.Tensor  # [B, width]


def uncertain(p: torch.Tensor) -> torch.Tensor:
    """The paper's decision, max(p_hal, p_unk) > p_cor, for ``p`` [..., 3]; boolean [...]."""
    return torch.maximum(p[..., HALLUCINATED], p[..., UNKNOWN]) > p[..., CORRECT]


class ResidualBlock(nn.Module):
    """h + Dropout(W2 Dropout(GELU(W1 h)))."""

    def __init__(self, width: int, expansion: int, dropout: float) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(width, expansion * width),
            nn.GELU(),
            nn.Dropout(dropout),
            nn.Linear(expansion * width, width),
            nn.Dropout(dropout),
        )

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden + self.body(hidden)


class Detector(nn.Module):
    """Dual encoders, an LSTM over the answer's tokens, and a residual head.

    Classes are (hallucinated, correct, unknown), or (uncertain, correct) where ``settings.classes`` is 2.
    ``input_width`` is D, the width of the reader's embedding. ``facts`` tells of the training. Raises
    :class:`UserError` for settings without any input.
    """

    def __init__(self, settings: schema.Detector, input_width: int, facts: dict[str, Any] | None = None) -> None:
        super().__init__()
        if not (settings.margin or settings.embedding):
            raise UserError(f"detector {settings.name} has no input; set detector.margin or detector.embedding to true")
        if settings.classes not in (2, 3):
            raise UserError(f"detector.classes is {settings.classes}; set it to 2 or 3")
        self.settings, self.input_width, self.facts = settings, input_width, facts or {}
        width = settings.width
        if settings.embedding:
            self.embedding_encoder = nn.Sequential(
                nn.Linear(input_width, width), nn.GELU(), nn.Dropout(settings.embedding_dropout)
            )
        if settings.margin:
            self.margin_encoder = nn.Sequential(
                nn.Linear(1, settings.margin_width),
                nn.GELU(),
                nn.Dropout(settings.dropout),
                nn.Linear(settings.margin_width, width),
            )
        if settings.lstm:
            self.lstm = nn.LSTM(width, width, batch_first=True)
        self.head = nn.Sequential(
            *(ResidualBlock(width, settings.expansion, settings.dropout) for _ in range(settings.blocks)),
            nn.Linear(width, settings.classes),
        )

    def forward(self, margin: torch.Tensor, embedding: torch.Tensor) -> torch.Tensor:
        """Class logits [B, T, C] of whole sequences: ``margin`` [B, T] in logits, ``embedding`` [B, T, D]."""
        return self._run(margin, embedding, self.initial_state(margin.shape[0]))[0]

    def initial_state(self, batch: int) -> State:
        """The state before the first token of ``batch`` answers."""
        weight = self.head[-1].weight
        zeros = weight.new_zeros(batch, self.settings.width)
        return State(zeros, zeros)

    @torch.no_grad()
    def step(self, margin: torch.Tensor, embedding: torch.Tensor, state: State) -> tuple[torch.Tensor, State]:
        """One token a row: ``margin`` [B], ``embedding`` [B, D] -> ``p`` [B, 3] and the state after the token.

        ``state`` is left as it was, so a rejected token is undone by not taking the new one. ``p`` is
        (hallucinated, correct, unknown) whatever the number of classes. The module must be in eval mode.
        """
        logits, state = self._run(margin[:, None], embedding[:, None], state)
        return self.probabilities(logits[:, 0]), state

    def probabilities(self, logits: torch.Tensor) -> torch.Tensor:
        """``logits`` [..., C] as probabilities [..., 3]; of two classes, "uncertain" counts as hallucinated."""
        p = logits.softmax(dim=-1)
        return p if self.settings.classes == 3 else functional.pad(p, (0, 1))

    @torch.no_grad()
    def verdicts(self, sequences: Sequences) -> Verdicts:
        """Decisions on whole sequences, without dropout; the score is ln max(p_hal, p_unk) - ln p_cor."""
        training = self.training
        self.eval()
        device = self.head[-1].weight.device
        logits = torch.empty(sequences.n_tokens + 1, self.settings.classes)
        for batch in sequences.batches():
            logits[batch.position] = self(batch.margin.to(device), batch.embedding.to(device)).cpu()
        self.train(training)
        logits = logits[:-1]
        distrust = logits[:, [c for c in range(self.settings.classes) if c != CORRECT]].amax(dim=1) - logits[:, CORRECT]
        p = self.probabilities(logits)
        return Verdicts(uncertain(p).numpy(), distrust.numpy(), p.numpy())

    def save(self, path: str | Path) -> None:
        """Write weights, settings and facts as safetensors; the same detector gives the same bytes."""
        # One metadata entry: the order of several is not fixed.
        about = {"settings": asdict(self.settings), "input_width": self.input_width, "facts": self.facts}
        tensors = {name: value.detach().cpu().contiguous() for name, value in self.state_dict().items()}
        with atomic_path(path) as scratch:
            save_file(tensors, scratch, metadata={"utaca.detector": json.dumps(about, sort_keys=True)})

    def _run(self, margin: torch.Tensor, embedding: torch.Tensor, state: State) -> tuple[torch.Tensor, State]:
        """``margin`` [B, T], ``embedding`` [B, T, D] -> logits [B, T, C] and the state after the last token."""
        dtype = self.head[-1].weight.dtype
        parts = []
        if self.settings.embedding:
            parts.append(self.embedding_encoder(functional.normalize(embedding.to(dtype), dim=-1)))
        if self.settings.margin:
            parts.append(self.margin_encoder(margin.to(dtype)[..., None]))
        hidden = sum(parts[1:], parts[0])
        if self.settings.lstm:
            hidden, (last, cell) = self.lstm(hidden, (state.hidden[None], state.cell[None]))
            state = State(last[0], cell[0])
        return self.head(hidden), state


def load(path: str | Path) -> Detector:
    """Read a detector that :meth:`Detector.save` wrote, on the CPU and in eval mode.

    Raises :class:`UserError` where the file is missing or is no detector of this version.
    """
    if not Path(path).is_file():
        raise UserError(f"{path} does not exist; train the detector first")
    try:
        with safe_open(path, framework="pt") as file:
            about = json.loads((file.metadata() or {})["utaca.detector"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        detector = Detector(schema.Detector(**about["settings"]), about["input_width"], about["facts"])
        detector.load_state_dict(tensors)
    except (SafetensorError, KeyError, TypeError, ValueError, RuntimeError) as error:
        raise UserError(f"{path} is not a detector of this version of utaca; train it again ({error})") from error
    return detector.eval()
