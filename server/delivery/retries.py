"""Retries that are due, given to the places that they wait for.

A retry is a row of `retries` (shards/retries.py) that waits for its time. When that comes, by the wall clock,
its place stops tailing and reads on by itself (replay.py): due retries and unread messages in turns.

    of each place with retries   the position of the first that may not be in flight
    a heap                       these positions of all places: what is due next
    due                          the places with a due retry

A retry that was given stays in the table, and is noted as in flight (`Subscriber.retrying`). So it does not
come twice if another retry is put before it. Its row goes with the first cursor in which it is no longer in
flight (cursors.py). RAM: one entry for each place that has any.
"""

import logging
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import partial
from heapq import heappop, heappush
from itertools import chain, count

from shards import keys
from shards.commit import Commit
from shards.dead import DEAD, remove_of
from shards.errors import Corrupt
from shards.fields import Record
from shards.kept import Letter
from shards.retries import RETRIES, end_retry, is_dropped, put_retry, record_of
from shards.store import Store, Table
from shards.tables import KeptRow
from shards.unreadable import readable
from timeline.horizon import Horizon
from timeline.position import RETRY_SHARD, START, MessageId, Position, at_of, before, id_position

from ..engine.clock import Clock
from ..engine.decisions import Decisions
from .message import Message
from .ready import Ready
from .subscriber import Subscriber

log = logging.getLogger(__name__)


class Retries:
    """Due retries by place."""

    def __init__(
        self, store: Store, horizon: Horizon, ready: Ready, decisions: Decisions, clock: Clock, *, node: int
    ) -> None:
        self._store = store
        self._horizon = horizon
        self._ready = ready
        self._decisions = decisions
        self._clock = clock
        self._node = node
        self._first: dict[Subscriber, Position] = {}
        """Before it nothing of the place stands that is not in flight."""
        self._heap: list[tuple[Position, int, Subscriber]] = []
        self._count = count()
        self._due: set[Subscriber] = set()
        self._placing: dict[Position, tuple[Subscriber, MessageId]] = {}
        """Retries that are put, but not durable yet."""
        self._taken: set[Position] = set()
        """Taken away in a batch that is not durable yet."""

    def restore(self, places: Iterable[Subscriber]) -> None:
        """At start: what these have in flight, and what waits for them."""
        having = {key for key, _ in readable(self._store, Table.RETRIES, b"\3", b"\4")}
        if not having:
            return
        for one in places:
            if keys.kept_count(one.whose) in having:
                for place in one.flying_retries():
                    self._note(one, place)
                self._added(one, START)

    def _note(self, one: Subscriber, place: Position) -> None:
        try:
            row = RETRIES.stored_at(self._store, place)
        except Corrupt as error:
            log.error("retry in flight: unreadable: %s", error)
            row = None
        one.retrying[place] = keys.message_of(row.id) if row is not None else MessageId(0)

    # -- what comes

    def put(self, commit: Commit, one: Subscriber, row: KeptRow, due_ms: int, *, is_owed: bool) -> Position:
        """In the writer: retry the message at `due_ms`; returns the position. The place's dead letter of it
        goes. `is_owed`: it was promised before. Raises Refused, before any change."""
        place = put_retry(commit, row, due_ms, is_owed=is_owed)
        remove_of(commit, keys.message_of(row.id), row.addressee, row.incarnation)
        self._placing[place] = one, keys.message_of(row.id)
        ended = partial(self._placed, one, place)
        self._decisions.note(ended, ended)
        return place

    @staticmethod
    def of_in(commit: Commit, one: Subscriber, message: MessageId) -> list[Letter]:
        """In the writer: those of a place and a message."""
        found = RETRIES.of_message_in(commit.open_batch, message)
        return [letter for letter in found if letter[1].is_of(one.session.client_id, one.incarnation)]

    def take(self, commit: Commit, one: Subscriber, place: Position, row: KeptRow) -> bool:
        """In the writer: withdraw a retry that is not in flight; False if it is gone."""
        is_there = end_retry(commit, place, row)
        if is_there:
            self._taken.add(place)
            self._decisions.note(partial(self._give_back, one, place), partial(self._withdrawn, one, place))
        return is_there

    def _placed(self, one: Subscriber, place: Position) -> None:
        """A retry is durable, or has failed and may be there all the same; before that nobody is given it."""
        del self._placing[place]
        self._added(one, place)

    def _withdrawn(self, one: Subscriber, place: Position) -> None:
        """A retry is gone: a key that waits for it is free."""
        self._taken.discard(place)
        order = one.session.order
        key = None if order is None else order.waiting_for(place)
        if order is not None and key is not None:
            order.release(key)
            one.session.fall_behind(self._horizon.position)
            self._ready.wake(one)
            one.dirty.add(one)

    def _give_back(self, one: Subscriber, place: Position) -> None:
        """It stands where it stood."""
        self._taken.discard(place)
        self._added(one, place)

    def _added(self, one: Subscriber, place: Position) -> None:
        first = self._first.get(one)
        if first is None or place < first:
            self._first[one] = place
            heappush(self._heap, (place, next(self._count), one))

    def forget(self, one: Subscriber) -> None:
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
                one.session.fall_behind(self._horizon.position)
                self._ready.wake(one)

    @property
    def next_ms(self) -> int | None:
        """Time at which `step` has work; None: nothing waits."""
        return at_of(self._heap[0][0]) if self._heap else None

    def is_due_at(self, wall_ms: int) -> bool:
        """Whether `step` has work."""
        return bool(self._heap) and at_of(self._heap[0][0]) <= wall_ms

    def next_of(self, one: Subscriber) -> Position | None:
        """From where on retries may wait for a place; None: none waits."""
        return self._first.get(one)

    def is_due(self, one: Subscriber) -> bool:
        """Whether a place may have one that is due."""
        return one in self._due

    def due(self, one: Subscriber) -> Iterator[Message]:
        """Due retries of a place that are not in flight, by time; call `gave` for each before the next. An
        unreadable one is passed over, and stays."""
        end = before(self._clock.wall_ms() + 1)  # once: what comes due meanwhile is among the following
        yield from self.waiting(one, end=end)
        self._due.discard(one)
        following = RETRIES.first_of(self._store, one.whose, end)
        self._first.pop(one, None)
        if following is not None:
            self._added(one, following)

    def waiting(
        self, one: Subscriber, start: Position = START, end: Position | None = None
    ) -> Iterator[Message]:
        """The same, from `start` on and before `end` (None: what is due by now), for who only looks."""
        first = max(start, self._first.get(one, START))
        yield from self._between(one, first, before(self._clock.wall_ms() + 1) if end is None else end)

    def at(self, one: Subscriber, place: Position) -> Message | None:
        """A retry that was due and stands in the line of its key; None: it waits no more."""
        return next(self._between(one, place, Position(place + 1)), None)

    def _between(self, one: Subscriber, first: Position, end: Position) -> Iterator[Message]:
        for place, row in RETRIES.of(self._store, one.whose, first, end):
            if place in one.retrying or place in self._taken:
                continue
            if row is not None and not row.is_of(one.session.client_id, one.incarnation):
                continue
            try:
                if row is None:
                    continue
                yield Message(place, RETRY_SHARD, record_of(row), self._clock.wall_ms())
            except Corrupt as error:
                log.error("retry: unreadable: %s", error)

    @property
    def places_due(self) -> Iterable[Subscriber]:
        """Places that may have retries that are due."""
        return self._due

    def gave(self, one: Subscriber, place: Position) -> None:
        """Note that the retry is in flight, or passed over until `look_again`."""
        self._first[one] = Position(place + 1)

    def look_again(self, one: Subscriber, place: Position) -> None:
        """Retries from there on that were passed over may be given."""
        self._added(one, place)

    # -- what is read anyway, and again

    def set_back(self, one: Subscriber, before: Position) -> None:
        """It reads again what it may have had, up to `before`: without what it has in flight."""
        retried = [self.origin(one, place) for place in one.flying_retries() if place in one.retrying]
        one.reread = max(one.reread, before)
        one.pass_over_flights(self._horizon.position, retried)

    def origin(self, one: Subscriber, place: Position) -> Position:
        """Where the message of a retry that is in flight stands on the timeline."""
        with suppress(Corrupt):
            row = RETRIES.stored_at(self._store, place)
            if row is not None:
                return row.origin
        return id_position(one.retrying[place])

    def is_to_come(self, one: Subscriber, place: Position, record: Record) -> bool:
        """Whether a place has a message in flight by its own row, or has still to read it."""
        session = one.session
        if session.order is not None and session.order.is_behind(record.ordering_key, place):
            return place not in session.finished
        flights = chain(session.flights.values(), one.lent_alone())
        if any(flight.position == place and flight.shard != RETRY_SHARD for flight in flights):
            return True
        return session.is_ahead(place, self._horizon.position) and one.wants(place, record)

    def may_read(self, one: Subscriber, message: Message) -> bool:
        """Whether a place that was set back gets a message again: not if it is done since, or in flight."""
        if message.position in one.session.finished:
            return False
        name = message.id(self._node)
        return not (name in one.retrying.values() and self._is_flying(one, name))

    def end_former(self, one: Subscriber, message: Message) -> None:
        """The place has been sent it again: its old retry and dead letter go with the next cursor."""
        name = message.id(self._node)
        for place, row in RETRIES.of_message(self._store, name):
            if row.is_of(one.session.client_id, one.incarnation):
                one.retrying[place] = name
        for place, (whose, other) in self._placing.items():
            if whose is one and other == name:
                one.retrying[place] = name
        if is_dropped(self._store, name, one.whose):
            one.undropped.add(keys.dropped(keys.message(name), one.whose))
        for place, row in DEAD.of_message(self._store, name):
            if row.is_of(one.session.client_id, one.incarnation):
                one.superseded.add(place)

    def _is_flying(self, one: Subscriber, name: MessageId) -> bool:
        over = set(one.over())
        return any(other == name and place not in over for place, other in one.retrying.items())
