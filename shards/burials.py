"""What a place that has ended, or skips, leaves undone: a row until all of it is settled.

    meta    "burial/" + a number (8)      BurialRow

It is a range of the place's *name*: (read, upto], with what was finished there, and what was in flight. Rows
of its deliveries and keys are found by the same name. The row is written in the batch that ends the place or
moves its read position on. Each step of the settling writes how far it has come, so a kill costs nothing.
Slices that are to be read are kept for it.

Number 0 is for what sessions have not read when retention passes it; its row stays when that is done.
"""

from collections.abc import Iterator

import msgspec

from timeline.filters import matches
from timeline.position import Position

from . import keys
from .delivery_rows import whose
from .errors import Corrupt
from .store import Store, Table
from .tables import Whole, encode_row, reading
from .unreadable import readable

PREFIX = b"burial/"


class BurialRow(msgspec.Struct, frozen=True, array_like=True):
    """Messages to turn into dead letters, or to drop."""

    addressee: str
    """The place by the name in its rows, ..."""
    group: str
    """... and as users call it."""
    incarnation: Whole
    keeper: str
    """Name of the key that its clients used; empty: none, or several."""
    reason: str
    read: bytes
    """Read, or gone through, up to here ..."""
    upto: bytes
    """... and to go through up to here."""
    filters: list[tuple[str, bytes]]
    """Its subscriptions, each with the position from which it counts; none of an endpoint."""
    finished: list[bytes] = []
    """Positions in between that were finished."""
    flights: list[tuple[bytes, int, int]] = []
    """Messages in flight: position, shard, attempts."""
    behind: bytes = b""
    """From here on messages up to `read` wait for their keys (order.py); empty: none, or settled."""
    is_ended: bool = False
    """The place is gone: what waits for its next try ends too, and then the rows of its keys."""
    is_dead: bool = False
    """True: make dead letters; False: drop."""
    room: tuple[int, int] | None = None
    """Remaining room for dead letters, in messages and bytes; None: not started."""
    buried: Whole = 0
    dropped: Whole = 0

    @property
    def names(self) -> tuple[str, str, int]:
        """The place in the rows of its deliveries, ..."""
        return self.addressee, self.group, self.incarnation

    @property
    def whose(self) -> bytes:
        """... and in their keys."""
        return whose(self.addressee, self.incarnation)

    @property
    def floor(self) -> Position:
        """The first position that is still needed."""
        return keys.place_of(min([self.behind or self.read, *(place for place, _, _ in self.flights)]))

    @property
    def is_over(self) -> bool:
        """Whether nothing is left of it."""
        return not (self.flights or self.behind or self.is_ended) and self.is_read

    @property
    def is_read(self) -> bool:
        """Whether all unread messages have been gone through."""
        return self.read >= self.upto

    def asks(self, place: Position, topic: str) -> bool:
        """Whether a subscription of the place asks for that message."""
        at = keys.place(place)
        return any(since < at and matches(text, topic) for text, since in self.filters)

    def cut(self, to: bytes) -> "BurialRow":
        """Without what is behind that position."""
        return msgspec.structs.replace(self, read=min(self.read, to), upto=min(self.upto, to))


_read = reading(BurialRow)


def burial_key(number: int) -> bytes:
    return PREFIX + number.to_bytes(8, "big")


def burial_value(row: BurialRow) -> bytes:
    return encode_row(row)


def burials(store: Store) -> Iterator[tuple[int, BurialRow]]:
    """Unfinished burials by number. Raises Corrupt for one that cannot be read."""
    for key, value in readable(store, Table.META, PREFIX, PREFIX + keys.LAST):
        try:
            yield int.from_bytes(key[len(PREFIX) :], "big"), _read(value)
        except Corrupt as error:
            raise Corrupt(f"what a place has left undone cannot be read, key {key.hex()}: {error}") from error
