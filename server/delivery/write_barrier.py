"""Write barrier of one connection: deliveries that wait until the session's cursor is durable.

QoS 2 to a session that outlives its connection must be known to the disk before it is on the wire: the packet
id and the position. Such a delivery waits until a batch with the cursor is durable, and what comes after it
waits behind it, so that order holds.
"""

from collections import deque
from collections.abc import Callable

from .link import Closing, Link
from .message import Message

WAITING_MAX = 1_000
"""Deliveries that may wait. Beyond it, or `limits.out_bytes` of them, the session falls behind."""

Persisted = Callable[[int], None]
"""Called when a cursor is durable, with the number of deliveries that waited when it was written; -1: the
store has failed."""


class WriteBarrier:
    """Sends what it was given when it may be sent."""

    __slots__ = ("_bytes_max", "_is_planned", "_link", "_persist", "bytes", "waiting")

    def __init__(self, link: Link, bytes_max: int, persist: Callable[[Persisted], None]) -> None:
        """`persist`: makes the session's cursor durable."""
        self._link: Link | None = link
        self._bytes_max = bytes_max
        self._persist = persist
        self._is_planned = False
        self.waiting: deque[tuple[Message, Callable[[], None]]] = deque()
        """Each with the call that sends it."""
        self.bytes = 0

    @property
    def is_full(self) -> bool:
        """Whether nothing more may wait; there is room again when something has been sent."""
        return len(self.waiting) >= WAITING_MAX or self.bytes >= self._bytes_max

    def hold(self, message: Message, send: Callable[[], None]) -> None:
        """Send it later."""
        self.waiting.append((message, send))
        self.bytes += message.body_bytes
        self._plan()

    def close(self) -> None:
        """The connection has ended: what waited is in flight, and is sent again on the next one."""
        self._link = None
        self.waiting.clear()
        self.bytes = 0

    def _plan(self) -> None:
        """Have the cursor made durable, then send what waited when it was written."""
        if not self._is_planned:
            self._is_planned = True
            self._persist(self._persisted)

    def _persisted(self, waiting: int) -> None:
        self._is_planned = False
        link = self._link
        if link is None:
            return
        if waiting < 0:
            link.close(Closing.STORE_FAILED)
            return
        for _ in range(min(waiting, len(self.waiting))):
            message, send = self.waiting.popleft()
            self.bytes -= message.body_bytes
            send()
        if self.waiting:
            self._plan()
