"""The way to a server: as many requests in flight as it takes, pauses where it is busy or failing, a deadline each."""

from __future__ import annotations

import asyncio
import email.utils
import json
import math
import os
import random
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import httpx2
import openai

from utaca.errors import UserError
from utaca.settings.checks import address_fault
from utaca.settings.schema import Endpoint

_CONNECT_SECONDS = 20.0
_LONGEST_BACKOFF = 32
_SENT_AGAIN = (408, 409, 429)
_SHOWN_CHARACTERS = 200


def connect(endpoint: Endpoint, *, patience_s: float | None = None, pace: Pace | None = None) -> openai.AsyncOpenAI:
    """A client of the endpoint that waits for a busy or failing server for at most ``patience_s`` seconds a request.

    ``patience_s`` is the endpoint's own where it is not given. Raises :class:`UserError` where the address is none, or
    the key's environment variable is not set.
    """
    address, key = endpoint.base_url, api_key(endpoint)
    if fault := address_fault(address):
        raise UserError(f"endpoint {endpoint.name}: base_url {fault}")
    timeout = deadline(endpoint, 0)
    limits = httpx2.Limits(max_connections=endpoint.concurrency, max_keepalive_connections=endpoint.concurrency)
    patience_s = endpoint.patience_s if patience_s is None else patience_s
    pace = pace or Pace(endpoint.concurrency)
    try:
        http = _Patient(endpoint.backoff_s, patience_s, pace, timeout=timeout, limits=limits)
    except (OSError, ValueError, httpx2.InvalidURL):
        # not shown: a proxy's address may hold a password
        raise UserError(
            f"endpoint {endpoint.name}: the proxy (HTTP_PROXY, HTTPS_PROXY, ALL_PROXY) or the certificates "
            "(SSL_CERT_FILE, SSL_CERT_DIR) that the environment names cannot be used; correct the variable, or unset it"
        ) from None
    return openai.AsyncOpenAI(base_url=address, api_key=key, max_retries=0, timeout=timeout, http_client=http)


def deadline(endpoint: Endpoint, missed: int) -> openai.Timeout:
    """The deadline of one sending of a request that has missed it ``missed`` times: twice as long after each.

    Some servers go on with a request whose client has left, so that the same question asked again comes later still.
    """
    return openai.Timeout(endpoint.timeout_s * 2**missed, connect=_CONNECT_SECONDS)


def api_key(endpoint: Endpoint) -> str:
    """The key of a remote endpoint, from the environment variable that its config names."""
    if not endpoint.api_key_env:
        return "none"
    key = os.environ.get(endpoint.api_key_env, "")
    if not key:
        raise UserError(f"endpoint {endpoint.name}: environment variable {endpoint.api_key_env} (its key) is not set")
    if not key.isascii() or not key.isprintable() or " " in key:
        # As a header it would fail later, in an error that shows it.
        raise UserError(
            f"endpoint {endpoint.name}: environment variable {endpoint.api_key_env} holds no key: a key has no spaces, "
            "line breaks or letters beyond ASCII"
        )
    return key


def in_words(endpoint: Endpoint, fault: openai.APIStatusError) -> str:
    """A refusal of the server as the rest of a sentence that begins with the role or endpoint; never holds the key."""
    place = where(endpoint)
    if fault.status_code in (401, 403):
        key = endpoint.api_key_env
        refused = f"refuses the key in {key}" if key else "wants a key; name its environment variable in api_key_env"
        return f"{place} {refused} (HTTP {fault.status_code})"
    if fault.status_code == 404:
        return f"{place} has no chat completions for model {endpoint.model} (HTTP 404); does base_url end in /v1?"
    words = shown(endpoint, " - ".join(filter(None, (f"Error code: {fault.status_code}", stated(fault.body)))))
    return f"{place} answers a request to model {endpoint.model} with HTTP {fault.status_code} ({words})"


def stated(body: Any) -> str:
    """What a server says in the body of a refusal, taken from JSON of any of the usual forms, or a text."""
    if isinstance(body, list):
        return "; ".join(map(stated, body))
    if not isinstance(body, Mapping):
        return str(body or "")
    # FastAPI names the key in "loc", OpenAI in "param"; OpenRouter repeats the refusal of another server in "metadata".
    parts = [".".join(map(str, body["loc"])) if isinstance(body.get("loc"), list) else body.get("param")]
    parts += [body.get(key) for key in ("error", "message", "msg", "detail", "errors", "metadata", "raw")]
    return ": ".join(filter(None, map(stated, parts))) or (json.dumps(body, ensure_ascii=False) if body else "")


def shown(endpoint: Endpoint, text: str) -> str:
    """The first words of what a server sent, in one line, without the key."""
    words = "".join(letter for letter in " ".join(text.split()) if letter.isprintable())
    if endpoint.kind == "remote" and endpoint.api_key_env:
        words = words.replace(api_key(endpoint), "***")
    return words[:_SHOWN_CHARACTERS]


def unreachable(endpoint: Endpoint, fault: BaseException) -> str:
    """Why there was no connection, as the rest of a sentence."""
    if untrusted := certificate(fault):
        return (
            f"{where(endpoint)} has a certificate that is not trusted ({untrusted}); name the file of the authority "
            "that signed it in the environment variable SSL_CERT_FILE, or correct base_url or the certificate"
        )
    return f"{where(endpoint)} cannot be reached; start the server or correct base_url"


def certificate(fault: BaseException | None) -> str:
    """What is wrong with the server's certificate; "" where that is not why there is no connection."""
    while fault is not None and not hasattr(fault, "verify_message"):
        # aiohttp wraps ssl.SSLCertVerificationError.
        fault = getattr(fault, "certificate_error", None) or fault.__cause__ or fault.__context__
    return fault.verify_message.rstrip(".") if fault is not None else ""


def where(endpoint: Endpoint) -> str:
    """The endpoint's address, and the proxy before it, whose refusals look like the server's."""
    place = address(endpoint)
    parts = urlsplit(place)
    proxies = getproxies()
    proxy = proxies.get(parts.scheme) or proxies.get("all")
    if endpoint.kind != "remote" or not proxy or proxy_bypass(parts.netloc):
        return place
    # without a user and a password
    return f"{place} (through the proxy {proxy.rpartition('@')[2]}; NO_PROXY={parts.hostname} goes without)"


def address(endpoint: Endpoint) -> str:
    """Where the endpoint is, for people."""
    return endpoint.base_url if endpoint.kind == "remote" else "the embedded reference"


class Pace:
    """How many requests are in flight at once.

    At most ``most``. HTTP 429 or a deadline halves the number, once for all the requests that were in flight together;
    each answer raises it again by one in as many answers as it stands at. A pause that the server asks for holds for
    all requests.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._width = float(most)
        self._in_flight = 0
        self._room = asyncio.Condition()
        self._narrowed = self._paused_until = -math.inf
        self.resent = 0

    @property
    def width(self) -> int:
        """Requests that may be in flight now."""
        return int(self._width)

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """A place among the requests in flight, once there is one."""
        async with self._room:
            await self._room.wait_for(lambda: self._in_flight < self.width)
            self._in_flight += 1
        try:
            while (pause := self._paused_until - time.monotonic()) > 0:
                await asyncio.sleep(pause)
            yield
        finally:
            async with self._room:
                self._in_flight -= 1
                self._room.notify_all()

    def answered(self) -> None:
        """The server took a request."""
        self._width = min(float(self._most), self._width + 1 / self._width)

    def refused(self, sent: float, pause: float) -> None:
        """The server was too busy for a request sent at ``sent`` (monotonic) and asks for ``pause`` seconds of rest."""
        now = time.monotonic()
        if sent > self._narrowed:
            self._width, self._narrowed = max(1.0, self._width / 2), now
        self._paused_until = max(self._paused_until, now + pause)


class _Patient(openai.DefaultAioHttpClient):
    """An HTTP client that sends a request again after HTTP 408, 409, 429, 5xx and broken connections.

    It pauses as long as the server asks for (Retry-After), else ``backoff_s``, doubled each time, less up to a quarter
    by chance. It gives up, with the last answer or fault, where the pauses of a request would exceed its patience.
    A request's read timeout is its deadline over one sending as a whole, where the transport's would restart with every
    byte; what missed it is not sent again here.
    Its connections are aiohttp's, with which a request takes a quarter less of the processor than with httpx's.
    """

    def __init__(self, backoff_s: float, patience_s: float, pace: Pace, **settings: Any) -> None:
        super().__init__(**settings)
        self._backoff = backoff_s
        self._patience = patience_s
        self._pace = pace

    async def send(self, request: httpx2.Request, **settings: Any) -> httpx2.Response:
        left = self._patience
        limits = request.extensions["timeout"]
        seconds = limits["read"]
        request.extensions["timeout"] = {**limits, "read": None, "write": None, "pool": None}
        resent = 0
        while True:
            response, broken, asked = None, None, None
            async with self._pace.turn():
                sent = time.monotonic()
                try:
                    async with asyncio.timeout(seconds):
                        response = await super().send(request, **settings)
                except TimeoutError:
                    # A server that has more in its queue than it answers in time.
                    self._pace.refused(sent, 0.0)
                    raise httpx2.ReadTimeout(f"no answer within {seconds:g} s", request=request) from None
                except httpx2.TransportError as fault:
                    broken = fault
                if response is not None:
                    if response.status_code < 500 and response.status_code not in _SENT_AGAIN:
                        self._pace.answered()
                        return response
                    asked = _retry_after(response)
                    if response.status_code == 429:
                        self._pace.refused(sent, asked if asked is not None and asked <= left else 0.0)
            # 0 is what some servers ask for; at once would be too soon.
            pause = asked or self._backoff * min(2**resent, _LONGEST_BACKOFF) * random.uniform(0.75, 1)
            if response is None and (pause > left or certificate(broken)):
                raise httpx2.NetworkError(str(broken), request=request) from broken
            if pause > left:
                return response
            left -= pause
            await asyncio.sleep(pause)
            resent += 1
            self._pace.resent += 1


def _retry_after(response: httpx2.Response) -> float | None:
    """Seconds that the server asks to wait, from a number or a date; None where it asks for nothing, or nonsense."""
    for header, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        try:
            seconds = float(response.headers.get(header, "")) * unit
        except ValueError:
            continue
        if seconds >= 0:
            return seconds
    try:
        date = email.utils.parsedate_to_datetime(response.headers.get("retry-after", ""))
    except (TypeError, ValueError):
        return None
    return max(0.0, date.timestamp() - time.time())
