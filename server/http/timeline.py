"""The timeline, read only, for calls: positions, counts, states of messages.

The writer decides every change, on the commit that it gives the call. Nothing here changes anything, and the
store itself is not accessible.
"""

from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import suppress
from heapq import merge
from operator import itemgetter

from msgspec import UNSET, UnsetType

from shards.delivery_rows import count_dead, count_waiting, recorded, waiting_of
from shards.errors import Corrupt
from shards.fields import Record
from shards.keys import message_of
from shards.read import Found, Row
from shards.record import id_at
from shards.recover import Opened
from shards.state import WITHHELD, Journal, State, state_of
from shards.store import Table
from shards.tables import DedupeRow, RecordRow, dedupe_from
from timeline.position import END, MessageId, Position, message_id

from .values.drafts import HTTP, MQTT, stored_key
from .values.message_body import KEY_CHARS_MAX, check_words

WhyNot = Callable[[Record], str]
"""Why the sender of a message may not send it now; empty: it may."""


class Timeline:
    """One server's timeline, for reading."""

    def __init__(self, opened: Opened, journal: Callable[[], Journal], why_not: WhyNot, *, node: int) -> None:
        """`journal`: makes one, for positions in rising order. `node`: the timeline's number in ids."""
        self._opened = opened
        self.withheld = opened.withheld
        self._why_not = why_not
        self.reader, self.horizon, self.directory = opened.reader, opened.horizon, opened.directory
        self.journal = journal
        self.number = node

    @property
    def pending(self) -> int:
        """Messages neither dispatched nor cancelled."""
        return self._opened.waiting.pending

    @property
    def as_of(self) -> Position:
        """This moment: T and the last seq issued."""
        return Position(self.horizon.clock_ms << 48 | self.horizon.seq)

    @property
    def held(self) -> int:
        """Messages that wait because the clock was set back."""
        return self._opened.waiting.held

    def dead_of(self, name: str, most: int) -> int:
        """Number of dead letters of the groups or the session of that name, at most `most`."""
        return count_dead(self._opened.store, name, most)

    def retries_of(
        self, whose: bytes, besides: Container[Position] = ()
    ) -> tuple[int, tuple[Position, Position] | None]:
        """Number of a place's deliveries that wait, and the first one: when it is due, and its root.

        `besides`: roots of those that are out, which do not count as the first one.
        """
        store = self._opened.store
        found = (one for one in waiting_of(store, whose) if one[1] not in besides)
        return count_waiting(store, whose), next(found, None)

    def row_id(self, place: Position, number: int) -> MessageId:
        """The id of a message that never moved, from its row at `place` in the shard `number`."""
        return message_id(place, number, self.number)

    def id_at(self, place: Position, number: int, record: Record) -> MessageId:
        """The id of the message in that row."""
        return id_at(place, number, self.number, record.id)

    def structures_of(self, filters: Iterable[str]) -> set[int]:
        """Numbers of the structures whose shards may hold topics of these filters."""
        return self.reader.structures.overlapping(filters)

    def in_trouble(self, start: Position, end: Position) -> Iterator[Row]:
        """Messages at start <= position < end that are withheld, or of which a delivery has a row, in order.
        One whose slice is gone is as its place keeps it; what cannot be read is passed over."""
        last = END
        withheld = ((place, message, None) for place, message in self.withheld.rows(start, end))
        for place, message, row in merge(withheld, self._recorded(start, end), key=itemgetter(0)):
            with suppress(Corrupt):  # the store logs it
                found = None if place == last else self.reader.find(message)
                if found is not None and found.position == place:
                    last = place
                    yield *found.address, found.value
                elif found is None and row is not None and row.record and place != last:
                    last = place
                    yield place, row.shard, row.record

    def _recorded(self, start: Position, end: Position) -> Iterator[tuple[Position, MessageId, RecordRow]]:
        """A delivery with a message of each root, in order. A message may have died at a thousand groups."""
        rows, last = recorded(self._opened.store, start, end), END
        while (found := next(rows, None)) is not None:
            (_, root), row = found
            if root == last:
                rows = recorded(self._opened.store, Position(root + 1), end)
                continue
            last = root if row.record else last
            yield root, message_of(row.id), row

    def known_under(self, key: bytes) -> DedupeRow | None:
        """The row of an idempotency key; its message may be gone. Raises Corrupt."""
        value = self.reader.get(Table.DEDUPE, key)
        return None if value is None else dedupe_from(value)

    def ids_under(self, key: str, user: str) -> set[MessageId]:
        """Messages under a user's idempotency key, from HTTP and from MQTT. Raises FieldError, Corrupt."""
        check_words("key", key, KEY_CHARS_MAX)
        known = [self.known_under(stored_key(key, user, door)) for door in (HTTP, MQTT)]
        return {row.id for row in known if row is not None and row.id}

    def has_passed(self, found: Found) -> bool:
        """Whether dispatch has reached it."""
        return found.shard is not None and found.position <= self.horizon.position

    def state_of(self, found: Found, record: Record) -> tuple[State, int | None]:
        """The state of a message found by id; wall ms of its dispatch, if known."""
        is_held = found.shard is None
        return state_of(found.position, record, self.horizon.position, self.journal(), is_held=is_held)

    def withheld_by(self, state: State, record: Record) -> str | UnsetType:
        """Why a withheld message is."""
        return (self._why_not(record) if state == WITHHELD else "") or UNSET
