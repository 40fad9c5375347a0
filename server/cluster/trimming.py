"""What of the log may go, and whether there is room in it for more messages.

The log is kept for nodes that are behind: for `cluster.keep` bytes or half of its bound, and for as long as a
node is not given up (members.py). A bounded log is not kept for who is away beyond SHORT of its bound, and
then a fourth of its records go each second, whoever lacks them. A node that lacks what has gone takes a copy
of another node's data. Each node deletes only what is durable in its own store; and messages of others behind
that, if they are most of a log that gets short.

    0 ........ 1/4 ................. 3/4 ......... 7/8 ...... bound
       trimmed     trimmed each look     for who     RESERVE: messages are refused, heartbeats and claims
       now and                           is there    have room
       then

The leader trims. Another node does so while it hears no leader, or if the log gets short nevertheless: a full
log takes no claim, so whoever waits for a leader to make room would wait for ever.
"""

import logging
from collections import deque
from collections.abc import Callable

from shards.log.engine import LogState
from shards.replicated import ReplicatedStore

from .engine_side import LogSide
from .members import ALIVE_S, Members

log = logging.getLogger(__name__)

EVERY = 5
"""Trim the log every so many looks, while there is much room."""
SURE_S = 30.0
"""By then all live nodes have reported to a process."""
SHORT = 0.75
RESERVE = 8
"""This part of the bound, or RESERVE_BYTES, is kept for claims and all that is no message."""
RESERVE_BYTES = 64 << 20
LIMIT_S = 600.0
"""Pause between two tries to give the log a bound, ..."""
KEEPS = 2
"""... of so many times what is kept for nodes that are behind."""
NONE = LogState(1, 0)
MARKS = 64


class RetainedOffsets:
    """Marks (record, bytes up to it) of a log that is followed or written; the last `keep_bytes` are kept.

    MARKS divide the kept bytes. So the answer lags by a 64th, and by the bytes of the second between two
    notes. Records from before the process began are unknown and count as kept.
    """

    def __init__(self, keep_bytes: int) -> None:
        self.keep_bytes = keep_bytes
        self._marks: deque[tuple[int, int]] = deque()

    def note(self, seq: int, passed_bytes: int) -> None:
        """Note that the log up to record `seq` has `passed_bytes`; both only grow."""
        if not self._marks or passed_bytes - self._marks[-1][1] >= self.keep_bytes // MARKS:
            self._marks.append((seq, passed_bytes))
        while len(self._marks) > 1 and passed_bytes - self._marks[1][1] >= self.keep_bytes:
            self._marks.popleft()

    def oldest(self, passed_bytes: int) -> int:
        """The record up to which the log may be trimmed, whichever node lacks it; 0: none."""
        if not self._marks:
            return 0
        seq, at = self._marks[0]
        return seq if passed_bytes - at >= self.keep_bytes else 0


class Trimming:
    """Looks at the log now and then. For the loop."""

    def __init__(
        self, side: LogSide, members: Members, node: str, keep_bytes: int, mono: Callable[[], float]
    ) -> None:
        self._side = side
        self._members = members
        self._node = node
        self._keep_bytes = keep_bytes
        self._mono = mono
        self.state = NONE
        """As of the last answer."""
        self.bounds: tuple[int, int] | None = None
        """The log's first and last record; None: it does not answer."""
        self._since = self._looked_at = mono()
        self._looks = 0
        self._passed_bytes = 0
        self._limited_at = float("-inf")
        self._limit_fault = ""
        """Why the log has no bound, if it should have one."""
        self._trim_fault = ""
        """Why what may go is there still; empty: it has gone."""
        self.begin()

    @property
    def is_sure(self) -> bool:
        """Whether all live nodes have been heard."""
        return self._mono() - self._since > SURE_S

    def begin(self) -> None:
        """Another store is open."""
        self._offsets = RetainedOffsets(self._keep_bytes)

    async def look(self, store: ReplicatedStore | None) -> bool:
        """Ask for the log's state, and see to its bound. Returns whether it answers."""
        passed_bytes, now = 0 if store is None else store.passed_bytes, self._mono()
        if now - self._looked_at > ALIVE_S:
            self._since = now  # this process has stood still, and has heard nobody meanwhile
        self._looks += 1
        state = await self._side.state()
        self._looked_at = self._mono()
        self.bounds = None if state is None else (state.first, state.last)
        if state is None:
            return False
        self.state, self._passed_bytes = state, passed_bytes
        if state.max_bytes:
            self._limit_fault = ""
        elif now - self._limited_at > LIMIT_S:
            self._limited_at = now
            fault = await self._side.limit(KEEPS * self._keep_bytes)
            self._limit_fault = fault and f"the log has no bound, and may fill its servers: {fault}"
        return True

    async def trim(self, store: ReplicatedStore, durable: int, *, is_led: bool) -> None:
        """Delete what may go. `durable`: the record up to which the open store is. `is_led`: whether another
        node leads."""
        state, upto = self.state, 0
        self._offsets.keep_bytes = min(self._keep_bytes, state.max_bytes // KEEPS or self._keep_bytes)
        self._offsets.note(store.applied.seq, store.passed_bytes)
        is_time = self._looks % EVERY == 0 or state.used_bytes > state.max_bytes // 4 > 0
        if is_time and not is_led:
            upto = self._offsets.oldest(store.passed_bytes)
            if self.is_sure:
                upto = max(upto, self._members.lowest())
        if state.used_bytes > state.max_bytes * SHORT > 0:
            fourth = state.first + (state.last - state.first) // 4
            upto = max(upto, fourth, self._members.lowest(ALIVE_S))
            record, passed = store.passed
            if record == durable < fourth:
                upto = durable = passed  # all of them: then the next record stands where it is looked for
        goes, fault = min(upto, durable), ""
        if goes >= state.first:
            fault = await self._side.trim(goes)
        if goes >= state.first or is_time:
            before = self._trim_fault
            self._trim_fault = fault and f"the log is not trimmed: {fault}"
            if fault and self._trim_fault != before:
                log.warning("trimming: %s", self._trim_fault)

    def full(self, passed_bytes: int) -> str:
        """Why no more messages are taken; empty: they are. `passed_bytes` of the leader's store now."""
        most = self.state.max_bytes
        used = self.state.used_bytes + passed_bytes - self._passed_bytes
        if not most or most - used > min(RESERVE_BYTES, most // RESERVE):
            return ""
        return f"the log is full, at {used:,} of {most:,} bytes: no messages are taken until it is trimmed"

    def problems(self) -> list[str]:
        """What is wrong, in words."""
        first = self.state.first
        lines = [
            f"the log no longer has what {row.member.node} lacks: it takes a copy when it is back"
            for row in self._members.ours
            if not row.is_alive and row.member.node != self._node and row.member.applied < first - 1
        ]
        faults = self.full(self._passed_bytes), self._limit_fault, self._trim_fault
        return [*lines, *filter(None, faults)]
