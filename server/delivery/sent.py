"""Messages in flight: not kept in RAM, but read again from where they are stored.

stored          its row, wherever the horizon is; or the retained message, when its slice has gone
a retry         its row (shards/delivery_rows.py)
not stored      the tail, as long as it is there
"""

import logging

from shards.delivery_rows import Name, stored
from shards.errors import Corrupt
from shards.record import decode, id_at, is_stub
from shards.recover import Opened
from timeline.position import MessageId, Position
from timeline.session import Flight
from timeline.tail import Tail

from ..engine.clock import Clock
from .message import Again, Message
from .place import Place
from .retained import Retained

log = logging.getLogger(__name__)


class Sent:
    """Looks up what is in flight. `lost`: how many retention has dropped, or cannot be read."""

    def __init__(self, opened: Opened, tail: Tail[Message], retained: Retained, clock: Clock) -> None:
        self._opened = opened
        self._tail = tail
        self._retained = retained
        self._clock = clock
        self.lost = 0

    def message(self, place: Place, flight: Flight) -> Message | None:
        """The message, or None if it is gone or unreadable. `place`: whose delivery it is, the session's or
        the group's that lent it."""
        if flight.shard < 0:
            return self._in_tail(flight.position)
        try:
            again = self._again(place, flight) if flight.position in place.rows.out else None
            if again is not None:
                return again
            value = self._opened.reader.value_at(flight.position, flight.shard)
            if value is None:
                return self._retained.find(flight.position)
            if is_stub(value):
                return None
            return Message(flight.position, flight.shard, None, self._clock.wall_ms(), value)
        except Corrupt as error:
            log.error("message in flight: not sent again: %s", error)
            self.lost += 1
            return None

    def _again(self, place: Place, flight: Flight) -> Message | None:
        """A message that waited for its next try; None: its row cannot be read."""
        root = flight.position
        try:
            row = stored(self._opened.store, Name(place.whose, root))
            if row is not None and row.is_waiting:
                return Again(root, row.shard, row.message(), self._clock.wall_ms(), at=row.at)
        except Corrupt as error:
            log.error("retry in flight: unreadable: %s", error)
        return None

    def name_at(self, place: Position, shard: int) -> MessageId | None:
        """The id of a row's message, even if the row is now a stub or its slice has been dropped.

        None: it cannot be known."""
        if shard < 0:
            return None
        try:
            value = self._opened.reader.value_at(place, shard)
            return id_at(place, shard, self._opened.open_batch.node, 0 if value is None else decode(value).id)
        except Corrupt as error:
            log.error("message in flight: unreadable: %s", error)
            return None

    def note_missing(self, place: Place, flight: Flight) -> bool:
        """A flight ends because its message is nowhere any more; whether retention has dropped it. `place`:
        as above."""
        is_row = flight.position in place.rows.out
        is_dropped = flight.is_stored and not is_row and flight.position < self._opened.directory.floor
        self.lost += is_dropped
        return is_dropped

    def _in_tail(self, place: Position) -> Message | None:
        found = self._tail.after(Position(place - 1), 1) if self._tail.covers(place) else []
        return found[0][1] if found and found[0][0] == place else None
