"""The sentences of an answer."""

import re

SENTENCE_END = re.compile(r"\n+|(?<=[^\W_]{2}[.!?])(?<!\b(?:Dr|Ft|Mr|Ms|Mt|St)\.)(?<!\bMrs\.)\s+(?=[A-Z])")
"""What stands between two sentences: line breaks, or white space between a full stop and a capital.

The full stop of an initial or of a title ends no sentence.
"""

_SURE_END = re.compile(
    r"\n+|(?<=[.!?])(?<!\b(?:Dr|Ft|Mr|Ms|Mt|St)\.)(?<!\bMrs\.)\s+"
    r"(?=(?:The|This|He|She|It|They|His|Her|Their|In)\b)"
)
"""What stands between two sentences, if the second begins with a word that no name begins with.

``SENTENCE_END`` also finds the full stop within "Co. Ltd", a value that a reader must be able to write to its end.
"""


def completed(text: str) -> int:
    """The number of sentences of a text that certainly ended: a further sentence or a line break follows.

    A line that ends with a colon announces the sentences that follow, and is not counted.
    """
    ended = (sentence.strip() for sentence in _SURE_END.split(text)[:-1])
    return sum(bool(sentence) and not sentence.endswith(":") for sentence in ended)
