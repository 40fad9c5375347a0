"""State of a stored message, and when dispatch reached it.

No state is stored. It follows from the row's place and content. The server, the archive and the table all ask
here:

    a stub that a cancel left                        cancelled
    in the table `held`, or beyond the horizon       pending
    it has a row in `meta` (withheld.py)             withheld
    in a corrupt range that dispatch has passed,
    that is readable again, and not sent yet         withheld
    else                                             dispatched; or expired if dispatch dropped it: its time
                                                     to live, counted from its due, was over, or it had
                                                     `late: drop` and was late (fate.py)

A stub that a move left is not a message: the message is elsewhere (`record.is_moved`).

The journal, table `dispatches`, says when dispatch reached a position. It has a row for each turn, under the
last position that the turn passed. A message went out in the first turn that is not before it:

    turns       (100, 5) at 130 ms      (200, 1) at 230 ms
    (100, 5)    130                     (100, 6)    230                     (200, 2)    not known

A turn is written a little later, with the next group. Until then only the store's writer knows it; a journal
can ask it (`latest`).
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import Final, Literal

from timeline.position import Position, at_of

from . import keys
from .errors import Corrupt
from .fate import is_dropped
from .fields import Record
from .record import due_at
from .store import Store, Table
from .tables import number_from
from .unreadable import CorruptRange, tried

State = Literal["pending", "dispatched", "cancelled", "expired", "withheld"]

PENDING: Final = "pending"
DISPATCHED: Final = "dispatched"
CANCELLED: Final = "cancelled"
EXPIRED: Final = "expired"
WITHHELD: Final = "withheld"
STATES: Final[tuple[State, ...]] = (PENDING, DISPATCHED, CANCELLED, EXPIRED, WITHHELD)

IsWithheld = Callable[[Position], bool]
Turns = Callable[[Position], int | None]
"""When dispatch passed a position, wall ms; None: unknown."""


def _nobody_knows(place: Position) -> None:
    """For a store without a writer: all known turns are written."""


class Journal:
    """Times at which dispatch reached positions, and what it withheld there. Cheap for rising positions: one
    scan for all.

    The scan does not see turns written after it was opened; it asks `latest` for those.
    """

    def __init__(
        self,
        store: Store,
        latest: Turns = _nobody_knows,
        is_withheld: IsWithheld | None = None,
        *,
        skips_damage: bool = False,
    ) -> None:
        """`is_withheld` None: as the store says. `skips_damage`: a turn that cannot be read is unknown."""
        self._store = store
        self._latest = latest
        self._is_withheld = is_withheld
        self._skips_damage = skips_damage
        self._owed: list[CorruptRange] | None = None
        """Corrupt ranges that are readable again; None: not looked up."""
        self._turns: Iterator[tuple[bytes, bytes]] = iter(())
        self._last: Position | None = None
        self._turn: tuple[Position, int] | None = None
        """The turn that the scan has reached; None at its end."""

    def dispatched_ms(self, place: Position) -> int | None:
        """Wall ms of the turn that passed `place`; None if unknown. Raises Corrupt."""
        try:
            return self._passed_ms(place)
        except Corrupt:
            if not self._skips_damage:
                raise
            self._last = self._turn = None  # the next one is looked for anew
            return None

    def _passed_ms(self, place: Position) -> int | None:
        if self._last is None or place < self._last:
            self._turns = self._store.scan(Table.DISPATCHES, keys.place(place), keys.LAST)
            self._next()
        self._last = place
        while self._turn is not None and self._turn[0] < place:
            self._next()
        return self._latest(place) if self._turn is None else self._turn[1]

    def runs(self, places: Sequence[Position]) -> Iterator[tuple[int, int | None]]:
        """`dispatched_ms` of rising positions: how many of them one turn passed, and its time. Raises
        Corrupt."""
        done = 0
        while done < len(places):
            wall_ms = self.dispatched_ms(places[done])
            end = done + 1 if self._turn is None else bisect_right(places, self._turn[0], done)
            yield end - done, wall_ms
            done = end

    def is_withheld(self, place: Position) -> bool:
        """Whether dispatch has passed the message there, and given it to nobody. Raises Corrupt."""
        return self._is_withheld(place) if self._is_withheld is not None else bool(self.withheld([place]))

    def withheld(self, places: Sequence[Position]) -> set[Position]:
        """Those of rising positions for which `is_withheld` holds. Raises Corrupt."""
        if self._is_withheld is not None:
            return {place for place in places if self._is_withheld(place)}
        if self._owed is None:
            self._owed = [note for note, is_readable in tried(self._store) if is_readable]
        if not places:
            return set()
        store = self._store
        bounds = keys.withheld(places[0]), keys.withheld(Position(places[-1] + 1))
        if not self._owed and next(store.scan(Table.META, *bounds), None) is None:
            return set()
        wanted = set(places)
        stored = store.scan(Table.META, *bounds)
        found = {place for key, _ in stored if (place := keys.place_of(key)) in wanted}
        for note in self._owed:
            within = places[bisect_left(places, note.first) : bisect_right(places, note.last)]
            found |= {place for place in within if note.owes(store, place)}
        return found

    def _next(self) -> None:
        row = next(self._turns, None)
        self._turn = None if row is None else (keys.place_of(row[0]), number_from(row[1]))


def state_of(
    place: Position,
    record: Record,
    horizon: Position,
    journal: Journal,
    *,
    is_held: bool,
    with_time: bool = True,
) -> tuple[State, int | None]:
    """(state, wall ms at which dispatch reached it, if known). Not for stubs of moves.

    `horizon`: the dispatch horizon, now or when the rows were read. Without `with_time` the journal is read
    only if it decides the state, and the time may be missing. Raises Corrupt for an unreadable journal.
    """
    if record.stub:
        return CANCELLED, None
    if is_held or place > horizon:
        return PENDING, None
    if journal.is_withheld(place):
        return WITHHELD, None
    may_be_dropped = record.expires_ms != 0 or record.drop_late
    dispatched_ms = journal.dispatched_ms(place) if with_time or may_be_dropped else None
    if may_be_dropped:
        passed_ms = at_of(place) if dispatched_ms is None else dispatched_ms
        if is_dropped(record, due_at(place, record.due_ms), passed_ms):
            return EXPIRED, dispatched_ms
    return DISPATCHED, dispatched_ms
