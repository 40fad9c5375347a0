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

A retry cannot be cancelled or moved: nobody is told its place. One whose addressee is gone when it falls due
goes nowhere. An older program cannot read such a row, and would take it for damage: the batch with the first
one raises the store's format.
"""

import msgspec

from timeline.position import MessageId, Position, id_position

from .commit import Commit, Draft
from .record import Record, Retry, encode
from .tables import FORMAT_OF_RETRIES


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
    commit.note_retry(MessageId(record.id), row)
    commit.raise_format(FORMAT_OF_RETRIES)
    return id_position(row)
