"""`client.schedules` of the blocking client. See `fasti.sync`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Unpack

from . import schedules as _schedules
from .blocking import Loop
from .options import ScheduleOptions, Timing
from .schedules import Fires, Schedule


class Schedules:
    """See `fasti.schedules.Schedules`."""

    def __init__(self, loop: Loop, inner: _schedules.Schedules) -> None:
        self._loop = loop
        self._inner = inner

    def put(
        self, name: str, *, topic: str = "", payload: Any = "", **options: Unpack[ScheduleOptions]
    ) -> Schedule:
        """Make the schedule, or change it in place; its options: `fasti.options.ScheduleOptions`."""
        return self._loop.run(self._inner.put(name, topic=topic, payload=payload, **options))

    def get(self, name: str) -> Schedule:
        """Raises NotFound."""
        return self._loop.run(self._inner.get(name))

    def list(self) -> Iterator[Schedule]:
        """All schedules in order of their names."""
        return self._loop.iterate(self._inner.list())

    def delete(self, name: str) -> None:
        """Forget the schedule and cancel its pending occurrence."""
        self._loop.run(self._inner.delete(name))

    def pause(self, name: str) -> Schedule:
        """Take the pending occurrence back and fire no more."""
        return self._loop.run(self._inner.pause(name))

    def resume(self, name: str) -> Schedule:
        """Go on with the first fire after now."""
        return self._loop.run(self._inner.resume(name))

    def trigger(self, name: str) -> str:
        """Send its message now; gives the message's id."""
        return self._loop.run(self._inner.trigger(name))

    def preview(self, *, count: int = 10, name: str | None = None, **when: Unpack[Timing]) -> Fires:
        """The first fires of a schedule that need not be saved."""
        return self._loop.run(self._inner.preview(count=count, name=name, **when))

    def upcoming(self, name: str, count: int = 10) -> Fires:
        """The next fires of a saved schedule."""
        return self._loop.run(self._inner.upcoming(name, count))
