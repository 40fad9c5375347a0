"""Time travel for tests: walk a simulated clock through every due instant up to a target.

The clock stands still until it is told. `advance` sets it to the first due instant, waits until all that
is due there has been dispatched and written, goes to the next one, and so on: nothing counts as missed and
nothing is late, however far the step. Housekeeping that became due on the way is run at the end.
"""

from shards.record import is_stub
from timeline.horizon import BOUND_MS
from timeline.position import Position, at_of, before

from .app import App
from .clock import SimulatedClock
from .jobs import Housekeeping


class NotSimulated(Exception):
    """The server runs on the system's clock."""


async def advance(app: App, housekeeping: Housekeeping, by_ms: int) -> int:
    """Move the clock by `by_ms`; the time it shows then, ms. Raises NotSimulated."""
    clock = app.clock
    if not isinstance(clock, SimulatedClock):
        raise NotSimulated("the server runs on the system's clock")
    target_ms = clock.now_ms + by_ms
    await app.quiet()
    # One durable bound for the whole walk, instead of one sync for every two seconds of it.
    app.horizon.ahead_ms = by_ms + BOUND_MS
    await app.ask(lambda commit: None)
    app.horizon.ahead_ms = BOUND_MS
    while (due_ms := _next_due(app, target_ms)) is not None:
        clock.now_ms = max(clock.now_ms, due_ms)
        await app.quiet()
    clock.now_ms = target_ms
    await app.quiet()
    await housekeeping.run_due()
    return target_ms


def _next_due(app: App, target_ms: int) -> int | None:
    """The first instant up to `target_ms` at which something is due."""
    now = app.horizon.position
    for place, _, value in app.reader.held():
        if place >> 48 <= target_ms and not is_stub(value):
            return place >> 48
        break
    rows = app.reader.read(Position(now + 1), before(target_ms + 1))
    return next((at_of(place) for place, _, value in rows if not is_stub(value)), None)
