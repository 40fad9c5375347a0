"""The loop's time: what peers cause to be done shares one budget in each turn of the event loop, by owner.

An owner is a key, or the network of whoever has shown none. Reading a chunk of 64 KiB takes up to 3 ms: three
hundred connections that send one at the same moment would hold up everybody else for a second. So a turn has
TURN_S for all peers together. What comes later waits with its bytes unread, and has its turn in the order of
owners, not of connections: one work of each, keys and strangers in turns:

    turn 1   A reads, A reads, A reads | A, A, A, C ... wait
    turn 2   C reads, A reads, A reads | ...

So a client of another owner waits for one turn, some 10 ms, however many connections A has. An owner that is
alone has the whole turn: a smaller share made more and smaller group commits of the same requests (1.1 times
the processor time of 64 single ones in flight). One piece of work is not interrupted: whoever does it bounds it
(a few ms). Bounded: a connection waits once.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import cast

from .opening import Opening, read_on

log = logging.getLogger(__name__)

TURN_S = 0.005
"""For all owners together in one turn."""
KEY = "key "
"""What the owner of a client that has shown a key begins with."""

SMALL = 1024
"""Bytes of a first chunk that waits without being counted: the connection itself takes more."""

Work = Callable[[], None]


class LoopTime:
    """The budget of one event loop."""

    def __init__(self, mono: Callable[[], float]) -> None:
        self._mono = mono
        self._spent_s = 0.0
        """In this turn."""
        self._known: dict[str, deque[Work]] = {}
        self._strangers: dict[str, deque[Work]] = {}
        """What waits, by owner; the owner whose turn is next is the first. None is empty."""
        self._is_planned = False

    def begin(self, owner: str) -> float:
        """When the owner's work begins, for `end`; 0.0: it may not be done now, but has to `wait`."""
        if self._spent_s >= TURN_S or owner in self._known or owner in self._strangers:
            return 0.0
        return self._mono()

    def end(self, began_s: float) -> None:
        """The work is done."""
        self.charge(self._mono() - began_s)

    def charge(self, seconds: float) -> None:
        """Count work that is done for a peer elsewhere in this turn."""
        self._spent_s += seconds
        if not self._is_planned:
            self._plan()

    def wait(self, owner: str, work: Work) -> None:
        """Have `work` done when it is the owner's turn."""
        waiting = self._known if owner.startswith(KEY) else self._strangers
        waiting.setdefault(owner, deque()).append(work)
        if not self._is_planned:
            self._plan()

    def _plan(self) -> None:
        self._is_planned = True
        asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        """A turn of the loop has begun."""
        self._is_planned = False
        self._spent_s = 0.0
        first, second = self._known, self._strangers
        now_s = self._mono()
        while (first or second) and self._spent_s < TURN_S:
            if first:
                now_s = self._work(first, now_s)
            first, second = second, first
        if (first or second) and not self._is_planned:
            self._plan()

    def _work(self, waiting: dict[str, deque[Work]], began_s: float) -> float:
        """Do the next work of the owner whose turn it is, and move the owner behind the others.

        Returns when the work ended.
        """
        owner, works = next(iter(waiting.items()))
        work = works.popleft()
        if not works:
            del waiting[owner]
        elif len(waiting) > 1:
            waiting[owner] = waiting.pop(owner)
        try:
            work()
        except Exception:
            log.exception("work for %s failed", owner)
        ended_s = self._mono()
        self.charge(ended_s - began_s)
        return ended_s


class Paced(Opening):
    """What the loop tells a connection, in its owner's share of the loop's time.

    A chunk that comes when there is none is kept, and the socket is read no further; a first small one does
    not stop it. The end of the stream
    and the loss of the connection wait behind it.
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
        if not self._kept:
            return self._inner.eof_received()
        assert self._transport is not None
        if self._transport.get_extra_info("sslcontext") is not None:
            # TLS ends in both directions at once, whatever is answered here.
            self._go_on()
            return self._inner.eof_received()
        self._is_eof = True
        return True

    def pause_writing(self) -> None:
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._inner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._kept:
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
        if self._is_paused:
            # Before the bytes are handled: if the connection pauses on account of them, that counts.
            self._is_paused = False
            if not transport.is_closing():
                read_on(transport)
        try:
            if self._is_counted:
                self._is_counted = False
                inner.keep_unread(0)
            inner.data_received(data)
            if self._is_eof and self._lost is None and not (inner.eof_received() or transport.is_closing()):
                transport.close()
        except Exception:
            log.exception("what came on a connection could not be handled")
            transport.abort()
        if self._lost is not None:
            inner.connection_lost(*self._lost)
