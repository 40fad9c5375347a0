"""What has become of a stored message: its state, and when dispatch came to it.

A state is stored nowhere. It follows from where the row stands and what is in it, and the server, the archive
and the table all ask here:

    a stub that a cancel left                        cancelled
    in the table `held`, or beyond the horizon       pending
    else                                             dispatched, or expired if dispatch gave it to nobody:
                                                     its time to live, counted from its due, was over, or
                                                     it was to be dropped if late, and was (fate.py)

A stub that a move left is no message: that one stands elsewhere, whole (`record.is_moved`). Nor is a retry
(`record.is_retry`), whatever its state.

When dispatch came to a position stands in the journal, the table `dispatches`: a row for each turn, by the
last position that it passed. A message went out in the first turn that is not before it:

    turns       (100, 5) at 130 ms      (200, 1) at 230 ms
    (100, 5)    130                     (100, 6)    230                     (200, 2)    not known

A turn is written a little later than it happens, with the next group. Until then only the writer of the store
knows it, and a journal may be given what it knows (`latest`).
"""

from collections.abc import Callable, Iterator
from typing import Final, Literal

from timeline.position import Position, at_of

from . import keys
from .fate import is_dropped
from .fields import Record
from .record import due_at
from .store import Store, Table
from .tables import wall_from

State = Literal["pending", "dispatched", "cancelled", "expired"]

PENDING: Final = "pending"
DISPATCHED: Final = "dispatched"
CANCELLED: Final = "cancelled"
EXPIRED: Final = "expired"
STATES: Final[tuple[State, ...]] = (PENDING, DISPATCHED, CANCELLED, EXPIRED)

Turns = Callable[[Position], int | None]
"""When the turn was that passed a position, wall ms; None: not known."""


def _nobody_knows(place: Position) -> None:
    """Where nobody writes, all that is known is written."""


class Journal:
    """When dispatch came to positions. Cheap while they rise: one scan for all of them.

    The scan does not see what is written after it was opened: what it does not have, `latest` is asked for.
    """

    def __init__(self, store: Store, latest: Turns = _nobody_knows) -> None:
        self._store = store
        self._latest = latest
        self._turns: Iterator[tuple[bytes, bytes]] = iter(())
        self._asked: Position | None = None
        self._turn: tuple[Position, int] | None = None
        """The one that the scan has come to; None at its end."""

    def dispatched_ms(self, place: Position) -> int | None:
        """Wall ms of the turn that passed `place`; None if nobody knows it (any more). Raises Corrupt."""
        if self._asked is None or place < self._asked:
            self._turns = self._store.scan(Table.DISPATCHES, keys.place(place), keys.LAST)
            self._next()
        self._asked = place
        while self._turn is not None and self._turn[0] < place:
            self._next()
        return self._latest(place) if self._turn is None else self._turn[1]

    def _next(self) -> None:
        row = next(self._turns, None)
        self._turn = None if row is None else (keys.place_of(row[0]), wall_from(row[1]))


def state_of(
    place: Position,
    record: Record,
    horizon: Position,
    journal: Journal,
    *,
    is_held: bool,
    with_time: bool = True,
) -> tuple[State, int | None]:
    """(state, wall ms when dispatch came to it if that is known). Not for what a move left.

    `horizon`: where dispatch stands, or stood when the rows were read. Without `with_time` the journal is
    asked only where it decides, and the second is not to be relied on. Raises Corrupt for a journal that
    cannot be read.
    """
    if record.stub:
        return CANCELLED, None
    if is_held or place > horizon:
        return PENDING, None
    may_be_dropped = record.expires_ms != 0 or record.drop_late
    dispatched_ms = journal.dispatched_ms(place) if with_time or may_be_dropped else None
    if may_be_dropped:
        passed_ms = at_of(place) if dispatched_ms is None else dispatched_ms
        if is_dropped(record, due_at(place, record.due_ms), passed_ms):
            return EXPIRED, dispatched_ms
    return DISPATCHED, dispatched_ms
