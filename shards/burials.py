"""Unfinished messages of a place that has ended or skipped ahead: a row until all of them are settled.

    meta    "burial/" + a number (8)      BurialRow

The row is written in the batch that ends the place or moves its read position on. It holds all that is
needed to find the unfinished messages: those in flight, the range not read yet, and the name of the place's
retries. The server works through it in steps. Each step writes how far it has come, so a kill costs
nothing. Slices that it has to read are kept for it.

Number 0 is for what sessions have not read when retention passes it; its row stays when that is done.
"""

from collections.abc import Iterator

import msgspec

from timeline.position import Position

from . import keys
from .errors import Corrupt
from .store import Store, Table
from .tables import Whole, decoded, encode_row
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
    filters: list[tuple[str, bytes]]
    """Its subscriptions, each with the position from which it counts; none for an endpoint."""
    endpoint: str
    """Its endpoint name; empty: not an endpoint."""
    read: bytes
    """Read, or gone through, up to here ..."""
    upto: bytes
    """... and to go through up to here."""
    finished: list[bytes]
    """Positions in between that were finished."""
    flights: list[tuple[bytes, int, int]]
    """Messages in flight: position, shard, attempts."""
    has_retries: bool
    """Whether its retries end, too."""
    reason: str
    is_dead: bool
    """True: make dead letters; False: drop."""
    room: tuple[int, int] | None = None
    """Remaining room for dead letters, in messages and bytes; None: not started."""
    buried: Whole = 0
    dropped: Whole = 0
    behind: bytes = b""
    """From here on messages wait for their keys (order.py), up to `behind_upto`; empty: none."""
    behind_upto: bytes = b""
    is_ended: bool = False
    """The place is gone, so its rows of `order` go when this is over."""
    over: list[bytes] = []
    """Roots of its retries that were done, though their rows are there."""

    @property
    def floor(self) -> Position:
        """The first position that is still needed."""
        first = min((keys.place_of(place) for place, _, _ in self.flights), default=keys.place_of(self.upto))
        behind = keys.place_of(self.behind) if self.behind else first
        return min(first, behind, keys.place_of(self.read))

    @property
    def is_over(self) -> bool:
        """Whether nothing is left of it."""
        return self.is_read and not self.flights and not self.has_retries and not self.behind

    @property
    def is_read(self) -> bool:
        """Whether all unread messages have been gone through."""
        return self.read >= self.upto


_decoder = msgspec.msgpack.Decoder(BurialRow)


def burial_key(number: int) -> bytes:
    return PREFIX + number.to_bytes(8, "big")


def burial_value(row: BurialRow) -> bytes:
    return encode_row(row)


def burials(store: Store) -> Iterator[tuple[int, BurialRow]]:
    """Unfinished burials by number. Raises Corrupt for one that cannot be read."""
    for key, value in readable(store, Table.META, PREFIX, PREFIX + keys.LAST):
        try:
            yield int.from_bytes(key[len(PREFIX) :], "big"), decoded(_decoder, value)
        except Corrupt as error:
            raise Corrupt(f"what a place has left undone cannot be read, key {key.hex()}: {error}") from error
