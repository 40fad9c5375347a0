"""The loop's time: work caused by peers shares one budget in each turn of the event loop, by owner.

An owner is a key, or the network of a client without one. Reading a chunk of 64 KiB takes up to 3 ms: three
hundred connections that send one at the same moment would delay all others by a second. So a turn has TURN_S
for all peers together. Later work waits with its bytes unread, and gets its turn by owner, not by connection:
one work of each, keys and strangers in turns (server/fair.py). An owner that has not worked in this turn may
still begin: RESERVE_S is for those.

    turn 1   A reads, A reads, A reads | A, A, A wait   C reads (of the reserve)
    turn 2   A reads, A reads, A reads | ...

Reading causes more work later in the turn: messages are placed, dispatched and sent. So the length of whole
turns is measured. While there are several owners and turns are longer than LOOP_S, the part shrinks. It
scales the time of each piece of a turn: reading, deciding (engine/writer.py), dispatch, replay, sending
(rounds/app.py), and the queue between them (delivery/publishing.py).

A client of another owner waits for one turn, some 10 ms, however many connections A has. A lone owner has the
whole turn: with a smaller share the same requests made more and smaller group commits (1.1 times the
processor time with 64 single ones in flight). A single work is not interrupted; it must bound itself (a few
ms). Bounded: a connection waits once.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import cast

from ..fair import FairQueue, Part
from .opening import Opening, read_on

log = logging.getLogger(__name__)

TURN_S = 0.005
"""Budget of all owners together in one turn."""
RESERVE_S = 0.002
"""Reserve beyond it, for owners that have not worked in this turn."""
TLS_HELLO = b"\x16\x03"
NO_TLS_HERE = b"this port does not speak TLS\r\n"
KEY = "key "
"""Prefix of owners with a key."""

SMALL = 1024
"""A first chunk of up to this size waits without being counted: the connection itself takes more."""

LOOP_S = 0.006
"""Target length of a turn, with all work caused by what was read in it."""
SHARED = 0.9
"""Maximum part while there are several owners."""
LEAST = 0.1
"""Minimum part, however long turns are."""
SHARED_S = 1.0
"""An owner counts as alone when no other has come for this long."""
BUSY_S = 0.001
"""Minimum length of a measured turn."""

Work = Callable[[], None]


class LoopTime:
    """The budget of one event loop."""

    def __init__(
        self, mono: Callable[[], float], part: Part, report_turn: Callable[[float], None] | None = None
    ) -> None:
        """`part`: set here, in each turn. `report_turn`: called with the seconds of each turn with work."""
        self._mono = mono
        self._part = part
        self._report_turn = report_turn
        self._entered_s = 0.0
        """Start of the first work of this turn, once the next one is planned."""
        self._budget_s = TURN_S
        """Time for peers in a turn."""
        self._spent_s = 0.0
        """Time used in this turn."""
        self._reserved_s = 0.0
        """Part of the reserve used in this turn."""
        self._is_reserved = False
        """Whether the running work uses the reserve."""
        self._owners: set[str] = set()
        """Owners that have worked, or waited, in this turn."""
        self._last = ""
        self._last_s = 0.0
        """The last owner, and when it came."""
        self._shared_until_s = 0.0
        """Turns are kept short until then."""
        self._began_s = 0.0
        """Start of the turn before, if the loop has not waited since; else 0.0."""
        self._is_long = False
        """Other work in this turn takes time."""
        self._known = FairQueue[Work]()
        self._strangers = FairQueue[Work]()
        """Waiting work, by owner."""
        self._next, self._after_next = self._known, self._strangers
        """The two queues; the first is the one whose turn is next, also in a later turn of the loop."""
        self._is_planned = False

    def begin(self, owner: str) -> float:
        """Begin work of an owner; returns its start for `end`. 0.0: not now, the owner must `wait`."""
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
        """End work."""
        took_s = self._mono() - began_s
        self._spent_s += took_s
        if self._is_reserved:
            self._reserved_s += took_s
        if not self._is_planned:
            self._plan(began_s)

    def wait(self, owner: str, work: Work) -> None:
        """Queue `work` until it is the owner's turn."""
        self._owners.add(owner)
        (self._known if owner.startswith(KEY) else self._strangers).add(owner, work)
        self.enter()

    def enter(self) -> None:
        """Other work of this turn begins."""
        if not self._is_planned:
            self._plan(self._mono())

    def measure(self) -> None:
        """Measure this turn: other work in it takes time."""
        self._is_long = True
        self.enter()

    def _plan(self, entered_s: float) -> None:
        self._is_planned, self._entered_s = True, entered_s
        asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        """A turn of the loop has begun."""
        self._is_planned = False
        now_s = self._mono()
        if self._report_turn is not None:
            self._report_turn(now_s - self._entered_s)
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
            self._plan(now_s)

    def _work(self, now_s: float) -> None:
        """Do waiting work while the turn has time: one work of each owner, then the next."""
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
    """Passes the loop's events to a connection within its owner's share of the loop's time.

    A chunk that comes without time left is kept, and reading pauses, except after a first small chunk. The
    end of the stream waits too (two thousand at once took 0.2 s), and behind it the loss of the connection.

    If a client begins with a TLS handshake on a port without TLS, the server closes the connection and logs
    it.
    """

    __slots__ = (
        "_cause",
        "_inner",
        "_is_counted",
        "_is_eof",
        "_is_paused",
        "_kept",
        "_lost",
        "_time",
        "_transport",
    )

    def __init__(self, inner: Opening, time: LoopTime, cause: Mapping[str, object] | None = None) -> None:
        """`cause`: the address for the log if the first bytes are TLS; None: they cannot be."""
        self._cause = cause
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
        """Whether there is, or was, a transport."""
        return self._transport is not None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._inner.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        inner, time = self._inner, self._time
        cause, self._cause = self._cause, None
        if cause is not None and data.startswith(TLS_HELLO):
            log.warning("connection closed: a TLS client on a port without TLS", extra=cause)
            assert self._transport is not None
            self._transport.write(NO_TLS_HERE)  # which TLS libraries report as a wrong version
            self._transport.close()
            return
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
            # TLS closes both directions at once, whatever is answered here.
            if self._kept:
                self._go_on()
            inner.eof_received()
            return False
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
                # A request or a ping: pausing and resuming would cost more than reading it.
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
            # Before handling the bytes: a pause that the connection makes because of them must count.
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
