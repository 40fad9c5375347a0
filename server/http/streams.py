"""Endless answers: bounds their number, and ends them when the server stops.

A stream holds a connection and is written once a second as long as its client stays. So there is a bound,
`http.event_streams`, and a bound of its own for `/v1/tail`. One client (access.py) may have as many streams
as it leaves free for others:

    a bound of 100      one client has 50 at most; beside it another 25, beside both a third 12 ...

If a client does not read its stream, at most the socket's buffer (64 KiB) waits, and the connection is closed
after `http.idle_timeout` (front.py), as for any other unread answer.
"""

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from aiohttp import web

from .answers import RETRY_AFTER
from .problems import Problem

MEDIA = "text/event-stream"
TAILS_MAX = 8
"""Maximum streams of `/v1/tail`, which look at each message."""


class Streams:
    """The streams of one server."""

    def __init__(self, max_streams: int) -> None:
        self._max = max_streams
        self._open: Counter[str] = Counter()
        """By client; clients without any have no entry."""
        self._stopping = asyncio.Event()

    def beside(self, max_streams: int) -> "Streams":
        """Others, with a bound of their own, which end with these."""
        others = Streams(max_streams)
        others._stopping = self._stopping
        return others

    @contextmanager
    def slot(self, client: str) -> Iterator[asyncio.Event]:
        """Context that holds a slot for one more stream; its event is set when all have to end. Raises
        Problem."""
        free = self._max - self._open.total()
        if free <= 0 or (self._open[client] and self._open[client] >= free):
            text = f"too many streams: {self._max} are open, or as many of one client as stay free"
            raise Problem("over-quota", text, headers=RETRY_AFTER)
        self._open[client] += 1
        try:
            yield self._stopping
        finally:
            self._open[client] -= 1
            if not self._open[client]:
                del self._open[client]

    def stop(self) -> None:
        """End all streams."""
        self._stopping.set()

    def __len__(self) -> int:
        return self._open.total()


async def begin_events(request: web.Request) -> web.StreamResponse:
    """Begin an answer of server-sent events."""
    headers = {"Content-Type": MEDIA, "Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    response = web.StreamResponse(headers=headers)
    await response.prepare(request)
    return response


async def ends_within(stopping: asyncio.Event, seconds: float) -> bool:
    """Wait until the next events are due; True at once if all streams have to end."""
    try:
        async with asyncio.timeout(seconds):
            return await stopping.wait()
    except TimeoutError:
        return False
