"""Heartbeats of a leader whose loop is busy: records without changes, from a thread of their own.

A lease says that the leader is there, not that it is fast. Loading 100,000 sessions takes a loop longer than
a lease of 3 s. Without these heartbeats another node would take the lead meanwhile, and be as busy: nobody
would ever serve. But a loop that no longer turns leads nobody, so after TURNED_S without a turn they end, and
another node takes the lead.
"""

import asyncio
import logging
from collections.abc import Callable
from threading import Event, Thread
from typing import Self

from shards.errors import ShardsError

from ..engine.clock import Clock
from ..engine.lease import BEATS, Lease

log = logging.getLogger(__name__)

TURNED_S = 10.0
TURN_S = 0.25
"""Interval at which the loop notes that it turns."""


class Beats:
    """While this context lasts, keeps the lease fresh for a loop that is busy. Enter it on the loop."""

    def __init__(self, lease: Lease, beat: Callable[[], None], clock: Clock) -> None:
        """`beat`: appends a record; blocks. Raises StoreFailed."""
        self._lease = lease
        self._beat = beat
        self._clock = clock
        self._turned_at = clock.mono()
        self._timer: asyncio.TimerHandle | None = None
        self._over = Event()
        self._thread = Thread(target=self._run, name="beats", daemon=True)

    def __enter__(self) -> Self:
        self.turned()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Does not wait for a heartbeat under way."""
        self._over.set()
        if self._timer is not None:
            self._timer.cancel()

    def turned(self) -> None:
        """The loop turns."""
        self._turned_at = self._clock.mono()
        self._timer = asyncio.get_running_loop().call_later(TURN_S, self.turned)

    def step(self) -> None:
        """Append a heartbeat if one is needed. Blocks. Raises StoreFailed."""
        if self._lease.is_late and self._clock.mono() - self._turned_at < TURNED_S:
            self._lease.renewed_by(self._beat)

    def _run(self) -> None:
        try:
            while not self._over.wait(self._lease.for_s / BEATS):
                self.step()
        except ShardsError as error:
            log.warning("heartbeat: %s", error)  # the writer's next group finds it out too
