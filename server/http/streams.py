"""Answers without an end: how many there may be, and that they end when the server does.

A stream holds a connection and is written to once a second for as long as its client stays. So there is a
bound, `http.event_streams`, of which one client (access.py) may have as many as it leaves free for others:

    a bound of 100      one client has 50 at most; beside it another 25, beside both a third 12 ...

Who does not read its stream is waited for, with at most what the socket's buffer takes (64 KiB), and is cut
after `http.idle_timeout` (front.py) like who does not read any other answer.
"""

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from .answers import RETRY_AFTER
from .problems import Problem


class Streams:
    """Those of one server."""

    def __init__(self, max_streams: int) -> None:
        self._max = max_streams
        self._open: Counter[str] = Counter()
        """By client; one without any is not kept."""
        self._stopping = asyncio.Event()

    @contextmanager
    def seat(self, client: str) -> Iterator[asyncio.Event]:
        """Room for one more until it is left; what is given is set when all have to end. Raises Problem."""
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
        """All of them end."""
        self._stopping.set()

    def __len__(self) -> int:
        return self._open.total()
