"""The fixed patterns of summaries and abstentions (paper, appendix on data construction)."""


def summary(attribute: str, person: str, value: str) -> str:
    """The sentence that states one fact."""
    return f"The {attribute} of {person} is {value}."


def abstention(attribute: str, person: str) -> str:
    """The sentence that abstains from a fact."""
    return f"The {attribute} of {person} is unknown."
