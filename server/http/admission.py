"""Admission control: how many bytes the body of a request may have, and all bodies in the server at once.

A body is read and parsed in one go. So it may have what its call needs, and `http.max_body` at most:

    /v1/messages, schedules             one message: 6 x limits.max_payload + 64 KiB
    /v1/messages:batch, jobs' :commit   http.max_body
    all others                          1 MiB: ids, filters, settings

It is refused with 413 by its announced length, before it is read.

`limits.queued_bytes` bounds the sum of what is on its way to the writer or in it, which the writer counts.
Here a body is counted from the first byte read to the answer. Beyond the bound a request is refused with 429
before its body is read. A body whose length is not announced, or that comes compressed, counts as the largest
of its call. One request is let through however large, so that none starves. A client that waits for
"100 Continue" hears it when there is room for its body.

Who announces much and sends it slowly holds what it has announced for hours. So the bodies of one client
(access.py) may be as many bytes as they leave free for others:

    a bound of 128 MiB      one client holds 64 at most; beside it another 32, beside both a third 16 ...
"""

from collections import Counter
from typing import NamedTuple

from aiohttp import HttpVersion11, web
from aiohttp.typedefs import Middleware

from ..engine.writer import Busy, Writer
from ..settings.config import Config
from .access import client_of
from .answers import Handler, problem_of_write
from .problems import Problem
from .requests import UNPACKING
from .turns import OneThread

ESCAPED = 6
"""Bytes of JSON for one of a payload, `\\u0000`."""
BESIDE_BYTES = 64 << 10
"""What a message has besides its payload: topic, headers, times."""
SMALL_BYTES = 1 << 20
OF_ONE = ("/v1/messages", "/v1/schedules/{name}", "/v1/schedules:preview")
"""Calls that take one message."""
OF_MANY = ("/v1/messages:batch", "/v1/jobs/{id}:commit")
"""Calls that take as much as any."""


class Most(NamedTuple):
    """The bytes that a body may have, and why."""

    bytes: int
    why: str


class Admission:
    """Bodies are counted before they are read."""

    def __init__(self, config: Config, writer: Writer) -> None:
        self._max_body = config.http.max_body
        largest = Most(self._max_body, "the most that limits.memory allows")
        one = ESCAPED * config.limits.max_payload + BESIDE_BYTES
        of_one = Most(one, f"{ESCAPED} x limits.max_payload + {BESIDE_BYTES}, for one message")
        self._by_path = {**dict.fromkeys(OF_ONE, min(largest, of_one)), **dict.fromkeys(OF_MANY, largest)}
        self._small = min(largest, Most(SMALL_BYTES, "for a call without messages"))
        self._max_bytes = config.limits.queued_bytes
        self._writer = writer
        self.bodies = OneThread("bodies")
        """Where large ones are read, and those that come compressed unpacked."""
        self._held: Counter[str] = Counter()
        """Bytes of bodies by client; one without any is not kept."""

    def middleware(self) -> Middleware:
        @web.middleware
        async def bounded(request: web.Request, handler: Handler) -> web.StreamResponse:
            if not request.body_exists:
                return await handler(request)
            most = self._most(request)
            length = request.content_length
            if length is not None and length > most.bytes:
                text = f"The body has {length} bytes, the limit is {most.bytes}: {most.why}."
                raise Problem("too-large", text)
            if length is None or "Content-Encoding" in request.headers:
                request, length = request.clone(client_max_size=most.bytes), most.bytes
            size = length
            client = client_of(request)
            try:
                self._enter(client, size)
            except Busy as error:
                raise problem_of_write(error) from None
            try:
                await _go_ahead(request)
                request[UNPACKING] = lambda work: self.bodies.do(client, work)
                return await handler(request)
            finally:
                self._leave(client, size)

        return bounded

    def size(self, length: int | None) -> int:
        """The bytes that a body of this announced length counts for. Raises Problem if it is too large."""
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
    """What aiohttp does with `Expect` before a middleware sees the request: nothing."""


async def _go_ahead(request: web.Request) -> None:
    """Where there is no such call aiohttp has said so by itself."""
    is_known = request.match_info.http_exception is None
    if is_known and "Expect" in request.headers and request.version >= HttpVersion11:
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.writer.output_size = 0  # the answer has not begun
