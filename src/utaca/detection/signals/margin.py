"""The logit margin: the best logit minus the second best (paper, section 3.1)."""

from utaca.detection.signal import Signal

SIGNAL = Signal(value=lambda seen: seen.logits[0] - seen.logits[1])
