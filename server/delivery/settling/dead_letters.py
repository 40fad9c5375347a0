"""Dead letters: kept when a message is given up, requeued or dropped on request.

A message that goes to `$dead/...` is also kept in the table `dead`, in the same batch: unchanged, with its
place, its deliveries and the reason (shards/dead.py). Bounds: 100,000 and `dead.max_bytes`, beyond which the
oldest is dropped in the batch that brings a new one; and `dead.retention`, in running time of the server,
enforced by housekeeping. Dropped ones are counted.

To *requeue* is to make the message a retry of that session or group (shards/retries.py), in the batch that
deletes the dead letter: a kill leaves exactly one of the two. Its tries toward `sessions.max_attempts` start
again; the attempt number shown to receivers continues. If its session or group is gone, or has another owner,
the dead letter stays. The group of a URL is created again.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import suppress
from heapq import merge
from operator import itemgetter
from typing import NamedTuple

import msgspec

from shards import keys
from shards.burials import BurialRow
from shards.commit import Commit
from shards.dead import DEAD, bury, drop_older, oldest_letter
from shards.errors import Corrupt, StoreFailed
from shards.fields import TryRow
from shards.kept import NONE, Letter
from shards.keys import message as id_key
from shards.record import decode, encode
from shards.retries import RETRIES, end_dropped, note_dropped
from shards.store import Store
from shards.tables import KeptRow, KeptTotals
from timeline.filters import SHARE_PREFIX
from timeline.position import RETRY_SHARD, START, MessageId, Position, message_id

from ...settings.config import Dead as Bounds
from ..membership import Membership
from ..message import Message
from ..retries import Retries
from ..shared import ENDPOINT_PREFIX
from ..subscriber import Subscriber
from ..url_groups import UrlGroups
from .holds import Holds

log = logging.getLogger(__name__)

SWEEP_LETTERS = 250
"""Maximum expired dead letters dropped in one step."""

May = Callable[[KeptRow, Subscriber | None], bool]
"""Whether the caller may act on a dead letter, and send to this session or group."""


class Tried(NamedTuple):
    """Tries of a message for one place, and the outcome."""

    attempts: int
    counted: int
    """Tries that count toward `max_attempts`."""
    reason: str
    tries: list[TryRow]
    returns: int
    """Times that it was returned in order."""


class DeadLetters:
    """The dead letters of one server. `buried`, `crowded_out`, `expired`: counts since the start."""

    def __init__(
        self,
        store: Store,
        groups: Membership,
        url_groups: UrlGroups,
        retries: Retries,
        holds: Holds,
        bounds: Bounds,
        *,
        node: int,
    ) -> None:
        self._store = store
        self._groups = groups
        self._url_groups = url_groups
        self._retries = retries
        self._holds = holds
        self._bounds = bounds
        self._node = node
        self._totals = NONE
        self.buried = self.crowded_out = self.expired = 0

    # -- reading

    @property
    def totals(self) -> KeptTotals:
        """Their number and bytes; while the store cannot be read, the last known ones."""
        with suppress(StoreFailed):
            self._totals = DEAD.stored_totals(self._store)
        return self._totals

    def read(self, start: Position = START, *, group: str | None = None) -> Iterator[Letter]:
        """Dead letters by time of death, from `start` on; of one group or session if named."""
        if group is None:
            return DEAD.all(self._store, start)
        if group.startswith(SHARE_PREFIX):
            group = group.removeprefix(SHARE_PREFIX).partition("/")[0]
        names = group, ENDPOINT_PREFIX + group
        found = (DEAD.of(self._store, keys.kept_of(name), start) for name in names)
        rows = merge(*found, key=itemgetter(0))
        return ((place, row) for place, row in rows if row is not None and row.group in names)

    def of_message(self, message: MessageId) -> Iterator[Letter]:
        """Dead letters of one message, one per group."""
        return DEAD.of_message(self._store, message)

    # -- in the writer

    def row(self, commit: Commit, subscriber: Subscriber, message: Message, tried: "Tried") -> KeptRow:
        """The row of a message kept for a session or group."""
        owners = subscriber.owners
        return KeptRow(
            addressee=subscriber.session.client_id,
            group=subscriber.name,
            id=id_key(message.id(self._node)),
            attempts=tried.attempts,
            reason=tried.reason,
            keeper=min(owners) if len(owners) == 1 else "",
            running_ms=commit.open_batch.running_ms,
            record=encode(msgspec.structs.replace(message.record, retry=None)),
            incarnation=subscriber.incarnation,
            counted=tried.counted,
            tries=tried.tries,
            returns=tried.returns,
            stood_as=self._stood_as(commit, message),
        )

    def _stood_as(self, commit: Commit, message: Message) -> bytes:
        """`KeptRow.stood_as` of a delivered message, also of one delivered as a retry."""
        if message.shard == RETRY_SHARD:
            with suppress(Corrupt):
                before = RETRIES.at(commit.open_batch, message.position)
                return b"" if before is None else before.stood_as
        if message.record.id and 0 <= message.shard < RETRY_SHARD:
            return id_key(message_id(message.position, message.shard, self._node))
        return b""

    def bury(
        self, commit: Commit, subscriber: Subscriber, message: Message, tried: "Tried"
    ) -> tuple[Position, int]:
        """Keep a message that the session or group gives up. Returns its place, and the number of evicted
        dead letters."""
        row = self.row(commit, subscriber, message, tried)
        return self.keep(commit, row)

    def half_of_room(self, commit: Commit) -> tuple[int, int]:
        """Half of the remaining room for dead letters, in messages and bytes."""
        now, bounds = DEAD.totals(commit.open_batch), self._bounds
        return max(0, bounds.max_messages - now.count) // 2, max(0, bounds.max_bytes - now.bytes) // 2

    def keep(self, commit: Commit, row: KeptRow) -> tuple[Position, int]:
        """Keep a row. Returns its place, and the number of evicted dead letters."""
        return bury(commit, row, max_messages=self._bounds.max_messages, max_bytes=self._bounds.max_bytes)

    def keep_buried(self, commit: Commit, row: KeptRow, reason: str) -> Position:
        """In the writer: keep a retry as a dead letter, and count it. Returns its place."""
        dead = msgspec.structs.replace(row, reason=reason, running_ms=commit.open_batch.running_ms)
        place, gone = self.keep(commit, dead)
        self.note_buried(gone)
        return place

    def end_former(self, commit: Commit, row: BurialRow, message: MessageId) -> bool:
        """In the writer: end the retries of a message that a place which orders was set back before, and has
        skipped since: no key waits for them. False: there is none."""
        one = self._groups.place_of(row)
        order = None if one is None else one.session.order
        if one is None or order is None or not order.rule.is_ordered:
            return False
        found = self._retries.of_in(commit, one, message)
        former = [it for it in found if it[0] not in one.retrying and order.waiting_for(it[0]) is None]
        for place, kept in former:
            self._retries.take(commit, one, place, kept)
        return bool(former)

    def note_buried_all(self, count: int) -> None:
        """Count dead letters that are durable and evicted none."""
        self.buried += count

    def note_buried(self, gone: int) -> None:
        """Count a durable dead letter, and those evicted for it."""
        self.buried += 1
        self.crowded_out += gone
        if gone:
            log.warning("dead letters: %d dropped, the limit or dead.max_bytes is reached", gone)

    def requeue(
        self, commit: Commit, place: Position, due_ms: int, may: May, to: Subscriber | None = None
    ) -> bool:
        """Requeue for its place, or `to` another. False if the letter or the place is gone, or it is not
        allowed.

        Raises Refused, Corrupt, before anything is changed.
        """
        row = DEAD.at(commit.open_batch, place)
        if row is None:
            return False
        subscriber = self._groups.place_of(row) if to is None else to
        message, stored = keys.message_of(row.id), decode(row.record)
        is_of_url = b"://" in stored.deliver_to and row.group.startswith(ENDPOINT_PREFIX)
        if subscriber is None and is_of_url and may(row, None):
            subscriber = self._url_groups.find(stored)
        if subscriber is None or self._groups.named(subscriber.session.client_id) is not subscriber:
            return False  # its place has ended, whatever has its name now
        if not may(row, subscriber):
            return False
        older = self._retries.of_in(commit, subscriber, message)
        if any(at in subscriber.retrying for at, _ in older):
            return False  # it would get the message twice
        if self._retries.is_to_come(subscriber, row.origin, stored):
            return False  # here too
        record = msgspec.structs.replace(stored, due_ms=due_ms, key=b"", zone=b"")
        again = msgspec.structs.replace(
            row,
            addressee=subscriber.session.client_id,
            group=subscriber.name,
            incarnation=subscriber.incarnation,
            record=encode(record),
            counted=0,
            returns=0,
        )
        letters = DEAD.of_message_in(commit.open_batch, message)  # of the place too: `to` may have another
        wait = self._retries.put(commit, subscriber, again, due_ms, is_owed=False)
        for letter, _ in letters:
            self._holds.requeued(commit, subscriber, letter, wait)
        for at, one in older:
            self._retries.take(commit, subscriber, at, one)
            self._holds.requeued(commit, subscriber, at, wait)
        end_dropped(commit, again)
        DEAD.remove(commit.open_batch, place, row)
        return True

    def drop(self, commit: Commit, place: Position, may: May) -> bool:
        """Drop a dead letter; False if it is gone, or that is not allowed. Raises Corrupt."""
        row = DEAD.at(commit.open_batch, place)
        if row is None or not may(row, None):
            return False
        note_dropped(commit, row)
        return DEAD.remove(commit.open_batch, place, row)

    # -- housekeeping

    def are_over(self, running_ms: int) -> bool:
        """Whether the retention of the oldest one is over."""
        oldest = oldest_letter(self._store)
        return oldest is not None and oldest[1].running_ms < running_ms - self._bounds.retention_ms

    def drop_expired(self, commit: Commit, running_ms: int) -> int:
        """In the writer: drop a step's worth of expired ones. Returns their number.

        `running_ms`: now. The open group's own is from the last write, which may be long ago.
        """
        return drop_older(commit, running_ms - self._bounds.retention_ms, SWEEP_LETTERS)

    def note_expired(self, gone: int) -> None:
        """Count expired dead letters."""
        self.expired += gone
