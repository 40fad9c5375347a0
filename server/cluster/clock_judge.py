"""What a node makes of its clock: whether a step of it counts, and whether to lead by it.

The clocks of the other nodes (clocks.py) and of the log's server (log_clock.py) are the witnesses. If most of
them contradict this node's clock, it does not lead. If the log's server is one of them, only nodes that were
heard have a vote: when it and the only other node agree, a third that is away changes nothing.
"""

import logging

from .clocks import SKEW_MS, Clocks, NodeClock
from .log_clock import LogClock
from .members import Members

log = logging.getLogger(__name__)

UNASKED = "the other nodes have not been asked for their clocks yet"
"""Why a node that has just begun does not lead. It asks at once, and does not wait for answers for long."""
LOG_SERVER = "the log's server"


class ClockJudge:
    """Judges after each round of questions."""

    def __init__(self, node: str, clock: NodeClock) -> None:
        self._clock = clock
        self.clocks = Clocks(node, clock.mono)
        self.log_clock = LogClock(clock)
        self.agrees = False
        """Whether another node's clock is as this one's; or that of the log's server is, and a node with
        another clock is not fit: two contradict it."""
        self.fault = UNASKED
        """Why not to lead by this clock; empty: nothing speaks against it."""
        self._judged_ms = 0
        """The step of the clock that the measurements are about."""

    def judge(self, members: Members, named: int) -> None:
        """After the others were asked: a step counts or not, and `fault` is as of now. `named`: how many
        nodes the settings name."""
        clock, count = self._clock, max(named, sum(row.is_alive for row in members))
        clock.wall_ms()
        if abs(clock.stepped_ms - self._judged_ms) > SKEW_MS:
            # Perhaps while the others were asked: what they said may be about the time before.
            self._judged_ms = clock.stepped_ms
            log.warning("clock: set by %.1f s", self._judged_ms / 1000)
            self.clocks.forget()
            self.log_clock.forget()
        is_backed, by_log = self.clocks.agree(), self.log_clock.agrees
        others = self.clocks.contradicting(members)
        yielding = {row.member.node for row in members if row.is_alive and not row.member.fit}
        self.agrees = is_backed or (by_log and not yielding.isdisjoint(others))
        if clock.stepped_ms and (is_backed or by_log or count == 1):
            log.warning("clock: the new time is confirmed")
            clock.confirm()
            self._judged_ms = 0
        self.fault = ""
        is_outvoted = 2 * len(others) > count
        if self.log_clock.differs:
            others.append(LOG_SERVER)  # a node whose clock was never compared has no vote
            is_outvoted = is_outvoted or 2 * len(others) > len(self.clocks.compared(members)) + 2
        if is_outvoted:
            self.fault = (
                f"this node's clock differs by more than {SKEW_MS / 1000:g} s from {', '.join(others)}"
            )

    @property
    def offset_ms(self) -> int | None:
        """How far this node's clock is ahead of the others', or of the log's server alone; None: unknown."""
        offset_ms = self.clocks.offset_ms()
        return self.log_clock.offset_ms if offset_ms is None else offset_ms

    @property
    def waits(self) -> str:
        """In words: a step that nobody has confirmed; empty: none."""
        if not self._clock.stepped_ms:
            return ""
        by_s = self._clock.stepped_ms / 1000
        return (
            f"this node's clock was set by {by_s:.1f} s, neither another node nor the log confirms it:"
            " the former time counts"
        )

    @property
    def doubts(self) -> str:
        """In words: the log's server alone differs, which is no fault; empty: it does not."""
        offset_ms = self.log_clock.offset_ms
        if not self.log_clock.differs or offset_ms is None or LOG_SERVER in self.fault:
            return ""
        return f"this node's clock differs by {abs(offset_ms) / 1000:.1f} s from that of {LOG_SERVER}"
