"""`GET /v1/messages`: pages in position order, and exact counts.

A page is read from the timeline as everything else is: in position order, from where the cursor says, stubs
of moves passed over (a moved message is shown where it is now). The range `due_from` <= t < `due_to` is of
the timeline: where a message stands, which is its due, or, for one that came late, when it came.

    state      read from        to             shown
    pending    horizon          due_to         what is no stub
    dispatched due_from         horizon        no stub, not expired
    expired    due_from         horizon        time to live over when it was dispatched
    cancelled  due_from         due_to         what a cancel left
    all        due_from         due_to         everything but what a move left

A page looks at 20,000 rows at most and carries 4 MiB of messages at most: when a filter matches little it is
short, or empty, and `next` goes on from there. The reading is done in steps, and between two of them the
server does its other work.

A count reads everything in its range, in steps too, but for pending messages without a topic filter: there a
whole slice is one number, and without a range the server has the sum at hand.
"""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from heapq import merge
from itertools import islice
from operator import itemgetter
from typing import Annotated, Literal

import msgspec
from aiohttp import web

from shards.read import Row
from shards.record import MOVED, Record, decode, is_stub, topic_of
from shards.state import CANCELLED, PENDING, STATES, State, state_of
from timeline.filters import TopicError, check_filter, matches
from timeline.position import END, HELD_SHARD, START, MessageId, Position, before, message_id

from ...app import App
from ..answers import flag, instant_parameter, json_answer, limit_of
from ..calls import Gives, described
from ..values import shapes
from ..values.requests import FieldError
from ..values.scalars import FLAG, PAGED, SELECTED
from ..values.views import message_view

STEP_ROWS = 1_000
LOOK_ROWS = 20_000
COUNT_STEP_ROWS = 4_000
PAGE_BYTES = 4 << 20
TOPICS_MAX = 10_000
ALL = "all"
AnyState = Annotated[Literal[State, "all"], msgspec.Meta(extra_json_schema={"default": PENDING})]

_place = itemgetter(0)


@dataclass(frozen=True, slots=True)
class Query:
    """What a listing asks for. Positions: `start` <= position < `end`."""

    start: Position
    end: Position
    topic: str
    state: str
    limit: int

    @property
    def is_whole(self) -> bool:
        """Whether it asks for the whole timeline."""
        return self.start == START and self.end == END


def query_of(request: web.Request) -> Query:
    """The parameters but for the cursor. Raises FieldError naming one."""
    since, until = instant_parameter(request, "due_from"), instant_parameter(request, "due_to")
    state = request.query.get("state", PENDING)
    if state not in (*STATES, ALL):
        raise FieldError("state", f"must be one of {', '.join((*STATES, ALL))}, not {state[:40]!r}")
    return pending_query(request.query.get("topic"), since, until, state=state, limit=limit_of(request))


def pending_query(
    topic: str | None, since_ms: int | None, until_ms: int | None, *, state: str = PENDING, limit: int = 0
) -> Query:
    """A query over since <= due < until, ms; None: unbounded, any topic. Raises FieldError for the topic."""
    if topic is not None:
        try:
            check_filter(topic)
        except TopicError as error:
            raise FieldError("topic", str(error)) from None
    start = START if since_ms is None else before(since_ms)
    end = END if until_ms is None else before(until_ms)
    return Query(start, end, topic or "", state, limit)


def cursor_of(text: str) -> Position:
    """The position behind which a page begins. Raises FieldError."""
    if len(text) != 24 or not set(text) <= set("0123456789abcdef"):
        raise FieldError("cursor", "is not one that this server gave")
    return Position(int(text, 16))


class Listing:
    """The route."""

    def __init__(self, app: App) -> None:
        self._app = app

    def routes(self) -> list[web.RouteDef]:
        return [web.get("/v1/messages", self.get)]

    @described(
        "List and count",
        Gives(200, shapes.MessagePage),
        query={**SELECTED, "state": AnyState, **PAGED, "count": FLAG},
    )
    async def get(self, request: web.Request) -> web.Response:
        query = query_of(request)
        is_counted = flag(request, "count")
        cursor = request.query.get("cursor")
        page = query
        if cursor is not None:
            page = replace(query, start=max(query.start, Position(cursor_of(cursor) + 1)))
        selection = Selection(self._app, page)
        views, last = await selection.page()
        answer: shapes.MessagePage = {
            "messages": views,
            "next": None if last is None else f"{last:024x}",
        }
        if is_counted:
            answer["count"] = await count(self._app, query, lambda: request.transport is None)
        return json_answer(answer)


class Selection:
    """The rows that a query asks for, as of the horizon when it was made."""

    def __init__(self, app: App, query: Query) -> None:
        self._app = app
        self._query = query
        self._horizon = app.core.horizon.position
        self._journal = app.core.writer.journal()
        self._fits: dict[bytes, bool] = {}
        self._structures = app.core.reader.structures.overlapping((query.topic,)) if query.topic else None

    async def page(self) -> tuple[list[shapes.Message], Position | None]:
        """The next messages and the position of the last one looked at, None at the end of the range."""
        limit, start = self._query.limit, self._query.start
        views: list[shapes.Message] = []
        looked = size = 0
        last = start
        while True:
            count = 0
            for place, number, value in islice(self.rows(start), STEP_ROWS):
                count += 1
                view = self._view(place, number, value)
                if view is not None:
                    if len(views) == limit or size > PAGE_BYTES:
                        return views, last
                    views.append(view)
                    size += len(value)
                last = place
            looked += count
            if count < STEP_ROWS:
                return views, None
            if looked >= LOOK_ROWS:
                return views, last
            start = Position(last + 1)
            await asyncio.sleep(0)

    def rows(self, start: Position) -> Iterator[Row]:
        """Rows at or behind `start` that can be in the selection, held ones among them."""
        query, app = self._query, self._app
        low, high = start, query.end
        if query.state == PENDING:
            low = max(low, Position(self._horizon + 1))
        elif query.state not in (CANCELLED, ALL):
            high = min(high, Position(self._horizon + 1))
        rows = app.core.reader.read(low, high, self._structures) if low < high else iter(())
        if app.core.opened.held:
            held = [row for row in app.core.reader.held() if start <= row[0] < query.end]
            rows = merge(held, rows, key=_place)
        return rows

    def shows(self, place: Position, number: int, value: bytes) -> tuple[Record, State, int | None] | None:
        """The record, its state and when it was dispatched, if the query asks for it."""
        query = self._query
        if query.state == PENDING and is_stub(value):
            return None
        if query.topic and not self._has_topic(topic_of(value)):
            return None
        record = decode(value)
        if record.stub == MOVED:
            return None
        is_held = number == HELD_SHARD
        state, at_ms = state_of(place, record, self._horizon, self._journal, is_held=is_held)
        return (record, state, at_ms) if query.state in (state, ALL) else None

    def counts(self, place: Position, number: int, value: bytes) -> bool:
        """Whether `shows` would show it; cheaper for pending ones."""
        if self._query.state == PENDING:
            return not is_stub(value) and (not self._query.topic or self._has_topic(topic_of(value)))
        return self.shows(place, number, value) is not None

    def _view(self, place: Position, number: int, value: bytes) -> shapes.Message | None:
        shown = self.shows(place, number, value)
        if shown is None:
            return None
        record, state, at_ms = shown
        name = MessageId(record.id or message_id(place, number, self._app.core.node))
        return message_view(name, place, record, state, at_ms)

    def _has_topic(self, topic: bytes) -> bool:
        fits = self._fits.get(topic)
        if fits is None:
            if len(self._fits) >= TOPICS_MAX:
                self._fits.clear()
            fits = self._fits[topic] = matches(self._query.topic, topic.decode())
        return fits


async def count(app: App, query: Query, is_abandoned: Callable[[], bool]) -> int:
    """How many messages the query selects, page limits aside. `is_abandoned`: nobody waits for it."""
    if query.state != PENDING or query.topic:
        return await _count_rows(app, query, is_abandoned)
    if query.is_whole:
        return app.core.opened.pending
    held = [place for place, _, value in app.core.reader.held() if not is_stub(value)]
    total = sum(1 for place in held if query.start <= place < query.end)
    start = max(query.start, Position(app.core.horizon.position + 1))
    # Slice by slice, each looked up when it is its turn: one may be split while another is counted.
    while (piece := next(app.core.directory.over(start, query.end), None)) is not None:
        first, last = before(piece.start_ms), before(piece.end_ms)
        if start <= first and last <= query.end and not piece.borrowed:
            total += piece.live
        else:
            part = replace(query, start=max(start, first), end=min(query.end, last))
            total += await _count_rows(app, part, is_abandoned, with_held=False)
        start = last
    return total


async def _count_rows(
    app: App, query: Query, is_abandoned: Callable[[], bool], *, with_held: bool = True
) -> int:
    selection = Selection(app, query)
    total, start = 0, query.start
    while not is_abandoned():
        looked = 0
        for row in islice(selection.rows(start), COUNT_STEP_ROWS):
            looked += 1
            if selection.counts(*row) and (with_held or row[1] != HELD_SHARD):
                total += 1
            start = row[0]
        if looked < COUNT_STEP_ROWS:
            break
        start = Position(start + 1)
        await asyncio.sleep(0)
    return total
