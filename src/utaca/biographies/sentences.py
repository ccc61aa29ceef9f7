"""The fixed pattern of summaries (paper, appendix on data construction)."""


def summary(attribute: str, person: str, value: str) -> str:
    """The sentence that states one fact; with the value "unknown", it says that the fact is not known."""
    return f"The {attribute} of {person} is {value}."
