"""Dead letters: kept when a message is given up, requeued or dropped on request.

A message that goes to `$dead/...` is also kept, in the same batch: its delivery is dead from now on, with its
tries and the reason (shards/deliveries.py). Bounds: 100,000 and `dead.max_bytes`, beyond which the oldest is
dropped in the batch that brings a new one; and `dead.retention`, in running time of the server, enforced by
housekeeping. Dropped ones are counted.

To *requeue* is to let the delivery wait again. It has one row, so a kill leaves exactly one of the two. Its
tries toward `sessions.max_attempts` start again, and so does its expiry; the attempt number shown to
receivers continues. If its session or group is gone, or has another owner, the dead letter stays. The group
of a URL is created again.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import suppress
from heapq import merge
from operator import attrgetter
from typing import NamedTuple

import msgspec

from shards import delivery_rows
from shards.burials import BurialRow
from shards.commit import Commit
from shards.deliveries import bury, drop, drop_older, end
from shards.delivery_rows import NONE, DeliveryRow, Name
from shards.errors import StoreFailed
from shards.fields import TryRow
from shards.record import decode, encode
from shards.store import Store
from shards.tables import DEAD, KeptTotals
from timeline.filters import SHARE_PREFIX
from timeline.position import START, MessageId, Position

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

May = Callable[[DeliveryRow, Subscriber | None], bool]
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
            self._totals = delivery_rows.stored_totals(self._store)
        return self._totals

    def read(self, start: Position = START, *, group: str | None = None) -> Iterator[DeliveryRow]:
        """Dead letters by time of death, from `start` on; of one group or session if named."""
        if group is None:
            return delivery_rows.dead(self._store, start)
        if group.startswith(SHARE_PREFIX):
            group = group.removeprefix(SHARE_PREFIX).partition("/")[0]
        names = group, ENDPOINT_PREFIX + group
        found = (delivery_rows.dead_of(self._store, name, start) for name in names)
        return merge(*found, key=attrgetter("at"))

    def of_message(self, message: MessageId) -> Iterator[DeliveryRow]:
        """Dead letters of one message, one per group."""
        return (row for row in delivery_rows.of_message(self._store, message) if row.is_dead)

    # -- in the writer

    def row(self, commit: Commit, subscriber: Subscriber, message: Message, tried: "Tried") -> DeliveryRow:
        """The row of a message kept for a session or group."""
        owners = subscriber.owners
        name = Name(subscriber.whose, message.position)
        before = delivery_rows.at(commit.open_batch, name) if message.is_again else None
        return DeliveryRow(
            state=DEAD,
            whose=name.whose,
            root=message.position,
            at=START,
            addressee=subscriber.session.client_id,
            group=subscriber.name,
            incarnation=subscriber.incarnation,
            id=message.id(self._node),
            shard=max(message.shard, 0),
            record=encode(msgspec.structs.replace(message.record, retry=None))
            if before is None
            else before.record,
            attempts=tried.attempts,
            counted=tried.counted,
            reason=tried.reason,
            keeper=min(owners) if len(owners) == 1 else "",
            running_ms=commit.open_batch.running_ms,
            due_ms=0 if before is None else before.due_ms,
            tries=tried.tries,
            returns=tried.returns,
        )

    def half_of_room(self, commit: Commit) -> tuple[int, int]:
        """Half of the remaining room for dead letters, in messages and bytes."""
        now, bounds = delivery_rows.totals(commit.open_batch), self._bounds
        return max(0, bounds.max_messages - now.count) // 2, max(0, bounds.max_bytes - now.bytes) // 2

    def keep(self, commit: Commit, row: DeliveryRow) -> tuple[Position, int]:
        """Keep a row. Returns the time of death, and the number of evicted dead letters."""
        return bury(commit, row, max_messages=self._bounds.max_messages, max_bytes=self._bounds.max_bytes)

    def keep_buried(
        self, commit: Commit, one: Subscriber, row: DeliveryRow, reason: str, *, may_hold: bool = False
    ) -> None:
        """In the writer: keep a retry of the place as a dead letter, and count it. `may_hold`: it holds its
        key, if the place's terms say so."""
        dead = msgspec.structs.replace(row, reason=reason, running_ms=commit.open_batch.running_ms)
        _, gone = self.keep(commit, dead)
        self._holds.buried(commit, one, row.root, may_hold=may_hold)
        self.note_buried(gone)

    def end_former(self, commit: Commit, row: BurialRow, root: Position) -> bool:
        """In the writer: end the retry of a message that a place which orders was set back before, and has
        skipped since: no key waits for it. False: there is none."""
        one = self._groups.place_of(row)
        order = None if one is None else one.session.order
        if one is None or order is None or not order.rule.is_ordered or order.head_of(root) is not None:
            return False
        former = self._retries.waiting_in(commit, one, root)
        if former is not None:
            self._retries.withdraw(commit, one, former)
        return former is not None

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
        self, commit: Commit, name: Name, due_ms: int, may: May, to: Subscriber | None = None
    ) -> bool:
        """Requeue for its place, or `to` another. False if the letter or the place is gone, or it is not
        allowed.

        Raises Refused, Corrupt, before anything is changed.
        """
        row = delivery_rows.at(commit.open_batch, name)
        if row is None or not row.is_dead:
            return False
        subscriber, stored = self._groups.place_of(row) if to is None else to, decode(row.record)
        if not stored.topic:
            return False  # only its id is known
        is_of_url = b"://" in stored.deliver_to and row.group.startswith(ENDPOINT_PREFIX)
        if subscriber is None and is_of_url and may(row, None):
            subscriber = self._url_groups.find(stored)
        if subscriber is None or self._groups.named(subscriber.session.client_id) is not subscriber:
            return False  # its place has ended, whatever has its name now
        if not may(row, subscriber):
            return False
        if row.root in subscriber.rows.out or self._retries.is_to_come(subscriber, row.root, stored):
            return False  # it would get the message twice
        again = msgspec.structs.replace(
            row,
            whose=subscriber.whose,
            addressee=subscriber.session.client_id,
            group=subscriber.name,
            incarnation=subscriber.incarnation,
            counted=0,
            returns=0,
            due_ms=due_ms,
        )
        self._retries.put(commit, subscriber, again, due_ms, is_owed=False)
        if again.name != name:
            end(commit, name)
        return True

    def drop(self, commit: Commit, name: Name, may: May) -> bool:
        """Drop a dead letter; False if it is gone, or that is not allowed. Raises Corrupt."""
        row = delivery_rows.at(commit.open_batch, name)
        if row is None or not row.is_dead or not may(row, None):
            return False
        drop(commit, row)
        return True

    # -- housekeeping

    def are_over(self, running_ms: int) -> bool:
        """Whether the retention of the oldest one is over."""
        oldest = delivery_rows.oldest_dead(self._store)
        return oldest is not None and oldest.running_ms < running_ms - self._bounds.retention_ms

    def drop_expired(self, commit: Commit, running_ms: int) -> int:
        """In the writer: drop a step's worth of expired ones. Returns their number.

        `running_ms`: now. The open group's own is from the last write, which may be long ago.
        """
        return drop_older(commit, running_ms - self._bounds.retention_ms, SWEEP_LETTERS)

    def note_expired(self, gone: int) -> None:
        """Count expired dead letters."""
        self.expired += gone
