"""Which rows of the timeline a call asks for: selected, shown, counted.

Listing, export, density and bulk changes select in the same way. A selection is read as everything else is:
in position order, stubs of moves passed over (a moved message is shown where it is now). The range is of the
timeline: where a message stands, which is its due, or, for one that came late, when it came.

    state      read from        to             shown
    pending    horizon          end            what is no stub
    dispatched start            horizon        no stub, not expired
    expired    start            horizon        time to live over when it was dispatched
    cancelled  start            end            what a cancel left
    all        start            end            everything but what a move left

A page looks at 20,000 rows at most and carries 4 MiB of messages at most, and fewer while all pages that are
being read have filled their part of `limits.memory`: when a filter matches little it is short, or empty, and
goes on from there. The reading is done in steps, each in a turn of its own (turns.py).

A count reads everything in its range, in steps too, but for pending messages without a topic filter: there a
whole slice is one number, and without a range the server has the sum at hand.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from heapq import merge
from operator import itemgetter
from typing import NamedTuple

from shards.fields import Record
from shards.read import Found, Row
from shards.record import decode, is_moved, is_stub, topic_of
from shards.state import CANCELLED, PENDING, State, state_of
from timeline.filters import TopicError, check_filter, matches
from timeline.position import END, HELD_SHARD, START, MessageId, Position, before

from .access import Sees
from .timeline import Timeline
from .turns import Turn
from .values import shapes
from .values.bodies import FieldError
from .values.views import message_view

STEP_ROWS = 1_000
LOOK_ROWS = 20_000
COUNT_STEP_ROWS = 4_000
PAGE_BYTES = 4 << 20
VIEW_BYTES = 1_000
"""What a message that is shown takes in RAM besides its row."""
TOPICS_MAX = 10_000
ALL = "all"
EVERYTHING = "#"

_place = itemgetter(0)


def visible(timeline: Timeline, message: MessageId, sees: Sees | None) -> Found | None:
    """The message, if there is one and it is there for who asks; its stub if it was cancelled or moved."""
    found = timeline.reader.find(message)
    return found if found is None or sees is None or sees(topic_of(found.value)) else None


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


def query_over(
    topic: str | None, since_ms: int | None, until_ms: int | None, *, state: str = PENDING, limit: int = 0
) -> Query:
    """A query over since <= due < until, ms; None: unbounded, any topic. `#` is everything, also what has no
    topic. Raises FieldError for the topic."""
    check_selects(topic)
    return Query(*span_of(since_ms, until_ms), "" if topic in (None, EVERYTHING) else topic, state, limit)


def check_selects(topic: str | None) -> None:
    """Raises FieldError for a topic that is no filter."""
    if topic is not None:
        try:
            check_filter(topic)
        except TopicError as error:
            raise FieldError("topic", str(error)) from None


def span_of(since_ms: int | None, until_ms: int | None) -> tuple[Position, Position]:
    """The positions from `since_ms` on, up to but without `until_ms`; None: unbounded."""
    return START if since_ms is None else before(since_ms), END if until_ms is None else before(until_ms)


class Page(NamedTuple):
    """What there is to show."""

    views: list[shapes.Message]
    last: Position | None
    """Behind it the next page begins; None: there is none."""
    is_hidden: bool = False
    """`last` is that of a message which is not there for who asks."""


class Selection:
    """The rows that a query asks for, as of the horizon when it was made; `sees`: those that are there."""

    def __init__(self, timeline: Timeline, query: Query, sees: Sees | None) -> None:
        self._timeline = timeline
        self._query = query
        self._sees = sees
        self._is_chosen = bool(query.topic) or sees is not None
        """By its topic."""
        self._horizon = timeline.horizon.position
        self._journal = timeline.journal()
        self._fits: dict[bytes, bool] = {}
        self._structures = timeline.structures_of((query.topic,)) if query.topic else None

    async def page(self, turn: Turn) -> Page:
        """The next messages and the position of the last one looked at, None at the end of the range.

        For who does not see all it is that of the last one given, if the page is full; if it is short,
        because many rows have been looked at, it may be that of one which is not there for him.
        """
        try:
            return await self._page(turn)
        finally:
            turn.release()

    async def _page(self, turn: Turn) -> Page:
        limit, start = self._query.limit, self._query.start
        views: list[shapes.Message] = []
        looked = size = 0
        last = given = start
        is_crowded = False
        while True:
            await turn.begin()
            count, is_end = 0, True
            for place, number, value in self.rows(start):
                count += 1
                view = self._view(place, number, value)
                if view is not None:
                    if len(views) == limit or size > PAGE_BYTES or is_crowded:
                        return Page(views, last if self._sees is None else given)
                    views.append(view)
                    size += len(value)
                    is_crowded = not turn.keep(len(value) + VIEW_BYTES)
                    given = place
                last = place
                if count == STEP_ROWS or turn.is_over(count):
                    is_end = False
                    break
            looked += count
            if is_end:
                return Page(views, None)
            if looked >= LOOK_ROWS:
                return Page(views, last, is_hidden=self._sees is not None and last != given)
            start = Position(last + 1)

    def rows(self, start: Position) -> Iterator[Row]:
        """Rows at or behind `start` that can be in the selection, held ones among them."""
        query, timeline = self._query, self._timeline
        low, high = start, query.end
        if query.state == PENDING:
            low = max(low, Position(self._horizon + 1))
        elif query.state not in (CANCELLED, ALL):
            high = min(high, Position(self._horizon + 1))
        rows = timeline.reader.read(low, high, self._structures) if low < high else iter(())
        if timeline.held:
            held = [row for row in timeline.reader.held() if start <= row[0] < query.end]
            rows = merge(held, rows, key=_place)
        return rows

    def shows(self, place: Position, number: int, value: bytes) -> tuple[Record, State, int | None] | None:
        """The record, its state and when it was dispatched, if the query asks for it."""
        query = self._query
        if is_moved(value):
            return None
        if query.state == PENDING and is_stub(value):
            return None
        if self._is_chosen and not self._has_topic(topic_of(value)):
            return None
        record = decode(value)
        is_held = number == HELD_SHARD
        state, at_ms = state_of(place, record, self._horizon, self._journal, is_held=is_held)
        return (record, state, at_ms) if query.state in (state, ALL) else None

    def counts(self, place: Position, number: int, value: bytes) -> bool:
        """Whether `shows` would show it; cheaper for pending ones."""
        if self._query.state == PENDING:
            return not is_stub(value) and (not self._is_chosen or self._has_topic(topic_of(value)))
        return self.shows(place, number, value) is not None

    def _view(self, place: Position, number: int, value: bytes) -> shapes.Message | None:
        shown = self.shows(place, number, value)
        if shown is None:
            return None
        record, state, at_ms = shown
        name = self._timeline.id_at(place, number, record)
        return message_view(name, place, record, state, at_ms)

    def _has_topic(self, topic: bytes) -> bool:
        fits = self._fits.get(topic)
        if fits is None:
            if len(self._fits) >= TOPICS_MAX:
                self._fits.clear()
            wanted = self._query.topic
            fits = (not wanted or matches(wanted, topic.decode())) and (
                self._sees is None or self._sees(topic)
            )
            self._fits[topic] = fits
        return fits


async def count(
    timeline: Timeline, query: Query, sees: Sees | None, turn: Turn, is_abandoned: Callable[[], bool]
) -> int:
    """How many messages the query selects, page limits aside. `is_abandoned`: nobody waits for it."""
    if query.state != PENDING or query.topic or sees is not None:
        return await _count_rows(timeline, query, sees, turn, is_abandoned)
    start = max(query.start, Position(timeline.horizon.position + 1))
    if query.is_whole and not timeline.held:
        return timeline.pending
    held = [place for place, _, value in timeline.reader.held() if not is_stub(value)]
    total = sum(1 for place in held if query.start <= place < query.end)
    # Slice by slice, each looked up when it is its turn: one may be split while another is counted.
    await turn.begin()
    pieces = 0
    while (piece := timeline.directory.first_over(start, query.end)) is not None:
        pieces += 1
        if turn.is_over(pieces):
            await turn.begin()
            continue  # the directory may be another by now
        first, last = before(piece.start_ms), before(piece.end_ms)
        if start <= first and last <= query.end:
            total += piece.live
        else:
            part = replace(query, start=max(start, first), end=min(query.end, last))
            total += await _count_rows(timeline, part, None, turn, is_abandoned, with_held=False)
        start = last
    return total


async def _count_rows(
    timeline: Timeline,
    query: Query,
    sees: Sees | None,
    turn: Turn,
    is_abandoned: Callable[[], bool],
    *,
    with_held: bool = True,
) -> int:
    selection = Selection(timeline, query, sees)
    total, start = 0, query.start
    while not is_abandoned():
        await turn.begin()
        is_end = True
        for looked, row in enumerate(selection.rows(start), 1):
            if selection.counts(*row) and (with_held or row[1] != HELD_SHARD):
                total += 1
            start = Position(row[0] + 1)
            if looked == COUNT_STEP_ROWS or turn.is_over(looked):
                is_end = False
                break
        if is_end:
            break
    return total
