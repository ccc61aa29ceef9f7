"""What triggers do, in plain words, for the command's completion and the server's page; without heavy imports."""

from dataclasses import dataclass

WHY = (
    "Each token of the answer is first generated from a few blocks of the document. A trigger decides whether to trust "
    "it. If not, the token is thrown away and generated again from more blocks."
)
"""What a trigger is."""


@dataclass(frozen=True)
class TriggerWords:
    """A trigger's ``name`` and what it does; the label of its ``number``, if it may have one, and a usual number.

    A trigger whose number is usually left out has "" for ``usual``.
    """

    name: str
    does: str
    number: str = ""
    usual: str = ""

    @property
    def example(self) -> str:
        """The trigger as a user writes it."""
        return f"{self.name}.{self.usual}" if self.usual else self.name


TRIGGERS = (
    TriggerWords("margin", "Doubts a token if the second best token is nearly as likely.", "Least lead, in logits"),
    TriggerWords(
        "agreement",
        "Doubts a token that would be another one under the full budget. It computes both for every token, so it saves "
        "no work: a yardstick.",
        "Blocks to compare with the full budget",
    ),
    TriggerWords("every", "Doubts one token in so many, whatever the model says.", "One token in so many", "4"),
    TriggerWords("never", "Doubts no token: the budget stays the same, as in InfLLM."),
)
"""The triggers that any reader has."""


def detector(name: str) -> TriggerWords:
    """The words for a shipped detector."""
    return TriggerWords(name, "A detector: a small network, trained for this reader, that judges each token.")
