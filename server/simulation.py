"""Time travel for tests: walk a simulated clock through every due instant up to a target.

The clock stands still until it is told. `advance` sets it to the first due instant, waits until all that
is due there has been dispatched and written, goes to the next one, and so on: nothing counts as missed and
nothing is late, however far the step.

Housekeeping runs on the way, every half minute of simulated time as on a real day, but at most 100 times a
walk. Running time, from which retention counts, passes with the simulated clock.
"""

from shards.record import is_stub
from timeline.horizon import BOUND_MS
from timeline.position import Position, at_of, before

from .app import App
from .clock import NotSimulated, SimulatedClock
from .housekeeping import INTERVAL_S, Housekeeping

STOPS = 100


async def advance(app: App, housekeeping: Housekeeping, by_ms: int) -> int:
    """Move the clock by `by_ms`; the time it shows then, ms. One walk at a time.

    Raises NotSimulated, and what the store and the housekeeping raise.
    """
    clock = app.clock
    if not isinstance(clock, SimulatedClock):
        raise NotSimulated("the server runs on the system's clock")
    await app.quiet()
    await _reach(app, by_ms)
    target_ms = clock.now_ms + by_ms
    step_ms = max(INTERVAL_S * 1_000, -(-by_ms // STOPS))
    while True:
        start_ms = clock.now_ms
        await _walk(app, clock, min(target_ms, start_ms + step_ms))
        app.opened.commit.running_ms += clock.now_ms - start_ms
        await housekeeping.run_due()
        if clock.now_ms >= target_ms:
            # Where the clock stands is on disk before anybody is told: it never goes back, kill -9 or not.
            await app.ask(lambda commit: None)
            return target_ms


async def _reach(app: App, by_ms: int) -> None:
    """One durable bound for the whole walk, instead of one sync for every two seconds of it."""
    app.horizon.ahead_ms = by_ms + BOUND_MS
    try:
        await app.ask(lambda commit: None)
    finally:
        app.horizon.ahead_ms = BOUND_MS


async def _walk(app: App, clock: SimulatedClock, to_ms: int) -> None:
    """Through every due instant up to `to_ms`."""
    while (due_ms := _next_due(app, to_ms)) is not None:
        clock.now_ms = max(clock.now_ms, due_ms)
        await app.quiet()
    clock.now_ms = to_ms
    await app.quiet()


def _next_due(app: App, target_ms: int) -> int | None:
    """The first instant up to `target_ms` at which something is due; what is held is due before the rest."""
    now = app.horizon.position
    held = (at_of(place) for place, _, value in app.reader.held() if not is_stub(value))
    first = next(held, None)
    if first is not None:
        return first if first <= target_ms else None
    rows = app.reader.read(Position(now + 1), before(target_ms + 1))
    return next((at_of(place) for place, _, value in rows if not is_stub(value)), None)
