"""Parse requests of the OpenAI protocol into orders.

Each prompt is split into a document, which goes into block memory, and the question that follows the document:

* In a chat, all messages before the last one belong to the document. The last message, which must be the user's, is
  split at its last blank line: the text before the blank line belongs to the document, the rest is the question. If
  the last message has several text parts, the last part is the question.
* A plain prompt, text or token ids, is split at its last blank line too.
* If no text precedes the question, only the last token of the prompt is the question.

The split of a plain prompt changes none of its tokens. In a chat, the text from the split on is encoded separately, as
in the pipeline: a tokenizer may have one token for a full stop and a blank line.
"""

import hashlib
import re
from array import array
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import accumulate
from secrets import randbits
from typing import Annotated, Any, Literal

import pydantic
from pydantic_core import PydanticCustomError

from utaca.app.choices import DRAFTS, NEVER, choose
from utaca.decoding.options import Sampling
from utaca.detection.token_reader import TOP
from utaca.errors import UserError
from utaca.memory.saved import SavedDocuments
from utaca.readers.load import Reader
from utaca.readers.prompts import SEPARATOR, Prompts
from utaca.readers.tokenizer import written
from utaca.records.texts import parsed, whole_characters
from utaca.settings.budgets import Budget

STOPS = 256
"""Most stop texts of a request: each token of its answer is compared with all of them, while other answers wait."""
PROMPTS = 1024
"""Most prompts of a request."""
MESSAGES = 4096
"""Most messages of a request, and most parts of a message."""
_LONGEST = 1000
"""Most characters of an error's message, which may quote what a client sent: of a longer one, both ends are sent."""
# Tags of the branches of unions, which the places in errors leave out (_fault); in brackets, unlike any key.
_TEXT, _LIST, _TOKENS, _LISTS = _TAGS = "(text)", "(list)", "(tokens)", "(lists)"
_BLANK_LINE = re.compile(r"(?:\r\n|\n|\r(?!\n))(?=[ \t]*(?:\r\n|\n|\r))")
"""The end of a line that a blank line follows, which may hold spaces and tabs."""

# Parameters that change an answer and are not supported, each with the values that change nothing.
_UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    **{"n": (1,), "best_of": (1,), "logit_bias": ({},), "frequency_penalty": (0,), "presence_penalty": (0,)},
    **{"tools": ([],), "tool_choice": ("none", "auto"), "functions": ([],), "function_call": ("none", "auto")},
    **{"response_format": ({"type": "text"},), "suffix": ("",), "modalities": (["text"],), "audio": ()},
}

Places = Sequence[tuple[int, int, int]]
"""Per token: index of its message, then its begin and end in the message, in characters; (-1, 0, 0): in no message."""


class Fault(Exception):  # noqa: N818
    """An error in OpenAI's format: a sentence, the HTTP status, an error code, the name of the wrong parameter.

    ``headers`` are those of the response.
    """

    def __init__(
        self,
        message: str,
        status: int = 400,
        code: str | None = None,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        if len(message) > _LONGEST:
            half = _LONGEST // 2
            message = f"{message[:half]} ... {message[-half:]}"
        super().__init__(message)
        self.status = status
        self.code = code
        self.param = param
        self.headers = dict(headers or {})

    @property
    def body(self) -> dict[str, Any]:
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        return {"error": {"message": str(self), "type": kind, "param": self.param, "code": self.code}}


class _Model(pydantic.BaseModel):
    """An object of a request. A key whose value is null counts as left out: many clients send unset options so."""

    model_config = pydantic.ConfigDict(strict=True, extra="ignore")

    @pydantic.model_validator(mode="wrap")
    @classmethod
    def _without_nulls(cls, value: Any, validate: Callable[[Any], Any]) -> Any:
        """Validate an object without the keys whose value is null, as :meth:`_prepared` gives it."""
        if isinstance(value, dict):
            given = {key: content for key, content in value.items() if content is not None}
            value = cls._prepared(given)
        return validate(value)

    @classmethod
    def _prepared(cls, value: dict[str, Any]) -> dict[str, Any]:
        """The object to validate, in place of ``value``; raises PydanticCustomError if it is none of this protocol."""
        return value


def _wrong(sentence: str, **values: Any) -> PydanticCustomError:
    """An error whose sentence continues from the place of the wrong value, as "messages.0 is ..."."""
    return PydanticCustomError("wrong", sentence, values)


class _Part(_Model):
    """A part of a message's content; a refusal is what an assistant said in place of a text."""

    type: Literal["text", "refusal"]
    text: str

    @classmethod
    def _prepared(cls, value: dict[str, Any]) -> dict[str, Any]:
        """The part with a refusal as its text; raises PydanticCustomError for a part of another type than text."""
        kind = value.get("type")
        if isinstance(kind, str) and kind not in ("text", "refusal"):
            raise _wrong("is of type {kind}, and this server reads only parts of type text", kind=kind)
        if kind == "refusal" and "refusal" in value:
            return value | {"text": value["refusal"]}
        return value


def _one_or_several(value: Any) -> str:
    """The tag of the branch of a union of text and list that a value belongs to."""
    return _LIST if isinstance(value, list) else _TEXT


# A union's branch is chosen by the value's type, so that an error is about that branch and no other.
_Content = Annotated[
    Annotated[str, pydantic.Tag(_TEXT)]
    | Annotated[list[_Part], pydantic.Field(max_length=MESSAGES), pydantic.Tag(_LIST)],
    pydantic.Discriminator(_one_or_several),
]
_Stop = Annotated[
    Annotated[str, pydantic.Tag(_TEXT)] | Annotated[list[str], pydantic.Field(max_length=STOPS), pydantic.Tag(_LIST)],
    pydantic.Discriminator(_one_or_several),
]


class _Message(_Model):
    role: Literal["system", "developer", "user", "assistant"]
    content: _Content

    @classmethod
    def _prepared(cls, value: dict[str, Any]) -> dict[str, Any]:
        """The message, an assistant's with content; raises PydanticCustomError for tools, function calls and audio."""
        role = value.get("role")
        if role in ("tool", "function"):
            raise _wrong("is of role {role}, but this server calls no tools; leave such messages out", role=role)
        for key in ("tool_calls", "function_call", "audio"):
            if value.get(key):
                raise _wrong("has {key}, which this server does not support; leave it out", key=key)
        if role == "assistant":
            # An assistant's message may lack content (null counts as absent): then its refusal is the content, or
            # nothing is.
            return {"content": value.get("refusal", ""), **value}
        return value

    @property
    def sent(self) -> list[str]:
        """The texts of the content as they were sent."""
        if isinstance(self.content, str):
            return [self.content]
        return [part.text for part in self.content]

    @property
    def parts(self) -> list[str]:
        """The texts of the content; every line ends in LF, as in documents that ``utaca ask`` reads."""
        return [text.replace("\r\n", "\n").replace("\r", "\n") for text in self.sent]


class _Utaca(_Model):
    """Decoding options of a request; an option that is left out has the server's default."""

    model_config = pydantic.ConfigDict(strict=True, extra="forbid")
    # A number, or the text of a share: utaca.app.choices.choose says what is wrong with anything else.
    budget: Any = None
    policy: str | None = None
    trigger: str | None = None
    trace: bool = False


class _StreamOptions(_Model):
    include_usage: bool = False


class CompletionRequest(_Model):
    """The parameters that chat requests and plain requests share."""

    model_config = pydantic.ConfigDict(strict=True, extra="allow")
    model: str
    stream: bool = False
    stream_options: _StreamOptions | None = None
    max_tokens: int | None = pydantic.Field(None, ge=1)
    max_completion_tokens: int | None = pydantic.Field(None, ge=1)
    temperature: float | None = pydantic.Field(None, ge=0, le=2)
    top_p: float | None = pydantic.Field(None, gt=0, le=1)
    seed: int | None = None
    stop: _Stop | None = None
    utaca: _Utaca = _Utaca()


class ChatRequest(CompletionRequest):
    messages: list[_Message] = pydantic.Field(min_length=1, max_length=MESSAGES)
    logprobs: bool | None = None
    top_logprobs: int | None = pydantic.Field(None, ge=0, le=TOP)


def _kind_of_prompt(value: Any) -> str:
    """The tag of the branch of :data:`_Prompt` that a value belongs to."""
    if not isinstance(value, list):
        return _TEXT
    first = value[0] if value else None
    if isinstance(first, str):
        return _LIST
    return _LISTS if isinstance(first, list) else _TOKENS


_Filled = pydantic.Field(min_length=1)
_Several = pydantic.Field(min_length=1, max_length=PROMPTS)
_Prompt = Annotated[
    Annotated[str, _Filled, pydantic.Tag(_TEXT)]
    | Annotated[list[str], _Several, pydantic.Tag(_LIST)]
    | Annotated[list[int], _Filled, pydantic.Tag(_TOKENS)]
    | Annotated[list[list[int]], _Several, pydantic.Tag(_LISTS)],
    pydantic.Discriminator(_kind_of_prompt),
]


class PlainRequest(CompletionRequest):
    prompt: _Prompt
    max_tokens: int | None = pydantic.Field(None, ge=0)
    logprobs: int | None = pydantic.Field(None, ge=0, le=TOP)
    echo: bool | None = None


@dataclass(frozen=True)
class Order:
    """An answer to be generated about the token ids of a ``document`` and of the ``question`` that follows it.

    ``options`` are fields of :class:`utaca.decoding.options.Decoding`. The answer ends before any text in ``stop``.
    ``logprobs`` is the number of most likely tokens sent with each token; None: no log-probabilities are sent. ``echo``
    is the prompt's text, sent before the answer: one piece per token if the prompt is ``scored``, else one in all. No
    answer follows unless ``generate``. ``places`` has the document tokens' :data:`Places` if a chat asks for a
    ``trace``.
    """

    document: tuple[int, ...]
    question: tuple[int, ...]
    options: Mapping[str, Any]
    stop: tuple[str, ...] = ()
    logprobs: int | None = None
    echo: Sequence[str] = ()
    generate: bool = True
    trace: bool = False
    places: Places = ()

    @property
    def scored(self) -> bool:
        """Whether log-probabilities of the prompt's tokens are sent."""
        return bool(self.echo) and self.logprobs is not None

    @cached_property
    def key(self) -> tuple[bytes, bool]:
        """The key under which the document is stored: a digest of its tokens, and whether it is scored.

        A digest is fast to look up: the worker does so between two tokens, for each order that waits.
        """
        return hashlib.sha256(array("q", self.document)).digest(), self.scored


@dataclass(frozen=True)
class ServerSettings:
    """Settings of a server: the name of its model, its address, and defaults for options that a request leaves out.

    Documents may take ``room`` bytes; None: half of the free memory. At most ``parallel`` answers are decoded at once.
    ``saved`` keeps the documents that were read on disk; None: they are not kept there.
    """

    name: str
    host: str = "127.0.0.1"
    port: int = 8000
    room: int | None = None
    parallel: int = 16
    saved: SavedDocuments | None = None
    api_key: str = field(default="", repr=False)
    budget: Budget | None = None
    policy: str | None = None
    trigger: str | None = None
    max_new_tokens: int = 512
    drafts: int = DRAFTS


def parse(reader: Reader, settings: ServerSettings, body: bytes, *, chat: bool) -> tuple[Any, list[Order]]:
    """Parse the JSON body of a request: return the request, and its orders, one per prompt.

    ``chat``: it is a chat request, else a plain one. Raises :class:`Fault` if it is invalid or not supported.
    """
    try:
        request: Any = (ChatRequest if chat else PlainRequest).model_validate(_json(body))
    except pydantic.ValidationError as error:
        raise _fault(error) from None
    for name, neutral in _UNSUPPORTED.items():
        extra = request.model_extra or {}
        if name in extra and extra[name] not in neutral:
            raise Fault(f"{name} is not supported by this server; leave it out", param=name)
    check_model(request.model, settings)
    try:
        if chat:
            prompts = [_conversation(reader, request.messages, placed=request.utaca.trace)]
            n_logprobs = (request.top_logprobs or 0) if request.logprobs else None
        else:
            # A list of integers is one prompt.
            are_several = isinstance(request.prompt, list) and not isinstance(request.prompt[0], int)
            plain = request.prompt if are_several else [request.prompt]
            prompts = [_plain(reader, prompt) for prompt in plain]
            n_logprobs = request.logprobs
        return request, [_order(reader, settings, request, n_logprobs, *prompt) for prompt in prompts]
    except UserError as error:
        raise Fault(str(error)) from None


def check_model(name: str, settings: ServerSettings) -> None:
    """Raise :class:`Fault` if ``name`` is not the server's model."""
    if name != settings.name:
        raise Fault(f"there is no model {name!r}; this server has {settings.name!r}", 404, "model_not_found", "model")


def _fault(error: pydantic.ValidationError) -> Fault:
    """The first error in a request's body, as a sentence that begins with the place of the wrong value."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    place = ".".join(str(part) for part in first["loc"] if part not in _TAGS)
    # The errors of _wrong continue from the place; pydantic's are sentences.
    between = " " if first["type"] == "wrong" else ": "
    return Fault(f"{place or 'the body'}{between}{first['msg']}", param=place or None)


def _json(body: bytes) -> dict[str, Any]:
    r"""The JSON object in a body; raises :class:`Fault` if it is none, or not UTF-8.

    An escaped half of a surrogate pair (``\ud83d``, where a client cut an emoji in two) becomes U+FFFD.
    """
    try:
        text = body.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise Fault("the body is not UTF-8 text; send JSON in UTF-8", code="invalid_json") from None
    try:
        content = parsed(text, "the body", "send a JSON object")
    except UserError as error:
        raise Fault(str(error), code="invalid_json") from None
    if not isinstance(content, dict):
        raise Fault("the body is not a JSON object; send an object with model and messages, or with model and prompt")
    return content


def _order(
    reader: Reader,
    defaults: ServerSettings,
    request: Any,
    n_logprobs: int | None,
    tokens: list[int],
    n_document: int,
    places: Places = (),
) -> Order:
    """Make the order for a prompt's ``tokens``: the first ``n_document`` are the document, the others the question.

    ``n_logprobs`` is the number of likely tokens that are sent with each token; None: none are asked for. ``places``
    are those of the document's tokens. Raises :class:`Fault` or :class:`UserError` if an option is invalid.
    """
    wanted = request.utaca
    question = tuple(tokens[n_document:])
    # A client must not make the server read any of its files; the one that the server was started with is allowed.
    if wanted.trigger and wanted.trigger.endswith(".safetensors") and wanted.trigger != defaults.trigger:
        raise Fault(
            "utaca.trigger is the path of a file, which requests cannot use; name a trigger that ships for the model",
            param="utaca.trigger",
        )
    max_tokens = request.max_completion_tokens or request.max_tokens
    echo = ()
    if isinstance(request, PlainRequest) and request.echo:
        echo = _pieces(reader, tokens) if n_logprobs is not None else [reader.tokenizer.decode(tokens)]
    if max_tokens == 0 and not (echo and n_logprobs is not None):
        raise Fault(
            "max_tokens=0 needs echo and logprobs; set both, or set max_tokens to at least 1", param="max_tokens"
        )
    room = _room_for_answer(reader, len(question), max_tokens or 1)
    # 0 asks for the echo only (``generate`` below); decoding needs at least 1.
    max_new_tokens = min(defaults.max_new_tokens, room) if max_tokens is None else max(1, max_tokens)
    blocks = reader.settings.memory.layout.blocks(n_document)
    options = _options(reader, defaults, wanted, blocks, max_new_tokens)
    if request.temperature:
        seed = randbits(31) if request.seed is None else request.seed
        options["sampling"] = Sampling(request.temperature, request.top_p or 1.0, seed)
    stop = [request.stop] if isinstance(request.stop, str) else request.stop or []
    return Order(
        document=tuple(tokens[:n_document]),
        question=question,
        options=options,
        stop=tuple(filter(None, stop)),
        logprobs=n_logprobs,
        echo=echo,
        generate=max_tokens != 0,
        trace=wanted.trace,
        places=places,
    )


def _room_for_answer(reader: Reader, n_question: int, n_answer: int) -> int:
    """Positions of the reader that a question of ``n_question`` tokens leaves for its answer.

    Raises :class:`Fault` if they are fewer than ``n_answer``. The document takes none: its blocks are retrieved.
    """
    room = reader.positions - n_question
    if room < n_answer:
        raise Fault(
            f"the question has {n_question} tokens and the answer may have {n_answer}, together more than the "
            f"{reader.positions} positions of reader {reader.settings.name}; lower max_tokens, or put a blank line "
            "before the question, so that the text before it is read as a document",
            code="context_length_exceeded",
        )
    return room


def _options(
    reader: Reader, defaults: ServerSettings, wanted: _Utaca, blocks: int, max_new_tokens: int
) -> dict[str, Any]:
    """Fields of :class:`utaca.decoding.options.Decoding`: those that a request has, else the server's defaults.

    ``blocks`` is the document's number of blocks, for a budget that is a share of them. Raises :class:`UserError` as
    :func:`utaca.app.choices.choose` does.
    """
    policy = wanted.policy
    if not policy and wanted.trigger != str(NEVER):
        # A request for no expansion means a fixed budget, to which the server's policy does not apply.
        policy = defaults.policy
    choice = choose(
        reader,
        blocks,
        budget=defaults.budget if wanted.budget is None else wanted.budget,
        policy=policy,
        trigger=wanted.trigger or defaults.trigger,
        max_new_tokens=max_new_tokens,
        drafts=defaults.drafts,
    )
    return dict(choice.options)


def _pieces(reader: Reader, tokens: Sequence[int]) -> list[str]:
    """The text that each token adds, one per token; a character of several tokens is added by the last of them."""
    pieces = []
    # A token is decoded together with the token before it (from index ``first`` on), because a tokenizer may strip a
    # space at the beginning of a text; ``before`` is the text of that one.
    first = 0
    before = ""
    for end in range(1, len(tokens) + 1):
        text = reader.tokenizer.decode(tokens[first:end], clean_up_tokenization_spaces=False)
        if text.endswith("\ufffd") and end < len(tokens):
            # A part of a character: it waits for the next tokens.
            pieces.append("")
            continue
        pieces.append(text[len(before) :])
        first = end - 1
        before = reader.tokenizer.decode(tokens[end - 1 : end], clean_up_tokenization_spaces=False)
    return pieces


def _conversation(reader: Reader, messages: Sequence[_Message], *, placed: bool) -> tuple[list[int], int, Places]:
    """Encode a conversation: return its token ids, the number of those of the document, and the places of these.

    The split is that of the module's docstring. There are no places unless ``placed``. Raises :class:`Fault` if the
    last message is not the user's.
    """
    if messages[-1].role != "user":
        raise Fault("the last message must have the role user; add a message of that role", param="messages")
    roles = ["system" if message.role == "developer" else message.role for message in messages]
    texts = [SEPARATOR.join(message.parts) for message in messages]
    # The conversation as a text, and where each message starts in it.
    rendered, starts = reader.prompts.conversation(list(zip(roles, texts, strict=True)))
    split_of_last = _split_of_last(messages[-1])
    if split_of_last > 0:
        split = starts[-1] + split_of_last
    elif len(messages) > 1:
        split = starts[-2] + len(texts[-2])
    else:
        split = 0  # Only the last token is the question.
    head = rendered[:split] if split else rendered
    tokens = _tokens(reader.prompts, head)
    n_document = len(tokens) if split else len(tokens) - 1
    if split:
        tokens = tokens + reader.prompts.behind_text(rendered[split:])
    offsets = reader.prompts.with_offsets(head)[1][:n_document] if placed else ()
    places = _places(offsets, starts, [len(text) for text in texts])
    return tokens, n_document, _as_sent(places, [SEPARATOR.join(message.sent) for message in messages])


def _split_of_last(message: _Message) -> int:
    """Where the text of a conversation's last message is split, in characters; 0 or -1: all of it is the question."""
    *before, last = message.parts or [""]
    if before:  # the last of several parts is the question
        return len(SEPARATOR.join(before))
    return _last_blank_line(last.rstrip())


def _last_blank_line(text: str) -> int:
    """Where a text is split at its last blank line: the end of the line before it, in characters; -1: there is none."""
    ends = [match.start() for match in _BLANK_LINE.finditer(text)]
    return max(ends, default=-1)


@lru_cache(maxsize=4)
def _tokens(prompts: Prompts, text: str) -> list[int]:
    """Token ids of a rendered conversation; cached, because clients send several questions about one long document."""
    return prompts.text(text)


def _places(offsets: Sequence[tuple[int, int]], starts: Sequence[int], lengths: Sequence[int]) -> Places:
    """The places of a conversation's tokens in its messages.

    ``offsets`` has the first character and the end of each token in the conversation. ``starts`` and ``lengths`` are
    those of the messages. All are in characters.
    """
    places = []
    message = 0
    for first, end in offsets:
        while message + 1 < len(starts) and first >= starts[message + 1]:
            message += 1
        first = first - starts[message]
        end = end - starts[message]
        is_inside = 0 <= first < end <= lengths[message]
        places.append((message, first, end) if is_inside else (-1, 0, 0))
    return places


def _plain(reader: Reader, prompt: str | Sequence[int]) -> tuple[list[int], int]:
    """Encode a plain prompt: return its token ids, and the number of those of the document.

    A prompt's text may have control tokens. If the prompt ends with the chat template's text after a user's message,
    only blank lines before that text count.
    """
    if isinstance(prompt, str):
        # A prompt that begins with the token of a text's beginning gets no second one.
        has_opening = bool(reader.tokenizer.bos_token) and prompt.startswith(reader.tokenizer.bos_token)
        prompt = reader.tokenizer(whole_characters(prompt), add_special_tokens=not has_opening)["input_ids"]
    tokens = reader.document(prompt).tolist()
    if len(tokens) < 2:
        raise UserError("the prompt must have at least two tokens; make it longer")
    pieces = [written(reader.tokenizer, token) for token in tokens]
    text = "".join(pieces).rstrip().removesuffix(reader.after.rstrip()).rstrip()
    split = _last_blank_line(text)
    if split > 0:
        ends = list(accumulate(map(len, pieces)))
        n_document = bisect_right(ends, split)  # tokens that end at the split or before
        if n_document:
            return tokens, n_document
    return tokens, len(tokens) - 1


def _as_sent(places: Places, sent: Sequence[str]) -> Places:
    """Convert places in messages whose lines all end in LF to places in the messages as they were ``sent``."""
    # For each message with line ends CR LF: the offsets, in the text as sent, of its characters without the CR.
    offsets = {message: _without_cr(text) for message, text in enumerate(sent) if "\r\n" in text}
    result = []
    for message, first, end in places:
        if message in offsets:  # never of a token in no message, whose ``message`` is -1
            # An end is the offset after a place's last character.
            first = offsets[message][first]
            end = offsets[message][end - 1] + 1
        result.append((message, first, end))
    return result


def _without_cr(text: str) -> list[int]:
    """The offsets of a text's characters, except the CR of line ends CR LF."""
    offsets = []
    for offset, character in enumerate(text):
        is_line_end = character == "\r" and text[offset + 1 : offset + 2] == "\n"
        if not is_line_end:
            offsets.append(offset)
    return offsets


@dataclass
class StopFilter:
    """Cuts an answer off before the first of the ``stop`` texts; ``ended`` is then set.

    The end of the answer is held back while it may be the beginning of a stop text.
    """

    stop: Sequence[str] = ()
    ended: bool = False
    _held: str = ""

    def add(self, piece: str) -> str:
        """Add a generated ``piece``; return the text that may be sent now."""
        self._held += piece
        places = [self._held.find(stop) for stop in self.stop if stop in self._held]
        if places:
            self.ended = True
            return self._send(min(places))
        # Hold back the longest end of the text that may be the beginning of a stop text.
        for start in range(len(self._held)):
            end = self._held[start:]
            if any(stop.startswith(end) for stop in self.stop):
                return self._send(start)
        return self._send(len(self._held))

    def rest(self) -> str:
        """Return the text still held back at the answer's end; "" if a stop text ended the answer."""
        return "" if self.ended else self._send(len(self._held))

    def _send(self, length: int) -> str:
        """Take the first ``length`` characters from the text that is held back, and return them."""
        sent = self._held[:length]
        self._held = self._held[length:]
        return sent
