"""The check of an endpoint before a run depends on it."""

from __future__ import annotations

import asyncio

import openai

from utaca.endpoints.client import api_key, connect
from utaca.errors import UserError
from utaca.settings.schema import Endpoint

_SHOWN_MODELS = 5
_SHOWN_CHARACTERS = 200


def check(endpoint: Endpoint, role: str) -> None:
    """Make sure that an endpoint can serve its role (writer, labeller or judge): key, address, model, one request.

    Raises :class:`UserError`, one sentence with the role and the variable, address or model at fault.
    """
    asyncio.run(_check(endpoint, role))


async def _check(endpoint: Endpoint, role: str) -> None:
    where = endpoint.base_url if endpoint.kind == "remote" else "the embedded reference"
    try:
        client = connect(endpoint, retries=1)
    except UserError as fault:
        raise UserError(f"{role}: {fault}") from None
    async with client:
        try:
            await _model_listed(client, endpoint, role, where)
            messages = [{"role": "user", "content": "Reply with the word ready."}]
            await client.chat.completions.create(model=endpoint.model, messages=messages, max_tokens=16)
        except openai.APIConnectionError as fault:
            raise UserError(f"{role}: {where} cannot be reached; start the server or correct base_url") from fault
        except openai.APIStatusError as fault:
            raise UserError(f"{role}: {_status(endpoint, where, fault)}") from fault


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


def _status(endpoint: Endpoint, where: str, fault: openai.APIStatusError) -> str:
    if fault.status_code in (401, 403):
        key = endpoint.api_key_env
        refused = f"refuses the key in {key}" if key else "wants a key; name its environment variable in api_key_env"
        return f"{where} {refused} (HTTP {fault.status_code})"
    if fault.status_code == 408:
        return f"{where} gave no answer within timeout_s={endpoint.timeout_s:g}"
    if fault.status_code == 404:
        return f"{where} has no chat completions for model {endpoint.model} (HTTP 404); does base_url end in /v1?"
    said = " ".join(fault.message.split())[:_SHOWN_CHARACTERS]
    if endpoint.kind == "remote" and endpoint.api_key_env:
        said = said.replace(api_key(endpoint), "***")
    return f"{where} answers a request to model {endpoint.model} with HTTP {fault.status_code} ({said})"
