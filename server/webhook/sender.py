"""One HTTP POST, with all its bounds.

It ignores the environment: no proxy, no cookies, no netrc. It does not follow redirects and does not unpack
answers. The status is the result; of an answer it reads at most 64 KiB, of its body for at most a second, so
that the connection can be used again. The timeout covers everything from the name's look-up on. Each name is
looked up in its own thread, so that a slow look-up delays neither the server nor other names.
"""

import asyncio
import errno
import re
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Literal

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.connector import Connection
from yarl import URL

from ..settings.config import ConfigError, Webhook
from .request import WebhookRequest
from .targets import PRIVATE, Blocked, Sockets
from .verdicts import Reply

ANSWER_BYTES = 64 << 10
INTERIM_MAX = 2
"""Maximum 1xx answers before the answer."""
DRAIN_S = 1.0
IDLE_S = 2.0
"""How long a connection waits for the next message: less than usual servers keep it."""
DNS_S = 10
CERTIFICATES = {
    9: "the certificate is not valid yet",
    10: "the certificate has expired",
    18: "the certificate is self-signed",
    19: "the issuer of the certificate is not trusted",
    20: "the issuer of the certificate is not trusted",
    21: "the issuer of the certificate is not trusted",
    62: "the certificate is for another name",
    64: "the certificate is for another address",
}
"""Reasons by X509_V_ERR_* of OpenSSL, whose own texts name the host."""
CONNECTIONS = {
    errno.ECONNREFUSED: "Connection refused",
    errno.ECONNRESET: "Connection reset by peer",
    errno.ECONNABORTED: "Connection aborted",
    errno.EPIPE: "Connection reset by peer",
    errno.ETIMEDOUT: "Connection timed out",
    errno.EHOSTUNREACH: "No route to host",
    errno.ENETUNREACH: "Network is unreachable",
}
"""Reasons by error number; the system's texts contain addresses."""

STATUS_BYTES = len(b"HTTP/1.1 100")
_INTERIM = re.compile(rb"HTTP/\d\.\d +1(?!01)")
_EMPTY_LINE = re.compile(rb"\n\r?\n")

Address = tuple[socket.AddressFamily, socket.SocketKind, int, str, Any]
"""An address as `getaddrinfo` returns it."""


class Lookup(AbstractResolver):
    """Resolves names by the system, each in its own thread, at most `most` at a time.

    The system gives up by itself, after about half a minute, and not before. So the bound on posts also
    counts running look-ups (`under_way`); an abandoned thread ends with the process.
    """

    def __init__(self, most: int) -> None:
        self._room = asyncio.Semaphore(most)
        self._under_way: dict[asyncio.Future[Sequence[Address]], str] = {}

    def under_way(self, host: str) -> list[asyncio.Future[Sequence[Address]]]:
        """Running look-ups of that name."""
        return [one for one, looked_up in self._under_way.items() if looked_up == _bare(host)]

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """Raises OSError."""
        async with self._room:
            found = await self._look_up(host, port, family)
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

    async def _look_up(self, host: str, port: int, family: socket.AddressFamily) -> Sequence[Address]:
        found: Future[Sequence[Address]] = Future()
        found.set_running_or_notify_cancel()  # from now on only its thread ends it
        answer = asyncio.wrap_future(found)
        answer.add_done_callback(self._under_way.pop)
        self._under_way[answer] = _bare(host)

        def look() -> None:
            try:
                found.set_result(socket.getaddrinfo(host, port, family, socket.SOCK_STREAM))
            except Exception as error:
                found.set_exception(error)

        threading.Thread(target=look, name="name", daemon=True).start()
        return await answer

    async def close(self) -> None:
        """Cancel all waits for look-ups."""
        for answer in list(self._under_way):
            answer.cancel()


def _bare(host: str) -> str:
    return host.rstrip(".").lower()


def trusted(config: Webhook) -> ssl.SSLContext | Literal[True]:
    """Authorities for receivers' certificates; True: the system's, which aiohttp read when it was imported
    (reading them again takes 30 ms of a start). Raises ConfigError."""
    if not config.tls_ca:
        return True
    try:
        return ssl.create_default_context(cafile=config.tls_ca)
    except (OSError, ValueError) as error:
        raise ConfigError("webhook.tls_ca", f"cannot be used: {error}") from None


class TooLong(aiohttp.ClientError):
    """An answer has more bytes than allowed."""


class TooManyInterim(TooLong):
    """More 1xx answers than allowed."""


class Meter(asyncio.Protocol):
    """Between a connection and its reader: passes at most ANSWER_BYTES of an answer.

    Endless chunks of a byte would otherwise keep the loop busy for seconds and fill memory, since they arrive
    faster than they are parsed. The same holds for interim answers (1xx), each of which costs as much as a
    whole answer: at most INTERIM_MAX pass.
    """

    def __init__(self, transport: asyncio.Transport, reader: asyncio.Protocol) -> None:
        self._transport = transport
        self._reader = reader
        self._begin()

    def _begin(self) -> None:
        self._left = ANSWER_BYTES
        self._interim = 0
        """Interim answers that have begun."""
        self._is_interim = False
        """The last interim answer has not ended."""
        self._head: bytes | None = b""
        """Received bytes that are not parsed yet, a few; None: the answer has begun."""
        self.fault: TooLong | None = None
        """Why the connection is aborted."""

    @classmethod
    def of(cls, transport: asyncio.Transport) -> "Meter":
        """The meter of a connection, reset for the answer to the next post."""
        reader = transport.get_protocol()
        if isinstance(reader, cls):
            reader._begin()
            return reader
        assert isinstance(reader, asyncio.Protocol), "aiohttp's are"
        made = cls(transport, reader)
        transport.set_protocol(made)
        return made

    def data_received(self, data: bytes) -> None:
        if self.fault is not None:
            return
        taken = data[: self._left]
        self._left -= len(data)
        if self._left < 0:
            self.fault = TooLong()
        if self._head is not None and self._has_many_interim(taken):
            self.fault = TooManyInterim()
        else:
            self._reader.data_received(taken)
        if self.fault is not None:
            self._transport.abort()

    def _has_many_interim(self, data: bytes) -> bool:
        """Whether more interim answers than allowed have begun with this data."""
        data = (self._head or b"") + data
        while True:
            if not self._is_interim:
                data = data.lstrip(b"\r\n")
                if len(data) < STATUS_BYTES:
                    self._head = data
                    return False
                if not _INTERIM.match(data):
                    self._head = None
                    return False
                self._interim += 1
                if self._interim > INTERIM_MAX:
                    return True
            end = _EMPTY_LINE.search(data)
            self._is_interim = end is None
            if end is None:
                self._head = data[-2:]
                return False
            data = data[end.end() :]

    def eof_received(self) -> bool | None:
        return self._reader.eof_received()

    def pause_writing(self) -> None:
        self._reader.pause_writing()

    def resume_writing(self) -> None:
        self._reader.resume_writing()

    def connection_lost(self, error: Exception | None) -> None:
        self._reader.connection_lost(error)


class Resting:
    """Idle connections, about `most` of them: a thousand origins with one post each would otherwise leave a
    thousand. It overestimates: a connection that the other side has closed counts until its time is over.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._since: deque[float] = deque()

    @property
    def is_full(self) -> bool:
        """Whether no other connection may stay idle."""
        now = time.monotonic()
        while self._since and self._since[0] < now - 2 * IDLE_S:  # aiohttp checks each IDLE_S
            self._since.popleft()
        return len(self._since) >= self._most

    def add(self) -> None:
        """Count a connection that may have become idle."""
        if not self.is_full:
            self._since.append(time.monotonic())

    def trace(self) -> aiohttp.TraceConfig:
        """Trace config that reports reused connections."""

        async def used(*_: object) -> None:
            if self._since:
                self._since.popleft()

        made = aiohttp.TraceConfig()
        made.on_connection_reuseconn.append(used)
        return made

    def answers(self) -> type[aiohttp.ClientResponse]:
        """Response class that keeps a connection only if there is room."""

        class PostResponse(aiohttp.ClientResponse):
            async def start(inner, connection: Connection) -> aiohttp.ClientResponse:  # noqa: N805
                """Raises TooLong, and ServerDisconnectedError if data was there before the post was sent: it
                answers no post."""
                protocol, transport = connection.protocol, connection.transport
                if protocol is None or transport is None or protocol.should_close:
                    connection.close()
                    raise aiohttp.ServerDisconnectedError
                if self.is_full:
                    protocol.force_close()
                meter = Meter.of(transport)
                try:
                    return await super().start(connection)
                except aiohttp.ClientError:
                    if meter.fault is not None:
                        raise meter.fault from None
                    raise

        return PostResponse


class Sender:
    """Posts for all endpoints, on connections shared by origin."""

    def __init__(
        self, config: Webhook, authorities: ssl.SSLContext | Literal[True], lookup: Lookup, most: int
    ) -> None:
        """Call it on a running loop. `authorities`: from `trusted`. `lookup` is closed too. `most`: idle
        connections."""
        self._resting = Resting(most)
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
            response_class=self._resting.answers(),
            trace_configs=[self._resting.trace()],
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

    def lookups(self, url: URL) -> list[asyncio.Future[Sequence[Address]]]:
        """Running look-ups of its name; their posts may be over."""
        return self._lookup.under_way(url.raw_host or "")

    async def post(self, request: WebhookRequest) -> Reply:
        """Post, and return the outcome."""
        started = time.monotonic()
        status, retry_after, fault = 0, "", ""
        try:
            async with (
                asyncio.timeout(request.timeout_s),
                self._session.post(
                    request.url, data=request.body, headers=request.headers, allow_redirects=False
                ) as response,
            ):
                status = response.status
                retry_after = response.headers.get("Retry-After", "")
                await _drain(response)
                self._resting.add()
        except TimeoutError as error:  # an error of the system has a number: the receiver has vanished
            fault = _fault_of(error) if error.errno else f"timed out after {request.timeout_s:g} s"
        except (aiohttp.ClientError, OSError, ValueError) as error:
            fault = _fault_of(error)
        latency_ms = round((time.monotonic() - started) * 1_000, 1)
        return Reply(status, retry_after, "" if status else fault, latency_ms)


async def _drain(response: aiohttp.ClientResponse) -> None:
    """Read the rest of a short answer; for any other the connection is closed."""
    with suppress(TimeoutError, aiohttp.ClientError, OSError, ValueError):
        async with asyncio.timeout(DRAIN_S):
            while await response.content.readany():
                pass
            return
    response.close()


def _fault_of(error: Exception) -> str:
    """Why it failed: one of a fixed set of texts.

    A dead letter shows it to users who do not administer the server. So it contains no text of the system or
    a library: no host, no address, no class name.
    """
    match error:
        case aiohttp.ClientConnectorCertificateError():
            code = getattr(error.certificate_error, "verify_code", 0)
            fault = f"TLS: {CERTIFICATES.get(code, 'the certificate does not hold')}"
        case aiohttp.ClientConnectorDNSError():
            fault = "the name was not found"
        case aiohttp.ClientConnectorSSLError():
            fault = "TLS: the handshake failed"
        case aiohttp.ClientConnectorError() if isinstance(error.os_error, Blocked):
            fault = PRIVATE
        case aiohttp.ClientConnectorError():
            fault = _with_words("not connected", error.os_error)
        case aiohttp.ServerDisconnectedError():
            fault = "the connection was closed without an answer"
        case TooManyInterim():
            fault = f"more than {INTERIM_MAX} interim answers (1xx)"
        case TooLong():
            fault = "the answer is not HTTP: its end is undefined"
        case aiohttp.ClientResponseError():
            fault = "the answer is not HTTP"
        case aiohttp.InvalidURL():
            fault = "the URL is not usable"
        case OSError():
            fault = _with_words("the connection was lost", error)
        case _:
            fault = "not sent"
    return fault


def _with_words(fault: str, error: OSError) -> str:
    words = CONNECTIONS.get(error.errno or 0)
    return fault if words is None else f"{fault}: {words}"
