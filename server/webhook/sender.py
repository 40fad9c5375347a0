"""One HTTP POST, with everything that bounds it.

Nothing of the environment counts: no proxy, no cookies, no netrc. Redirects are not followed, answers are not
unpacked, and of a body 64 KiB are read, so that the connection can be used again, within a second: what has
been answered is known by the status. The timeout is for all of it, from the look-up of the name on. A name is
looked up in threads of the sender's own, so that one that takes long keeps no other part of the server.
"""

import asyncio
import os
import socket
import ssl
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult

from ..config import ConfigError, Webhook
from .parcel import Parcel
from .targets import Blocked, Sockets
from .verdicts import Reply

ANSWER_BYTES = 64 << 10
DRAIN_S = 1.0
IDLE_S = 2.0
"""How long a connection waits for the next message: less than any usual server lets it."""
LOOKUPS = 16
"""Names that are looked up at a time."""
DNS_S = 10
REASON_CHARS = 160


class Lookup(AbstractResolver):
    """Names to addresses, as the system does it, in threads of its own."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(LOOKUPS, thread_name_prefix="names")

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """Raises OSError."""
        found = await asyncio.get_running_loop().run_in_executor(
            self._threads, lambda: socket.getaddrinfo(host, port, family, socket.SOCK_STREAM)
        )
        return [
            ResolveResult(
                hostname=host,
                host=str(where[0]),
                port=int(where[1]),
                family=kind,
                proto=protocol,
                flags=int(socket.AI_NUMERICHOST),
            )
            for kind, _, protocol, _, where in found
        ]

    async def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


def trusted(config: Webhook) -> ssl.SSLContext:
    """What certificates of receivers are checked with. Raises ConfigError."""
    try:
        return ssl.create_default_context(cafile=config.tls_ca or None)
    except (OSError, ValueError) as error:
        raise ConfigError("webhook.tls_ca", f"cannot be used: {error}") from None


class Sender:
    """Posts for all endpoints, on connections that they share by origin."""

    def __init__(self, config: Webhook, authorities: ssl.SSLContext, lookup: AbstractResolver) -> None:
        """On a running loop. `authorities`: what certificates are checked with. `lookup` is closed too."""
        self._lookup = lookup
        connector = aiohttp.TCPConnector(
            limit=0,
            ssl=authorities,
            resolver=lookup,
            ttl_dns_cache=DNS_S,
            keepalive_timeout=IDLE_S,
            socket_factory=Sockets(allow_private=config.allow_private),
        )
        self._session = aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=None),
            auto_decompress=False,
            trust_env=False,
            skip_auto_headers=("Accept", "Accept-Encoding", "Content-Type", "User-Agent"),
            read_bufsize=ANSWER_BYTES // 2,
        )

    async def close(self) -> None:
        await self._session.close()
        await self._lookup.close()

    async def post(self, parcel: Parcel) -> Reply:
        """What came of it."""
        started = time.monotonic()
        status, retry_after, fault = 0, "", ""
        try:
            async with (
                asyncio.timeout(parcel.timeout_s),
                self._session.post(
                    parcel.url, data=parcel.body, headers=parcel.headers, allow_redirects=False
                ) as response,
            ):
                status = response.status
                retry_after = response.headers.get("Retry-After", "")
                await _drain(response)
        except TimeoutError:
            fault = f"timed out after {parcel.timeout_s:g} s"
        except (aiohttp.ClientError, OSError, ValueError) as error:
            fault = _told(error)
        latency_ms = round((time.monotonic() - started) * 1_000, 1)
        return Reply(status, retry_after, "" if status else fault, latency_ms)


async def _drain(response: aiohttp.ClientResponse) -> None:
    """Read what is left of a short answer; of any other the connection is closed."""
    left = ANSWER_BYTES
    with suppress(TimeoutError, aiohttp.ClientError, OSError, ValueError):
        async with asyncio.timeout(DRAIN_S):
            while left > 0:
                piece = await response.content.read(left)
                if not piece:
                    return
                left -= len(piece)
    response.close()


def _told(error: Exception) -> str:
    """What went wrong, in words that are short and tell no address."""
    match error:
        case aiohttp.ClientConnectorCertificateError():
            why = getattr(error.certificate_error, "verify_message", "")
            said = f"TLS: {why or 'the certificate does not hold'}"
        case aiohttp.ClientConnectorDNSError():
            said = "the name was not found"
        case aiohttp.ClientConnectorSSLError():
            said = f"TLS: {getattr(error.os_error, 'reason', '') or 'the handshake failed'}"
        case aiohttp.ClientConnectorError() if isinstance(error.os_error, Blocked):
            said = "the address is private or reserved"
        case aiohttp.ClientConnectorError():
            said = f"not connected: {_words(error.os_error)}"
        case aiohttp.ServerDisconnectedError():
            said = "the connection was closed without an answer"
        case aiohttp.ClientResponseError():
            said = "the answer is not HTTP"
        case aiohttp.InvalidURL():
            said = "the URL cannot be used"
        case OSError():
            said = f"the connection was lost: {_words(error)}"
        case _:
            said = f"not sent: {type(error).__name__}"
    return said[:REASON_CHARS]


def _words(error: OSError) -> str:
    """What the system calls the error, without the address that it may be told with."""
    return os.strerror(error.errno) if error.errno and error.errno > 0 else type(error).__name__
