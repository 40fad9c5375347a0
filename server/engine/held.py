"""Held messages: the clock was set back behind what it had shown, and comes back.

A message that falls due between the wall clock and T waits in the table `held`, since nothing is written at
or behind the horizon. When the wall clock shows its due it is moved to T, under its own id, a step's worth in
one request. One that cannot be read is passed over; one that the writer refuses is tried again a second
later.
"""

import logging
from itertools import islice, takewhile

from shards.commit import Commit, Refused
from shards.errors import Corrupt
from shards.recover import Opened
from timeline.position import Position, at_of

from .clock import Clock
from .writer import GROUP_BYTES, Busy, Writer

log = logging.getLogger(__name__)

STEP = 1_000
RETRY_S = 1.0


class Held:
    """One step at a time; nothing to do is the usual case."""

    def __init__(self, opened: Opened, writer: Writer, clock: Clock) -> None:
        self._opened = opened
        self._writer = writer
        self._clock = clock
        self._from = 0.0
        self._is_asked = False
        self._stuck: set[Position] = set()
        """What cannot be read."""

    @property
    def is_settled(self) -> bool:
        """Nothing is due that can be read."""
        return not self._due(1)

    def step(self) -> None:
        """Ask the writer to move what the wall clock shows as due."""
        if self._writer.broken is not None or self._is_asked or self._clock.mono() < self._from:
            return
        due = self._due(STEP)
        if not due:
            return

        def release(commit: Commit) -> Refused | None:
            refused = None
            for place in due:
                if commit.open_group.size >= GROUP_BYTES:
                    break  # the others at the next step
                try:
                    commit.release(place)
                except Corrupt as error:
                    log.error("a held message is passed over: %s", error)
                    self._stuck.add(place)
                except Refused as fault:
                    refused = fault
            return refused

        def released(answer: object) -> None:
            self._is_asked = False
            if isinstance(answer, Exception):
                log.warning("held messages wait on: %s", answer)
                self._from = self._clock.mono() + RETRY_S

        self._is_asked = True
        try:
            self._writer.submit(release, released, cost=len(due))
        except Busy:
            self._is_asked = False

    def _due(self, limit: int) -> list[Position]:
        if not self._opened.held:
            return []
        wall_ms = self._clock.wall_ms()
        places = (place for place, _, _ in self._opened.reader.held() if place not in self._stuck)
        return list(islice(takewhile(lambda place: at_of(place) <= wall_ms, places), limit))
