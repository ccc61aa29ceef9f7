"""What triggers do, in plain words, for the command's completion and the server's page; without heavy imports."""

from dataclasses import dataclass

WHY = (
    "Most tokens of the answer are first generated from a few blocks of the document. A trigger decides whether to "
    "keep such a token. If it doubts the token, the token is thrown away and generated again from as many blocks as "
    "the budget allows."
)
"""What a trigger is."""


@dataclass(frozen=True)
class TriggerWords:
    """A trigger's ``name`` and what it does; the label of its ``number``, if it may have one, and a usual number.

    A trigger whose number is usually left out has "" for ``usual``, and ``without`` says what leaving it out means.
    """

    name: str
    does: str
    number: str = ""
    usual: str = ""
    without: str = ""

    @property
    def example(self) -> str:
        """The trigger as a user writes it."""
        return f"{self.name}.{self.usual}" if self.usual else self.name


TRIGGERS = (
    TriggerWords(
        "margin",
        "Doubts a token if the model's second choice is nearly as likely.",
        "Smallest difference that is trusted, in logits",
        without="Leave this empty to use the model's default.",
    ),
    TriggerWords(
        "agreement",
        "Doubts a token if a second pass, with another number of blocks, chooses a different one.",
        "Blocks of the second pass, fewer than the budget",
        without="Leave this empty to use the full budget in the second pass. That saves no work; it is a yardstick.",
    ),
    TriggerWords("every", "Doubts every Nth token, whatever the model says.", "N", "4"),
    TriggerWords("never", "Doubts no token. The budget stays the same, as in InfLLM."),
)
"""The triggers that any reader has."""


def detector(name: str) -> TriggerWords:
    """The words for a shipped detector."""
    return TriggerWords(name, "Asks a detector: a small network that was trained for this model and checks each token.")
