"""What a reader is asked, and how document and question are framed by its chat template."""

from __future__ import annotations

from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

from utaca.errors import UserError

SEPARATOR = "\n\n"

_COMPACT = "Summarize the {attributes} of {person}."
_INSTRUCT = (
    "Using only the text above, summarize the {attributes} of {person}. Write one sentence for each attribute, in the "
    'order given and exactly in the form "The <attribute> of {person} is <value>.", with nothing before or after. '
    'Where the text does not give the value, write "unknown" in its place.'
)


def question(attributes: Sequence[str], person: str, style: str) -> str:
    """The question about one or several attributes of a person; ``style`` is "compact" or "instruct"."""
    *head, last = attributes
    listed = f"{', '.join(head)} and {last}" if head else last
    return {"compact": _COMPACT, "instruct": _INSTRUCT}[style].format(attributes=listed, person=person)


def frame(tokenizer: PreTrainedTokenizerBase) -> tuple[str, str]:
    """What the chat template writes before the user's text and after it, up to the answer.

    The prompt of a document and a question is ``before + document + SEPARATOR + question + after``.
    Raises :class:`UserError` where the tokenizer has no chat template.
    """
    if not tokenizer.chat_template:
        raise UserError(
            f"the tokenizer of {tokenizer.name_or_path!r} has no chat template; use an instruction-tuned reader"
        )
    mark = "<<utaca>>"
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": mark}], tokenize=False, add_generation_prompt=True
    )
    before, after = text.split(mark)
    return before, after
