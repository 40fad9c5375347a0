"""Pending messages and bytes of each owner: counters, whose rows stay exact in a crash.

    placed    accepted messages of the owner, less the cancelled ones
    passed    of these, how many the horizon has passed

There are two more counters for their stored bytes: a move subtracts the old row's and adds the new row's. The
difference is pending: `Waiting.pending` by owner. The two are separate because they change at different
times. `placed` changes in a group and belongs to it: if a group is not written, `undo` restores it, and after
a failure it is read from the rows. `passed` changes with the horizon, which never goes back while the process
lives: it is never undone. Every batch carries the horizon and the `passed` of that horizon. So after a kill
both are where dispatch resumes:

    written    placed 5, passed 2, horizon h       pending 3
    dispatch passes one more, nothing is written            2
    killed     placed 5, passed 2, horizon h       pending 3, and that one is passed again

The rows are read at start. An owner with nothing pending has no row, as anybody may be one where a name needs
no password. Its counters stay in RAM until the group that deleted the row is durable: if that fails, `passed`
is needed. So there are as many counters, some 200 bytes each, as owners with something pending, and a few.

Damage makes the counters inexact. A message that cannot be read when the horizon reaches it counts as pending
until it can be read, if ever; an unreadable counter row starts at 0. `verify` counts the rows, and `verify
--repair` writes the result.
"""

import logging
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from . import keys
from .errors import Corrupt
from .store import Batch, Store, Table
from .tables import OwnedRow, owned_from, owned_value
from .unreadable import readable

log = logging.getLogger(__name__)


class Quota(NamedTuple):
    """Maximum pending messages of an owner, and their maximum bytes; 0: no limit. `is_proven`: it may have
    some of the part of `limits.pending` that is reserved."""

    messages: int = 0
    bytes: int = 0
    is_proven: bool = True


QuotaOf = Callable[[bytes], Quota]
NO_QUOTA = Quota()


def any_number(owner: bytes) -> Quota:  # noqa: ARG001
    """No quota for any owner."""
    return NO_QUOTA


class _Counts:
    """Counters of one owner."""

    __slots__ = ("passed", "passed_bytes", "placed", "placed_bytes")

    def __init__(self) -> None:
        self.placed = 0
        """As the open group leaves it."""
        self.passed = 0
        """More recent than the row, once loaded."""
        self.placed_bytes = 0
        self.passed_bytes = 0


class Owned:
    """The counters of one timeline. One writer: calls come one after the other."""

    def __init__(self, store: Store) -> None:
        """Raises StoreFailed."""
        self._store = store
        self._counts: dict[bytes, _Counts] = {}
        self._before: dict[bytes, tuple[int, int]] = {}
        """Values of `placed` before the open group, of the owners that it has changed."""
        self._changed: set[bytes] = set()
        """Owners whose rows must be written with the next batch."""
        self._deleted: deque[set[bytes]] = deque()
        """For each group that is written and not durable, the owners whose rows it deletes."""
        self.messages = 0
        """Pending messages of all owners."""
        self.owners = 0
        """Number of owners with pending messages."""
        self.reread()

    def __len__(self) -> int:
        """Number of owners with counters in RAM."""
        return len(self._counts)

    def pending(self, owner: bytes) -> int:
        """Pending messages of the owner, as the open group leaves it."""
        counts = self._counts.get(owner)
        return 0 if counts is None else max(0, counts.placed - counts.passed)

    def pending_bytes(self, owner: bytes) -> int:
        """Bytes of the owner's pending messages, as stored."""
        counts = self._counts.get(owner)
        return 0 if counts is None else max(0, counts.placed_bytes - counts.passed_bytes)

    def begin(self) -> None:
        """Open a group: `undo` returns to this state."""
        self._before.clear()

    def undo(self) -> None:
        """Undo the open group: it will not be written."""
        for owner, (placed, size) in self._before.items():
            counts = self._counts[owner]
            self.placed(owner, placed - counts.placed, size - counts.placed_bytes)
        self._before.clear()

    def reread(self) -> None:
        """Read `placed` from the rows: written groups may be lost. `passed` stays.

        Raises StoreFailed.
        """
        rows = self._rows()
        former, self._counts = self._counts, {}
        for owner, row in rows.items():
            counts = self._of(owner)
            counts.placed, counts.passed, counts.placed_bytes, counts.passed_bytes = row
        for owner, was in former.items():
            counts = self._of(owner)
            if owner not in rows:
                counts.placed, counts.placed_bytes = was.passed, was.passed_bytes
            counts.passed, counts.passed_bytes = was.passed, was.passed_bytes
            self._changed.add(owner)
        self._before.clear()
        self._deleted.clear()
        waiting = [counts.placed - counts.passed for counts in self._counts.values()]
        self.messages = sum([max(0, count) for count in waiting])
        self.owners = sum([count > 0 for count in waiting])

    def placed(self, owner: bytes, count: int, size: int) -> None:
        """In the open group: count `count` more messages of `size` bytes; -1 for a cancelled one."""
        counts = self._counts.get(owner)
        if counts is None:
            counts = self._of(owner)
        if owner not in self._before:
            self._before[owner] = counts.placed, counts.placed_bytes
        before = counts.placed - counts.passed
        after = before + count
        if before > 0 and after > 0:
            self.messages += count
        else:
            self.messages += max(0, after) - max(0, before)
            self.owners += (after > 0) - (before > 0)
        counts.placed += count
        counts.placed_bytes += size
        self._changed.add(owner)

    def passed(self, owner: bytes, size: int) -> None:
        """Count a message that the horizon is about to pass. Called for each dispatched message with an
        owner."""
        counts = self._counts.get(owner)
        if counts is None:
            counts = self._of(owner)
        left = counts.placed - counts.passed - 1
        if left >= 0:
            self.messages -= 1
            if not left:
                self.owners -= 1
        counts.passed += 1
        counts.passed_bytes += size
        self._changed.add(owner)

    def write(self, batch: Batch) -> None:
        """Put the changed rows into a batch, which is written at once."""
        for owner in self._changed:
            is_ = self._counts[owner]
            if is_.placed == is_.passed:
                batch.delete(Table.META, keys.owned(owner))
                continue
            value = owned_value(is_.placed, is_.passed, is_.placed_bytes, is_.passed_bytes)
            batch.put(Table.META, keys.owned(owner), value)

    def written(self) -> None:
        """The batch is written: no row is changed any longer, and nothing can be undone."""
        counts = self._counts
        self._before.clear()
        self._deleted.append({one for one in self._changed if counts[one].placed == counts[one].passed})
        self._changed.clear()

    def durable(self) -> None:
        """The oldest written batch is durable: forget the owners whose rows it deleted, if nothing was
        counted for them since."""
        for owner in self._deleted.popleft():
            is_ = self._counts.get(owner)
            if is_ is None or is_.placed != is_.passed or owner in self._changed or owner in self._before:
                continue
            if not any([owner in later for later in self._deleted]):  # noqa: C419 - compiled
                del self._counts[owner]

    def _of(self, owner: bytes) -> _Counts:
        return self._counts.setdefault(owner, _Counts())

    def _rows(self) -> dict[bytes, OwnedRow]:
        """All readable rows. Raises StoreFailed."""
        rows = {}
        for key, value in readable(self._store, Table.META, *keys.under(keys.OWNED)):
            owner = keys.owner_in(key)
            try:
                rows[owner] = owned_from(value)
            except Corrupt as error:
                log.error("owner %r: the pending count is unreadable, counting again: %s", owner, error)
        return rows
