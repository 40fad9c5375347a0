"""Unfinished messages of a place, and their fate when the place is deleted or skipped forward.

    lag          due, and not read                       (lag.py: reads a bounded number of rows)
    in_flight    sent, and not acked
    retries      wait for their next try, the first one at `next_retry_at`
    oldest_at    due of the oldest message unread, in flight, or next to be retried

A place with none of these can be deleted at once. Otherwise the call must choose: `dead` (dead letters) or
`drop`.
"""

from collections.abc import Sequence
from typing import Annotated, Literal, cast

import msgspec
from aiohttp import web

from timeline.position import Position, at_of

from ..delivery.place import Place
from ..delivery.router import Router
from ..settings.times import time_text
from .lag import lag_of, position_of
from .problems import Problem
from .timeline import Timeline
from .values import shapes
from .values.bodies import FieldError

Retries = tuple[int, tuple[Position, Position] | None]
DEAD, DROP = "dead", "drop"
Fate = Literal["dead", "drop"]
DELETED = {
    "undone": Annotated[
        Fate, msgspec.Meta(description="what becomes of what is not finished: dead letters, or dropped")
    ]
}
"""The query parameters of a DELETE."""


class Skip(msgspec.Struct, forbid_unknown_fields=True):
    """The body of `:skip`. `to`: now, an RFC 3339 time, or a duration back from now."""

    to: str = "now"
    undone: Fate = "dead"


SKIP = msgspec.json.Decoder(Skip)


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


def is_undone(subscriber: Place, timeline: Timeline, router: Router, look_rows: int) -> bool:
    """Whether there is, or may be, anything unfinished: of a place far behind not all is read."""
    lag = lag_of(subscriber, timeline, router, look_rows)
    return (
        lag.lag_messages > 0
        or not lag.lag_messages_is_exact
        or bool(subscriber.session.flights)
        or any(root in subscriber.rows.out for root in subscriber.flying())
        or retries_of(subscriber, timeline)[0] > 0
    )


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


def add_up(found: Sequence[shapes.Undone]) -> shapes.Undone:
    """The sum over several places."""
    times = [one.next_retry_at for one in found if one.next_retry_at is not None]
    oldest = [one.oldest_at for one in found if one.oldest_at is not None]
    return shapes.Undone(
        lag=sum(one.lag for one in found),
        in_flight=sum(one.in_flight for one in found),
        retries=sum(one.retries for one in found),
        next_retry_at=min(times, default=None),
        oldest_at=min(oldest, default=None),
    )


def skip_position(body: Skip, timeline: Timeline, now_ms: int) -> Position:
    """The position to skip to. Raises FieldError."""
    if body.to == "now":
        return timeline.horizon.position
    return position_of("to", body.to, now_ms)
