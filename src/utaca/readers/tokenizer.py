"""Tokenizers of readers, for stages that load no model."""

from functools import lru_cache
from pathlib import Path
from typing import Any

from utaca.readers import gguf, hub
from utaca.readers.files import config_file, read_object
from utaca.settings.schema import ReaderSettings

_GENERAL = ("TokenizersBackend", "PreTrainedTokenizerFast")


def load_tokenizer(path: str, revision: str = "") -> Any:
    """Load the tokenizer of a folder, GGUF file or Hugging Face id, as ``transformers.AutoTokenizer`` does.

    Code that comes with a model is never run. If a folder's config names the general class, that class is loaded
    directly: AutoTokenizer imports torch, which takes longer than most stages that need a tokenizer. AutoTokenizer also
    asks the model's config for the family, and gets the one that the model is made from.
    """
    if gguf.is_gguf(path):
        path = str(
            gguf.any_conversion(path) or gguf.converted(path, gguf.is_packed(ReaderSettings(name=path, path=path)))
        )
    config = Path(path) / "tokenizer_config.json"
    if config.is_file() and read_object(config).get("tokenizer_class") in _GENERAL:
        from transformers.tokenization_utils_tokenizers import TokenizersBackend

        return TokenizersBackend.from_pretrained(path)
    from transformers import AutoTokenizer

    from utaca.readers.model_config import model_config

    file = config_file(ReaderSettings(name=path, path=path, revision=revision))
    config = {} if file is None else {"config": model_config(file)}
    with hub.asked_once(path, revision):
        return AutoTokenizer.from_pretrained(path, revision=revision or None, trust_remote_code=False, **config)


class Pieces:
    """The pieces of text that tokens add to an answer, one after the other.

    A character of several tokens, and a space in its first token, belong to the token that completes the character.
    Each piece is decoded after the piece before it, because a tokenizer may write a token otherwise at the start of a
    text; earlier tokens cannot matter, so that a long answer costs no more than a short one.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._ids: list[int] = []
        # Tokens from ``_start`` to ``_end`` made the last piece; later ones have made none yet.
        self._start = 0
        self._end = 0

    def add(self, token: int) -> str:
        """The piece of text that the next token adds; "" if the token completes no character."""
        self._ids.append(token)
        text = self._decode(self._ids[self._start :])
        if text.endswith("\ufffd"):
            # The tokenizer writes this for the bytes of a character that is not complete yet.
            return ""
        before = self._decode(self._ids[self._start : self._end])
        self._start = self._end
        self._end = len(self._ids)
        return text[len(before) :]

    def _decode(self, ids: list[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)


@lru_cache(maxsize=1 << 16)
def written(tokenizer: Any, token: int) -> str:
    """Text of one token after others: decoded by itself, a SentencePiece token lacks its space.

    So the token is decoded twice in a row, and the text of the first is cut off. A part of a character, which decodes
    to U+FFFD, is decoded by itself.
    """
    alone, twice = (tokenizer.decode([token] * n, clean_up_tokenization_spaces=False) for n in (1, 2))
    return alone if "\ufffd" in alone else twice[len(alone) :]
