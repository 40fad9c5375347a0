"""The loop's time: what peers cause to be done shares one budget in each turn of the event loop, by owner.

An owner is a key, or the network of whoever has shown none. Reading a chunk of 64 KiB takes up to 3 ms: three
hundred connections that send one at the same moment would hold up everybody else for a second. So a turn has
TURN_S for all peers together. What comes later waits with its bytes unread, and has its turn in the order of
owners, not of connections: one work of each, keys and strangers in turns (server/fair.py). An owner that has
not worked in this turn may still begin: RESERVE_S is for those.

    turn 1   A reads, A reads, A reads | A, A, A wait   C reads (of the reserve)
    turn 2   A reads, A reads, A reads | ...

What was read is worked off later in the turn: messages are placed, dispatched and sent. So the length of
whole turns is measured. While several owners are there and turns are longer than LOOP_S, the part shrinks,
and with it what each piece of a turn may take: reading, deciding (engine/writer.py), dispatch, reading on,
sending (rounds/app.py), and what may wait between them (delivery/publishing.py).

A client of another owner waits for one turn, some 10 ms, however many connections A has. An owner that is
alone has the whole turn: a smaller share made more and smaller group commits of the same requests (1.1 times
the processor time of 64 single ones in flight). One piece of work is not interrupted: whoever does it bounds
it (a few ms). Bounded: a connection waits once.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import cast

from ..fair import FairQueue, Part
from .opening import Opening, read_on

log = logging.getLogger(__name__)

TURN_S = 0.005
"""For all owners together in one turn."""
RESERVE_S = 0.002
"""Beyond it, for owners that have not worked in this turn."""
KEY = "key "
"""What the owner of a client that has shown a key begins with."""

SMALL = 1024
"""Bytes of a first chunk that waits without being counted: the connection itself takes more."""

LOOP_S = 0.006
"""What a turn of the loop should take, with all that follows from what was read in it."""
SHARED = 0.9
"""The largest part while several owners are there."""
LEAST = 0.1
"""The smallest part, however long turns are."""
SHARED_S = 1.0
"""An owner is alone when no other has come for so long."""
BUSY_S = 0.001
"""From this on the length of a turn is measured."""

Work = Callable[[], None]


class LoopTime:
    """The budget of one event loop."""

    def __init__(self, mono: Callable[[], float], part: Part) -> None:
        """`part`: set here, in each turn."""
        self._mono = mono
        self._part = part
        self._budget_s = TURN_S
        """What peers may use of a turn."""
        self._spent_s = 0.0
        """In this turn."""
        self._reserved_s = 0.0
        """Of that what owners spent that came when the budget was used up."""
        self._is_reserved = False
        """Whether the work that has begun is of the reserve."""
        self._owners: set[str] = set()
        """Who has worked in this turn, or asked for it."""
        self._last = ""
        self._last_s = 0.0
        """Who came last, and when."""
        self._shared_until_s = 0.0
        """Until then turns are kept short."""
        self._began_s = 0.0
        """When the turn before began, if nothing was waited for since; else 0.0."""
        self._is_long = False
        """Something else in this turn takes time."""
        self._known = FairQueue[Work]()
        self._strangers = FairQueue[Work]()
        """What waits, by owner."""
        self._next, self._after_next = self._known, self._strangers
        """The same; whose turn is next comes first, in a later turn of the loop too."""
        self._is_planned = False

    def begin(self, owner: str) -> float:
        """When the owner's work begins, for `end`; 0.0: it may not be done now, but has to `wait`."""
        owners = self._owners
        self._is_reserved = self._spent_s >= self._budget_s
        if self._is_reserved and (owner in owners or self._reserved_s >= RESERVE_S):
            owners.add(owner)
            return 0.0
        if (self._known or self._strangers) and (owner in self._known or owner in self._strangers):
            return 0.0
        owners.add(owner)
        return self._mono()

    def end(self, began_s: float) -> None:
        """The work is done."""
        took_s = self._mono() - began_s
        self._spent_s += took_s
        if self._is_reserved:
            self._reserved_s += took_s
        if not self._is_planned:
            self._plan()

    def wait(self, owner: str, work: Work) -> None:
        """Have `work` done when it is the owner's turn."""
        self._owners.add(owner)
        (self._known if owner.startswith(KEY) else self._strangers).add(owner, work)
        if not self._is_planned:
            self._plan()

    def measure(self) -> None:
        """Something else in this turn takes time: its length counts."""
        self._is_long = True
        if not self._is_planned:
            self._plan()

    def _plan(self) -> None:
        self._is_planned = True
        asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        """A turn of the loop has begun."""
        self._is_planned = False
        now_s = self._mono()
        for owner in self._owners:
            if owner != self._last:
                if now_s < self._last_s + SHARED_S:
                    self._shared_until_s = now_s + SHARED_S
                self._last = owner
        if self._owners:
            self._last_s = now_s
            self._owners.clear()
        if now_s >= self._shared_until_s:
            self._part.now = 1.0
        else:
            change = LOOP_S / max(now_s - self._began_s, LOOP_S / 2) if self._began_s else 1.0
            self._part.now = min(SHARED, max(LEAST, self._part.now * change))
        self._budget_s = TURN_S * self._part.now
        self._reserved_s = 0.0
        is_busy = self._is_long or self._spent_s >= BUSY_S
        self._is_long = False
        self._work(now_s)
        is_busy = is_busy or self._spent_s >= BUSY_S
        self._began_s = now_s if is_busy else 0.0
        if (is_busy or self._known or self._strangers) and not self._is_planned:
            self._plan()

    def _work(self, now_s: float) -> None:
        """Do what waits, for as long as the turn has time: one work of each owner, then the next."""
        first, second = self._next, self._after_next
        until_s, ended_s = now_s + self._budget_s, now_s
        while (first or second) and ended_s < until_s:
            if first:
                owner, work = first.take()
                self._owners.add(owner)
                try:
                    work()
                except Exception:
                    log.exception("connection: work for a peer failed")
                ended_s = self._mono()
            first, second = second, first
        self._next, self._after_next = first, second
        self._spent_s = ended_s - now_s


class Paced(Opening):
    """What the loop tells a connection, in its owner's share of the loop's time.

    A chunk that comes when there is none is kept, and the socket is read no further; a first small one does
    not stop it. The end of the stream waits too (two thousand at once took 0.2 s), and behind it the loss of
    the connection.
    """

    __slots__ = ("_inner", "_is_counted", "_is_eof", "_is_paused", "_kept", "_lost", "_time", "_transport")

    def __init__(self, inner: Opening, time: LoopTime) -> None:
        self._inner = inner
        self._time = time
        self._kept: list[bytes] = []
        self._is_counted = False
        self._is_paused = False
        self._is_eof = False
        self._lost: tuple[Exception | None] | None = None
        self._transport: asyncio.Transport | None = None

    @property
    def is_begun(self) -> bool:
        return self._inner.is_begun

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._inner.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        inner, time = self._inner, self._time
        owner = inner.owner
        if not self._kept and (began_s := time.begin(owner)):
            inner.data_received(data)
            time.end(began_s)
        else:
            self._keep(data)

    def eof_received(self) -> bool | None:
        inner, time = self._inner, self._time
        assert self._transport is not None
        if self._transport.get_extra_info("sslcontext") is not None:
            # TLS ends in both directions at once, whatever is answered here.
            if self._kept:
                self._go_on()
            return inner.eof_received()
        if not self._kept:
            if began_s := time.begin(inner.owner):
                stays = inner.eof_received()
                time.end(began_s)
                return stays
            time.wait(inner.owner, self._go_on)
        self._is_eof = True
        return True

    def pause_writing(self) -> None:
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._inner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._kept or self._is_eof:
            self._lost = (exc,)
        else:
            self._inner.connection_lost(exc)

    def _keep(self, data: bytes) -> None:
        transport, kept = self._transport, self._kept
        assert transport is not None
        if not kept:
            self._time.wait(self._inner.owner, self._go_on)
            if len(data) <= SMALL:
                # A request or a ping: to pause and to go on would cost more than to read it.
                kept.append(data)
                return
        kept.append(data)
        self._inner.keep_unread(sum(map(len, kept)))
        self._is_counted = True
        if not transport.is_closing() and transport.is_reading():
            transport.pause_reading()
            self._is_paused = True

    def _go_on(self) -> None:
        """It is the owner's turn."""
        inner, transport = self._inner, self._transport
        assert transport is not None
        kept = self._kept
        data = kept[0] if len(kept) == 1 else b"".join(kept)
        kept.clear()
        is_eof, self._is_eof = self._is_eof, False
        if self._is_paused:
            # Before the bytes are handled: if the connection pauses on account of them, that counts.
            self._is_paused = False
            if not transport.is_closing():
                read_on(transport)
        try:
            if self._is_counted:
                self._is_counted = False
                inner.keep_unread(0)
            if data:
                inner.data_received(data)
            if is_eof and self._lost is None and not (inner.eof_received() or transport.is_closing()):
                transport.close()
        except Exception:
            log.exception("connection: received bytes could not be handled")
            transport.abort()
        if self._lost is not None:
            inner.connection_lost(*self._lost)
