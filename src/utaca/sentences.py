"""The sentences of an answer."""

import re

SENTENCE_END = re.compile(r"\n+|(?<=[^\W_]{2}[.!?])(?<!\b(?:Dr|Ft|Mr|Ms|Mt|St)\.)(?<!\bMrs\.)\s+(?=[A-Z])")
"""What stands between two sentences: line breaks, or white space between a full stop and a capital.

The full stop of an initial or of a title ends no sentence.
"""


def completed(text: str) -> int:
    """The number of sentences of a text that a further one follows, or a line break."""
    return sum(bool(sentence.strip()) for sentence in SENTENCE_END.split(text)[:-1])
