"""A retry: a message that waits for its next try, for one session or group alone (kept.py has its rows).

It stands in the table `retries` under the time when it is due, and on the timeline no more: no other reader
passes over it, no slice waits for it or takes it away. It stays while it is in flight again, so that the
place that has it needs no more than its position, and goes in the batch with the cursor that has it done. So
a message and a place have one retry at most, and a kill finds it once, in the table or in flight from there.

    GET /v1/messages/{id}    the row that the message was written to       (at, seq)     dispatched
    a retry                  same id, 3 attempts so far, due at at'        (at', seq')   of one place

It is pending as long as it stands.
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
    """What the rows begin with that name the retries of a place."""
    return keys.kept_of(f"{addressee}\0{incarnation}")


def _whose(row: KeptRow) -> bytes:
    return whose(row.addressee, row.incarnation)


log = logging.getLogger(__name__)
RETRIES = Kept(Table.RETRIES, META_RETRIES, _whose, is_counted=True)


def put_retry(commit: Commit, row: KeptRow, due_ms: int, *, is_owed: bool) -> Position:
    """In the writer: have the message tried again at `due_ms`; where it stands.

    `is_owed`: it was promised before, however many are pending by now. Raises Refused, before anything is
    changed.
    """
    if not is_owed:
        commit.check_pending(1, owner_of(row.record), len(row.record))
    place = position(due_ms, commit.horizon.issue())
    RETRIES.put(commit.open_group, place, row)
    commit.retry_kept(1, row.record)
    return place


def end_retry(commit: Commit, place: Position, row: KeptRow) -> bool:
    """In the writer: it is no retry any more; False if it was not."""
    is_there = RETRIES.remove(commit.open_group, place, row)
    if is_there:
        commit.retry_kept(-1, row.record)
    return is_there


def end_kept(commit: Commit, kept: Kept, place: Position) -> bool:
    """In the writer: what stands there is kept no more, also if it cannot be read; False if nothing is."""
    group = commit.open_group
    try:
        row = kept.at(group, place)
    except Corrupt as error:
        log.error("retries: a finished row is unreadable: %s", error)
        group.row(kept.table, keys.kept(place), None)  # its names say nothing then
        return True
    if row is None:
        return False
    return end_retry(commit, place, row) if kept is RETRIES else kept.remove(group, place, row)


def note_dropped(commit: Commit, row: KeptRow) -> None:
    """In the writer: its place gets the message no more, and nobody has it done. That is known for as long as
    the message is."""
    if keys.message_of(row.id) >> 80 >= at_of(commit.directory.floor):
        left = msgspec.structs.replace(row, record=b"")
        commit.row(Table.RETRIES, keys.dropped(row.id, _whose(row)), encode_row(left))


def end_dropped(commit: Commit, row: KeptRow) -> None:
    """In the writer: its place is to have the message after all."""
    commit.row(Table.RETRIES, keys.dropped(row.id, _whose(row)), None)


def dropped_of(store: Store, message: MessageId) -> Iterator[KeptRow]:
    """The places that have dropped it."""
    start = keys.dropped(keys.message(message), b"\0")
    for _, value in readable(store, Table.RETRIES, start, start + keys.LAST):
        with suppress(Corrupt):
            yield kept_row_of(value)


def is_dropped(store: Store, message: MessageId, whose: bytes) -> bool:
    """Whether a place has dropped it."""
    return store.get(Table.RETRIES, keys.dropped(keys.message(message), whose)) is not None


def record_of(row: KeptRow) -> Record:
    """The message as its place is sent it once more. Raises Corrupt."""
    addressee, reason = row.addressee.encode(), row.reason.encode()
    retry = Retry(addressee, row.attempts, row.counted, reason, row.tries, row.returns)
    return msgspec.structs.replace(decode(row.record), id=keys.message_of(row.id), retry=retry)


def end_retries(commit: Commit, message: MessageId, addressee: str, incarnation: int) -> list[Position]:
    """In the writer: the place needs the message no more; where retries of it have ended."""
    return [
        place
        for place, row in RETRIES.of_message_in(commit.open_group, message)
        if row.is_of(addressee, incarnation) and end_retry(commit, place, row)
    ]
