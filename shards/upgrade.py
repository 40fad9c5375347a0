"""Format 1 becomes this program's: its dead letters become deliveries, and slices that borrow get counts.

Dead letters were rows of a table `dead`. (Retries, owners and rows of groups came with later formats, which
no release wrote.)

    00 · position of the death         Letter
    01 ... and 02 ...                  empty: the same by the name of the group, and by the message

The root of a delivery is the position of the message. Here it is the one that the message's id says. Of
several letters of one message and place the last one stays.
"""

import logging
from collections.abc import Iterator

import msgspec

from timeline.position import ID_BYTES, START, Position, id_position, id_shard, is_held
from timeline.slices import Directory

from . import keys, tables
from .delivery_rows import (
    DeliveryRow,
    Name,
    names_of,
    of_rows,
    pointer_of,
    record_of,
    size_of,
    state_of,
    whose,
)
from .errors import Corrupt
from .store import ROWS_END, Batch, Store, Table
from .unreadable import readable

log = logging.getLogger(__name__)


class DeadLetterRow(msgspec.Struct, frozen=True, array_like=True):
    """A dead letter of format 1."""

    addressee: str
    group: str
    id: bytes
    attempts: int
    reason: str
    keeper: str
    running_ms: int
    record: bytes


_read_dead_letter = tables.reading(DeadLetterRow)


def upgrade(store: Store, directory: Directory) -> None:
    """Upgrade a store of format 1 to FORMAT, in one batch. Raises StoreFailed. Skips what cannot be read.

    It is synced before anything else is written: a failure can only lose what later writes do not depend on.
    """
    batch = store.batch()
    for piece in directory:
        if piece.borrowed:
            batch.put(Table.SLICES, keys.slice_key(piece.home), tables.slice_value(piece))
    dead_letters = {row.name: row for row in _dead_letters(store)}
    if dead_letters:
        _keep(batch, dead_letters)
    batch.put(Table.META, tables.META_FORMAT, b"%d" % tables.FORMAT)
    store.write(batch)
    store.flush()
    log.warning("upgrade: the data has format %d now, an older fasti cannot open it", tables.FORMAT)


def _dead_letters(store: Store) -> Iterator[DeliveryRow]:
    """In the order of their deaths."""
    for key, value in readable(store, Table.DEAD, b"\0", b"\1"):
        try:
            yield _row(keys.place_of(key), _read_dead_letter(value))
        except Corrupt as error:
            log.error("upgrade: a dead letter is unreadable, skipped: %s", error)


def _row(at: Position, old: DeadLetterRow) -> DeliveryRow:
    """Raises Corrupt."""
    if len(old.id) != ID_BYTES:
        raise Corrupt(f"{len(old.id)} bytes are no id")
    message, place, tries = keys.message_of(old.id), keys.place(at), old.attempts
    shard = 0 if is_held(message) else id_shard(message)
    state = tables.StateRow(tables.DEAD, place, tries, tries, old.reason, old.keeper, old.running_ms)
    record = tables.RecordRow(old.addressee, old.group, 0, old.id, shard, old.record)
    return of_rows(Name(whose(old.addressee, 0), id_position(message)), state, record)


def _keep(batch: Batch, dead_letters: dict[Name, DeliveryRow]) -> None:
    batch.delete_range(Table.DEAD, b"", ROWS_END)
    for name, row in dead_letters.items():
        batch.put(Table.DELIVERIES, keys.state(*name), tables.encode_row(state_of(row)))
        batch.put(Table.DELIVERIES, keys.record(name.root, name.whose), tables.encode_row(record_of(row)))
        for key in names_of(row):
            batch.put(Table.DELIVERIES, key, pointer_of(key, name))
    totals = tables.KeptTotals(len(dead_letters), sum(map(size_of, dead_letters.values())), START)
    batch.put(Table.META, tables.META_DEAD, tables.kept_totals_value(totals))
