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
from typing import Protocol

from ..fair import FairQueue, Part

log = logging.getLogger(__name__)

PIECE = 256
"""Connections that write one after the other, some 3 ms, ..."""
PIECE_S = 0.005
"""... and for how long, but for the last one: who has ended leaves its session, and a thousand shared
subscriptions with it. Then the loop looks at what has come."""
PIECE_BYTES = 2 << 20
"""What they write in one go: the loop gives it to the sockets at the end of its turn, some 3 ms a MiB."""
FILLING = 16
"""While there is more to dispatch, this part of those with deliveries writes in a turn, ..."""
FILLING_MIN = 32
"""... but no fewer than these: they would have hundreds of deliveries each."""


ANSWERS = 0.5
"""The part of the time and of the connections of a piece that answers may have while deliveries wait: a flood
of pings would else leave them one connection in a turn."""


class Writes(Protocol):
    """A connection with something to send."""

    @property
    def owner(self) -> str:
        """Whose it is (loop_time.py)."""

    def flush(self) -> int:
        """Write what there is; bytes."""


class Outgoing:
    """The connections that wait to write; those with answers before the others."""

    def __init__(self, mono: Callable[[], float], part: Part) -> None:
        """`part`: of PIECE_S and PIECE_BYTES."""
        self._mono = mono
        self._part = part
        self._answers = Line()
        self._deliveries = Line()
        self._is_planned = False
        self.is_filling = False
        """There is more to dispatch at once; set by whoever does that, each time."""
        self._bytes_left = 0
        """Of this turn."""

    def add(self, link: Writes) -> None:
        """Have it write soon, once: there are deliveries."""
        self._deliveries.add(link)
        self._plan()

    def press(self, link: Writes) -> None:
        """The same, but it does not wait for more: there are answers, perhaps behind deliveries."""
        self._deliveries.discard(link)
        self._answers.add(link)
        self._plan()

    def flush(self) -> None:
        """Those whose turn it is, now."""
        now_s, for_s = self._mono(), PIECE_S * self._part.now
        self._bytes_left = int(PIECE_BYTES * self._part.now)
        of_answers = ANSWERS if self._deliveries else 1.0
        left = PIECE - self._write(self._answers, int(PIECE * of_answers), now_s + for_s * of_answers)
        if self.is_filling:
            left = min(left, max(FILLING_MIN, len(self._deliveries) // FILLING))
        self._write(self._deliveries, left, now_s + for_s)

    def _write(self, line: "Line", most: int, until_s: float) -> int:
        """How many have written."""
        count, waiting = 0, min(len(line), most)
        while count < waiting and line:  # who writes may press another, which then waits elsewhere
            count += 1
            try:
                self._bytes_left -= line.take().flush()
            except Exception:
                log.exception("connection: output could not be written")
            if self._bytes_left <= 0 or self._mono() >= until_s:
                break
        line.end_turn()
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


class Line:
    """Connections in the order of their coming. Those that a turn had no time for wait by owner."""

    def __init__(self) -> None:
        self._new: OrderedDict[Writes, None] = OrderedDict()
        self._left = FairQueue[Writes]()
        self._is_left: set[Writes] = set()
        """The same. One may have written meanwhile, with its answers."""

    def __len__(self) -> int:
        return len(self._new) + len(self._is_left)

    def add(self, link: Writes) -> None:
        """It waits, once."""
        if link not in self._is_left:
            self._new[link] = None

    def discard(self, link: Writes) -> None:
        """It need not wait, if it has come in this turn."""
        self._new.pop(link, None)

    def take(self) -> Writes:
        """The next one. Raises KeyError if none waits."""
        if not self._is_left:
            return self._new.popitem(last=False)[0]
        self.end_turn()
        _, link = self._left.take()
        self._is_left.discard(link)
        return link

    def end_turn(self) -> None:
        """Those that still wait have their turns by owner."""
        if self._new:
            for link in self._new:
                self._left.add(link.owner, link)
            self._is_left.update(self._new)
            self._new.clear()
