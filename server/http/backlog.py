"""Unfinished messages of a place, and their fate when the place is deleted or skipped forward.

    lag          due, and not read
    in_flight    sent, and not acked
    retries      wait for their next try, the first one at `next_retry_at`
    oldest_at    due of the oldest message unread, in flight, or next to be retried

Lag is the number of stored messages between the read position and the horizon that match the subscriptions,
and of those before it that wait for their key, of a group that orders. The count reads a bounded number of
rows and of bytes, since rows of 250 KB take twenty times as long as usual ones. Beyond that `lag_messages` is
what was found so far and `lag_messages_is_exact` is false. `lag_seconds` is the age of the first unread
message; 0 without one.

A place with none of these can be deleted at once. Otherwise the call must choose: `dead` (dead letters) or
`drop`.
"""

from typing import Annotated, Literal, cast

import msgspec
from aiohttp import web

from shards.record import decode, is_stub
from timeline.position import Position, at_of, before

from ..delivery.place import Place
from ..delivery.router import Router
from ..settings.durations import TimeError
from ..settings.times import instant_or_back, time_text
from .problems import Problem
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
Retries = tuple[int, tuple[Position, Position] | None]
DEAD, DROP = "dead", "drop"
Fate = Literal["dead", "drop"]
DELETED = {
    "undone": Annotated[
        Fate, msgspec.Meta(description="what becomes of what is not finished: dead letters, or dropped")
    ]
}
"""The query parameters of a DELETE."""


class Rewind(msgspec.Struct, forbid_unknown_fields=True, rename={"since": "from"}):
    """The body of `:replay`: an instant, or a duration back from now."""

    since: Since


class Skip(msgspec.Struct, forbid_unknown_fields=True):
    """The body of `:skip`. `to`: now, an RFC 3339 time, or a duration back from now."""

    to: str = "now"
    undone: Fate = "dead"


REWIND = msgspec.json.Decoder(Rewind)
SKIP = msgspec.json.Decoder(Skip)


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


def undone_of(subscriber: Place, timeline: Timeline, lag: shapes.Lag) -> shapes.Undone:
    """`lag`: the place's lag, already counted."""
    waits, first = retries_of(subscriber, timeline)
    dues = [at_of(flight.position) for flight in subscriber.session.flights.values()]
    if lag.lag_messages:
        dues.append(timeline.horizon.clock_ms - round(lag.lag_seconds * 1_000))
    if first is not None:
        dues.append(at_of(first[1]))
    return shapes.Undone(
        lag=lag.lag_messages,
        in_flight=len(subscriber.session.flights),
        retries=waits,
        next_retry_at=None if first is None else time_text(at_of(first[0])),
        oldest_at=time_text(min(dues)) if dues else None,
    )


def retries_of(subscriber: Place, timeline: Timeline) -> Retries:
    """Number of messages that wait for a try; time and root of the first."""
    # Rows in flight, or done and about to go, do not wait.
    others = subscriber.rows.out | subscriber.rows.over
    count, first = timeline.retries_of(subscriber.whose, others)
    waits = max(0, count - len(subscriber.rows.out)) if first is not None else 0
    return waits, first if waits else None


def fate_of(request: web.Request) -> Fate | None:
    """The fate in a DELETE's query. Raises FieldError."""
    fate = request.query.get("undone")
    if fate not in (None, DEAD, DROP):
        raise FieldError("undone", "must be dead or drop")
    return cast("Fate | None", fate)


def refuse_undone(what: str, undone: shapes.Undone) -> Problem:
    """The problem of a DELETE without a fate for unfinished messages."""
    detail = f"{what} has not finished all: say undone=dead for dead letters, or undone=drop"
    return Problem("undone", detail, undone=undone)
