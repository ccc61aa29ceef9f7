"""What triggers do, in plain words, for the command's completion and the server's page; without heavy imports."""

from dataclasses import dataclass

WHY = (
    "Most tokens of the answer are first generated from a few blocks of the document. A trigger decides whether to "
    "trust such a token. If not, the token is thrown away and generated again from more blocks."
)
"""What a trigger is."""


@dataclass(frozen=True)
class TriggerWords:
    """A trigger's ``name`` and what it does; the label of its ``number``, if it may have one, and a usual number.

    A trigger whose number is usually left out has "" for ``usual``, and ``empty`` says what this means.
    """

    name: str
    does: str
    number: str = ""
    usual: str = ""
    empty: str = ""

    @property
    def example(self) -> str:
        """The trigger as a user writes it."""
        return f"{self.name}.{self.usual}" if self.usual else self.name


TRIGGERS = (
    TriggerWords(
        "margin",
        "Doubts a token if the second best token is nearly as likely.",
        "Smallest margin that is trusted, in logits",
        empty="Leave empty for the reader's default.",
    ),
    TriggerWords(
        "agreement",
        "Doubts a token if a second pass under another number of blocks would choose a different one. Left empty, the "
        "second pass has the full budget: that saves no work and is only a yardstick.",
        "Blocks of the second pass",
        empty="Leave empty for the full budget.",
    ),
    TriggerWords("every", "Doubts every N-th token, whatever the model says.", "N", "4"),
    TriggerWords("never", "Doubts no token: the budget stays the same, as in InfLLM."),
)
"""The triggers that any reader has."""


def detector(name: str) -> TriggerWords:
    """The words for a shipped detector."""
    return TriggerWords(name, "A detector: a small network, trained for this reader, that judges each token.")
