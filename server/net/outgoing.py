"""Connections with something to write: flushed when the turn of the loop ends, or before long work.

A connection gathers the output of a turn and writes once (server/mqtt/link.py). It registers here instead of
planning that itself. So dispatched messages can leave before the round composes and writes a group, which
takes some milliseconds, and the writes of thousands of connections are done in pieces.

A write and the read of its answer cost 25 us, as much as three deliveries. So while there is more to dispatch
at once (`is_filling`), deliveries wait to be written together: a sixteenth of the connections writes in a
turn. Of 100,000 messages due at once to 1,000 connections:

    pieces of 256 always       3.6 deliveries a write    16.5 us of processor time each
    a sixteenth, at most 256   12                        11.2 us

A turn is then some 8 ms, so that no connection waits much longer than 100 ms for others. Answers do not wait.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol

from ..fair import FairQueue, Part

log = logging.getLogger(__name__)

PIECE = 256
"""Maximum connections that write in one piece, some 3 ms, ..."""
PIECE_S = 0.005
"""... and maximum time, except for the last one: a closed one leaves its session, and a thousand shared
subscriptions with it. Then the loop reads input."""
PIECE_BYTES = 2 << 20
"""Maximum bytes written in one piece: the loop passes them to the sockets at the end of its turn, some 3 ms a
MiB."""
FILLING = 16
"""While there is more to dispatch, the divisor of connections with deliveries that write in a turn, ..."""
FILLING_MIN = 32
"""... but at least this many: they would have hundreds of deliveries each."""


ANSWERS = 0.5
"""Part of a piece's time and connections for answers while deliveries wait: otherwise a flood of pings would
leave deliveries one connection in a turn."""


class Writes(Protocol):
    """A connection with something to write."""

    @property
    def owner(self) -> str:
        """Its owner (loop_time.py)."""

    def flush(self) -> int:
        """Write everything; returns the bytes."""


class Outgoing:
    """The connections that wait to write; those with answers come first."""

    def __init__(self, mono: Callable[[], float], part: Part) -> None:
        """`part`: factor for PIECE_S and PIECE_BYTES."""
        self._mono = mono
        self._part = part
        self._answers = Line()
        self._deliveries = Line()
        self._is_planned = False
        self.is_filling = False
        """There is more to dispatch at once; set by dispatch, each time."""
        self._bytes_left = 0
        """Bytes left in this turn."""

    def add(self, link: Writes) -> None:
        """Register a connection with deliveries; it writes once, soon."""
        self._deliveries.add(link)
        self._plan()

    def press(self, link: Writes) -> None:
        """Register a connection with answers, perhaps behind deliveries: it does not wait for more."""
        self._deliveries.discard(link)
        self._answers.add(link)
        self._plan()

    def flush(self) -> None:
        """Write the connections whose turn it is."""
        now_s, for_s = self._mono(), PIECE_S * self._part.now
        self._bytes_left = int(PIECE_BYTES * self._part.now)
        of_answers = ANSWERS if self._deliveries else 1.0
        left = PIECE - self._write(self._answers, int(PIECE * of_answers), now_s + for_s * of_answers)
        if self.is_filling:
            left = min(left, max(FILLING_MIN, len(self._deliveries) // FILLING))
        self._write(self._deliveries, left, now_s + for_s)

    def _write(self, line: "Line", most: int, until_s: float) -> int:
        """Write from one queue; returns the number of connections."""
        count, waiting = 0, min(len(line), most)
        while count < waiting and line:  # a write may press another connection, which then waits elsewhere
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
    """Queue of connections in order of arrival. Those left over from a turn wait by owner."""

    def __init__(self) -> None:
        self._new: OrderedDict[Writes, None] = OrderedDict()
        self._left = FairQueue[Writes]()
        self._is_left: set[Writes] = set()
        """The same as a set. One may have written meanwhile, with its answers."""

    def __len__(self) -> int:
        return len(self._new) + len(self._is_left)

    def add(self, link: Writes) -> None:
        """Queue a connection, once."""
        if link not in self._is_left:
            self._new[link] = None

    def discard(self, link: Writes) -> None:
        """Remove a connection that has come in this turn."""
        self._new.pop(link, None)

    def take(self) -> Writes:
        """Take the next connection. Raises KeyError if none waits."""
        if not self._is_left:
            return self._new.popitem(last=False)[0]
        self.end_turn()
        _, link = self._left.take()
        self._is_left.discard(link)
        return link

    def end_turn(self) -> None:
        """Move what still waits to turns by owner."""
        if self._new:
            for link in self._new:
                self._left.add(link.owner, link)
            self._is_left.update(self._new)
            self._new.clear()
