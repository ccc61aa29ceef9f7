"""Transport to a server: HTTP client, number of requests in flight, and descriptions of faults."""

import asyncio
import email.utils
import math
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import httpx2
import openai

from utaca.errors import UserError
from utaca.settings.checks import address_fault
from utaca.settings.schema import EndpointSettings

_CONNECT_SECONDS = 20.0
_SHOWN_CHARACTERS = 200


def connect(endpoint: EndpointSettings) -> openai.AsyncOpenAI:
    """Make a client of the endpoint, without deadlines and repeats.

    Raises:
        UserError: the address is none, or the key's environment variable is not set.
    """
    address, key = endpoint.base_url, api_key(endpoint)
    if fault := address_fault(address):
        raise UserError(f"endpoint {endpoint.name}: base_url {fault}")
    timeout = openai.Timeout(None, connect=_CONNECT_SECONDS)
    limits = httpx2.Limits(max_connections=endpoint.concurrency, max_keepalive_connections=endpoint.concurrency)
    try:
        # With aiohttp's connections a request takes a quarter less of the processor than with httpx's.
        http = openai.DefaultAioHttpClient(timeout=timeout, limits=limits)
    except (OSError, ValueError, httpx2.InvalidURL):
        # Not shown: a proxy's address may hold a password.
        raise UserError(
            f"endpoint {endpoint.name}: the proxy (HTTP_PROXY, HTTPS_PROXY, ALL_PROXY) or the certificates "
            "(SSL_CERT_FILE, SSL_CERT_DIR) that the environment names cannot be used; correct the variable, or unset it"
        ) from None
    return openai.AsyncOpenAI(base_url=address, api_key=key, max_retries=0, timeout=timeout, http_client=http)


def api_key(endpoint: EndpointSettings) -> str:
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


def refusal(endpoint: EndpointSettings, fault: openai.APIStatusError) -> str:
    """A refusal of the server as the rest of a sentence that begins with the role or endpoint; never holds the key."""
    place, status = where(endpoint), fault.status_code
    if status in (401, 403):
        key = endpoint.api_key_env
        refused = f"refuses the key in {key}" if key else "wants a key; name its environment variable in api_key_env"
        return f"{place} {refused} (HTTP {status})"
    if status == 404:
        return f"{place} has no chat completions for model {endpoint.model} (HTTP 404); does base_url end in /v1?"
    words = shown(endpoint, fault.response.text) or "without a word"
    return f"{place} answers a request to model {endpoint.model} with HTTP {status} ({words})"


def shown(endpoint: EndpointSettings, text: str) -> str:
    """The first words of what a server sent, in one line, without the key."""
    words = "".join(letter for letter in " ".join(text.split()) if letter.isprintable())
    if endpoint.api_key_env:
        words = words.replace(api_key(endpoint), "***")
    return words[:_SHOWN_CHARACTERS]


def unreachable(endpoint: EndpointSettings, fault: BaseException) -> str:
    """Why there was no connection, as the rest of a sentence."""
    if untrusted := certificate(fault):
        return (
            f"{where(endpoint)} has a certificate that is not trusted ({untrusted}); name the file of the authority "
            "that signed it in the environment variable SSL_CERT_FILE, or correct base_url or the certificate"
        )
    return f"{where(endpoint)} cannot be reached; start the server or correct base_url"


def certificate(fault: BaseException | None) -> str:
    """The fault of the server's certificate; "" if that is not why there is no connection."""
    while fault is not None and not hasattr(fault, "verify_message"):
        # aiohttp wraps ssl.SSLCertVerificationError.
        fault = getattr(fault, "certificate_error", None) or fault.__cause__ or fault.__context__
    return fault.verify_message.rstrip(".") if fault is not None else ""


def where(endpoint: EndpointSettings) -> str:
    """The endpoint's address, and the proxy before it, whose refusals look like the server's."""
    parts, proxies = urlsplit(endpoint.base_url), getproxies()
    proxy = proxies.get(parts.scheme) or proxies.get("all")
    if not proxy or proxy_bypass(parts.netloc):
        return endpoint.base_url
    address = proxy.rpartition("@")[2]  # without a user and a password
    return f"{endpoint.base_url} (through the proxy {address}; NO_PROXY={parts.hostname} goes without)"


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
        """Widen the pace after an answer."""
        self._width = min(float(self._most), self._width + 1 / self._width)

    def refused(self, sent: float, pause: float = 0.0) -> None:
        """Narrow the pace after a request of time ``sent`` (monotonic), and rest ``pause`` seconds."""
        now = time.monotonic()
        if sent > self._narrowed:
            self._width, self._narrowed = max(1.0, self._width / 2), now
        self._paused_until = max(self._paused_until, now + pause)


def retry_after(response: httpx2.Response) -> float | None:
    """Seconds that the server asks to wait, from a number or a date; None if it asks for nothing, or nonsense."""
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
