"""Users' actions on retries: list, try at another time, bury, drop.

They apply to a retry while it waits: not while it is in flight again, and not after its place has ended, when
the burial takes it. The writer decides each one, and deletes it in the batch that writes the result:

    try_     the same retry under another time; not if it would have expired by then
    bury     a dead letter, with a copy at `$dead/...`
    drop     nothing; a note says that its place has dropped the message
"""

from collections.abc import Iterator
from heapq import merge
from operator import attrgetter

from shards.commit import Commit
from shards.delivery_rows import DeliveryRow, Name, at, of_message, waiting, waiting_of, waits_at
from shards.record import decode
from shards.store import Store
from timeline.position import START, MessageId, Position

from ..membership import Membership
from ..retries import Retries
from ..subscriber import Subscriber
from .dead_letters import DeadLetters, May
from .obituaries import Obituaries

BURIED = "buried"
"""Reason of a dead letter that a user has buried; the last try's reason follows."""


class Steering:
    """Actions on the retries of one server."""

    def __init__(
        self,
        store: Store,
        groups: Membership,
        retries: Retries,
        dead_letters: DeadLetters,
        obituaries: Obituaries,
    ) -> None:
        self._store = store
        self._groups = groups
        self._retries = retries
        self._dead_letters = dead_letters
        self._obituaries = obituaries

    # -- reading

    def read(self, start: Position = START, *, group: str | None = None) -> Iterator[DeliveryRow]:
        """Waiting retries at or behind `start`, by time; of places of one name if named."""
        if group is None:
            return self._waiting(waiting(self._store, start))
        session = self._groups.named(group)
        places = [*self._groups.called(group), *([] if session is None else [session])]
        found = (self._waiting_of(one, start) for one in places)
        return self._waiting(merge(*found, key=attrgetter("at")))

    def _waiting_of(self, one: Subscriber, start: Position) -> Iterator[DeliveryRow]:
        for place, root in waiting_of(self._store, one.whose, start):
            is_out = root in one.rows.out
            row = None if is_out else waits_at(self._store, Name(one.whose, root), place)
            if row is not None:
                yield row

    def of_message(self, message: MessageId) -> Iterator[DeliveryRow]:
        """Waiting retries of one message, one per place."""
        return self._waiting(row for row in of_message(self._store, message) if row.is_waiting)

    def _waiting(self, found: Iterator[DeliveryRow]) -> Iterator[DeliveryRow]:
        return (row for row in found if self._place_of(row) is not None)

    def _place_of(self, row: DeliveryRow) -> Subscriber | None:
        """The session or group for which it waits."""
        one = self._groups.place_of(row)
        is_out = one is not None and (row.root in one.rows.out or row.root in one.rows.over)
        return None if is_out else one

    # -- in the writer

    def try_(self, commit: Commit, name: Name, due_ms: int, may: May) -> bool:
        """Set the time of the next try; False if it does not wait, or that is not allowed. Raises Corrupt."""
        found = self._found(commit, name, may)
        if found is None:
            return False
        one, row = found
        if row.expires_by(due_ms):
            return False
        self._retries.put(commit, one, row, due_ms, is_owed=True)
        return True

    def bury(self, commit: Commit, name: Name, may: May) -> bool:
        """Make it a dead letter; False as above. Raises Refused, Corrupt, before anything is changed."""
        found = self._found(commit, name, may)
        if found is None:
            return False
        one, row = found
        reason = f"{BURIED}; {row.reason}" if row.reason else BURIED
        self._obituaries.tell(commit, row.group, decode(row.record), reason)
        self._retries.take(one, row)
        self._dead_letters.keep_buried(commit, one, row, reason, may_hold=True)
        return True

    def drop(self, commit: Commit, name: Name, may: May) -> bool:
        """Drop it; False as above. Raises Corrupt."""
        found = self._found(commit, name, may)
        if found is None:
            return False
        one, row = found
        self._retries.drop(commit, one, row)
        return True

    def _found(self, commit: Commit, name: Name, may: May) -> tuple[Subscriber, DeliveryRow] | None:
        """A waiting retry that the caller may change. Raises Corrupt."""
        row = at(commit.open_batch, name)
        one = None if row is None or not row.is_waiting else self._place_of(row)
        return None if row is None or one is None or not may(row, one) else (one, row)
