"""Admission control: bounds the bytes of a request's body, and of all bodies in the server together.

A body is read and parsed as a whole. So it may have what its call needs, at most `http.max_body`:

    /v1/messages, by key, schedules, acks  one message: 6 x limits.max_payload + 64 KiB
    /v1/messages:batch, jobs' :commit   http.max_body
    all others                          1 MiB: ids, filters, settings

A longer one is refused with 413 by its announced length, before it is read.

`limits.queued_bytes` bounds all bytes in the writer or on their way to it, as counted by the writer. A body
counts from its first byte to the answer. Beyond the bound a request is refused with 429 before its body is
read. A body without an announced length, or a compressed one, counts as the largest of its call. One request
is always let through, however large, so that none starves. A client that waits for "100 Continue" gets it
when there is room for its body.

A slow client can hold the length that it announced for hours. So the bodies of one client (access.py) may
have as many bytes as they leave free for others:

    a bound of 128 MiB      one client holds 64 at most; beside it another 32, beside both a third 16 ...
"""

from collections import Counter
from typing import NamedTuple

from aiohttp import HttpVersion11, web

from ..engine.writer import Busy, Writer
from ..settings.config import Config
from .access import client_of
from .answers import Handler, problem_of_write
from .problems import Problem
from .requests import UNPACKING
from .turns import OneThread

ESCAPED = 6
"""Bytes of JSON per byte of payload at most: `\\u0000`."""
BESIDE_BYTES = 64 << 10
"""Bytes of a message besides its payload: topic, headers, times."""
SMALL_BYTES = 1 << 20
ACK = "/v1/groups/{group}/messages:ack"
OF_ONE = (
    "/v1/messages",
    "/v1/messages/by-key/{key}",
    ACK,
    "/v1/schedules/{name}",
    "/v1/schedules:preview",
)
"""Calls that take one message."""
OF_MANY = ("/v1/messages:batch", "/v1/jobs/{id}:commit")
"""Calls that take as many bytes as any."""


class Most(NamedTuple):
    """Maximum bytes of the body, and the reason."""

    bytes: int
    why: str


class Admission:
    """Counts bodies before they are read."""

    def __init__(self, config: Config, writer: Writer) -> None:
        self._max_body = config.http.max_body
        largest = Most(self._max_body, "the most that limits.memory allows")
        one = ESCAPED * config.limits.max_payload + BESIDE_BYTES
        of_one = Most(one, f"{ESCAPED} x limits.max_payload + {BESIDE_BYTES}, for one message")
        self._by_path = {**dict.fromkeys(OF_ONE, min(largest, of_one)), **dict.fromkeys(OF_MANY, largest)}
        self._small = min(largest, Most(SMALL_BYTES, "for a call without messages"))
        self._by_path[ACK] = max(self._by_path[ACK], self._small)  # many leases, or one and messages
        self._max_bytes = config.limits.queued_bytes
        self._writer = writer
        self.bodies, self.fires = OneThread("bodies"), OneThread("fires")
        """Threads: one reads large bodies and unpacks compressed ones, one reckons fires of schedules."""
        self._held: Counter[str] = Counter()
        """Bytes of bodies by client; clients without any have no entry."""

    @web.middleware
    async def bound(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Middleware: counts the body from its first byte to the answer."""
        if not request.body_exists:
            return await handler(request)
        most = self._most(request)
        length = request.content_length
        if length is not None and length > most.bytes:
            text = f"The body has {length} bytes, the limit is {most.bytes}: {most.why}."
            raise Problem("too-large", text)
        if length is None or "Content-Encoding" in request.headers:
            request, length = request.clone(client_max_size=most.bytes), most.bytes
        client = client_of(request)
        try:
            self._enter(client, length)
        except Busy as error:
            raise problem_of_write(error) from None
        try:
            await _go_ahead(request)
            request[UNPACKING] = lambda work: self.bodies.do(client, work)
            return await handler(request)
        finally:
            self._leave(client, length)

    def size(self, length: int | None) -> int:
        """Bytes that a body with this announced length counts for. Raises Problem if it is too large."""
        size = self._max_body if length is None else length
        if size > self._max_body:
            raise Problem("too-large", f"The body has {size} bytes, the limit is {self._max_body}.")
        return size

    def _most(self, request: web.Request) -> Most:
        resource = request.match_info.route.resource
        return self._small if resource is None else self._by_path.get(resource.canonical, self._small)

    def _enter(self, client: str, size: int) -> None:
        """Raises Busy."""
        held = self._held[client]
        if held and held + size > self._max_bytes - self._writer.queued_bytes:
            raise Busy(f"{held} bytes of one client's requests are under way, as many as are left for others")
        self._writer.enter(size)
        self._held[client] = held + size

    def _leave(self, client: str, size: int) -> None:
        self._writer.leave(size)
        self._held[client] -= size
        if not self._held[client]:
            del self._held[client]


async def unasked(request: web.Request) -> None:
    """Keep aiohttp from answering `Expect` before the middlewares: do nothing."""


async def _go_ahead(request: web.Request) -> None:
    """Send 100 Continue; for an unknown call aiohttp has answered already."""
    is_known = request.match_info.http_exception is None
    if is_known and "Expect" in request.headers and request.version >= HttpVersion11:
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.writer.output_size = 0  # the answer has not begun
