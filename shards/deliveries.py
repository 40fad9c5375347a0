"""Changes of deliveries, in the writer (delivery_rows.py has their rows)."""

import logging
from collections.abc import Callable, Iterator
from typing import TypeVar

import msgspec

from timeline.delivery_rows import DeliveryRow as Life
from timeline.position import Position, position

from . import kept, keys
from .commit import Commit
from .delivery_rows import (
    DeliveryRow,
    Name,
    at,
    dead,
    listed,
    moved_key,
    of_rows,
    pointer_of,
    record_of,
    size_of,
    state_at,
    state_of,
    totals,
    waiting_keys,
    waiting_number,
    with_state,
)
from .errors import Corrupt
from .fields import TryRow
from .open_batch import OpenBatch
from .record import owner_of
from .store import Table
from .tables import (
    DEAD,
    DONE,
    DROPPED,
    META_DEAD,
    WAITING,
    KeptTotals,
    encode_row,
    kept_totals_value,
    number_value,
)

log = logging.getLogger(__name__)

Row = TypeVar("Row")


def wait(commit: Commit, row: DeliveryRow, due_ms: int, *, is_owed: bool) -> Position:
    """In the writer: the delivery waits until `due_ms`, or is withheld; returns its position in that order.

    `is_owed`: it was promised before, whatever the bound on pending. Raises Refused before anything is
    changed.
    """
    group, name = commit.open_batch, row.name
    row = row if row.is_withheld else msgspec.structs.replace(row, state=WAITING)
    before = _looked_at(state_at, group, name)
    if before is not None and before.state == DONE and kept.lose(group, name):
        before = None
    if before is not None and before.state not in (DEAD, DROPPED):
        place = position(due_ms, commit.horizon.issue())
        _wait_on(group, name, keys.place_of(before.at), msgspec.structs.replace(row, at=place))
        return place
    over = None if before is None else _looked_at(at, group, name)
    record = row.record if over is None or over.is_dropped else over.record
    if not is_owed:
        commit.check_pending(1, owner_of(record), len(record))
    commit.retry_kept(1, record)
    place = position(due_ms, commit.horizon.issue())
    _put(group, name, msgspec.structs.replace(row, at=place), over)
    return place


def bury(commit: Commit, row: DeliveryRow, *, max_messages: int, max_bytes: int) -> tuple[Position, int]:
    """In the writer: the delivery is dead from now on. Returns the time of death, and how many dead letters
    were dropped beyond the bounds, the oldest first."""
    name = row.name
    before = _looked_at(_undone, commit.open_batch, name)
    if before is not None and before.is_waiting:
        commit.retry_kept(-1, before.record)
    place = position(commit.horizon.clock_ms, commit.horizon.issue())
    _put(commit.open_batch, name, msgspec.structs.replace(row, state=DEAD, at=place), before)
    return place, _drop_oldest(commit, max_messages, max_bytes)


def _looked_at(look: Callable[[OpenBatch, Name], Row | None], group: OpenBatch, name: Name) -> Row | None:
    """The row, or None if there is none. An unreadable row counts as none, and is written anew."""
    try:
        return look(group, name)
    except Corrupt as error:
        _tell(name, error)
        return None


def _undone(group: OpenBatch, name: Name) -> DeliveryRow | None:
    """Its row; that it was done is forgotten."""
    value = group.get(Table.DELIVERIES, keys.state(*name))
    if value is None or kept.lose(group, name, value):
        return None
    return with_state(group, name, value)


def _tell(name: Name, error: Corrupt) -> None:
    log.error("delivery at %024x: unreadable, written anew: %s", name.root, error)


def _wait_on(group: OpenBatch, name: Name, before: Position, row: DeliveryRow) -> None:
    """It waited until `before`. Its record and the counts stay as they are, and are not looked at."""
    for key in waiting_keys(name.whose, before):
        group.row(Table.DELIVERIES, key, None)
    group.row(Table.DELIVERIES, keys.state(*name), encode_row(state_of(row)))
    for key in waiting_keys(name.whose, row.at):
        group.row(Table.DELIVERIES, key, pointer_of(key, name))


def _put(group: OpenBatch, name: Name, row: DeliveryRow, before: DeliveryRow | None) -> None:
    """Put its rows in place of those of `before`, whose record stays, unless it was dropped."""
    if before is not None:
        _unlist(group, before)
    if before is None or before.is_dropped:
        group.row(Table.DELIVERIES, keys.record(row.root, name.whose), encode_row(record_of(row)))
        if moved := moved_key(row):
            group.row(Table.DELIVERIES, moved, b"")
    else:
        row = of_rows(name, state_of(row), record_of(before))
    group.row(Table.DELIVERIES, keys.state(*name), encode_row(state_of(row)))
    for key in listed(row):
        group.row(Table.DELIVERIES, key, pointer_of(key, name))
    _count(group, row, 1)


def _unlist(group: OpenBatch, row: DeliveryRow) -> None:
    """Take it out of the lists and counts that its state is in."""
    for key in listed(row):
        group.row(Table.DELIVERIES, key, None)
    _count(group, row, -1)


def _count(group: OpenBatch, row: DeliveryRow, count: int) -> None:
    if row.state == DROPPED:
        return
    if row.state == DEAD:
        now, size = totals(group), count * size_of(row)
        set_totals(group, KeptTotals(max(0, now.count + count), max(0, now.bytes + size), now.oldest))
        return
    key = keys.WAITING_COUNT + row.whose
    left = max(0, waiting_number(group.get(Table.DELIVERIES, key)) + count)
    group.row(Table.DELIVERIES, key, number_value(left) if left else None)


def end(commit: Commit, name: Name) -> bool:
    """In the writer: the delivery is over, and its rows go, also if they cannot be read; False if it had
    none, or was done."""
    group = commit.open_batch
    try:
        value = group.get(Table.DELIVERIES, keys.state(*name))
        if value is None or kept.lose(group, name, value):
            return False
        row = with_state(group, name, value)
    except Corrupt as error:
        _tell(name, error)
        row = None
    if row is not None:
        _unlist(group, row)
        if row.is_waiting:
            commit.retry_kept(-1, row.record)
        if moved := moved_key(row):
            group.row(Table.DELIVERIES, moved, None)
    group.row(Table.DELIVERIES, keys.state(*name), None)
    group.row(Table.DELIVERIES, keys.record(name.root, name.whose), None)
    return True


def finish(commit: Commit, name: Name, life: Life | None, keeper: str) -> bool:
    """In the writer: the delivery is acked late, and its rows go, also if they cannot be read; False if it
    had none, or was done. `life`: as it is kept; None: it is not."""
    if life is None:
        return not kept.is_kept(commit.open_batch, name) and end(commit, name)
    is_ended = end(commit, name)
    *tries, good = [TryRow(*one) for one in life.tries]
    counts = life.attempts, life.counted, tries
    story = kept.Story(*counts, good.by, good.at_ms, good.ms, good.reason)
    kept.keep(commit, name.whose, {name.root: story}, keeper)
    return is_ended


def drop(commit: Commit, row: DeliveryRow) -> None:
    """In the writer: its place drops the message, unfinished. That is known as long as the message."""
    end(commit, row.name)
    if row.root >= commit.directory.floor:
        _put(commit.open_batch, row.name, msgspec.structs.replace(row, state=DROPPED, record=b""), None)


def end_dropped(commit: Commit, name: Name) -> None:
    """In the writer: forget that its place dropped the message. It may have been given it again meanwhile."""
    state = state_at(commit.open_batch, name)
    if state is not None and state.state == DROPPED:
        end(commit, name)


def set_totals(group: OpenBatch, now: KeptTotals) -> None:
    group.row(Table.META, META_DEAD, kept_totals_value(now))


def drop_older(commit: Commit, running_ms: int, limit: int) -> int:
    """In the writer: drop at most `limit` of the oldest dead letters, of those that died before `running_ms`.
    Returns the number."""
    gone = 0
    for dead_letter in _oldest(commit):
        if gone == limit or dead_letter.running_ms >= running_ms:
            break
        _drop(commit, dead_letter)
        gone += 1
    return gone


def _drop_oldest(commit: Commit, max_messages: int, max_bytes: int) -> int:
    """Drop the oldest until the rest is within the bounds; the newest stays, however large."""
    now, gone = totals(commit.open_batch), 0
    if now.count <= max_messages and now.bytes <= max_bytes:
        return 0
    for dead_letter in _oldest(commit):
        _drop(commit, dead_letter)
        gone += 1
        now = totals(commit.open_batch)
        if now.count <= max_messages and now.bytes <= max_bytes:
            break
    return gone


def _drop(commit: Commit, dead_letter: DeliveryRow) -> None:
    """Drop the oldest, and note where the next search begins, so that it passes no deleted rows."""
    end(commit, dead_letter.name)
    now = totals(commit.open_batch)
    set_totals(commit.open_batch, KeptTotals(now.count, now.bytes, Position(dead_letter.at + 1)))


def _oldest(commit: Commit) -> Iterator[DeliveryRow]:
    """Stored dead letters that this group has not changed, oldest first."""
    group = commit.open_batch
    for row in dead(group.store, totals(group).oldest):
        if group.get(Table.DELIVERIES, keys.delivery(keys.DEAD, row.at)) is not None:
            yield row
