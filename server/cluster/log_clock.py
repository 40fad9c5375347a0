"""The clock of the log's server, which counts as one more.

The log is asked for its state once a second, and its server says what time it is. So a node knows the
difference of the two clocks, as of any other node's (clocks.py). The server may run on this machine, and then
has this node's clock. So it confirms a step of that only if its own clock has not been set at the same time.
"""

from .clocks import FRESH_S, NodeClock, differ
from .reports import CALL_S, SET_S

ClockReading = tuple[int, float]
"""Wall time, ms, and elapsed time, s."""


class LogClock:
    """The difference to this node's clock, as last measured."""

    def __init__(self, clock: NodeClock) -> None:
        self._clock = clock
        self._found: tuple[int, int, float] | None = None
        self._ahead_ms: float | None = None
        """The server's clock minus the time that has elapsed here."""

    def now(self) -> ClockReading:
        """Take it before the log is asked."""
        return self._clock.system_ms(), self._clock.mono()

    def answered(self, server_ms: int, before: ClockReading) -> None:
        """The server has answered with its time; 0: it has told none."""
        (before_wall_ms, before_s), (now_ms, now_s) = before, self.now()
        took_s = now_s - before_s
        if not server_ms or took_s > CALL_S or abs((now_ms - before_wall_ms) / 1000 - took_s) > SET_S:
            return
        self._clock.wall_ms()
        ahead_ms, before_ms = server_ms - now_s * 1000, self._ahead_ms
        was_set = before_ms is None or differ(int(ahead_ms - before_ms), int(ahead_ms - before_ms))
        if was_set and self._clock.stepped_ms:
            self._found = None
            return
        self._ahead_ms = ahead_ms
        self._found = server_ms - now_ms, server_ms - before_wall_ms, now_s

    def forget(self) -> None:
        """This node's clock is another from now on."""
        self._found = None

    @property
    def offset_ms(self) -> int | None:
        """How far this node's clock is ahead; None: unknown."""
        if self._found is None or self._clock.mono() - self._found[2] > FRESH_S:
            return None
        return -(self._found[0] + self._found[1]) // 2

    @property
    def differs(self) -> bool:
        """For certain."""
        return self._is_known and self._found is not None and differ(*self._found[:2])

    @property
    def agrees(self) -> bool:
        return self._is_known and not self.differs

    @property
    def _is_known(self) -> bool:
        return self.offset_ms is not None
