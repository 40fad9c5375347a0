"""Who has something to send: written to its socket when the turn of the loop ends, or before long work.

A connection gathers what a turn gives it and writes once (server/mqtt/link.py). It says so here instead of
planning that itself, so that what a round has dispatched can leave before the round goes on to compose and
write a group, which takes some milliseconds; and the writes of thousands of connections are done in pieces.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable

log = logging.getLogger(__name__)

PIECE = 256
"""Connections that write one after the other: some 3 ms. Then the loop looks at what has come."""


class Outgoing:
    """The connections that wait to write, in the order of their coming."""

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], None]] = deque()
        self._is_planned = False

    def add(self, write: Callable[[], None]) -> None:
        """Have `write` called soon, once."""
        self._waiting.append(write)
        if not self._is_planned:
            self._is_planned = True
            asyncio.get_running_loop().call_soon(self._turn)

    def flush(self) -> None:
        """Those that are the first, now."""
        waiting = self._waiting
        for _ in range(min(len(waiting), PIECE)):
            try:
                waiting.popleft()()
            except Exception:
                log.exception("what a connection was given could not be written")

    def _turn(self) -> None:
        self.flush()
        self._is_planned = bool(self._waiting)
        if self._is_planned:
            asyncio.get_running_loop().call_soon(self._turn)
