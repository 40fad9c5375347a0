"""The journal of ends: how deliveries ended, until an archive has taken it. Without one nothing is noted.

    11 · at                  root (12), EndRow: one end. `at` is T and a new seq, so the last end of a
                             delivery has the highest
    12 · minute · whose      EndsRow: how many deliveries of a place ended in that minute, by end
    13 · quarter of an hour  EndedSize: what the rows of both kinds take that are of it

An end is noted in the batch that makes it durable, with the row or the cursor that says so: after a kill both
are there, or none. T never goes back, so what the archive took up to a time stays whole.

All ends are counted, and each has a row of its own, but for what is done and not kept. `meta` has the size of
all. Beyond ENDS_MAX rows ends are only counted. Beyond ROWS_MAX or BYTES_MAX they are lost, and only the
metric tells how many. What the archive has is cleared without a look at each row: an archive that was ten
days behind reads 960 sizes.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple, TypeVar

from timeline.position import POSITION_BYTES, Position

from . import keys
from .archives import QUARTER_MS
from .commit import Commit
from .errors import Corrupt
from .kept import NO_STORY, Story
from .open_batch import OpenBatch
from .store import Store, Table
from .tables import (
    META_ENDED,
    EndedSize,
    EndRow,
    EndsRow,
    encode_row,
    end_row_of,
    ended_size_of,
    ends_row_of,
)
from .unreadable import readable

log = logging.getLogger(__name__)

DONE, DEAD, DROPPED, EXPIRED, REQUEUED = "done", "dead", "dropped", "expired", "requeued"
"""How a delivery ends. A dead letter that is requeued goes on; its next end has a row of its own."""
ENDS_MAX, ROWS_MAX, BYTES_MAX = 1_900_000, 2_000_000, 512 << 20
MINUTE_MS = 60_000
KEY_BYTES = 1 + POSITION_BYTES
NONE = EndedSize()
Names = tuple[str, str, int]
"""Of a place: in its rows, as users know it, and its incarnation."""
Row = TypeVar("Row")


class Ended(NamedTuple):
    """The end of a delivery."""

    at: Position
    root: Position
    row: EndRow


class Ends(NamedTuple):
    """How many deliveries of a place ended in a minute."""

    minute_ms: int
    row: EndsRow


class Counted(NamedTuple):
    """An end of a place that was counted: under which key, and to which number."""

    key: bytes
    number: int


# -- in the writer


def note(commit: Commit, whose: bytes, names: Names, root: Position, row: EndRow) -> None:
    """In the writer: a delivery has ended, and is counted."""
    group = commit.open_batch
    if count(group, whose, names, row.end) is not None and _has_room(group, 1, ENDS_MAX):
        _put(group, ((root, encode_row(row)),))


def note_done(
    commit: Commit, whose: bytes, names: Names, stories: Mapping[Position, Story], number: int
) -> Counted | None:
    """In the writer: so many deliveries are done, and those in `stories`, by root, are kept. Of the latter
    some may have been counted before. Returns what was counted."""
    group = commit.open_batch
    now = count(group, whose, names, DONE, number) if number else None
    is_counted = now is not None or not number
    if stories and is_counted and _has_room(group, len(stories), ENDS_MAX):
        _put(group, _done(names, stories))
    return now


def _done(names: Names, stories: Mapping[Position, Story]) -> Iterator[tuple[Position, bytes]]:
    """Those of a run are alike, and are encoded once."""
    place, last, value = shown(names), NO_STORY, b""
    for root, one in stories.items():
        if one is not last:
            row = EndRow(*place, DONE, one.attempts, one.answer, one.by, one.held_ms, b"", one.shard)
            last, value = one, encode_row(row)
        yield root, value


def count(group: OpenBatch, whose: bytes, names: Names, end: str, number: int = 1) -> Counted | None:
    """In the writer: so many deliveries of a place have ended. None: there is no room, or no archive."""
    if not group.notes_ends or not _has_room(group, number, ROWS_MAX):
        return None
    minute_ms = group.horizon.clock_ms // MINUTE_MS * MINUTE_MS
    key = keys.since(keys.ENDS, minute_ms) + whose
    before = group.get(Table.DELIVERIES, key)
    row = _readable(ends_row_of, before) or EndsRow(*shown(names), {})
    row.counts[end] = now = row.counts.get(end, 0) + number
    value = encode_row(row)
    group.row(Table.DELIVERIES, key, value)
    more = len(value) - (0 if before is None else len(before))
    _add(group, EndedSize(1, more + len(key)) if before is None else EndedSize(0, more))
    return Counted(key, now)


def counted(group: OpenBatch, key: bytes, end: str) -> int:
    """The number under a key of `count`."""
    row = _readable(ends_row_of, group.get(Table.DELIVERIES, key))
    return 0 if row is None else row.counts.get(end, 0)


def clear_before(commit: Commit, to_ms: int) -> None:
    """In the writer: the archive has what is of quarters of an hour before that time."""
    group = commit.open_batch
    to_ms = min(to_ms, group.horizon.clock_ms) // QUARTER_MS * QUARTER_MS
    rows = size = 0
    for key, value in readable(
        group.store, Table.DELIVERIES, keys.QUARTERS, keys.since(keys.QUARTERS, to_ms)
    ):
        gone = _readable(ended_size_of, value) or NONE
        rows, size = rows + gone.rows, size + gone.size
        group.row(Table.DELIVERIES, key, None)
    if rows:
        for prefix in (keys.ENDED, keys.ENDS):
            group.clear(Table.DELIVERIES, prefix, keys.since(prefix, to_ms))
        _change(group, Table.META, META_ENDED, EndedSize(-rows, -size))


def shown(names: Names) -> tuple[str, str, int]:
    """A place as users call it, its kind, its incarnation."""
    addressee, called, incarnation = names
    if not addressee.startswith(keys.GROUP_PREFIX):
        return called, "session", incarnation
    name = called.removeprefix(keys.ENDPOINT_PREFIX)
    return name, "group" if name == called else "endpoint", incarnation


def _put(group: OpenBatch, ends: Iterable[tuple[Position, bytes]]) -> None:
    """Written for speed: it runs for each ack where all is kept."""
    put, seq, size = group.row, group.horizon.seq, 0
    first, table, prefix = seq, Table.DELIVERIES, keys.since(keys.ENDED, group.horizon.clock_ms)
    for root, value in ends:
        seq += 1
        put(table, prefix + seq.to_bytes(6, "big"), root.to_bytes(12, "big") + value)
        size += len(value)
    group.horizon.seq, rows = seq, seq - first
    _add(group, EndedSize(rows, size + rows * (POSITION_BYTES + KEY_BYTES)))


def _has_room(group: OpenBatch, number: int, most: int) -> bool:
    """Whether there is room for so many more, up to `most` rows; if not, they are counted as lost."""
    now = total(group)
    if now.rows + number <= most and now.size < BYTES_MAX:
        return True
    group.ends_lost += number
    return False


def _add(group: OpenBatch, more: EndedSize) -> None:
    quarter_ms = group.horizon.clock_ms // QUARTER_MS * QUARTER_MS
    _change(group, Table.DELIVERIES, keys.since(keys.QUARTERS, quarter_ms), more)
    _change(group, Table.META, META_ENDED, more)


def _change(group: OpenBatch, table: Table, key: bytes, more: EndedSize) -> None:
    now = size_of(group, table, key)
    group.row(table, key, encode_row(EndedSize(max(0, now.rows + more.rows), max(0, now.size + more.size))))


# -- as stored, or as the open group leaves it


def total(rows: OpenBatch | Store) -> EndedSize:
    """The size of the journal."""
    return size_of(rows, Table.META, META_ENDED)


def size_of(rows: OpenBatch | Store, table: Table, key: bytes) -> EndedSize:
    """The size in that row."""
    return _readable(ended_size_of, rows.get(table, key)) or NONE


def ended_between(store: Store, from_ms: int, to_ms: int) -> Iterator[Ended]:
    """Ends with rows, from_ms <= at < to_ms, in their order. What cannot be read is skipped."""
    for key, value in _between(store, keys.ENDED, from_ms, to_ms):
        row = _readable(end_row_of, value[POSITION_BYTES:])
        if row is not None:
            yield Ended(keys.place_of(key), keys.place_of(value[:POSITION_BYTES]), row)


def ends_between(store: Store, from_ms: int, to_ms: int) -> Iterator[Ends]:
    """Counts of minutes, from_ms <= minute < to_ms, in their order. What cannot be read is skipped."""
    for key, value in _between(store, keys.ENDS, from_ms, to_ms):
        row = _readable(ends_row_of, value)
        if row is not None:
            yield Ends(keys.time_in(key), row)


def _between(store: Store, prefix: bytes, from_ms: int, to_ms: int) -> Iterator[tuple[bytes, bytes]]:
    return readable(store, Table.DELIVERIES, keys.since(prefix, from_ms), keys.since(prefix, to_ms))


def _readable(read: Callable[[bytes], Row], value: bytes | None) -> Row | None:
    """None: there is none, or it cannot be read."""
    try:
        return None if value is None else read(value)
    except Corrupt as error:
        log.error("ends: a row is unreadable, skipped: %s", error)
        return None
