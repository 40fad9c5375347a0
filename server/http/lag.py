"""Lag of a session or group, and setting it back.

Lag is the number of stored messages between the read position and the horizon that match the subscriptions,
and of those before it that wait for their key, of a group that orders.
The count reads a bounded number of rows and of bytes, since rows of 250 KB take twenty times as long as usual
ones. Beyond that `lag_messages` is what was found so far and `lag_messages_is_exact` is false. `lag_seconds`
is the age of the first unread message; 0 without one.
"""

import msgspec

from shards.record import decode, is_stub
from timeline.position import Position, at_of, before

from ..delivery.place import Place
from ..delivery.router import Router
from ..settings.durations import TimeError
from ..settings.times import instant_or_back
from .timeline import Timeline
from .values import shapes
from .values.bodies import FieldError
from .values.scalars import Since

LOOK_ROWS = 10_000
"""Maximum rows read for one place, ..."""
LIST_LOOK_ROWS = 1_000
"""... and for each of a list."""
LOOK_ROW_BYTES = 2 << 10
"""Bytes per row, over all rows: 2 MiB in a list, 20 MiB for one place, some 15 ms."""


class Rewind(msgspec.Struct, forbid_unknown_fields=True, rename={"since": "from"}):
    """The body of `:replay`: an instant, or a duration back from now."""

    since: Since


REWIND = msgspec.json.Decoder(Rewind)


def lag_of(subscriber: Place, timeline: Timeline, router: Router, look_rows: int) -> shapes.Lag:
    """Lag of a place behind the horizon, reading at most `look_rows` rows."""
    session, horizon = subscriber.session, timeline.horizon.position
    read, order = session.read_at(horizon), session.order
    start = Position(max(order.read_from(read), timeline.directory.floor - 1) + 1)
    first: Position | None = None
    count = looked = size = 0
    is_exact = True
    if session.subscriptions and start <= horizon:
        structures = timeline.structures_of(subscriber.filters)
        rows = timeline.reader.read(start, Position(horizon + 1), structures)
        for place, _, value in rows:
            looked += 1
            size += len(value)
            is_left = place not in session.finished and not is_stub(value)
            if place <= read and is_left:
                is_left = order.is_behind(decode(value).ordering_key, place)
            if is_left and router.wanted_in(subscriber, place, value):
                count += 1
                first = first or place
            if looked >= look_rows or size >= LOOK_ROW_BYTES * look_rows:
                is_exact = False
                break
    unread = first or (start if not is_exact else None)
    lag_ms = 0 if unread is None else max(0, timeline.horizon.clock_ms - at_of(unread))
    return shapes.Lag(count, is_exact, lag_ms / 1_000)


def position_of(field: str, text: str, now_ms: int) -> Position:
    """The position before an instant, or before a duration back from now. Raises FieldError."""
    try:
        return before(instant_or_back(text, now_ms))
    except TimeError as error:
        raise FieldError(field, str(error)) from None
