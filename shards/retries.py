"""A retry: a message once more, later, for one session or group alone.

The timeline is the log, so what is to come again is put on it again: a row at a later position, with the id,
topic, owner and payload of the message, and an *addressee*. Dispatch and replay hand such a row to him and
pass over it for everybody else; it is found by nobody who looks for the message, because it is no second one.
It waits on disk as all do, survives what all survive, and is pending as long as it waits.

    GET /v1/messages/{id}    the row that the message was written to          (at, seq)     dispatched
    a retry                  same id, addressee "a", 3 attempts so far        (at', seq')   for "a" alone

Who asks how many messages there are does not mean retries, though shards count their rows: `retries` knows
their positions, so that counts which are made of shards' figures (density, `count`) know where to look at
rows instead. Its rows go when their slice has expired.

A retry cannot be cancelled or moved: nobody is told its place. But whoever had the message may finish it
late, while a retry waits: that is found by message and addressee (retry_index.py) and *ended*, by a stub in
its row. One that the horizon has passed can be ended, too, for an addressee who has not read so far. One
whose addressee is gone when it falls due goes nowhere.
"""

import logging
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

import msgspec

from timeline.position import MessageId, Position, id_position

from .commit import Commit, Draft
from .errors import Corrupt
from .fields import Record, Retry
from .read import Reader
from .record import addressee_of, decode, encode, is_stub
from .retry_index import does_wait, spots
from .tables import Spot

log = logging.getLogger(__name__)


def retry_of(record: Record, message: MessageId, due_ms: int, retry: Retry) -> Record:
    """A message as it stands on the timeline once more, due at `due_ms`."""
    return msgspec.structs.replace(record, due_ms=due_ms, id=message, key=b"", zone=b"", retry=retry)


def put_retry(commit: Commit, record: Record, *, is_owed: bool) -> Position:
    """In the writer: place a retry (`retry_of`) at its due; where it stands.

    `is_owed`: it was promised before, however many are pending by now. Raises Refused, before anything is
    changed.
    """
    assert record.retry is not None, "it says who gets it"
    if not is_owed:
        commit.check_pending(1, record.owner)
    group = commit.open_group
    draft = Draft(record.due_ms, record.topic, encode(record))
    (row,) = group.place([draft], group.reserve([draft]))
    commit.placed(1, record.owner)
    commit.note_retry(MessageId(record.id), record.retry.addressee, row)
    return id_position(row)


class Standing(NamedTuple):
    """A retry that has not been ended: where it stands, and whose it is."""

    place: Position
    shard: int
    """HELD_SHARD: it waits because the clock was set back."""
    addressee: str
    is_waiting: bool
    """Dispatch has not come to it. Else its addressee may have it, or has done it, or has not read so far."""
    retry: Retry


def retries_of_message(reader: Reader, horizon: Position, message: MessageId) -> Iterator[Standing]:
    """The retries of a message, whoever they are for: all that wait, and of the others some.

    As they are stored. What cannot be read is passed over.
    """
    for spot in reader.retries(message):
        with suppress(Corrupt):
            value = reader.row(*spot)
            if value is None or is_stub(value) or (retry := decode(value).retry) is None:
                continue
            yield Standing(*spot, retry.addressee.decode(errors="replace"), does_wait(spot, horizon), retry)


def end_retries(commit: Commit, message: MessageId, addressee: bytes) -> int:
    """In the writer: the addressee needs the message no more; how many retries of it were ended.

    Those that wait, and those that the horizon has passed of which one may not have read so far; what is in
    flight is nobody's concern here. O(1): there are 16 of them at most.
    """
    ended = 0
    for spot in spots(commit.open_group, message, addressee):
        ended += end_retry(commit, message, spot, addressee)
    return ended


def end_retry(commit: Commit, message: MessageId, spot: Spot, addressee: bytes) -> bool:
    """In the writer: nobody gets the retry that stands there; False if it is no retry of theirs (any more).

    One that cannot be read stays.
    """
    try:
        found = commit.at(message, spot)
        if found is None or is_stub(found.value) or addressee_of(found.value) != addressee:
            return False
    except Corrupt as error:
        log.error("a retry is not ended: %s", error)
        return False
    commit.end_retry(found)
    return True
