"""Dead letters as people work with them: kept when a message is given up, sent again or dropped when asked.

A message that goes to `$dead/...` (dead.py) is kept in the table `dead`, too, in the same batch: as it was,
with who gave it up, how often it was delivered, and why (shards/dead.py). Bounds: `dead.max_messages` and
`dead.max_bytes`, beyond which the oldest goes with the batch that brings a new one, and `dead.retention`, in
running time of the server, looked after by housekeeping. What goes so is counted.

To *requeue* is to put the message on the timeline for that session or group alone (shards/retries.py), in the
batch in which the dead letter goes: a kill leaves one of the two. It begins anew toward
`sessions.max_attempts`, and goes on counting in what its receiver is told. One whose session or group is
there no more, or is somebody else's by now, stays what it is.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import suppress

import msgspec

from shards.commit import Commit
from shards.dead import (
    NONE,
    Letter,
    bury,
    drop_older,
    letter_at,
    letters,
    letters_of_group,
    letters_of_message,
    oldest_letter,
    remove,
    stored_totals,
)
from shards.errors import StoreFailed
from shards.fields import Retry
from shards.keys import message as id_key
from shards.keys import message_of
from shards.record import ADDRESSEE_BYTES_MAX, REASON_BYTES_MAX, decode, encode
from shards.retries import put_retry, retry_of
from shards.store import Store
from shards.tables import DeadRow, DeadTotals
from timeline.position import START, MessageId, Position

from ...settings.config import Dead as Bounds
from ..membership import Membership
from ..message import Message
from ..subscriber import Subscriber

log = logging.getLogger(__name__)

SWEEP_LETTERS = 250
"""Dead letters that one step drops when their retention is over."""

May = Callable[[DeadRow, Subscriber | None], bool]
"""Whether who asks may work with a dead letter, and have something sent to this session or group."""


class Letters:
    """The dead letters of one server. `buried`, `crowded_out`, `expired`: how many since the start."""

    def __init__(self, store: Store, groups: Membership, bounds: Bounds, *, node: int) -> None:
        self._store = store
        self._groups = groups
        self._bounds = bounds
        self._node = node
        self._totals = NONE
        self.buried = self.crowded_out = self.expired = 0

    # -- reading

    @property
    def totals(self) -> DeadTotals:
        """How many there are, and their bytes; while the store cannot be read, as it was before."""
        with suppress(StoreFailed):
            self._totals = stored_totals(self._store)
        return self._totals

    def read(self, start: Position = START, *, group: str | None = None) -> Iterator[Letter]:
        """In the order of dying, those that died at or behind `start`; of one group or session if named."""
        if group is None:
            return letters(self._store, start)
        return letters_of_group(self._store, group, start)

    def of_message(self, message: MessageId) -> Iterator[Letter]:
        """Those of one message: a group each."""
        return letters_of_message(self._store, message)

    # -- in the writer

    def bury(
        self, commit: Commit, subscriber: Subscriber, message: Message, attempts: int, reason: str
    ) -> int:
        """Keep a message that the session or group gives up; how many others went for that."""
        owners = subscriber.owners
        row = DeadRow(
            addressee=subscriber.session.client_id,
            group=subscriber.name,
            id=id_key(message.id(self._node)),
            attempts=attempts,
            reason=reason,
            keeper=min(owners) if len(owners) == 1 else "",
            running_ms=commit.open_group.running_ms,
            record=encode(msgspec.structs.replace(message.record, retry=None)),
        )
        bounds = self._bounds
        return bury(commit, row, max_messages=bounds.max_messages, max_bytes=bounds.max_bytes)

    def note_buried(self, gone: int) -> None:
        """One more is durable, and so many others have gone for it."""
        self.buried += 1
        self.crowded_out += gone
        if gone:
            log.warning("dead letters dropped, dead.max_messages or dead.max_bytes take no more: %d", gone)

    def requeue(self, commit: Commit, place: Position, due_ms: int, may: May) -> bool:
        """Send it again, to whom it was sent; False if one of them is there no more, or it is not allowed.

        Raises Refused, Corrupt, before anything is changed.
        """
        row = letter_at(commit, place)
        subscriber = None if row is None else self._groups.named(row.addressee)
        if row is None or subscriber is None or not may(row, subscriber):
            return False
        addressee = row.addressee.encode()
        if len(addressee) > ADDRESSEE_BYTES_MAX:
            return False
        reason = row.reason.encode()[:REASON_BYTES_MAX].decode(errors="ignore").encode()
        retry = Retry(addressee, row.attempts, 0, reason)
        record = retry_of(decode(row.record), message_of(row.id), due_ms, retry)
        put_retry(commit, record, is_owed=False)
        remove(commit, place, row)
        return True

    def drop(self, commit: Commit, place: Position, may: May) -> bool:
        """Forget it; False if it is there no more, or that is not allowed. Raises Corrupt."""
        row = letter_at(commit, place)
        if row is None or not may(row, None):
            return False
        remove(commit, place, row)
        return True

    # -- housekeeping

    def are_over(self, running_ms: int) -> bool:
        """Whether the retention of the oldest one is over."""
        oldest = oldest_letter(self._store)
        return oldest is not None and oldest[1].running_ms < running_ms - self._bounds.retention_ms

    def drop_expired(self, commit: Commit) -> int:
        """In the writer: a step's worth of those whose retention is over; how many."""
        until_ms = commit.open_group.running_ms - self._bounds.retention_ms
        return drop_older(commit, until_ms, SWEEP_LETTERS)

    def note_expired(self, gone: int) -> None:
        """The retention of so many was over."""
        self.expired += gone
