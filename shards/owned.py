"""How many messages of each owner are pending: two counters a name, in rows that a crash leaves exact.

    placed    messages of the owner that have come in, less those that were cancelled
    passed    of these, how many the horizon has passed

What is pending is the difference, and it is what `Waiting.pending` counts, by owner. The two are kept apart
because they change at different times. `placed` changes in a group and belongs to it: a group that is not
written is undone, and after a failure it is what the rows say. `passed` changes with the horizon, which
never goes back while the process lives: it is never undone. Every batch carries the horizon, and with it the
`passed` of that horizon, so after a kill both stand where dispatch resumes:

    written    placed 5, passed 2, horizon h       pending 3
    dispatch passes one more, which nothing writes          2
    killed     placed 5, passed 2, horizon h       pending 3, and that one is passed again

A row is read when its owner does something for the first time, not at start. RAM: some 200 bytes for each
owner that has since the start, and there are no more of them than there were keys.

Not exact after damage: a message that cannot be read when the horizon comes to it is counted as pending until
it is read again, if ever, and a row that cannot be read begins anew at nothing. `verify` counts the rows, and
`verify --repair` writes what it has counted.
"""

import logging
from collections.abc import Callable

from . import keys
from .errors import Corrupt
from .store import Batch, Store, Table
from .tables import owned_from, owned_value

log = logging.getLogger(__name__)

QuotaOf = Callable[[bytes], int]
"""How many messages of an owner may be pending; 0: any number."""


def any_number(owner: bytes) -> int:  # noqa: ARG001
    """The quota of everybody where nobody has one."""
    return 0


class Owned:
    """The counters of one timeline. One writer: calls come one after the other."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._placed: dict[bytes, int] = {}
        """As the open group leaves it."""
        self._passed: dict[bytes, int] = {}
        """Once it is here it is the truth, whatever the row says."""
        self._early: dict[bytes, int] = {}
        """How many the horizon has passed of owners whose row has not been read."""
        self._before: dict[bytes, int] = {}
        """`placed` of those whom the open group has changed, as it was."""
        self._changed: set[bytes] = set()
        """Whose rows are to be written with the next batch."""

    def pending(self, owner: bytes) -> int:
        """How many messages of the owner wait, as the open group leaves it. Raises StoreFailed."""
        placed = self._read(owner)
        return max(0, placed - self._passed[owner])

    def begin(self) -> None:
        """A group is opened: `undo` comes back to here."""
        self._before.clear()

    def undo(self) -> None:
        """The open group is not going to be written."""
        self._placed.update(self._before)
        self._before.clear()

    def reread(self) -> None:
        """A group that was written may be gone: the rows say what was placed. What was passed, was."""
        self._placed.clear()
        self._before.clear()
        self._changed.update(self._passed)

    def placed(self, owner: bytes, count: int) -> None:
        """In the open group: so many more; one fewer, -1, when one is cancelled. Raises StoreFailed."""
        placed = self._read(owner)
        self._before.setdefault(owner, placed)
        self._placed[owner] = placed + count
        self._changed.add(owner)

    def passed(self, owner: bytes) -> None:
        """The horizon is about to pass a message. On the path of each that is dispatched and has an owner."""
        if owner in self._passed:
            self._passed[owner] += 1
            self._changed.add(owner)
        else:
            self._early[owner] = self._early.get(owner, 0) + 1

    def write(self, batch: Batch) -> None:
        """Put the rows that have changed into a batch, which is written at once. Raises StoreFailed."""
        for owner in list(self._early):
            self._read(owner)
        for owner in self._changed:
            batch.put(Table.META, keys.owned(owner), owned_value(self._read(owner), self._passed[owner]))

    def written(self) -> None:
        """That batch can be read."""
        self._changed.clear()

    def _read(self, owner: bytes) -> int:
        """What was placed of the owner; what was passed is known, too, from here on. Raises StoreFailed."""
        placed = self._placed.get(owner)
        if placed is not None:
            return placed
        placed, passed = self._stored(owner)
        self._placed[owner] = placed
        if owner not in self._passed:
            early = self._early.pop(owner, 0)
            self._passed[owner] = passed + early
            if early:
                self._changed.add(owner)
        return placed

    def _stored(self, owner: bytes) -> tuple[int, int]:
        try:
            value = self._store.get(Table.META, keys.owned(owner))
            return (0, 0) if value is None else owned_from(value)
        except Corrupt as error:
            log.error("how much of %r is pending cannot be read, it is counted anew: %s", owner, error)
            passed = self._passed.get(owner, 0)
            return passed, passed
