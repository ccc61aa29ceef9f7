"""Questions about attributes of a person, in the wording that a reader is asked in."""

from collections.abc import Sequence
from typing import Annotated

from utaca.data_files import DataFile, read, slots


class Questions(DataFile):
    """Wordings of the question, by the name that a reader's key ``prompt`` has."""

    wordings: dict[str, Annotated[str, slots(once="attributes", some="person")]]


def wordings() -> dict[str, str]:
    """The wordings that a reader's key ``prompt`` may name."""
    return read("readers/questions.yaml", Questions).wordings


def question(attributes: Sequence[str], person: str, wording: str) -> str:
    """Write the question about one or several attributes of a person, in one of :func:`wordings`."""
    *head, last = attributes
    listed = f"{', '.join(head)} and {last}" if head else last
    return wordings()[wording].format(attributes=listed, person=person)
