"""Format 5 from formats 1 to 4: retries become rows of `retries` alone, and groups stay.

They were on the timeline, for one session or group each, and `retries` said where:

    at · seq of the retry                  id of the message (16), shard (2)
    ff · id of the message · addressee     position of a waiting one

A retry that waits, is in flight or is unread becomes a row under the same position, and a flight that names
it says so. A finished one, or one whose session or group is gone, is dropped. On the timeline it leaves a
stub like a move's.

Without an expiry a group was kept for a day. Now it stays until it is deleted.
"""

import logging
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from struct import Struct
from typing import NamedTuple

import msgspec

from timeline.position import POSITION_BYTES, RETRY_SHARD, MessageId, Position
from timeline.slices import Directory, Shard, Slice

from . import keys
from .errors import Corrupt
from .fields import Record
from .kept import size_of
from .record import MOVED, decode, encode, is_retry, is_stub, stub
from .retries import RETRIES
from .store import Batch, Store, Table
from .tables import (
    META_RETRIES,
    NEVER_S,
    KeptRow,
    KeptTotals,
    OwnedRow,
    StoredCursor,
    count_value,
    cursor_row_of,
    encode_row,
    group_of,
    kept_totals_value,
    owned_from,
    owned_value,
    shard_value,
    slice_value,
)
from .unreadable import readable

log = logging.getLogger(__name__)

_SPOT = Struct(">16sH")
_ROWS_END = b"\xff" * 64
_INDEXED = b"retries"
"""A row of `meta` that is no longer needed."""


class _Old(NamedTuple):
    """A retry on the timeline. `home`: its slice and shard; None: it was held."""

    place: Position
    record: Record
    addressee: bytes
    home: tuple[Slice, Shard] | None


def raise_retries(
    store: Store, batch: Batch, directory: Directory, cursor: StoredCursor, wall_ms: int
) -> int:
    """Put the changes that make retries rows of their own into the batch. Returns their number. Changes
    counts in `directory`.

    Raises StoreFailed. Skips what cannot be read.
    """
    found = [*_on_timeline(store, directory), *_held(store)]
    batch.delete_range(Table.RETRIES, b"", _ROWS_END)
    batch.delete(Table.META, _INDEXED)
    if not found:
        return 0
    flying = _mark_flights(store, batch, {old.place for old in found})
    left = _one_each(
        [old for old in found if old.place in flying or not _is_over(store, old, cursor.horizon)], flying
    )
    _keep(batch, left, cursor.running_ms)
    # Now each remaining one is pending while its row exists; before, until the horizon passed it.
    owners = Counter(old.record.owner for old in left)
    owners.subtract(old.record.owner for old in found if old.home is None or old.place > cursor.horizon)
    for owner, more in owners.items():
        _own(store, batch, owner, more)
    _leave_stubs(batch, found, wall_ms)
    return len(left)


def raise_groups(store: Store, batch: Batch) -> int:
    """Put the changes that keep groups without an expiry until they are deleted. Returns their number."""
    count = 0
    start = keys.GROUP_PREFIX.encode()
    for key, value in readable(store, Table.SESSIONS, start, start + keys.LAST):
        with suppress(Corrupt):
            row = group_of(value)
            if row.expiry_s is None:
                batch.put(Table.SESSIONS, key, encode_row(msgspec.structs.replace(row, expiry_s=NEVER_S)))
                count += 1
    return count


def _on_timeline(store: Store, directory: Directory) -> Iterator[_Old]:
    for key, value in readable(store, Table.RETRIES, b"", b"\xff"):
        if len(key) != POSITION_BYTES or len(value) != _SPOT.size:
            continue
        place = keys.place_of(key)
        piece = directory.find(place >> 48)
        shard = None if piece is None else piece.shard(_SPOT.unpack(value)[1])
        if piece is None or shard is None:
            continue
        with suppress(Corrupt):
            old = _old(place, store.get(Table.MESSAGES, shard.prefix + key), (piece, shard))
            if old is not None:
                yield old


def _held(store: Store) -> Iterator[_Old]:
    for key, value in readable(store, Table.HELD, b"", keys.LAST):
        with suppress(Corrupt):
            old = _old(keys.place_of(key), value, None)
            if old is not None:
                yield old


def _old(place: Position, value: bytes | None, home: tuple[Slice, Shard] | None) -> _Old | None:
    """Decode a retry. Raises Corrupt."""
    if value is None or is_stub(value) or not is_retry(value):
        return None
    record = decode(value)
    return None if record.retry is None else _Old(place, record, record.retry.addressee, home)


def _mark_flights(store: Store, batch: Batch, places: set[Position]) -> set[Position]:
    """Places of retries in flight; marks the flights in their cursors."""
    flying: set[Position] = set()
    for key, value in readable(store, Table.CURSORS, b"", _ROWS_END):
        try:
            row = cursor_row_of(value)
        except Corrupt as error:
            log.error("cursor: unreadable, its messages in flight are redelivered: %s", error)
            continue
        theirs = {flight.place for flight in row.flights if keys.place_of(flight.place) in places}
        if theirs:
            flights = [
                msgspec.structs.replace(one, shard=RETRY_SHARD) if one.place in theirs else one
                for one in row.flights
            ]
            batch.put(Table.CURSORS, key, encode_row(msgspec.structs.replace(row, flights=flights)))
            flying.update(map(keys.place_of, theirs))
    return flying


def _is_over(store: Store, old: _Old, horizon: Position) -> bool:
    """Whether nobody gets it any longer: its place is gone, or has read it."""
    if store.get(Table.SESSIONS, old.addressee) is None:
        return True
    if old.place > horizon or old.home is None:
        return False
    with suppress(Corrupt):
        stored = store.get(Table.CURSORS, old.addressee)
        row = None if stored is None else cursor_row_of(stored)
        return row is not None and (
            keys.place_of(row.place) >= old.place or keys.place(old.place) in row.finished
        )
    return False


def _keep(batch: Batch, left: list[_Old], running_ms: int) -> None:
    size = 0
    counts: Counter[bytes] = Counter()
    for old in left:
        row = _row(old, running_ms)
        name, *names = RETRIES.keys(old.place, row)
        value = encode_row(row)
        batch.put(Table.RETRIES, name, value)
        for key in names:
            batch.put(Table.RETRIES, key, b"")
        size += size_of(value)
        counts[keys.kept_count(RETRIES.whose(row))] += 1
    for key, count in counts.items():
        batch.put(Table.RETRIES, key, count_value(count))
    batch.put(Table.META, META_RETRIES, kept_totals_value(KeptTotals(len(left), size, Position(0))))


def _row(old: _Old, running_ms: int) -> KeptRow:
    retry = old.record.retry
    assert retry is not None, "only retries are looked at"
    addressee = old.addressee.decode(errors="replace")
    text = addressee.removeprefix(keys.GROUP_PREFIX)
    # As users call it: a group's name is between `$share/` and the filter.
    name = text.split("/", 2)[1] if text != addressee and text.startswith("$share/") else text
    return KeptRow(
        addressee,
        name,
        keys.message(MessageId(old.record.id)),
        retry.attempts,
        retry.reason.decode(errors="replace"),
        "",
        running_ms,
        encode(msgspec.structs.replace(old.record, id=0, retry=None)),
        counted=retry.counted,
    )


def _one_each(found: list[_Old], flying: set[Position]) -> list[_Old]:
    """One retry per message and place: the one in flight, else the first. All flights stay."""
    first: dict[tuple[bytes, int], _Old] = {}
    for old in sorted(found, key=lambda old: (old.place not in flying, old.place)):
        first.setdefault((old.addressee, old.record.id), old)
    return [old for old in found if old.place in flying or first[old.addressee, old.record.id] is old]


def _own(store: Store, batch: Batch, owner: bytes, more: int) -> None:
    """Mark the owner's bytes for counting: the new rows have other sizes."""
    if not owner:
        return
    key = keys.owned(owner)
    with suppress(Corrupt):
        stored = store.get(Table.META, key)
        row = OwnedRow(0, 0, None) if stored is None else owned_from(stored)
        batch.put(Table.META, key, owned_value(row.placed + max(0, more), row.passed + max(0, -more)))


def _leave_stubs(batch: Batch, found: list[_Old], wall_ms: int) -> None:
    pieces: dict[int, Slice] = {}
    shards: dict[bytes, Shard] = {}
    for old in found:
        if old.home is None:
            batch.delete(Table.HELD, keys.place(old.place))
            continue
        piece, shard = old.home
        left = stub(msgspec.structs.replace(old.record, retry=None), MOVED, wall_ms)
        batch.put(Table.MESSAGES, shard.prefix + keys.place(old.place), left)
        if piece.retire(shard, old.place):
            shards[shard.prefix] = shard
        else:
            pieces[piece.start_ms] = piece
    for shard in shards.values():
        batch.put(Table.SHARDS, shard.prefix, shard_value(shard))
    for piece in pieces.values():
        batch.put(Table.SLICES, keys.slice_key(piece.home), slice_value(piece))
