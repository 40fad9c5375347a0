"""Time travel for tests: moves a simulated clock through every due instant up to a target.

The clock stands still otherwise. `advance` sets it to the first due instant, waits until everything due there
has been dispatched and written, goes to the next one, and so on. So nothing is missed and nothing is late,
however far the step.

Housekeeping runs on the way, every half minute of simulated time as usual, but at most 100 times per move.
Running time, which retention counts, passes with the simulated clock.
"""

import asyncio
from collections.abc import Awaitable, Callable

from shards.record import is_stub
from timeline.horizon import BOUND_MS
from timeline.position import Position, at_of, before

from ..core import Core
from ..engine.clock import NotSimulated, SimulatedClock
from ..engine.writer import Ask
from ..settings.durations import TimeError
from ..settings.times import INSTANT_MS_MAX
from .housekeeping import INTERVAL_S, Housekeeping

STOPS = 100


class Simulation:
    """Moves of one server's simulated clock."""

    def __init__(
        self, core: Core, ask: Ask, quiet: Callable[[], Awaitable[None]], housekeeping: Housekeeping
    ) -> None:
        """`quiet`: waits until everything due has been dispatched and written."""
        self._core = core
        self._ask = ask
        self._quiet = quiet
        self._housekeeping = housekeeping
        self._walking = asyncio.Lock()

    async def advance(self, by_ms: int) -> int:
        """Move the clock by `by_ms`. Returns its new time, ms. A second move waits for the first.

        Raises NotSimulated, TimeError beyond the year 9999, and what the store and the housekeeping raise.
        """
        clock = self._core.clock
        async with self._walking:
            if clock.wall_ms() + by_ms > INSTANT_MS_MAX:
                raise TimeError("is after the year 9999")
            if not isinstance(clock, SimulatedClock):
                raise NotSimulated("the server runs on the system's clock")
            return await self._walk(clock, by_ms)

    async def _walk(self, clock: SimulatedClock, by_ms: int) -> int:
        await self._quiet()
        await self._reach(by_ms)
        target_ms = clock.now_ms + by_ms
        step_ms = max(INTERVAL_S * 1_000, -(-by_ms // STOPS))
        while True:
            start_ms = clock.now_ms
            await self._step(clock, min(target_ms, start_ms + step_ms))
            self._core.writer.ran(clock.now_ms - start_ms)
            await self._housekeeping.run_due()
            if clock.now_ms >= target_ms:
                # The clock's time is on disk before the caller gets it: it never goes back, whatever
                # kills the server.
                await self._ask(lambda commit: None)
                return target_ms

    async def _reach(self, by_ms: int) -> None:
        """Write one durable bound for the whole move, instead of a sync for every two seconds of it.

        Not beyond the target: after a kill, no message up to the bound can be cancelled.
        """
        horizon = self._core.horizon
        behind_ms = horizon.clock_ms - self._core.clock.wall_ms()
        horizon.ahead_ms = max(0, by_ms - behind_ms) + BOUND_MS
        try:
            await self._ask(lambda commit: None)
        finally:
            horizon.ahead_ms = BOUND_MS

    async def _step(self, clock: SimulatedClock, to_ms: int) -> None:
        """Move through every due instant up to `to_ms`."""
        while (due_ms := self._next_due(to_ms)) is not None:
            clock.now_ms = max(clock.now_ms, due_ms)
            await self._quiet()
        clock.now_ms = to_ms
        await self._quiet()

    def _next_due(self, target_ms: int) -> int | None:
        """The first instant up to `target_ms` at which something is due; held messages come first."""
        now, reader = self._core.horizon.position, self._core.reader
        held = (at_of(place) for place, _, value in reader.held() if not is_stub(value))
        first = next(held, None)
        if first is not None:
            return first if first <= target_ms else None
        rows = reader.read(Position(now + 1), before(target_ms + 1))
        first = next((at_of(place) for place, _, value in rows if not is_stub(value)), None)
        retry_ms = self._core.retries.next_ms
        if retry_ms is None or retry_ms > target_ms:
            return first
        return retry_ms if first is None else min(first, retry_ms)
