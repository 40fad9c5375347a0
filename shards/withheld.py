"""Withheld messages: dispatch has passed them and given them to nobody, as their senders may not send now.

Each has one row, so that what waits is known message by message, however many keys come and go:

    meta   "withheld/" · position   ->   id (16) · name of the sender's key, UTF-8

Dispatch notes a message in RAM. The note goes into the next batch, the one that says that the horizon has
passed the message: so after a kill either both are stored, or dispatch comes to the message again. A row goes
in the batch that gives the message again, cancels, moves or gives it up. Of notes that are not durable
FRESH_MAX: beyond these dispatch waits for a batch (`is_full`).
"""

import logging
from collections.abc import Iterator
from contextlib import suppress
from heapq import merge

from timeline.position import END, ID_BYTES, START, MessageId, Position

from . import keys
from .errors import Corrupt
from .open_batch import OpenBatch
from .read import Found, Reader, Row
from .store import Store, Table
from .unreadable import readable
from .waiting import Waiting

log = logging.getLogger(__name__)

FRESH_MAX = 100_000
"""Some 20 MB."""


class Withheld:
    """The withheld messages of one timeline."""

    def __init__(self, store: Store, waiting: Waiting) -> None:
        """`waiting`: counts the stored rows."""
        self._store = store
        self._waiting = waiting
        self._fresh: dict[Position, bytes] = {}
        """Values of the rows that are not durable, ..."""
        self._unwritten: dict[Position, bytes] = {}
        """... and of those in no batch, or in one that was lost."""

    @property
    def count(self) -> int:
        return self._waiting.withheld + len(self._unwritten)

    @property
    def is_full(self) -> bool:
        """Whether dispatch waits until a batch is durable."""
        return len(self._fresh) >= FRESH_MAX

    @property
    def floor(self) -> Position:
        """Position of the first one."""
        return next((place for place, _ in self.rows()), END)

    def note(self, place: Position, message: MessageId, owner: bytes) -> None:
        """Dispatch passes a message; its row goes with the next batch."""
        self._fresh[place] = self._unwritten[place] = keys.message(message) + owner
        if len(self._fresh) == FRESH_MAX:
            log.warning("dispatch waits: %d withheld messages are not stored yet", FRESH_MAX)

    def has(self, place: Position) -> bool:
        """Whether the message at that position is withheld."""
        is_any = self._waiting.withheld or self._fresh
        return bool(is_any) and (
            place in self._fresh or self._store.get(Table.META, keys.withheld(place)) is not None
        )

    def rows(self, start: Position = START, end: Position = END) -> Iterator[tuple[Position, MessageId]]:
        """Those at start <= position < end, in order."""
        if self.count:
            fresh = ((keys.withheld(place), value) for place, value in sorted(self._unwritten.items()))
            stored = readable(self._store, Table.META, keys.withheld(start), keys.withheld(end))
            last = START
            for key, value in merge(stored, fresh):
                if last < (place := keys.place_of(key)) and start <= place < end:
                    yield place, keys.message_of(value[:ID_BYTES])
                last = place

    def messages(self, reader: Reader, start: Position, end: Position) -> Iterator[Row]:
        """Their rows on the timeline. What cannot be read is passed over."""
        for place, message in self.rows(start, end):
            with suppress(Corrupt):  # the store logs it
                found = reader.find(message)
                if found is not None and found.position == place:
                    yield *found.address, found.value

    # -- in the writer

    def has_in(self, group: OpenBatch, found: Found) -> bool:
        """Whether a message is withheld, as the open group leaves it."""
        key, is_any = keys.withheld(found.position), self._waiting.withheld or self._fresh
        return bool(is_any) and (found.position in self._unwritten or group.get(Table.META, key) is not None)

    def end(self, group: OpenBatch, place: Position) -> None:
        """The message is withheld no more."""
        self._waiting.withhold(-(group.get(Table.META, keys.withheld(place)) is not None))
        group.row(Table.META, keys.withheld(place), None)

    def write(self, group: OpenBatch) -> dict[Position, bytes]:
        """Put the notes that are in no batch into this one, but for those that it has ended; returns all."""
        unwritten, self._unwritten = self._unwritten, {}
        ended = {*group.deleted(Table.META, keys.WITHHELD)} if unwritten else ()
        for place, value in unwritten.items():
            if (key := keys.withheld(place)) not in ended:
                self._waiting.withhold(group.get(Table.META, key) is None)
                group.row(Table.META, key, value)
        return unwritten

    def written(self, notes: dict[Position, bytes], answer: object) -> None:
        """Their batch is durable, unless `answer` is an error: then `recover` comes."""
        for place in () if isinstance(answer, Exception) else notes:
            if place not in self._unwritten:
                self._fresh.pop(place, None)

    def recover(self) -> None:
        """After a failed batch: all that is not durable goes with the next one."""
        self._unwritten = dict(self._fresh)
