"""Held messages: the clock was set back, and has not yet reached their due again.

A message that falls due between the wall clock and T waits in the table `held`, since nothing is written at
or behind the horizon. When the wall clock shows its due, it is moved to T, under its own id. An unreadable
one is passed over; a refused one is tried again a second later.
"""

import logging
from collections.abc import Iterator
from itertools import takewhile

from shards.commit import Refused
from shards.errors import Corrupt
from shards.recover import Opened
from timeline.position import Position, at_of

from ..observe.logs import by
from .clock import Clock
from .commit_hook import ignore
from .errand import RETRY_S, Errand
from .writer import Writer

log = logging.getLogger(__name__)

STEP = 1_000


class Held:
    """Releases held messages; usually there are none."""

    def __init__(self, opened: Opened, writer: Writer, clock: Clock) -> None:
        self._opened = opened
        self._clock = clock
        self._stuck: set[Position] = set()
        """Unreadable rows."""
        self.errand: Errand[Position, None] = Errand(
            writer,
            clock,
            lambda commit, place: commit.release(place),
            ignore,
            self._not_released,
            most=STEP,
            source=self._due,
        )

    def _due(self) -> Iterator[Position]:
        """Messages that are due by the wall clock."""
        if not self._opened.waiting.held:
            return iter(())
        wall_ms = self._clock.wall_ms()
        places = (place for place, _, _ in self._opened.reader.held() if place not in self._stuck)
        return takewhile(lambda place: at_of(place) <= wall_ms, places)

    def _not_released(self, place: Position, error: Exception) -> float | None:
        if isinstance(error, Corrupt):
            log.error("held message: unreadable, skipped: %s", error)
            self._stuck.add(place)
        elif isinstance(error, Refused):
            log.warning("held message: postponed: %s", error, extra=by("held messages"))
        return RETRY_S if isinstance(error, Refused) else None  # the table has it
