"""How undecided the reader is: the entropy of the softmax over a token's ten best logits, in nats."""

from __future__ import annotations

from torch import Tensor

from utaca.detection.signal import Seen, Signal


def _value(seen: Seen) -> Tensor:
    logs = seen.logits.float().log_softmax(-1)
    return -(logs.exp() * logs).sum()


SIGNAL = Signal(value=_value)
