"""The check of an endpoint before a run depends on it."""

from __future__ import annotations

import asyncio

import openai

from utaca.endpoints.transport import address, connect, in_words
from utaca.errors import UserError
from utaca.settings.schema import Endpoint

_SHOWN_MODELS = 5
_PATIENCE_SECONDS = 10.0


def check(endpoint: Endpoint, role: str) -> None:
    """Make sure that an endpoint can serve its role (writer, labeller or judge): key, address, model, one request.

    Raises :class:`UserError`, one sentence with the role and the variable, address or model at fault.
    """
    asyncio.run(_check(endpoint, role))


async def _check(endpoint: Endpoint, role: str) -> None:
    where = address(endpoint)
    try:
        client = connect(endpoint, patience_s=min(_PATIENCE_SECONDS, endpoint.patience_s))
    except UserError as fault:
        raise UserError(f"{role}: {fault}") from None
    async with client:
        try:
            await _model_listed(client, endpoint, role, where)
            messages = [{"role": "user", "content": "Reply with the word ready."}]
            await client.chat.completions.create(model=endpoint.model, messages=messages, max_tokens=16)
        except openai.APITimeoutError:
            raise UserError(f"{role}: {where} gave no answer within timeout_s={endpoint.timeout_s:g}") from None
        except openai.APIConnectionError:
            raise UserError(f"{role}: {where} cannot be reached; start the server or correct base_url") from None
        except openai.APIStatusError as fault:
            raise UserError(f"{role}: {in_words(endpoint, fault)}") from None


async def _model_listed(client: openai.AsyncOpenAI, endpoint: Endpoint, role: str, where: str) -> None:
    try:
        page = await client.models.list()
        listed = [model.id for model in page.data]
    except (openai.APIConnectionError, openai.AuthenticationError, openai.PermissionDeniedError):
        raise
    except (openai.OpenAIError, AttributeError, TypeError, ValueError):
        return  # Not every compatible server lists its models; the request that follows decides.
    if listed and endpoint.model not in listed:
        shown = ", ".join(sorted(listed)[:_SHOWN_MODELS]) + (", ..." if len(listed) > _SHOWN_MODELS else "")
        raise UserError(f"{role}: {where} does not list model {endpoint.model}; it lists {shown}")
