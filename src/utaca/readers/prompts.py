"""Prompts of readers: token ids of documents and questions in a chat template."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import partial
from secrets import token_hex
from typing import TYPE_CHECKING

from utaca.errors import UserError, in_a_sentence
from utaca.records.texts import whole_characters

if TYPE_CHECKING:
    from tokenizers import Encoding, Tokenizer
    from transformers import PreTrainedTokenizerBase

SEPARATOR = "\n\n"

_NOW = datetime(2024, 7, 26)
_FORMS = (
    *"AaBbdejmYyHIMSpfZzwuUWVGDFTRxXc", "-d", "-e", "-j", "-m", "-y", "-H", "-I", "-M", "-S", "%"
)  # fmt: skip
_DAY = (
    "{% macro strftime_now(format) %}{{ format"
    + "".join(f" | replace('%{form}', '{_NOW:%{form}}')" for form in _FORMS)
    + " }}{% endmacro %}{{ '' }}"
)
"""A macro put before chat templates, so that a template that writes today's date gives the same prompt every day: the
macro writes Llama 3.1's default date. The empty text at its end keeps a line break at the start of the template."""

_LETTER = "x"
"""Text that stands for the document while a question is encoded; the tokens of this text are dropped."""


def frame(tokenizer: PreTrainedTokenizerBase) -> tuple[str, str]:
    """Texts that the chat template writes before and after the user's text, up to the answer.

    The prompt of a document and a question is ``before + document + SEPARATOR + question + after``. Thinking is turned
    off in templates that offer it. Raises :class:`UserError` if the tokenizer has no chat template, or if the template
    does not write the user's text exactly once.
    """
    if not tokenizer.chat_template:
        raise UserError(
            f"the tokenizer of {tokenizer.name_or_path!r} has no chat template; use an instruction-tuned reader"
        )
    mark = "<<utaca>>"
    parts = _rendered(tokenizer, _in_turn([mark]), answered=False).split(mark)
    if len(parts) != 2:
        raise UserError(
            f"the chat template of {tokenizer.name_or_path!r} renders the user message {len(parts) - 1} times; use a "
            "reader with a template that renders it once"
        )
    return parts[0], parts[1]


def _in_turn(texts: Sequence[str]) -> list[tuple[str, str]]:
    """Assign texts to user and assistant alternately, as (role, text)."""
    return [(("user", "assistant")[number % 2], text) for number, text in enumerate(texts)]


def _rendered(
    tokenizer: PreTrainedTokenizerBase,
    messages: Sequence[tuple[str, str]],
    *,
    answered: bool,
    remedy: str = "correct its chat_template.jinja, or use another reader",
) -> str:
    """Render messages, (role, text) each, with the chat template.

    Unless they are ``answered``, the beginning of the assistant's message follows them.
    """
    with in_a_sentence(f"the chat template of {tokenizer.name_or_path!r} cannot be rendered", remedy):
        return tokenizer.apply_chat_template(
            [{"role": role, "content": text} for role, text in messages],
            chat_template=_DAY + tokenizer.get_chat_template(),
            tokenize=False,
            add_generation_prompt=not answered,
            # Templates without this option ignore it.
            enable_thinking=False,
        )


def _after_an_answer(tokenizer: PreTrainedTokenizerBase) -> str:
    """Text that the chat template writes after an assistant's message.

    Some templates refuse to end with such a message; a user's message then follows, and the text continues with it.
    """
    answer = "<<answer>>"
    try:
        rendered = _rendered(tokenizer, _in_turn(["-", answer]), answered=True)
    except UserError:
        rendered = _rendered(tokenizer, _in_turn(["-", answer, "-"]), answered=False)
    return rendered.partition(answer)[2]


class Prompts:
    """Encoder of documents and questions; only the chat template yields control tokens.

    A control token is an added token of the tokenizer, special or not, that is more than white space. Texts are encoded
    by a copy of the tokenizer whose control tokens have secret names. The template's strings are written with the
    secret names, so that prompts get the tokens that Hugging Face gives for the joint string; a control token's public
    name in a text is encoded as plain characters.

    ``wording`` is that of questions about attributes (:func:`utaca.readers.questions.question`). ``before`` and
    ``after`` are the texts
    of :func:`frame`; ``end`` is the id of the control token that the template writes after an assistant's message, else
    of the tokenizer's end token; ``stop_tokens`` are the ids of both tokens. Raises :class:`UserError` as :func:`frame`
    does, and if the tokenizer is not from the library ``tokenizers``.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, wording: str = "compact") -> None:
        self.wording = wording
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if backend is None:
            raise UserError(
                f"the tokenizer of {tokenizer.name_or_path!r} is not a fast one; use a reader with a tokenizer.json"
            )
        self.before, self.after = frame(tokenizer)
        self._plain = tokenizer
        controls = {
            token.content: number
            for number, token in tokenizer.added_tokens_decoder.items()
            if token.special or token.content.strip()
        }
        # Finds control tokens in the template's strings: the longest name comes first, as the tokenizer searches for
        # the longest match; without control tokens nothing matches, by "(?!)".
        search = re.compile("|".join(map(re.escape, sorted(controls, key=len, reverse=True))) or "(?!)")
        names = {text: f"<{token_hex(16)}>" for text in controls}
        self._tokenizer = _renamed(backend, names)
        self._hidden = partial(search.sub, lambda match: names[match[0]])
        self._before = self._hidden(self.before)
        self._after = self._hidden(self.after)
        ending = search.search(_after_an_answer(tokenizer))
        self.end: int = controls[ending[0]] if ending else tokenizer.eos_token_id
        self.stop_tokens = frozenset({tokenizer.eos_token_id, self.end} - {None})

    def _encoded(self, text: str) -> Encoding:
        """Encode a text in which control tokens, if any, have their secret names."""
        # A batch: Tokenizer.encode keeps all other threads of the process waiting, for seconds on a long document.
        return self._tokenizer.encode_batch([whole_characters(text)], add_special_tokens=False)[0]

    def text(self, text: str) -> list[int]:
        """Encode a text by itself."""
        return self._encoded(text).ids

    def with_offsets(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Encode a text by itself; return token ids, and each token's (start, end) character offsets in the text."""
        encoding = self._encoded(text)
        return encoding.ids, encoding.offsets

    def document(self, text: str) -> list[int]:
        """Encode the template's opening and a document to token ids."""
        return self._encoded(self._before + text).ids

    def document_offsets(self, text: str) -> list[tuple[int, int]]:
        """Character offsets (start, end) in ``text`` of the tokens of :meth:`document`; negative in the opening."""
        offsets = self._encoded(self._before + text).offsets
        return [(start - len(self._before), end - len(self._before)) for start, end in offsets]

    def conversation(self, messages: Sequence[tuple[str, str]]) -> tuple[str, list[int]]:
        """Render messages, (role, text) each, up to the answer; return the text, and each message's character offset.

        The text has the secret names of control tokens, which :meth:`with_offsets` and :meth:`behind_text` encode.
        Raises :class:`UserError` if the template refuses the messages, or does not write each message once, in order.
        """
        marks = [f"<<utaca-{number}>>" for number in range(len(messages))]
        roles = [role for role, _ in messages]
        marked = list(zip(roles, marks, strict=True))
        remedy = "send messages in the order of roles that it takes"
        rendered = _rendered(self._plain, marked, answered=False, remedy=remedy)
        # In turn the template's own strings and, from 1 on, the numbers of the messages between them.
        pieces = re.split(r"<<utaca-(\d+)>>", rendered)
        if pieces[1::2] != [str(number) for number in range(len(messages))]:
            raise UserError(
                "the reader's chat template does not render each message exactly once; leave out some of the messages"
            )
        text = self._hidden(pieces[0])
        starts = []
        for (_, message), piece in zip(messages, pieces[2::2], strict=True):
            starts.append(len(text))
            text += whole_characters(message) + self._hidden(piece)
        return text, starts

    def question(self, text: str, prefix: str = "") -> list[int]:
        """Encode separator, question, the template's closing and the answer's ``prefix``, to follow a document's ids.

        A question that begins with a line break brings its own separator.
        Tokenizers of the SentencePiece kind mark the first word of a text; a question after a document gets no mark.
        Raises :class:`UserError` if the tokenizer joins the separator to the letter before it.
        """
        separator = "" if text.startswith("\n") else SEPARATOR
        return self.behind_text(separator + text + self._after + prefix)

    def behind_text(self, text: str) -> list[int]:
        """Encode a text, for example of :meth:`conversation`, that follows other text; raises as :meth:`question`."""
        # A letter stands for the text before, so that nothing is encoded as at a text's start; it is dropped below.
        encoding = self._encoded(_LETTER + text)
        if any(start < len(_LETTER) < end for start, end in encoding.offsets):
            raise UserError("the reader's tokenizer merges line breaks with the letter before them; use another reader")
        return encoding.ids[sum(end <= len(_LETTER) for _, end in encoding.offsets) :]


def _renamed(tokenizer: Tokenizer, names: Mapping[str, str]) -> Tokenizer:
    """Copy a tokenizer, rename some of its tokens, and drop the merges that would build the old names."""
    from tokenizers import Tokenizer

    settings = json.loads(tokenizer.to_str())
    settings |= {"truncation": None, "padding": None, "post_processor": None}
    for token in settings["added_tokens"]:
        token["content"] = names.get(token["content"], token["content"])
    model = settings["model"]
    if isinstance(model["vocab"], dict):
        model["vocab"] = {names.get(piece, piece): number for piece, number in model["vocab"].items()}
    else:
        model["vocab"] = [[names.get(piece, piece), score] for piece, score in model["vocab"]]
    if "merges" in model:
        model["merges"] = [(a, b) for a, b in model["merges"] if not names.keys() & {a, b, a + b}]
    if "unk_token" in model:
        model["unk_token"] = names.get(model["unk_token"], model["unk_token"])
    return Tokenizer.from_str(json.dumps(settings))
