"""The Hugging Face hub: which paths are of its models, and whether it answers; does not import torch."""

import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager

_ID = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")
_PATIENCE, _VALID = 10.0, 60.0
"""Seconds that the hub has for an answer, and that what is known of it holds."""
_known: dict[str, tuple[float, bool]] = {}
"""When an address of the hub was last asked, and whether it answered."""


def is_id(path: str) -> bool:
    """Whether a reader's path has the form of a hub id, ORGANISATION/NAME, and nothing of that name is here."""
    return _ID.fullmatch(path) is not None and not os.path.lexists(path)


@contextmanager
def asked_once(path: str, revision: str = "") -> Iterator[None]:
    """A context in which Hugging Face's libraries use only their cache if the hub does not answer.

    Otherwise they would ask a hub that does not answer for one file after the other, six times each.
    """
    if not is_id(path):
        yield
        return
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE or _answers(path, revision):
        yield
        return
    constants.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = False


def _answers(path: str, revision: str) -> bool:
    """Whether the hub answers a question about a model, if only by a refusal; it is asked at most once a minute."""
    from huggingface_hub import HfApi, constants
    from huggingface_hub.errors import HfHubHTTPError

    asked, answered = _known.get(constants.ENDPOINT, (-_VALID, False))
    if time.monotonic() - asked < _VALID:
        return answered
    try:
        HfApi().model_info(path, revision=revision or None, timeout=_PATIENCE)
        answered = True
    except HfHubHTTPError:
        answered = True
    except Exception:  # of the library for HTTP, which is another one from version to version
        answered = False
    _known[constants.ENDPOINT] = time.monotonic(), answered
    return answered
