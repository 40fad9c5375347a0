"""Retries that are due, given to the places that they wait for.

A retry is a delivery that waits for its time (shards/delivery_rows.py). When that comes, by the wall clock,
its place stops tailing and reads on by itself (replay.py): due retries and unread messages in turns.

    of each place with retries   the place in their order of the first that may not be out
    a heap                       these of all places: what is due next
    due                          the places with a due retry

The row of a retry that was given stays, and its root is noted as out (`PlaceRows.out`). Its row goes
with the first cursor in which it is no longer in flight (cursors.py). RAM: one entry for each place that has
any.
"""

import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from heapq import heappop, heappush
from itertools import chain, count

from shards import delivery_rows
from shards.commit import Commit
from shards.delivery_rows import DeliveryRow, Name, RowsAhead
from shards.errors import Corrupt
from shards.fields import Record
from shards.store import Store
from shards.tables import UNDONE
from timeline.horizon import Horizon
from timeline.position import END, START, Position, at_of, before

from ..engine.clock import Clock
from ..engine.decisions import Decisions
from .message import Again
from .place import Place
from .ready import Ready

log = logging.getLogger(__name__)


class Retries:
    """Due retries by place."""

    def __init__(
        self, store: Store, horizon: Horizon, ready: Ready, decisions: Decisions, clock: Clock
    ) -> None:
        self._store = store
        self._horizon = horizon
        self._ready = ready
        self._decisions = decisions
        self._clock = clock
        self._first: dict[Place, Position] = {}
        """Before it none of the place waits that is not out."""
        self._heap: list[tuple[Position, int, Place]] = []
        self._count = count()
        self._due: set[Place] = set()
        self._changing: Counter[tuple[Place, Position]] = Counter()
        """Changes that are not durable yet, by the root of what they change: nobody is given that."""

    def restore(self, places: Iterable[Place]) -> None:
        """At start: what these have out, and what waits for them."""
        counts = delivery_rows.waiting_counts(self._store)
        if not counts:
            return
        for one in places:
            if one.whose in counts:
                one.rows.out = self._out(one, one.flying(), counts[one.whose])
                self.look_again(one, START)

    def _out(self, one: Place, flying: set[Position], waiting: int) -> set[Position]:
        """Which of these are among the `waiting` that wait: by whichever are fewer."""
        if waiting < len(flying):
            return flying.intersection(root for _, root in delivery_rows.waiting_of(self._store, one.whose))
        is_there = delivery_rows.is_there
        return {root for root in flying if is_there(self._store, Name(one.whose, root), *UNDONE)}

    # -- what changes

    def waiting_in(self, commit: Commit, one: Place, root: Position) -> DeliveryRow | None:
        """In the writer: a retry of the place that is not out; None: there is none."""
        row = delivery_rows.at(commit.open_batch, Name(one.whose, root))
        if row is None or not row.is_waiting or one.rows.holds(root):
            return None
        return row if row.is_of(one.session.client_id, one.incarnation) else None

    def changes(
        self, one: Place, root: Position, undone: Position, done: Position | None, *, is_out: bool = False
    ) -> None:
        """In the writer: the state of a delivery changes with this batch. It waits at `undone` if that fails
        (and may have been stored all the same), else at `done`; None: nowhere. `is_out`: it is still in
        flight if that fails."""
        was_out, was_over = is_out or root in one.rows.out, root in one.rows.over
        one.rows.forget((root,))
        one.rows.ended.pop(root, None)
        one.rows.ahead = one.rows.ahead or root > one.session.read
        self._changing[one, root] += 1
        self._decisions.note(
            partial(self._undo, one, root, undone, was_out=was_out, was_over=was_over),
            partial(self._changed, one, root, done),
        )

    def _undo(self, one: Place, root: Position, at: Position, *, was_out: bool, was_over: bool) -> None:
        """Nothing is written of it, or it is not known what."""
        self._end_change(one, root)
        if was_out:
            one.rows.note_out(root)
        if was_over:
            one.rows.note_over(root)
        self.look_again(one, at)

    def _changed(self, one: Place, root: Position, at: Position | None) -> None:
        """It is durable."""
        self._end_change(one, root)
        if at is not None:
            self.look_again(one, at)

    def _end_change(self, one: Place, root: Position) -> None:
        self._changing[one, root] -= 1
        if not self._changing[one, root]:
            del self._changing[one, root]

    def look_again(self, one: Place, place: Position) -> None:
        """One waits there, or those from there on that were passed over may be given."""
        first = self._first.get(one)
        if first is None or place < first:
            self._first[one] = place
            heappush(self._heap, (place, next(self._count), one))

    def forget(self, one: Place) -> None:
        """Forget an ended place."""
        self._first.pop(one, None)
        self._due.discard(one)

    # -- what is due

    def step(self) -> None:
        """Wake the places with a retry that is due."""
        heap, now = self._heap, before(self._clock.wall_ms() + 1)
        while heap and heap[0][0] < now:
            place, _, one = heappop(heap)
            if self._first.get(one) == place:
                self._due.add(one)
                self._ready.call(one)

    @property
    def next_ms(self) -> int | None:
        """Time at which `step` has work; None: nothing waits."""
        return at_of(self._heap[0][0]) if self._heap else None

    def is_due_at(self, wall_ms: int) -> bool:
        """Whether `step` has work."""
        return bool(self._heap) and at_of(self._heap[0][0]) <= wall_ms

    def next_of(self, one: Place) -> Position | None:
        """From where on retries may wait for a place; None: none waits."""
        return self._first.get(one)

    def is_due(self, one: Place) -> bool:
        """Whether a place may have one that is due."""
        return one in self._due

    def due(self, one: Place) -> Iterator[Again]:
        """Due retries of a place that are not out, by time; call `gave` for each before the next. An
        unreadable one is passed over, and stays."""
        end = before(self._clock.wall_ms() + 1)  # once: what comes due meanwhile is among the following
        yield from self.waiting(one, end=end)
        self._due.discard(one)
        following = delivery_rows.first_waiting(self._store, one.whose, end)
        self._first.pop(one, None)
        if following is not None:
            self.look_again(one, following)

    def waiting(self, one: Place, start: Position = START, end: Position | None = None) -> Iterator[Again]:
        """Retries of a place from `start` on and before `end`, only to look at. `end` None: those due now."""
        first = max(start, self._first.get(one, START))
        yield from self._between(one, first, before(self._clock.wall_ms() + 1) if end is None else end)

    def at(self, one: Place, place: Position) -> Again | None:
        """The retry at this position, which waits for its ordering key; None: it no longer waits."""
        return next(self._between(one, place, Position(place + 1)), None)

    def _between(self, one: Place, first: Position, end: Position) -> Iterator[Again]:
        for row in self.kept(one, first, end):
            if (one, row.root) in self._changing:
                continue
            try:
                again = Again(row.root, row.shard, row.message(), self._clock.wall_ms(), at=row.at)
                again.is_withheld = row.is_withheld
                yield again
            except Corrupt as error:
                log.error("retry: unreadable: %s", error)

    def kept(self, one: Place, start: Position, end: Position = END) -> Iterator[DeliveryRow]:
        """Rows of those that wait and are not out, from `start` on and before `end`."""
        for place, root in delivery_rows.waiting_of(self._store, one.whose, start, end):
            if one.rows.holds(root):
                continue
            row = delivery_rows.waits_at(self._store, Name(one.whose, root), place)
            if row is not None and row.is_of(one.session.client_id, one.incarnation):
                yield row

    @property
    def places_due(self) -> Iterable[Place]:
        """Places that may have retries that are due."""
        return self._due

    def gave(self, one: Place, place: Position) -> None:
        """Note that the retry is in flight, or passed over until `look_again`."""
        self._first[one] = Position(place + 1)

    # -- what is read anyway, and again

    def set_back(self, one: Place) -> None:
        """It reads again what it may have had, without what it has in flight: an acked one would be sent
        again."""
        one.rows.ahead = True
        own = [flight for flight in one.session.flights.values() if flight.loan is None]
        for flight in (*own, *one.lent_alone()):
            if one.session.is_ahead(flight.position, self._horizon.position):
                one.session.finished.add(flight.position)

    def ahead(self, one: Place, read: Position) -> RowsAhead | None:
        """Which deliveries behind `read` have rows, for who reads on from there; None: none has."""
        if not one.rows.ahead:
            return None
        ahead = RowsAhead(self._store, one.whose, Position(read + 1))
        one.rows.ahead = not ahead.is_over
        return ahead if one.rows.ahead else None

    def having(self, one: Place, ahead: RowsAhead | None, roots: Sequence[Position]) -> set[Position]:
        """Which of these have rows, had until a moment ago, or will have."""
        found = {root for root in roots if root in one.rows.out or (one, root) in self._changing}
        return found if ahead is None else found.union(filter(ahead.has, roots))

    @property
    def is_changing(self) -> bool:
        """Whether there are changes that are not durable yet."""
        return bool(self._changing)

    def is_to_come(self, one: Place, place: Position, record: Record) -> bool:
        """Whether a place has a message in flight that has no row, or has still to read it."""
        session = one.session
        if session.order.is_behind(record.ordering_key, place):
            return place not in session.finished
        flights = chain(session.flights.values(), one.lent_alone())
        if place not in one.rows.out and any(flight.position == place for flight in flights):
            return True
        return session.is_ahead(place, self._horizon.position) and one.wants(place, record)

    def may_read(self, one: Place, root: Position) -> bool:
        """Whether a place that was set back gets a message again: not if it is done since, or in flight."""
        return root not in one.session.finished and not (root in one.rows.out and root in one.flying())

    def end_former(self, one: Place, root: Position) -> None:
        """The place has been sent it again: its rows go with the next cursor."""
        one.rows.forget((root,))
        one.rows.note_over(root)
