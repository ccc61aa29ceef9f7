"""The check of an endpoint before a run depends on it."""

from __future__ import annotations

import asyncio
from functools import partial

import httpx2
import openai
import pydantic

from utaca.endpoints import completions
from utaca.endpoints.transport import connect, in_words, unreachable, where
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
    asyncio.run(_check(endpoint, role))


async def _check(endpoint: Endpoint, role: str) -> None:
    try:
        client = connect(endpoint, patience_s=min(_PATIENCE_SECONDS, endpoint.patience_s))
    except UserError as fault:
        raise UserError(f"{role}: {fault}") from None
    question = completions.Question(_MESSAGES, Ready.__name__, completions.shape(Ready))
    async with client:
        try:
            await _model_listed(client, endpoint, role)
            # As the stages ask, so that what the server refuses of it comes to light here.
            ask = partial(completions.create, client, endpoint, question)
            await completions.find(ask, endpoint, completions.known(endpoint))
        except openai.APITimeoutError:
            raise UserError(
                f"{role}: {where(endpoint)} gave no answer within timeout_s={endpoint.timeout_s:g}"
            ) from None
        except openai.APIConnectionError as fault:
            mend = "start the server or correct base_url"
            raise UserError(f"{role}: {unreachable(endpoint, fault, mend)}") from None
        except openai.APIStatusError as fault:
            raise UserError(f"{role}: {in_words(endpoint, fault)}") from None
        except completions.NoCompletion as fault:
            raise UserError(f"{role}: {fault}") from None


async def _model_listed(client: openai.AsyncOpenAI, endpoint: Endpoint, role: str) -> None:
    try:
        page = await client.models.list()
        listed = [model.id for model in page.data if isinstance(model.id, str)]
    except openai.APIConnectionError as fault:
        if not isinstance(fault.__cause__, httpx2.DecodingError):
            raise
        return
    except (openai.OpenAIError, AttributeError, TypeError, ValueError):
        return  # Not every compatible server lists its models; the request that follows decides.
    # Gateways list patterns, and some servers names with a folder or a tag that need not be asked for.
    if not listed or any("*" in name or _bare(name) == _bare(endpoint.model) for name in listed):
        return
    shown = ", ".join(sorted(listed)[:_SHOWN_MODELS]) + (", ..." if len(listed) > _SHOWN_MODELS else "")
    raise UserError(f"{role}: {where(endpoint)} does not list model {endpoint.model}; it lists {shown}")


def _bare(model: str) -> str:
    """A model's name without the folder before it and the tag after it."""
    return model.rpartition("/")[2].partition(":")[0].casefold()
