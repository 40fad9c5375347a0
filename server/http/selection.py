"""Selection: which rows of the timeline a call asks for, how they are shown and counted.

Listing, export, density and bulk changes select in the same way: in position order, skipping stubs of moves
(a moved message is shown where it is now). The range is of positions: a message's due or, if it came late,
its arrival.

    state      read from        to             shown
    pending    horizon          end            no stub
    dispatched start            horizon        no stub, not expired
    expired    start            horizon        time to live over when it was dispatched
    cancelled  start            end            stubs of cancels
    withheld   start            horizon        those that have a row of their own for it; no others are read
    all        start            end            all except stubs of moves

A selection by outcome reads up to the horizon, and with one of IN_TROUBLE only the messages of which a
delivery has a row, or that are withheld. So of a million messages the ten dead ones are found at once. What
is done is found everywhere.

A message that is moved between two pages must come once. So the pages of a listing, an export and a bulk call
are read *as of* the moment of the first one, (T, the last seq issued). Rows placed since are skipped: their
seq is higher. The stub that a move has left since stands for the message, wherever it is now.

A page reads at most 20,000 rows and carries at most 4 MiB of messages, and less while all running pages have
filled their part of `limits.memory`. So with a filter that matches little a page is short or empty, and the
next one continues from there. Reading is done in steps, each in its own turn (turns.py).

A count reads everything in its range, in steps too. For pending messages without a topic filter a whole slice
is one number, and without a range the server knows the sum.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from heapq import merge
from operator import itemgetter
from typing import NamedTuple

from msgspec import UNSET, UnsetType

from shards.errors import Corrupt
from shards.fields import Record
from shards.read import Found, Row
from shards.record import MOVED, decode, is_moved, is_stub, topic_of
from shards.state import CANCELLED, PENDING, WITHHELD, State, state_of
from timeline.filters import TopicError, check_filter, matches
from timeline.position import END, HELD_SHARD, START, MessageId, Position, at_of, before, seq_of

from ..delivery.outcomes import Look, Outcome, Outcomes
from .access import Sees
from .timeline import Timeline
from .turns import Turn
from .values import shapes
from .values.bodies import FieldError
from .values.message_body import ordering_key_bytes
from .values.views import message_view

STEP_ROWS = 1_000
LOOK_ROWS = 20_000
COUNT_STEP_ROWS = 4_000
PAGE_BYTES = 4 << 20
VIEW_BYTES = 1_000
"""RAM of a shown message besides its row."""
TOPICS_MAX = 10_000
ALL = "all"
IN_TROUBLE = ("failed", "retrying", "withheld")
EVERYTHING = "#"

_place = itemgetter(0)


def visible(timeline: Timeline, message: MessageId, sees: Sees | None) -> Found | None:
    """The message, if it exists and the caller may see it; its stub if it was cancelled or moved."""
    found = timeline.reader.find(message)
    return found if found is None or sees is None or sees(topic_of(found.value)) else None


@dataclass(frozen=True, slots=True)
class Query:
    """A listing's query. Positions: `start` <= position < `end`."""

    start: Position
    end: Position
    topic: str
    state: str
    limit: int
    ordering_key: bytes = b""
    """Empty: any, or none."""
    as_of: Position | None = None
    """(T, seq); None: now."""
    outcome: str = ""
    """Empty: any."""
    outcomes: Outcomes | None = None
    """Where they are known; None: they are neither shown nor selected."""

    @property
    def is_whole(self) -> bool:
        """Whether it covers the whole timeline."""
        return self.start == START and self.end == END


def query_over(
    topic: str | None,
    since_ms: int | None,
    until_ms: int | None,
    *,
    state: str = PENDING,
    limit: int = 0,
    ordering_key: str | None = None,
) -> Query:
    """A query over since <= due < until, ms; None: unbounded, any topic. `#` matches everything, also
    messages without a topic. Raises FieldError for the topic and the ordering key."""
    check_selects(topic)
    topic = "" if topic is None or topic == EVERYTHING else topic
    order = b"" if ordering_key is None else ordering_key_bytes(ordering_key)
    return Query(*span_of(since_ms, until_ms), topic, state, limit, order)


def check_selects(topic: str | None) -> None:
    """Raise FieldError for a topic that is not a filter."""
    if topic is not None:
        try:
            check_filter(topic)
        except TopicError as error:
            raise FieldError("topic", str(error)) from None


def span_of(since_ms: int | None, until_ms: int | None) -> tuple[Position, Position]:
    """The positions from `since_ms` up to but without `until_ms`; None: unbounded."""
    return START if since_ms is None else before(since_ms), END if until_ms is None else before(until_ms)


class Page(NamedTuple):
    """The messages of a page."""

    views: list[shapes.Message]
    last: Position | None
    """The next page begins behind it; None: there is none."""
    is_hidden: bool = False
    """The caller may not see the message at `last`."""


class Selection:
    """The rows of a query, as of the horizon when it was made; `sees`: those that the caller may see."""

    def __init__(self, timeline: Timeline, query: Query, sees: Sees | None) -> None:
        self._timeline = timeline
        self._query = query
        self._look = None if query.outcomes is None else Look(query.outcomes)
        """Outcomes of this step."""
        self._sees = sees
        self._is_chosen = bool(query.topic) or sees is not None
        """Selected by topic."""
        self._order = query.ordering_key
        self._horizon = timeline.horizon.position
        self._journal = timeline.journal()
        self._fits: dict[bytes, bool] = {}
        self._structures = timeline.structures_of((query.topic,)) if query.topic else None

    async def page(self, turn: Turn, start: Position = START) -> Page:
        """The next messages from `start` on, and the position of the last row read; None at the end of the
        range.

        For callers that do not see all messages it is the position of the last one returned, if the page is
        full. If the page is short because many rows were read, it may be one that the caller may not see.
        """
        try:
            return await self._page(turn, max(start, self._query.start))
        finally:
            turn.release()

    async def _page(self, turn: Turn, start: Position) -> Page:
        limit = self._query.limit
        views: list[shapes.Message] = []
        looked = size = 0
        last = given = start
        is_crowded = False
        while True:
            await turn.begin()
            count, is_end = 0, True
            for place, number, value in self.rows(start):
                count += 1
                met = self.met(place, number, value)
                view = None if met is None else self._view(*met)
                if view is not None:
                    if len(views) == limit or size > PAGE_BYTES or is_crowded:
                        return Page(views, last if self._sees is None else given)
                    views.append(view)
                    size += len(value)
                    is_crowded = not turn.keep(len(value) + VIEW_BYTES)
                    given = place
                last = place
                if count == STEP_ROWS or self.is_full or turn.is_over(count):
                    is_end = False
                    break
            looked += count
            if is_end:
                return Page(views, None)
            if looked >= LOOK_ROWS:
                return Page(views, last, is_hidden=self._sees is not None and last != given)
            start = Position(last + 1)

    def one(self, found: Found) -> shapes.Message | None:
        """A message that was found otherwise, if the query selects it."""
        return self._view(*found.address, found.value)

    @property
    def is_full(self) -> bool:
        """Whether outcomes have cost as much as they may in one step."""
        return self._look is not None and self._look.is_full

    def rows(self, start: Position) -> Iterator[Row]:
        """Rows at or behind `start` that may be selected, including held ones; for one step."""
        query, timeline = self._query, self._timeline
        low, high = start, query.end
        self._look = None if query.outcomes is None else Look(query.outcomes)
        if query.outcome:
            high = min(high, Position(self._horizon + 1))
        if query.outcome in IN_TROUBLE:
            return timeline.in_trouble(low, high)
        if query.state == WITHHELD:
            return timeline.withheld.messages(timeline.reader, low, high)
        if query.state == PENDING:
            horizon = Position(self._horizon + 1)
            low = max(low, horizon if query.as_of is None else min(horizon, before(at_of(query.as_of))))
        elif query.state not in (CANCELLED, ALL):
            high = min(high, Position(self._horizon + 1))
        rows = timeline.reader.read(low, high, self._structures) if low < high else iter(())
        if timeline.held:
            held = [row for row in timeline.reader.held() if start <= row[0] < query.end]
            rows = merge(held, rows, key=_place)
        return rows

    def met(self, place: Position, number: int, value: bytes) -> Row | None:
        """The row that counts in place of this one, as of the query's moment: itself, or the row to which its
        message was moved since."""
        as_of = self._query.as_of
        if as_of is None:
            return place, number, value
        if seq_of(place) > seq_of(as_of):
            return None
        if is_moved(value):
            found = self._moved_since(place, number, decode(value), seq_of(as_of))
            if found is None:
                return None
            (place, number), value = found.address, found.value
        is_past = self._query.state == PENDING and place <= self._horizon and number != HELD_SHARD
        return None if is_past else (place, number, value)

    def _moved_since(self, place: Position, number: int, record: Record, seq: int) -> Found | None:
        # An earlier version's stub has ms there: more than any seq.
        if record.stub == MOVED and seq < record.when_ms <= self._timeline.horizon.seq:
            with suppress(Corrupt):  # the store logs it
                return self._timeline.reader.find(self._timeline.id_at(place, number, record))
        return None

    def shows(
        self, place: Position, number: int, value: bytes
    ) -> tuple[Record, State, int | None, Outcome | UnsetType] | None:
        """The record, its state, its dispatch time and its outcome, if the query selects it."""
        query = self._query
        if is_moved(value):
            return None
        if query.state == PENDING and is_stub(value):
            return None
        if self._is_chosen and not self._has_topic(topic_of(value)):
            return None
        if self._order and not self._has_order(value):
            return None
        record = decode(value)
        is_held = number == HELD_SHARD
        state, at_ms = state_of(place, record, self._horizon, self._journal, is_held=is_held)
        if query.state not in (state, ALL):
            return None
        outcome = UNSET if self._look is None else self._look.of(place, record, state)
        return (record, state, at_ms, outcome) if query.outcome in ("", outcome) else None

    def counts(self, place: Position, number: int, value: bytes) -> bool:
        """Whether `shows` would select it; cheaper for pending messages."""
        if self._query.state == PENDING and not self._query.outcome:
            return (
                not is_stub(value)
                and (not self._is_chosen or self._has_topic(topic_of(value)))
                and (not self._order or self._has_order(value))
            )
        return self.shows(place, number, value) is not None

    def has(self, place: Position) -> bool:
        """Whether a position is in the query's range."""
        return self._query.start <= place < self._query.end

    def _view(self, place: Position, number: int, value: bytes) -> shapes.Message | None:
        fields = self.shows(place, number, value) if self.has(place) else None
        if fields is None:
            return None
        record, state, at_ms, outcome = fields
        name = self._timeline.id_at(place, number, record)
        why = self._timeline.withheld_by(state, record)
        view = message_view(shapes.Message, name, place, record, state, at_ms, withheld_by=why)
        view.outcome = outcome
        return view

    def _has_order(self, value: bytes) -> bool:
        """Whether it has the ordering key; most others are told by their bytes."""
        return self._order in value and decode(value).ordering_key == self._order

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
    """Number of messages that the query selects, without page limits. `is_abandoned`: whether the client is
    gone."""
    is_chosen = query.topic or query.ordering_key or query.outcome
    if query.state != PENDING or is_chosen or sees is not None:
        return await _count_rows(timeline, query, sees, turn, is_abandoned)
    start = max(query.start, Position(timeline.horizon.position + 1))
    if query.is_whole and not timeline.held:
        return timeline.pending
    held = [place for place, _, value in timeline.reader.held() if not is_stub(value)]
    total = sum(1 for place in held if query.start <= place < query.end)
    # Slice by slice, each looked up in its turn: one may be split while another is counted.
    await turn.begin()
    pieces = 0
    while (piece := timeline.directory.first_over(start, query.end)) is not None:
        pieces += 1
        if turn.is_over(pieces):
            await turn.begin()
            continue  # the directory may have changed
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
            if looked == COUNT_STEP_ROWS or selection.is_full or turn.is_over(looked):
                is_end = False
                break
        if is_end:
            break
    return total
