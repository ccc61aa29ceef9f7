"""The fixed pattern of summaries (paper, appendix on data construction)."""


def summary(attribute: str, person: str, value: str) -> str:
    """The sentence that states one fact, or abstains from it if ``value`` is "unknown"."""
    return f"The {attribute} of {person} is {value}."
