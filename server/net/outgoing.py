"""Who has something to send: written to its socket when the turn of the loop ends, or before long work.

A connection gathers what a turn gives it and writes once (server/mqtt/link.py). It says so here instead of
planning that itself, so that what a round has dispatched can leave before the round goes on to compose and
write a group, which takes some milliseconds; and the writes of thousands of connections are done in pieces.

A write and the read of what it is answered with cost 25 us, as much as three deliveries. So while there is
more to dispatch at once (`is_filling`), deliveries wait for company: a sixteenth of the connections writes in
a turn. Of 100,000 messages due at once to 1,000 connections:

    pieces of 256 always       3.6 deliveries a write    16.5 us of processor time each
    a sixteenth, at most 256   12                        11.2 us

A turn then is some 8 ms, so that nobody waits for much longer than 100 ms on account of others. Answers do
not wait for company.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable

log = logging.getLogger(__name__)

PIECE = 256
"""Connections that write one after the other, some 3 ms, ..."""
PIECE_S = 0.005
"""... and for how long, but for the last one: who has ended leaves its session, and a thousand shared
subscriptions with it. Then the loop looks at what has come."""
FILLING = 16
"""While there is more to dispatch, this part of those with deliveries writes in a turn, ..."""
FILLING_MIN = 32
"""... but no fewer than these: they would have hundreds of deliveries each."""


class Outgoing:
    """The connections that wait to write, in the order of their coming; who has answers before the others."""

    def __init__(self, mono: Callable[[], float]) -> None:
        self._mono = mono
        self._answers: OrderedDict[Callable[[], None], None] = OrderedDict()
        self._deliveries: OrderedDict[Callable[[], None], None] = OrderedDict()
        self._is_planned = False
        self.is_filling = False
        """There is more to dispatch at once; set by whoever does that, each time."""

    def add(self, write: Callable[[], None]) -> None:
        """Have `write` called soon, once: there are deliveries."""
        self._deliveries[write] = None
        self._plan()

    def press(self, write: Callable[[], None]) -> None:
        """The same, but it does not wait for more: there are answers, perhaps behind deliveries."""
        self._deliveries.pop(write, None)
        self._answers[write] = None
        self._plan()

    def flush(self) -> None:
        """Those that are the first, now."""
        until = self._mono() + PIECE_S
        left = PIECE - self._write(self._answers, PIECE, until)
        if self.is_filling:
            left = min(left, max(FILLING_MIN, len(self._deliveries) // FILLING))
        self._write(self._deliveries, left, until)

    def _write(self, waiting: OrderedDict[Callable[[], None], None], most: int, until_s: float) -> int:
        """How many have written."""
        count = min(len(waiting), most)
        for done in range(1, count + 1):
            try:
                waiting.popitem(last=False)[0]()
            except Exception:
                log.exception("what a connection was given could not be written")
            if self._mono() >= until_s:
                return done
        return count

    def _plan(self) -> None:
        if not self._is_planned:
            self._is_planned = True
            asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        self.flush()
        self._is_planned = False
        if self._answers or self._deliveries:
            self._plan()
