"""Checks derived data against the message rows, and finds unreadable rows.

It compares the counts of each shard with its rows, and the counts of borrowed shards in a slice's row.
*Strays* are rows under a prefix that no shard row names, except rows of an expired slice: nobody reads them.
*Copies* are strays left by an older version's split. An *orphan* is a shard row that no slice knows.
Unreadable ranges of any table, and rows that cannot be decoded, are found on the way. A corrupt range is
named by its keys, and its messages are counted, since the shard says how many there were. (Rows that point at
others: pointers.py.)

Repair writes the counts again, a shard row for strays whose slice is known, or a slice that borrows them, and
structure 0 for shards whose structure is unknown. It first deletes undecodable rows of `shards`: their
messages are strays then. It deletes copies, and orphans without messages; orphans with messages are only
named, because the end of their slice is unknown. It rewrites a table with a corrupt range from its readable
rows, and deletes undecodable rows. If the directory itself (`slices`, `meta`, a block of `shards`) is
damaged, only a backup helps.

Cells (cells.py) are compared too; repair deletes wrong ones, and the server counts again. The counters of
owners in `meta` are compared with the pending rows.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from types import MappingProxyType

from timeline.cells import Cells
from timeline.position import END, ID_BYTES, POSITION_BYTES, START, Position
from timeline.slices import Counts, Directory, Shard, Slice, SlicesError
from timeline.structures import ANYTHING, Structures

from . import keys, tables
from .archived import check_archive_row
from .endpoints import endpoint_of
from .errors import Corrupt
from .jobs import ABORTED, stored_jobs
from .order import check_row
from .pointers import Pointer
from .read import Reader
from .record import decode, is_stub
from .recover import count_owned
from .schedules import schedule_of
from .store import ROWS_END, Batch, Store, Table
from .unreadable import REPAIR_BYTES, CorruptRange, Unreadable, readable

PART = 0xFFFF
"""Stands for a shard number: all that a slice borrows. No shard has it."""
DIRECTORY = frozenset((Table.SLICES, Table.SHARDS, Table.META))
"""The tables of the directory: they cannot be rebuilt."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A shard whose row differs from its messages, or that has unreadable messages.

    With `piece`, the counts are of all that this slice borrows. `is_of_cells`: the counts are right, but the
    cells are not.
    """

    shard: Shard
    counted: Shard
    ranges: tuple[CorruptRange, ...] = ()
    piece: Slice | None = None
    is_of_cells: bool = False

    def __str__(self) -> str:
        row, is_ = self.shard, self.counted
        if self.is_of_cells:
            return f"slice {row.home.start_ms}: its counts by time are not those of its {row.live} messages"
        what = f"shard {row.number}" if self.piece is None else "what it borrows"
        text = (
            f"slice {row.home.start_ms} {what}: says {row.count} rows, {row.live} live, "
            f"has {is_.count} rows, {is_.live} live"
        )
        if (is_.first, is_.last) != (row.first, row.last) and self.piece is None:
            text += "; its bounds are not right"
        if is_.structure != row.structure:
            text += f"; its structure {row.structure} is not known"
        return "\n  ".join((text, *map(str, self.ranges)))

    def mend(self, batch: Batch) -> None:
        """Write the counted values."""
        piece, counted = self.piece, self.counted
        # The server counts them again: otherwise they might fit the slice's new counts.
        batch.delete(Table.META, keys.cells_key(counted.home))
        if self.is_of_cells:
            return
        if piece is None:
            batch.put(Table.SHARDS, counted.prefix, tables.shard_value(counted))
        else:
            piece.borrow(piece.borrowed.values(), Counts(counted.count, counted.live, counted.bytes))
            batch.put(Table.SLICES, keys.slice_key(piece.home), tables.slice_value(piece))


@dataclass(frozen=True, slots=True)
class Stray:
    """Rows of messages that no shard row names."""

    counted: Shard
    is_known: bool
    """Whether there is a slice for them."""
    is_copy: bool = False
    """A failed job of an older version copied them."""

    @property
    def is_mendable(self) -> bool:
        return self.is_known or self.is_copy

    def __str__(self) -> str:
        text = f"{self.counted.count} rows, {self.counted.live} live, in a shard that has no row"
        if self.is_copy:
            text += ", copied by a job that did not end well"
        elif not self.is_known:
            text += ", of a slice that has none"
        return f"slice {self.counted.home.start_ms} shard {self.counted.number}: {text}"

    def mend(self, batch: Batch) -> None:
        """Write a shard row for those whose slice is known; delete copies."""
        prefix = self.counted.prefix
        if self.is_copy:
            batch.delete_range(Table.MESSAGES, *keys.under(prefix))
        elif self.is_known:
            batch.delete(Table.META, keys.cells_key(self.counted.home))
            batch.put(Table.SHARDS, prefix, tables.shard_value(self.counted))


@dataclass(frozen=True, slots=True)
class Orphan:
    """A shard row that no slice has or borrows."""

    shard: Shard
    has_rows: bool

    def __str__(self) -> str:
        text = f"slice {self.shard.home.start_ms} shard {self.shard.number}: the row of a shard of no slice"
        return text + ("" if self.has_rows else ", without messages")

    def mend(self, batch: Batch) -> None:
        if not self.has_rows:
            batch.delete(Table.SHARDS, self.shard.prefix)


@dataclass(frozen=True, slots=True)
class OwnerFault:
    """An owner whose counters differ from the rows. Both in messages and in bytes."""

    owner: bytes
    stored: tuple[int, int] | None
    """None: they cannot be decoded."""
    counted: tuple[int, int]

    def __str__(self) -> str:
        stored, unit = "nothing that can be read", 0
        if self.stored is not None:
            unit = int(self.stored[0] == self.counted[0])
            stored = f"{self.stored[unit]} {('messages', 'bytes')[unit]} are pending"
        return f"owner {self.owner.decode(errors='replace')!r}: says {stored}, there are {self.counted[unit]}"

    def mend(self, batch: Batch) -> None:
        count, size = self.counted
        batch.put(Table.META, keys.owned(self.owner), tables.owned_value(count, 0, size, 0))


@dataclass(slots=True)
class Damage:
    """Damage of a table: corrupt ranges, and keys of undecodable rows."""

    table: Table
    ranges: list[CorruptRange] = field(default_factory=list)
    bad: list[bytes] = field(default_factory=list)

    @property
    def is_final(self) -> bool:
        """Whether only a backup helps. Rows of `shards` can be counted again."""
        is_in_directory = self.table in DIRECTORY
        return is_in_directory and bool(self.ranges or (self.bad and self.table is not Table.SHARDS))

    def __str__(self) -> str:
        lines = [str(corrupt) for corrupt in self.ranges]
        lines += [f"table {self.table.value}: the row at {key!r} cannot be decoded" for key in self.bad]
        return "\n".join(lines)

    def mend(self, batch: Batch) -> None:
        """Delete the undecodable rows."""
        for key in self.bad:
            batch.delete(self.table, key)


def repair(store: Store, found: Iterable[Fault | Stray | Orphan | OwnerFault | Damage | Pointer]) -> None:
    """Mend them in one batch; durable on return."""
    batch = store.batch()
    for one in found:
        one.mend(batch)
    store.write(batch)
    store.flush()


def _value(check: Callable[[bytes], object]) -> Callable[[bytes, bytes], object]:
    return lambda _, value: check(value)


def _check_id(value: bytes) -> None:
    if len(value) != ID_BYTES:
        raise Corrupt(f"{len(value)} bytes are no id")


def _check_retained(key: bytes, value: bytes) -> None:
    if not key.startswith(b"\xff"):
        decode(value[_RETAINED_HEAD:])


def _check_session(key: bytes, value: bytes) -> None:
    if keys.is_of_group(key):
        tables.group_of(value)
    else:
        tables.session_of(value)


def _check_meta(key: bytes, value: bytes) -> None:
    if key == tables.META_CURSOR:
        tables.cursor_from(value)
    check_archive_row(key, value)


def _check_delivery(key: bytes, value: bytes) -> None:
    match key[:1]:
        case keys.STATE:
            tables.state_row_of(value)
        case keys.RECORD:
            record = tables.record_row_of(value).record
            if record:
                decode(record)
        case keys.ENDED:
            tables.end_row_of(value[POSITION_BYTES:])
        case keys.ENDS:
            tables.ends_row_of(value)


_RETAINED_HEAD = 14
_DECODERS: Mapping[Table, Callable[[bytes, bytes], object]] = MappingProxyType(
    {
        Table.SLICES: tables.slice_from,
        Table.SHARDS: tables.shard_from,
        Table.STRUCTURES: tables.structure_from,
        Table.SESSIONS: _check_session,
        Table.CURSORS: _value(tables.cursor_row_of),
        Table.DEDUPE: _value(tables.dedupe_row_of),
        Table.MOVED: _value(_check_id),
        Table.HELD: _value(decode),
        Table.DISPATCHES: _value(tables.number_from),
        Table.SCHEDULES: _value(schedule_of),
        Table.ENDPOINTS: _value(endpoint_of),
        Table.RETAINED: _check_retained,
        Table.ORDER: check_row,
        Table.DELIVERIES: _check_delivery,
        Table.META: _check_meta,
    }
)


def verify_counts(store: Store, directory: Directory) -> list[Fault]:
    """Count every shard of a slice, and what each slice holds of borrowed shards.

    Expired rows of a borrowed shard belong to nobody, and may still be there. Raises Corrupt if slices
    overlap.
    """
    try:
        directory.check()
    except SlicesError as error:
        raise Corrupt(f"table slices: {error}: restore a backup") from error
    structures = {ANYTHING, *(number for number, _ in structure_rows(store))}
    faults: list[Fault] = []
    borrowed: dict[bytes, tuple[Shard, Shard]] = {}
    for piece in directory:
        cells = Cells(piece.start_ms, piece.end_ms, piece.cells.width_ms) if piece.cells is not None else None
        own: list[Fault] = []
        for shard in piece.shards.values():
            own += _own_faults(store, shard, structures, cells)
        if piece.borrowed:
            own += _part_faults(store, piece, borrowed, cells)
        faults += own or _cells_faults(piece, cells)
    for stored, found in borrowed.values():
        structure = stored.structure if stored.structure in structures else ANYTHING
        first, last = min(stored.first, found.first), max(stored.last, found.last)
        if (structure, first, last) != (stored.structure, stored.first, stored.last):
            mended = Shard(stored.home, stored.number, structure)
            mended.take(stored.count, stored.live, stored.bytes, first, last)
            faults.append(Fault(stored, mended))
    return faults


def _cells_faults(piece: Slice, counted: Cells | None) -> Iterator[Fault]:
    """Faults in the cells of a slice whose counts are right."""
    stored = piece.cells
    if stored is not None and counted is not None and stored.is_exact and stored.counts != counted.counts:
        whole = Shard(piece.home, PART)
        whole.take(piece.count, piece.live, piece.bytes, END, START)
        yield Fault(whole, whole, piece=piece, is_of_cells=True)


def _own_faults(store: Store, shard: Shard, structures: set[int], cells: Cells | None) -> Iterator[Fault]:
    unreadable = Unreadable(kept_bytes=REPAIR_BYTES)
    counted = _count(store, shard, keys.under(shard.prefix), unreadable, cells)
    if shard.structure not in structures:
        # Its number may be given to another pattern: from now on the shard may hold any topic.
        counted.structure = ANYTHING
    is_right = (counted.count, counted.live, counted.structure) == (shard.count, shard.live, shard.structure)
    if shard.count:
        is_right = is_right and (counted.first, counted.last) == (shard.first, shard.last)
    if not is_right or len(unreadable):
        yield Fault(shard, counted, tuple(unreadable))


def _part_faults(
    store: Store, piece: Slice, borrowed: dict[bytes, tuple[Shard, Shard]], cells: Cells | None
) -> Iterator[Fault]:
    """Faults of a slice's counts of borrowed shards. Adds the counted rows to each shard in `borrowed`."""
    unreadable = Unreadable(kept_bytes=REPAIR_BYTES)
    stored, counted = Shard(piece.home, PART), Shard(piece.home, PART)
    stored.take(*piece.part, END, START)
    for shard in piece.borrowed.values():
        span = keys.span_range(shard.prefix, piece.start_ms, piece.end_ms)
        found = _count(store, shard, span, unreadable, cells)
        whole = borrowed.setdefault(shard.prefix, (shard, Shard(shard.home, shard.number)))[1]
        for one in (counted, whole):
            one.take(found.count, found.live, found.bytes, found.first, found.last)
    if (stored.count, stored.live) != (counted.count, counted.live) or len(unreadable):
        yield Fault(stored, counted, tuple(unreadable), piece)


def strays(store: Store, directory: Directory, floor: Position) -> list[Stray]:
    """Rows of unknown shards: a probe between any two shards, and a count where there are rows."""
    known = {shard.prefix for piece in directory for shard in piece.readable()}
    own = {piece.home for piece in directory}
    slices = [tables.slice_from(key, value) for key, value in readable(store, Table.SLICES)]
    borrowed = {prefix for _, runs, _ in slices for prefix in tables.prefixes_of(runs)}
    # Rows that jobs of older versions copied. A start aborts an unfinished job and deletes its copies.
    copies = {prefix: job.state for job in stored_jobs(store) for prefix in job.copies}
    unreadable = Unreadable(kept_bytes=REPAIR_BYTES)
    found: list[Stray] = []
    start = b""
    while (key := next(readable(store, Table.MESSAGES, start), (b"", b""))[0]) != b"":
        home, number = keys.shard_of(key)
        shard = Shard(home, number, ANYTHING)
        span = keys.under(shard.prefix)
        start = span[1]
        state = copies.get(shard.prefix)
        if shard.prefix not in known and state in (None, ABORTED):
            counted = _count(store, shard, span, unreadable)
            if counted.last >= floor:
                is_known = home in own or shard.prefix in borrowed
                found.append(Stray(counted, is_known and state is None, state is not None))
    return found


def verify_owners(store: Store, directory: Directory, horizon: Position) -> list[OwnerFault]:
    """Count what each owner has pending behind the horizon."""
    counted = count_owned(store, Reader(store, directory, Structures(max_structures=1)), horizon)
    faults = []
    for key, value in readable(store, Table.META, *keys.under(keys.OWNED)):
        owner = keys.owner_in(key)
        is_ = counted.pop(owner, (0, 0))
        try:
            row = tables.owned_from(value)
        except Corrupt:
            faults.append(OwnerFault(owner, None, is_))
            continue
        stored = row.placed - row.passed, row.placed_bytes - row.passed_bytes
        if stored != is_:
            faults.append(OwnerFault(owner, stored, is_))
    return faults + [OwnerFault(owner, (0, 0), is_) for owner, is_ in counted.items()]


def orphans(store: Store, directory: Directory) -> list[Orphan]:
    """Shard rows that the directory does not know."""
    known = {shard.prefix for piece in directory for shard in piece.readable()}
    found = []
    for key, value in readable(store, Table.SHARDS):
        if key not in known:
            row = next(readable(store, Table.MESSAGES, *keys.under(key)), None)
            found.append(Orphan(tables.shard_from(key, value), row is not None))
    return found


def verify_tables(store: Store) -> list[Damage]:
    """Read every other table."""
    found = []
    for table in Table:
        if table is Table.MESSAGES:
            continue
        unreadable, damage = Unreadable(kept_bytes=REPAIR_BYTES), Damage(table)
        check = _DECODERS.get(table)
        for key, value in unreadable.scan(store, table, b"", ROWS_END):
            try:
                if check is not None:
                    check(key, value)
            except Corrupt:
                damage.bad.append(key)
        damage.ranges = list(unreadable)
        if damage.ranges or damage.bad:
            found.append(damage)
    return found


def structure_rows(store: Store) -> Iterator[tuple[int, str]]:
    """The readable structures."""
    for key, value in readable(store, Table.STRUCTURES):
        with suppress(Corrupt):
            yield tables.structure_from(key, value)


def _count(
    store: Store,
    shard: Shard,
    span: tuple[bytes, bytes],
    unreadable: Unreadable,
    cells: Cells | None = None,
) -> Shard:
    """Count the rows; adds live ones to `cells`."""
    counted = Shard(shard.home, shard.number, shard.structure)
    for key, value in unreadable.scan(store, Table.MESSAGES, *span, shard.prefix):
        place = keys.place_of(key)
        counted.grow(place, len(value) + keys.MESSAGE_KEY_BYTES)
        if is_stub(value):
            counted.retire()
        elif cells is not None:
            cells.count_in(place)
    return counted
