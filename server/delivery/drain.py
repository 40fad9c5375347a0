"""Drain: groups and endpoints are given nothing new, so that what is out can be finished before a stop.

All groups and endpoints share one value, which holds them like a pause of their own: their read positions
stand, retries and returned messages wait, and members keep what they have. Sessions are not concerned. Groups
that are made or joined meanwhile are held too. It is not stored: it ends with the process, or with the term
of a cluster's leader.

    begin      groups stop tailing; messages for them are stored, or wait in the tail at QoS 0
    cancel     all groups read on
    out        what members have: messages leased over HTTP, sent over MQTT and not acked, posts under way

A message whose ack timeout is over is not out: its group goes on without that member. Of QoS 2 a message
belongs to the member, and is out while that member is connected.
"""

import logging
from collections.abc import Iterator, Mapping

from timeline.session import Flight

from .ready import Ready
from .settling.leases import Leases
from .shared import Group

log = logging.getLogger(__name__)


class StopFollows(Exception):
    """The server stops after this drain: it cannot be cancelled."""


class Drain:
    """The drain of one server."""

    def __init__(self, groups: Mapping[str, Group], ready: Ready, leases: Leases) -> None:
        """`groups`: by text; their owner goes on changing them. `leases`: all of them share it."""
        self._groups = groups
        self._ready = ready
        self._leases = leases
        self._is_last = False
        """The server stops at its end."""

    @property
    def since_ms(self) -> int | None:
        """When it began, wall ms; None: there is none."""
        return self._leases.drained_since_ms

    def begin(self, now_ms: int, *, is_last: bool = False) -> None:
        """Give groups and endpoints nothing from now on; nothing new if that is so. `is_last`: a stop
        follows."""
        self._is_last = self._is_last or is_last
        if self.since_ms is None:
            self._switch(now_ms)
            log.info("drain: groups and endpoints get nothing new; %d messages are out", self.out)

    def cancel(self) -> None:
        """Let all go on; nothing if there is no drain. Raises StopFollows."""
        if self._is_last:
            raise StopFollows("the server is stopping: its drain cannot be cancelled")
        if self.since_ms is not None:
            self._switch(None)
            log.info("drain: cancelled, groups and endpoints go on")

    def _switch(self, since_ms: int | None) -> None:
        self._leases.drained_since_ms = since_ms
        for group in self._groups.values():
            self._ready.pause(group)

    @property
    def is_done(self) -> bool:
        """Whether nothing is out."""
        return next(self._out(), None) is None

    @property
    def out(self) -> int:
        """How many messages are out. O(messages out)."""
        return sum(1 for _ in self._out())

    @property
    def leased(self) -> int:
        """How many of them are leased over the stop. O(messages out)."""
        return sum(1 for lent in self._out() if lent.loan and lent.loan.flight and lent.loan.flight.is_leased)

    def _out(self) -> Iterator[Flight]:
        for group in self._groups.values():
            for member, theirs in group.lent.items():
                for lent in theirs.values():
                    if group.is_held(lent) or (member.link is not None and not lent.is_of_group):
                        yield lent
