"""Retries: messages that wait for their next try, each for one session or group (kept.py has the rows).

A retry is in the table `retries` under the time when it is due, and no longer on the timeline: no other
reader passes it, no slice waits for it or expires it. It stays in the table while it is in flight again, so
its place stores only its position. It is deleted in the batch with the cursor that finishes it. So a message
has at most one retry per place, and after a kill it exists exactly once.

    GET /v1/messages/{id}    the row that the message was written to       (at, seq)     dispatched
    a retry                  same id, 3 attempts so far, due at at'        (at', seq')   of one place

It counts as pending while it is in the table.
"""

import logging
from collections.abc import Iterator
from contextlib import suppress

import msgspec

from timeline.position import MessageId, Position, at_of, position

from . import keys
from .commit import Commit
from .errors import Corrupt
from .fields import Record, Retry
from .kept import Kept
from .record import decode, owner_of
from .store import Store, Table
from .tables import META_RETRIES, KeptRow, encode_row, kept_row_of
from .unreadable import readable


def whose(addressee: str, incarnation: int) -> bytes:
    """Prefix of the rows that name a place's retries."""
    return keys.kept_of(f"{addressee}\0{incarnation}")


def _whose(row: KeptRow) -> bytes:
    return whose(row.addressee, row.incarnation)


log = logging.getLogger(__name__)
RETRIES = Kept(Table.RETRIES, META_RETRIES, _whose, is_counted=True)


def put_retry(commit: Commit, row: KeptRow, due_ms: int, *, is_owed: bool) -> Position:
    """In the writer: try the message again at `due_ms`; returns the retry's position.

    `is_owed`: it was promised before, whatever the bound on pending. Raises Refused before anything is
    changed.
    """
    if not is_owed:
        commit.check_pending(1, owner_of(row.record), len(row.record))
    place = position(due_ms, commit.horizon.issue())
    RETRIES.put(commit.open_batch, place, row)
    commit.retry_kept(1, row.record)
    return place


def end_retry(commit: Commit, place: Position, row: KeptRow) -> bool:
    """In the writer: remove a retry; False if it was gone already."""
    is_there = RETRIES.remove(commit.open_batch, place, row)
    if is_there:
        commit.retry_kept(-1, row.record)
    return is_there


def end_kept(commit: Commit, kept: Kept, place: Position) -> bool:
    """In the writer: remove the row at `place`, even if it cannot be read; False if there is none."""
    group = commit.open_batch
    try:
        row = kept.at(group, place)
    except Corrupt as error:
        log.error("retries: a finished row is unreadable: %s", error)
        group.row(kept.table, keys.kept(place), None)  # the rows that name it then have no effect
        return True
    if row is None:
        return False
    return end_retry(commit, place, row) if kept is RETRIES else kept.remove(group, place, row)


def note_dropped(commit: Commit, row: KeptRow) -> None:
    """In the writer: note that its place dropped the message, unfinished. The note lives as long as the
    message."""
    if keys.message_of(row.id) >> 80 >= at_of(commit.directory.floor):
        left = msgspec.structs.replace(row, record=b"")
        commit.row(Table.RETRIES, keys.dropped(row.id, _whose(row)), encode_row(left))


def end_dropped(commit: Commit, row: KeptRow) -> None:
    """In the writer: remove the note that its place dropped the message."""
    commit.row(Table.RETRIES, keys.dropped(row.id, _whose(row)), None)


def dropped_of(store: Store, message: MessageId) -> Iterator[KeptRow]:
    """The places that have dropped the message."""
    start = keys.dropped(keys.message(message), b"\0")
    for _, value in readable(store, Table.RETRIES, start, start + keys.LAST):
        with suppress(Corrupt):
            yield kept_row_of(value)


def is_dropped(store: Store, message: MessageId, whose: bytes) -> bool:
    """Whether a place has dropped the message."""
    return store.get(Table.RETRIES, keys.dropped(keys.message(message), whose)) is not None


def record_of(row: KeptRow) -> Record:
    """The message as its place gets it again. Raises Corrupt."""
    addressee, reason = row.addressee.encode(), row.reason.encode()
    retry = Retry(addressee, row.attempts, row.counted, reason, row.tries, row.returns)
    return msgspec.structs.replace(decode(row.record), id=keys.message_of(row.id), retry=retry)


def end_retries(commit: Commit, message: MessageId, addressee: str, incarnation: int) -> list[Position]:
    """In the writer: end the place's retries of a message. Returns their positions."""
    return [
        place
        for place, row in RETRIES.of_message_in(commit.open_batch, message)
        if row.is_of(addressee, incarnation) and end_retry(commit, place, row)
    ]
