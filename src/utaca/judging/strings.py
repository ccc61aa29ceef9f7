"""String match: the surface measure that CAS is compared with."""

import re
import string
from collections import Counter

_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalise(text: str) -> list[str]:
    """The words of a text in lower case, without ASCII punctuation and English articles, as SQuAD compares them."""
    return re.sub(r"\b(a|an|the)\b", " ", text.lower().translate(_PUNCTUATION)).split()


def token_f1(prediction: str, reference: str) -> float:
    """F1 in [0, 1] of the words of two strings after :func:`normalise`; 0 if either string has no words left.

    As SQuAD 1.1, InfiniteBench and LongBench compute it.
    """
    predicted = normalise(prediction)
    wanted = normalise(reference)
    shared = sum((Counter(predicted) & Counter(wanted)).values())
    return 2 * shared / (len(predicted) + len(wanted)) if shared else 0.0


def string_match(prediction: str, reference: str) -> float:
    """:func:`token_f1`, but 1 if neither string has words left, as in SQuAD 2.0.

    The paper prints a string-based score ("Str") without saying how it is computed; the usual F1 of extractive
    question answering is used here, so this column compares operating points with each other, not with the paper.
    """
    if not normalise(prediction) and not normalise(reference):
        return 1.0
    return token_f1(prediction, reference)
