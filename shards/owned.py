"""What each owner has pending, in messages and in bytes: counters, in rows that a crash leaves exact.

    placed    messages of the owner that have come in, less those that were cancelled
    passed    of these, how many the horizon has passed

The same two are kept of their bytes, as they are stored: a move takes off what the row had and adds what the
new one has. What is pending is the difference, and it is what `Waiting.pending` counts, by owner. The two are
kept apart because they change at different times. `placed` changes in a group and belongs to it: a group that
is not written is undone, and after a failure it is what the rows say. `passed` changes with the horizon,
which never goes back while the process lives: it is never undone. Every batch carries the horizon, and with
it the `passed` of that horizon, so after a kill both stand where dispatch resumes:

    written    placed 5, passed 2, horizon h       pending 3
    dispatch passes one more, which nothing writes          2
    killed     placed 5, passed 2, horizon h       pending 3, and that one is passed again

The rows are read at start. RAM: some 200 bytes for each owner, and there are no more of them than there were
keys.

Not exact after damage: a message that cannot be read when the horizon comes to it is counted as pending until
it is read again, if ever, and a row that cannot be read begins anew at nothing. `verify` counts the rows, and
`verify --repair` writes what it has counted.
"""

import logging
from collections.abc import Callable, Mapping

from . import keys
from .errors import Corrupt
from .store import Batch, Store, Table
from .tables import OwnedRow, owned_from, owned_value
from .unreadable import readable

log = logging.getLogger(__name__)

QuotaOf = Callable[[bytes], tuple[int, int]]
"""How many messages of an owner may be pending, and of how many bytes; 0: any number."""


def any_number(owner: bytes) -> tuple[int, int]:  # noqa: ARG001
    """The quota of everybody where nobody has one."""
    return 0, 0


class _Counts:
    """Of one owner."""

    __slots__ = ("passed", "passed_bytes", "placed", "placed_bytes")

    def __init__(self) -> None:
        self.placed = 0
        """As the open group leaves it."""
        self.passed = 0
        """Once it is here it is the truth, whatever the row says."""
        self.placed_bytes = 0
        self.passed_bytes = 0


class Owned:
    """The counters of one timeline. One writer: calls come one after the other."""

    def __init__(self, store: Store) -> None:
        """Raises StoreFailed."""
        self._store = store
        self._counts: dict[bytes, _Counts] = {}
        self._before: dict[bytes, tuple[int, int]] = {}
        """What was placed of those whom the open group has changed, as it was."""
        self._changed: set[bytes] = set()
        """Whose rows are to be written with the next batch."""
        self.messages = 0
        """What all owners have pending together."""
        self.owners = 0
        """How many have something pending."""
        self.has_sizes = True
        """False: rows of an older version do not say the bytes, which are to be counted (`size`)."""
        self.reread()

    def pending(self, owner: bytes) -> int:
        """How many messages of the owner wait, as the open group leaves it."""
        counts = self._counts.get(owner)
        return 0 if counts is None else max(0, counts.placed - counts.passed)

    def pending_bytes(self, owner: bytes) -> int:
        """Their bytes, as they are stored."""
        counts = self._counts.get(owner)
        return 0 if counts is None else max(0, counts.placed_bytes - counts.passed_bytes)

    def begin(self) -> None:
        """A group is opened: `undo` comes back to here."""
        self._before.clear()

    def undo(self) -> None:
        """The open group is not going to be written."""
        for owner, (placed, size) in self._before.items():
            counts = self._counts[owner]
            self.placed(owner, placed - counts.placed, size - counts.placed_bytes)
        self._before.clear()

    def reread(self) -> None:
        """A group that was written may be gone: the rows say what was placed. What was passed, was.

        Raises StoreFailed.
        """
        rows = self._rows()
        former, self._counts = self._counts, {}
        for owner, row in rows.items():
            counts = self._of(owner)
            counts.placed, counts.passed = row.placed, row.passed
            if row.sizes is not None:
                counts.placed_bytes, counts.passed_bytes = row.sizes
        for owner, was in former.items():
            counts = self._of(owner)
            if owner not in rows:
                counts.placed, counts.placed_bytes = was.passed, was.passed_bytes
            counts.passed, counts.passed_bytes = was.passed, was.passed_bytes
            self._changed.add(owner)
        self._before.clear()
        self.has_sizes = None not in [row.sizes for row in rows.values()]
        waiting = [counts.placed - counts.passed for counts in self._counts.values()]
        self.messages = sum([max(0, count) for count in waiting])
        self.owners = sum([count > 0 for count in waiting])

    def size(self, sizes: Mapping[bytes, int]) -> None:
        """Bytes that each owner has pending, counted from the rows of their messages."""
        for owner, counts in self._counts.items():
            counts.placed_bytes = counts.passed_bytes + sizes.get(owner, 0)
            self._changed.add(owner)
        self.has_sizes = True

    def placed(self, owner: bytes, count: int, size: int) -> None:
        """In the open group: so many more, and bytes of them; one fewer, -1, when one is cancelled."""
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
        """The horizon is about to pass a message. On the path of each that is dispatched and has an owner."""
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
        """Put the rows that have changed into a batch, which is written at once."""
        for owner in self._changed:
            is_ = self._counts[owner]
            value = owned_value(is_.placed, is_.passed, (is_.placed_bytes, is_.passed_bytes))
            batch.put(Table.META, keys.owned(owner), value)

    def written(self) -> None:
        """That batch can be read."""
        self._changed.clear()

    def _of(self, owner: bytes) -> _Counts:
        return self._counts.setdefault(owner, _Counts())

    def _rows(self) -> dict[bytes, OwnedRow]:
        """Those that can be read. Raises StoreFailed."""
        rows = {}
        for key, value in readable(self._store, Table.META, keys.OWNED, keys.OWNED_END):
            owner = keys.owner_in(key)
            try:
                rows[owner] = owned_from(value)
            except Corrupt as error:
                log.error("owner %r: the pending count is unreadable, counting again: %s", owner, error)
        return rows
