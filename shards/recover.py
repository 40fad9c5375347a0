"""Opening: reads a directory, a horizon and an open group from disk, ready for the next request.

Counts, caps and the directory come from their rows, written in the same batch as the messages they count. So
only the slice of the horizon is scanned, to count its pending messages. Ten million pending messages open as
fast as ten.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from typing import TypeVar

import msgspec

from timeline.horizon import Horizon
from timeline.position import END, START, Position, before
from timeline.slices import Directory
from timeline.structures import Structures

from . import keys, tables
from .borrow import part_of
from .cells import restore_cells
from .commit import Caps, Commit, IsUndone, always
from .delivery_rows import waiting, waiting_counts
from .errors import Corrupt, ShardsError, SharedData, UnreleasedFormat, WrongFormat, WrongNumber
from .log.record import Seal
from .open_batch import OpenBatch
from .owned import Owned, QuotaOf, any_number
from .read import Reader
from .record import decode, is_stub, owner_of
from .store import ROWS_END, Store, Table
from .unreadable import CorruptRange, tried
from .upgrade import upgrade
from .waiting import Waiting
from .withheld import Withheld

log = logging.getLogger(__name__)
Value = TypeVar("Value")

_READS = f"this program reads formats {tables.FORMAT_FIRST} and {tables.FORMAT}"


@dataclass(slots=True)
class Opened:
    """All that the write and read paths share, for one open store."""

    store: Store
    directory: Directory
    horizon: Horizon
    reader: Reader
    open_batch: OpenBatch
    commit: Commit
    waiting: Waiting
    owned: Owned
    withheld: Withheld
    owed: list[CorruptRange]
    """Ranges that dispatch could not read in time, and that are readable now."""

    def is_withheld(self, place: Position) -> bool:
        """Whether dispatch has passed the message there, and given it to nobody."""
        return self.withheld.has(place) or any(note.owes(self.store, place) for note in self.owed)

    def close_group(self) -> None:
        """Note that the oldest written group is durable."""
        self.horizon.close_group()
        self.owned.durable()

    def recount(self) -> None:
        """Count waiting messages again, from the rows. Raises what reading them raises."""
        pending = count_pending(self.reader, self.horizon.position)
        retries = sum(waiting_counts(self.store).values())
        held = sum(1 for _ in self.reader.held())
        withheld = sum(1 for _ in self.store.scan(Table.META, *keys.under(keys.WITHHELD)))
        self.waiting.recounted(pending, held, retries, withheld)


def open_timeline(
    store: Store,
    *,
    wall_ms: int,
    node: int,
    max_slices: int,
    max_structures: int,
    caps: Caps,
    quota_of: QuotaOf = any_number,
    is_undone: IsUndone = always,
    notes_ends: bool = False,
) -> Opened:
    """Open a store's timeline at wall time `wall_ms`.

    A store of format 1 becomes one of FORMAT. `quota_of`: maximum pending messages of an owner.
    `is_undone`: whether a dispatched message is still unfinished at some place. `node`: `store.number`.
    `notes_ends`: whether there is an archive.
    Raises WrongFormat, WrongNumber, Corrupt, StoreFailed.
    """
    found = _format(store)
    check_number(store, node)
    cursor = stored_cursor(store, wall_ms)
    directory = read_directory(store, max_slices)
    if found is None:
        _write_format(store, node)
    elif found < tables.FORMAT:
        upgrade(store, directory)
    directory.floor = cursor.floor
    horizon = Horizon(position=cursor.horizon, bound_ms=cursor.bound_ms, seq=cursor.seq, wall_ms=wall_ms)
    structures = Structures(max_structures=max_structures)
    structures.restore(read_structures(store))
    reader = Reader(store, directory, structures)
    owed = _tried(store, reader)
    waiting = Waiting()
    owned = Owned(store)
    open_batch = OpenBatch(
        store,
        directory,
        structures,
        horizon,
        waiting,
        owned,
        node=node,
        caps=caps,
        running_ms=cursor.running_ms,
        notes_ends=notes_ends,
    )
    withheld = Withheld(store, waiting)
    commit = Commit(open_batch, waiting, owned, withheld, caps=caps, quota_of=quota_of, is_undone=is_undone)
    opened = Opened(store, directory, horizon, reader, open_batch, commit, waiting, owned, withheld, owed)
    opened.recount()
    return opened


def reopen_store(opened: Opened) -> ShardsError | None:
    """Reopen the store after a failed write or sync, with what was durable. Blocks, up to seconds.

    Returns why it can only be read, if so. Meanwhile every other read or write may raise StoreFailed. If the
    format was lost, it is written again.
    """
    store = opened.store
    try:
        store.reopen()
        if _format(store) is None:
            _write_format(store, opened.open_batch.node)
    except ShardsError as error:
        return error
    return None


def read_timeline_again(opened: Opened) -> None:
    """Read the durable state, after the store was opened again. Raises StoreFailed or Corrupt.

    The live horizon stays where it is: nothing that it passed can be lost.
    """
    cursor = _read_again(opened)
    opened.horizon.drop_groups(cursor.bound_ms)
    opened.owned.reread()
    opened.recount()


def undo_group(opened: Opened) -> None:
    """Return to the state that the sealed groups have left, dropping the open one. Raises ShardsError."""
    opened.waiting.undo()
    opened.owned.undo()
    _read_again(opened)


def _read_again(opened: Opened) -> tables.StoredCursor:
    """Read the directory from its rows, in place, since others hold it."""
    cursor = stored_cursor(opened.store, opened.horizon.clock_ms)
    opened.directory.replace(read_directory(opened.store, opened.directory.max_slices))
    opened.directory.floor = cursor.floor
    opened.reader.structures.restore(read_structures(opened.store))
    _seal(opened.reader)
    opened.open_batch.forget()
    return cursor


def _tried(store: Store, reader: Reader) -> list[CorruptRange]:
    """Noted corrupt ranges that can be read now; the others are remembered as unreadable."""
    owed = []
    for note, is_readable in tried(store):
        if is_readable:
            owed.append(note)
        else:
            reader.unreadable.look_beside(store, Table.MESSAGES, note)
            reader.unreadable.add(note, is_noted=True)
    _seal(reader)
    return owed


def _seal(reader: Reader) -> None:
    for piece in reader.directory if len(reader.unreadable) else ():
        reader.seal(piece)


def stored_cursor(store: Store, wall_ms: int) -> tables.StoredCursor:
    """The stored cursor; in a new store the timeline begins now. Raises Corrupt if only this row is
    missing."""
    value = store.get(Table.META, tables.META_CURSOR)
    if value is not None:
        cursor = named(Table.META, tables.META_CURSOR, tables.cursor_from, value)
        # On a full disk dispatch continued by the mark alone.
        return msgspec.structs.replace(cursor, bound_ms=max(cursor.bound_ms, store.marked_ms()))
    _check_new(store, "where dispatch stood")
    return tables.StoredCursor(before(wall_ms), 0, 0, 0, START)


def _check_new(store: Store, missing: str) -> None:
    """Raise Corrupt if there are rows: starting from zero beside them would reuse their ids."""
    for table in Table:
        if table is not Table.META and next(store.scan(table, b"", ROWS_END), None) is not None:
            raise Corrupt(
                f"table meta does not say {missing}, and table {table.value} is not empty: restore a backup"
            )


def named(table: Table, key: bytes, read: Callable[..., Value], *values: bytes) -> Value:
    """Decode a required row. Raises Corrupt, naming it."""
    try:
        return read(*values)
    except Corrupt as error:
        raise Corrupt(f"table {table.value}, key {key.hex()}: {error}") from error


def read_directory(store: Store, max_slices: int) -> Directory:
    """Every slice with its shards, and with its cells where they are stored.

    Reads message rows only for slices that 0.1.0 cut: their rows have no counts.
    """
    directory = Directory(max_slices=max_slices)
    shards = {}
    for key, value in store.scan(Table.SHARDS, b"", keys.LAST):
        shard = named(Table.SHARDS, key, tables.shard_from, key, value)
        shards[shard.prefix] = shard
    by_home: dict[tuple[int, int], list[bytes]] = {}
    for prefix, shard in shards.items():
        by_home.setdefault(shard.home, []).append(prefix)
    for key, value in store.scan(Table.SLICES, b"", keys.LAST):
        piece, runs, part = named(Table.SLICES, key, tables.slice_from, key, value)
        for prefix in by_home.get(piece.home, ()):
            piece.adopt(shards[prefix])
        borrowed = [shards[prefix] for prefix in tables.prefixes_of(runs) if prefix in shards]
        piece.borrow(borrowed, part_of(store, piece, borrowed) if part is None else part)
        directory.adopt(piece)
    restore_cells(store, directory)
    return directory


def read_structures(store: Store) -> dict[int, str]:
    """Pattern by number."""
    rows = store.scan(Table.STRUCTURES, b"", keys.LAST)
    return dict(named(Table.STRUCTURES, key, tables.structure_from, key, value) for key, value in rows)


def count_pending(reader: Reader, horizon: Position) -> int:
    """Messages that the horizon has not passed: whole slices and shards from their counts.

    Reads rows only of the slice of the horizon.
    """
    pending = sum(1 for _, _, value in reader.held() if not is_stub(value))
    for piece in reader.directory.over(horizon, END):
        if before(piece.start_ms) > horizon:
            pending += piece.live
            continue
        for shard in piece.readable():
            if shard.first > horizon and shard.number in piece.shards:
                pending += shard.live
            else:
                rows = reader.run(piece, shard, Position(horizon + 1), END)
                pending += sum(1 for _, _, value in rows if not is_stub(value))
    return pending


def count_owned(store: Store, reader: Reader, horizon: Position) -> dict[bytes, tuple[int, int]]:
    """Pending messages of each owner, and their bytes; reads every pending row."""
    found: dict[bytes, tuple[int, int]] = {}
    rows = chain(reader.held(), reader.read(Position(horizon + 1), END))
    values = (value for _, _, value in rows if not is_stub(value))
    for value in chain(values, (row.record for row in waiting(store))):
        owner = _owner_if_readable(value)
        if owner:
            count, size = found.get(owner, (0, 0))
            found[owner] = count + 1, size + len(value)
    return found


def _owner_if_readable(value: bytes) -> bytes:
    try:
        return decode(value).owner if owner_of(value) else b""
    except (Corrupt, IndexError):
        return b""


def format_of(store: Store) -> int | None:
    """The format of a store; None: no format yet.

    Checked before anything else is read or written. Raises WrongFormat, Corrupt, StoreFailed.
    """
    value = store.get(Table.META, tables.META_FORMAT)
    if value is None:
        return None
    for known in (tables.FORMAT_FIRST, tables.FORMAT):
        if value == b"%d" % known:
            return known
    check_released(value)
    found = value[:20].decode("ascii", "replace")
    raise WrongFormat(f"the data has format {found}, {_READS}")


def check_released(value: bytes) -> None:
    """Raise UnreleasedFormat for a format that only versions between two releases wrote."""
    for found in range(tables.FORMAT_FIRST + 1, tables.FORMAT):
        if value == b"%d" % found:
            raise UnreleasedFormat(
                f"the data has format {found}, which no release wrote, {_READS}: go on with the version that"
                " wrote it, or begin with an empty directory"
            )


def check_number(store: Store, number: int) -> None:
    """Raise WrongNumber unless the store's timeline has this number; a new one may have any."""
    value = store.get(Table.META, tables.META_NUMBER)
    if value is None and store.get(Table.META, tables.META_FORMAT) is None:
        return
    stored = int(value or b"0")
    if stored != number:
        raise WrongNumber(
            f"{number}, but this data was made with {stored}, which its message ids have: set it back"
        )


def place_in_log(store: Store) -> Seal | None:
    """The record up to which a store has its shared log; None: it has none. Raises StoreFailed, Corrupt."""
    value = store.get(Table.META, tables.META_APPLIED)
    return (
        None if value is None else tables.applied_from(value, store.get(Table.META, tables.META_SEAL) or b"")
    )


def check_own(store: Store) -> None:
    """Raise SharedData if the store belongs to a cluster's node."""
    place = place_in_log(store)
    if place is not None:
        raise SharedData(f"the data is of a cluster's node, {place}")


def _format(store: Store) -> int | None:
    """The format of a store; None: it is new. Raises WrongFormat, Corrupt."""
    found = format_of(store)
    if found is None:
        _check_new(store, "the format")
    return found


def _write_format(store: Store, number: int) -> None:
    """Write the format before anything that only FORMAT has; the next group syncs it.

    `number`: `store.number`, left out if it is 0, as in older data.
    """
    batch = store.batch()
    batch.put(Table.META, tables.META_FORMAT, b"%d" % tables.FORMAT)
    if number:
        batch.put(Table.META, tables.META_NUMBER, b"%d" % number)
    store.write(batch)
