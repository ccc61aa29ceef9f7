"""The check of an endpoint before a run depends on it."""

from __future__ import annotations

import asyncio

import pydantic

from utaca.endpoints.reading import Failure
from utaca.endpoints.server import Question, Server, shape
from utaca.endpoints.transport import where
from utaca.errors import UserError
from utaca.settings.schema import Endpoint

_SHOWN_MODELS = 5
_PATIENCE_SECONDS = 10.0
# Some servers take a format of JSON only where the text speaks of it.
_MESSAGES = [{"role": "user", "content": 'Reply with the JSON object {"ready": true}, and nothing else.'}]


class Ready(pydantic.BaseModel):
    """The answer that the check asks for; any other will do."""

    ready: bool


def check(endpoint: Endpoint, role: str) -> None:
    """Make sure that an endpoint can serve its role (writer, labeller or judge): key, address, model, one request.

    Raises :class:`UserError`, one sentence with the role and the variable, address or model at fault.
    """
    if endpoint.kind == "remote":
        try:
            asyncio.run(_check(endpoint))
        except UserError as fault:
            raise UserError(f"{role}: {fault}") from None


async def _check(endpoint: Endpoint) -> None:
    async with Server(endpoint, min(_PATIENCE_SECONDS, endpoint.patience_s)) as server:
        listed = await server.models()
        # Gateways list patterns, and some servers names with a folder or a tag that need not be asked for.
        if listed and not any("*" in name or _bare(name) == _bare(endpoint.model) for name in listed):
            names = ", ".join(sorted(listed)[:_SHOWN_MODELS]) + (", ..." if len(listed) > _SHOWN_MODELS else "")
            raise UserError(f"{where(endpoint)} does not list model {endpoint.model}; it lists {names}")
        # As the stages ask, so that what the server refuses of it comes to light here.
        answer = await server.answer(Question(_MESSAGES, Ready.__name__, shape(Ready)))
        if isinstance(answer, Failure):
            raise UserError(answer.reason)


def _bare(model: str) -> str:
    """A model's name without the folder before it and the tag after it."""
    return model.rpartition("/")[2].partition(":")[0].casefold()
