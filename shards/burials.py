"""What a place that has ended, or left something behind, had not finished: a row until all of it is settled.

    meta    "burial/" + a number (8)      BurialRow

It is written in the batch in which the place ends, or its read position moves on, and holds all that is
needed to find what was undone: what it had in flight, from where to where it had not read, and by what name
its retries stand. It is worked through in steps, each of which writes how far it has come, so that a kill
costs nothing. The slices that it has to read are kept for it.

Number 0 is of what sessions have not read when retention passes it; its row stays when that is done.
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
    """What is to be made dead letters of, or dropped."""

    addressee: str
    """The place, by the name that its rows have, ..."""
    group: str
    """... and as people call it."""
    incarnation: Whole
    keeper: str
    """Name of the key that its clients had shown; empty: none, or several."""
    filters: list[tuple[str, bytes]]
    """What it had subscribed to, each with the position from which that counts; none of an endpoint."""
    endpoint: str
    """What it was delivered as; empty: it is no endpoint's."""
    read: bytes
    """Up to here it had read, or has been gone through, ..."""
    upto: bytes
    """... and up to here what it had not read is settled."""
    finished: list[bytes]
    """Positions in between that were done."""
    flights: list[tuple[bytes, int, int]]
    """What it had in flight: position, shard, attempts."""
    has_retries: bool
    """Its retries end, too."""
    reason: str
    is_dead: bool
    """Dead letters; else dropped."""
    room: tuple[int, int] | None = None
    """How many dead letters there may be yet, and their bytes; None: it has not begun."""
    buried: Whole = 0
    dropped: Whole = 0
    reread: bytes = b""
    """Up to here it may have a retry or a dead letter of what it had not read: it had been set back."""

    @property
    def floor(self) -> Position:
        """It needs nothing before."""
        first = min((keys.place_of(place) for place, _, _ in self.flights), default=keys.place_of(self.upto))
        return min(first, keys.place_of(self.read))

    @property
    def is_read(self) -> bool:
        """All that was not read has been gone through."""
        return self.read >= self.upto


_decoder = msgspec.msgpack.Decoder(BurialRow)


def burial_key(number: int) -> bytes:
    return PREFIX + number.to_bytes(8, "big")


def burial_value(row: BurialRow) -> bytes:
    return encode_row(row)


def burials(store: Store) -> Iterator[tuple[int, BurialRow]]:
    """Those that are not finished, by number. One that cannot be read raises Corrupt."""
    for key, value in readable(store, Table.META, PREFIX, PREFIX + keys.LAST):
        try:
            yield int.from_bytes(key[len(PREFIX) :], "big"), decoded(_decoder, value)
        except Corrupt as error:
            raise Corrupt(f"what a place has left undone cannot be read, key {key.hex()}: {error}") from error
