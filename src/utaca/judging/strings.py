"""String match: the surface measure that CAS is set beside."""

from __future__ import annotations

import re
import string
from collections import Counter

_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalise(text: str) -> list[str]:
    """Words, lower-cased, without ASCII punctuation and English articles (the normalisation of SQuAD)."""
    return re.sub(r"\b(a|an|the)\b", " ", text.lower().translate(_PUNCTUATION)).split()


def string_match(prediction: str, reference: str) -> float:
    """Token F1 of two strings in [0, 1], after :func:`normalise`; 1 where both come to nothing.

    The paper prints a string-based score ("Str") without saying how it is computed; the usual F1 of extractive
    question answering is used here, so this column compares operating points with each other, not with the paper.
    """
    predicted, wanted = normalise(prediction), normalise(reference)
    if not predicted or not wanted:
        return float(predicted == wanted)
    shared = sum((Counter(predicted) & Counter(wanted)).values())
    return 2 * shared / (len(predicted) + len(wanted))
