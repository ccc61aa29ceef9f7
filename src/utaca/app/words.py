"""What triggers do, in plain words, for the command's completion and the server's page; without heavy imports."""

WHY = (
    "A trigger decides which tokens to generate a second time. Each token is first generated from a few blocks of the "
    "document. If the trigger doubts it, the token is thrown away and generated again from more blocks."
)
"""What a trigger is."""

TRIGGERS = {
    "margin": "doubts a token if the second best token is nearly as likely",
    "agreement": "doubts a token that would be different under the full budget; computes both for every token",
    "every.4": "generates every fourth token again, whatever the model says",
    "never": "doubts no token: the budget stays the same, as in InfLLM",
}
"""The triggers that any reader has, with examples of their numbers."""


def detector(name: str) -> str:
    """What a shipped detector does as a trigger."""
    return f"{name} is a detector: a small network, trained for this reader, that judges each token"
