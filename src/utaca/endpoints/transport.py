"""Connect to a server: the HTTP client, the limit on requests in flight, and sentences that describe faults."""

import asyncio
import email.utils
import json
import math
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp
import httpx2
import openai

from utaca.errors import UserError
from utaca.settings.checks import address_fault
from utaca.settings.schema import EndpointSettings

_SHOWN = 200
"""Most characters that are shown of what a server says."""


def connect(endpoint: EndpointSettings) -> openai.AsyncOpenAI:
    """Make a client for the endpoint, without a deadline for answers and without retries.

    Raises:
        UserError: the address is not valid, or the environment variable of the key, proxy or certificates is at fault.
    """
    address = endpoint.base_url
    key = api_key(endpoint)
    fault = address_fault(address)
    if fault:
        raise UserError(f"endpoint {endpoint.name}: base_url {fault}")
    timeout = openai.Timeout(None, connect=20.0)
    limits = httpx2.Limits(max_connections=endpoint.concurrency, max_keepalive_connections=endpoint.concurrency)
    try:
        # A request takes a quarter less processor time over aiohttp's connections than over httpx's.
        http = openai.DefaultAioHttpClient(timeout=timeout, limits=limits)
    except (OSError, ValueError, httpx2.InvalidURL):
        # The error is not shown: a proxy's address may hold a password.
        raise UserError(
            f"endpoint {endpoint.name}: the proxy (HTTP_PROXY, HTTPS_PROXY, ALL_PROXY) or the certificates "
            "(SSL_CERT_FILE, SSL_CERT_DIR) that the environment names cannot be used; correct the variable, or unset it"
        ) from None
    return openai.AsyncOpenAI(base_url=address, api_key=key, max_retries=0, timeout=timeout, http_client=http)


def api_key(endpoint: EndpointSettings) -> str:
    """The key of a remote endpoint, from the environment variable that its config names; "none" if it names none.

    Raises :class:`UserError` if the variable is not set or holds no key.
    """
    if not endpoint.api_key_env:
        return "none"
    key = os.environ.get(endpoint.api_key_env, "")
    if not key:
        raise UserError(
            f"endpoint {endpoint.name}: the environment variable {endpoint.api_key_env} is not set; set it to the key "
            "of the endpoint"
        )
    if not key.isascii() or not key.isprintable() or " " in key:
        # As a header, such a key would fail later, in an error that shows the key.
        raise UserError(
            f"endpoint {endpoint.name}: the environment variable {endpoint.api_key_env} is not a valid key; a key has "
            "no spaces, line breaks or characters beyond ASCII"
        )
    return key


def refusal(endpoint: EndpointSettings, fault: openai.APIStatusError) -> str:
    """Describe a refusal, without the key, as a clause that can follow "judge: " or "endpoint NAME: "."""
    place = where(endpoint)
    status = fault.status_code
    if status in (401, 403):
        key = endpoint.api_key_env
        refused = f"refuses the key in {key}" if key else "needs a key; name its environment variable in api_key_env"
        return f"{place} {refused} (HTTP {status})"
    if status == 404:
        return f"{place} has no chat completions for model {endpoint.model} (HTTP 404); {doubt(endpoint)}"
    words = shown(endpoint, fault.response.text) or "without a word"
    return f"{place} answers a request to model {endpoint.model} with HTTP {status} ({words})"


def doubt(endpoint: EndpointSettings) -> str:
    """What the user may check if a server answers but does not serve the model, as the end of a sentence."""
    if urlsplit(endpoint.base_url).path.rstrip("/").endswith("/v1"):
        return "check base_url, and that it serves this model"
    return "does base_url end in /v1?"


def shown(endpoint: EndpointSettings, text: str) -> str:
    """What a server said, for a sentence to the user: the message in ``text``, in one line and without the key.

    A long message is cut off after a word.
    """
    in_one_line = " ".join(_message(text).split())
    words = "".join(letter for letter in in_one_line if letter.isprintable())
    if endpoint.api_key_env:
        words = words.replace(api_key(endpoint), "***")
    if len(words) <= _SHOWN:
        return words
    whole_words, *_ = words[:_SHOWN].rsplit(" ", 1)
    return f"{whole_words} ..."


def _message(text: str) -> str:
    """The message in a text that is an error in OpenAI's JSON form; any other text as it is."""
    try:
        error = json.loads(text)["error"]
        message = error["message"] if isinstance(error, dict) else error
    except (ValueError, LookupError, TypeError, RecursionError):
        return text
    return message if isinstance(message, str) and message else text


def unreachable(endpoint: EndpointSettings, fault: BaseException) -> str:
    """Say why there was no connection, as a clause that can follow "judge: " or "endpoint NAME: "."""
    untrusted = certificate(fault)
    if untrusted:
        return (
            f"{where(endpoint)} has a certificate that is not trusted ({untrusted}); name the file of the authority "
            "that signed it in the environment variable SSL_CERT_FILE, or correct base_url or the certificate"
        )
    # The openai client wraps the error of its HTTP client, which wraps aiohttp's.
    broken_off = (aiohttp.ClientPayloadError, aiohttp.ServerDisconnectedError)
    if isinstance(getattr(fault.__cause__, "__cause__", None), broken_off):
        return f"{where(endpoint)} breaks off its answers; see its log, or that of a proxy before it"
    return f"{where(endpoint)} cannot be reached; start the server or correct base_url"


def certificate(fault: BaseException | None) -> str:
    """What is wrong with the server's certificate; "" if ``fault`` has another cause."""
    while fault is not None and not hasattr(fault, "verify_message"):
        # aiohttp wraps ssl.SSLCertVerificationError.
        fault = getattr(fault, "certificate_error", None) or fault.__cause__ or fault.__context__
    return fault.verify_message.rstrip(".") if fault is not None else ""


def where(endpoint: EndpointSettings) -> str:
    """The endpoint's address as errors name it, with the proxy in use: its refusals look like those of the server."""
    parts = urlsplit(endpoint.base_url)
    proxies = getproxies()
    proxy = proxies.get(parts.scheme) or proxies.get("all")
    if not proxy or proxy_bypass(parts.netloc):
        return endpoint.base_url
    address = proxy.rpartition("@")[2]  # without a user and a password
    return f"{endpoint.base_url} (through the proxy {address}; NO_PROXY={parts.hostname} goes without)"


class Pace:
    """The limit on the number of requests in flight, at most ``most``.

    HTTP 429 or a missed deadline halves the limit, once for all the requests that were in flight together; each answer
    raises the limit again by 1 / limit. If the server requests a pause after HTTP 429, no request is sent during that
    pause.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._width = float(most)
        self._in_flight = 0
        self._room = asyncio.Condition()
        self._narrowed = -math.inf  # when the limit was halved last (monotonic)
        self._paused_until = -math.inf
        self.resent = 0  # counted by the caller

    @property
    def width(self) -> int:
        """The number of requests that may be in flight now."""
        return int(self._width)

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait until one more request may be sent; the request counts as in flight until the context ends."""
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
        """Raise the limit after an answer."""
        self._width = min(float(self._most), self._width + 1 / self._width)

    def refused(self, sent: float, pause: float = 0.0) -> None:
        """Halve the limit after a request sent at ``sent`` (monotonic) failed; send nothing for ``pause`` seconds."""
        now = time.monotonic()
        # The limit was not halved since the request was sent.
        if sent > self._narrowed:
            self._width = max(1.0, self._width / 2)
            self._narrowed = now
        self._paused_until = max(self._paused_until, now + pause)


def retry_after(response: httpx2.Response) -> float | None:
    """Seconds that the server asks to wait, by number or date in a header; None if the header is missing or invalid."""
    for header, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        try:
            seconds = float(response.headers.get(header, "")) * unit
        except ValueError:
            continue
        if seconds >= 0:
            return seconds
    date = email.utils.parsedate_tz(response.headers.get("retry-after", ""))
    try:
        # A date without a zone, as in C's asctime, is one of UTC.
        return max(0.0, email.utils.mktime_tz(date) - time.time()) if date else None
    except ValueError:
        return None
