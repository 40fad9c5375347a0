"""Users' actions on retries: list, try at another time, bury, drop.

They apply to a retry while it waits: not while it is in flight again, and not after its place has ended, when
the burial takes it. The writer decides each one, and deletes it in the batch that writes the result:

    try_     the same retry under another time; not if it would have expired by then
    bury     a dead letter, with a copy at `$dead/...`
    drop     nothing; a note says that its place has dropped the message
"""

from collections.abc import Iterator
from heapq import merge
from operator import itemgetter

import msgspec

from shards.commit import Commit
from shards.fate import is_over
from shards.kept import Letter
from shards.record import decode, encode
from shards.retries import RETRIES, note_dropped
from shards.store import Store
from shards.tables import KeptRow
from timeline.position import START, MessageId, Position

from ..membership import Membership
from ..retries import Retries
from ..subscriber import Subscriber
from .dead_letters import DeadLetters, May
from .holds import Holds
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
        holds: Holds,
    ) -> None:
        self._store = store
        self._groups = groups
        self._retries = retries
        self._dead_letters = dead_letters
        self._obituaries = obituaries
        self._holds = holds

    # -- reading

    def read(self, start: Position = START, *, group: str | None = None) -> Iterator[Letter]:
        """Waiting retries at or behind `start`, by time; of places of one name if named."""
        if group is None:
            return self._waiting(RETRIES.all(self._store, start))
        session = self._groups.named(group)
        places = [*self._groups.called(group), *([] if session is None else [session])]
        found = (RETRIES.of(self._store, one.whose, start) for one in places)
        rows = ((place, row) for place, row in merge(*found, key=itemgetter(0)) if row is not None)
        return self._waiting(rows)

    def of_message(self, message: MessageId) -> Iterator[Letter]:
        """Waiting retries of one message, one per place."""
        return self._waiting(RETRIES.of_message(self._store, message))

    def _waiting(self, found: Iterator[Letter]) -> Iterator[Letter]:
        return (letter for letter in found if self._whose(*letter) is not None)

    def _whose(self, place: Position, row: KeptRow) -> Subscriber | None:
        """The session or group for which it waits."""
        one = self._groups.place_of(row)
        return None if one is None or place in one.retrying else one

    # -- in the writer

    def try_(self, commit: Commit, place: Position, due_ms: int, may: May) -> bool:
        """Set the time of the next try; False if it does not wait, or that is not allowed. Raises Corrupt."""
        found = self._found(commit, place, may)
        if found is None:
            return False
        one, row = found
        record = decode(row.record)
        if is_over(record.due_ms, record.expires_ms, due_ms):
            return False
        left_ms = record.due_ms + record.expires_ms - due_ms if record.expires_ms else 0
        again = encode(msgspec.structs.replace(record, due_ms=due_ms, expires_ms=left_ms))
        self._retries.take(commit, one, place, row)
        row = msgspec.structs.replace(row, record=again)
        wait = self._retries.put(commit, one, row, due_ms, is_owed=True)
        self._holds.requeued(commit, one, place, wait)
        return True

    def bury(self, commit: Commit, place: Position, may: May) -> bool:
        """Make it a dead letter; False as above. Raises Refused, Corrupt, before anything is changed."""
        found = self._found(commit, place, may)
        if found is None:
            return False
        one, row = found
        reason = f"{BURIED}; {row.reason}" if row.reason else BURIED
        self._obituaries.tell(commit, row.group, decode(row.record), reason)
        self._retries.take(commit, one, place, row)
        self._holds.buried(commit, one, place, self._dead_letters.keep_buried(commit, row, reason))
        return True

    def drop(self, commit: Commit, place: Position, may: May) -> bool:
        """Drop it; False as above. Raises Corrupt."""
        found = self._found(commit, place, may)
        if found is None:
            return False
        one, row = found
        note_dropped(commit, row)
        return self._retries.take(commit, one, place, row)

    def _found(self, commit: Commit, place: Position, may: May) -> tuple[Subscriber, KeptRow] | None:
        """A waiting retry that the caller may change. Raises Corrupt."""
        row = RETRIES.at(commit.open_batch, place)
        one = None if row is None else self._whose(place, row)
        return None if row is None or one is None or not may(row, one) else (one, row)
