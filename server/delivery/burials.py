"""Burials: places (sessions, groups, endpoints) that end or skip with unfinished messages.

What was undone is noted (shards/burials.py) in the batch in which the place ends or moves on, and settled in
steps after that (settling/burying.py): as dead letters of the place, or dropped and counted.

    a group is deleted, expires, or its last holder gives it up    all that it had
    a place is set forward                                         what it had not read
    a session ends                                                 its retries, which are dropped
    retention passes a session                                     what it had in flight
    retention passes sessions                                      what they had not read, which is counted

The last one is one burial, SESSIONS, for all of them: each row of a slice is read once, not once for each
session. Its row stays when it is finished, as sessions are not stored when it passes them.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import msgspec

from shards import keys
from shards.burials import BurialRow, burial_key, burial_value, burials
from shards.commit import Commit
from shards.deliveries import end
from shards.delivery_rows import Name, count_waiting
from shards.order import put_buried, write_changes
from shards.store import Store, Table
from timeline.horizon import Horizon
from timeline.key_order import NO_ORDER, KeyOrder
from timeline.key_rows import KeyRow
from timeline.position import END, START, Position
from timeline.session import SETTLED, Flight

from ..engine.commit_hook import CommitHook, Done
from ..engine.writer import Writer
from .place import Place
from .retries import Retries
from .shared import Group
from .subscriber import Subscriber

GROUP_EXPIRED, GROUP_DELETED, ENDPOINT_DELETED = "group expired", "group deleted", "endpoint deleted"
SESSION_ENDED = "session ended"
SKIPPED, KEPT_TOO_LONG = "skipped", "kept too long"
SKIPPED_KEYS = 1_000
"""Keys whose followers are given up in one step: some 6 ms."""
SESSIONS = 0
"""Number of the burial of sessions' unread messages. `Horizon.issue` begins later."""


@dataclass(frozen=True, slots=True)
class Beginning:
    """Content of the first batch of a burial, besides its row."""

    over: Sequence[Position] = ()
    """Roots of rows that have no effect any more."""
    waiting: Sequence[tuple[bytes, KeyRow]] = ()
    """Ordering keys whose followers are to be settled, except those that the stored key rows name."""
    order: KeyOrder = NO_ORDER
    """Ordering keys of an ended group, for what is not stored yet."""


class Burials(CommitHook):
    """Pending burials by number."""

    def __init__(self, store: Store, horizon: Horizon, retries: Retries, writer: Writer) -> None:
        """Raises Corrupt, StoreFailed."""
        self._store = store
        self._horizon = horizon
        self._retries = retries
        self.active: dict[int, BurialRow] = dict(burials(store))
        self.stepped: dict[int, BurialRow] = {}
        """Rows of active burials that a step has written and that are not durable yet."""
        self._fresh: dict[int, Beginning] = {}
        """Burials that are not in a batch yet."""
        self.dropped: Counter[str] = Counter()
        """Messages that nobody has finished and that are no dead letters, by reason."""
        last = self.active.get(SESSIONS)
        self.passed = START if last is None else keys.place_of(last.read)
        """Up to here what sessions had not read is settled: they read on behind it."""
        if last is not None and last.is_read:
            del self.active[SESSIONS]
        writer.add_hook(self)

    @property
    def floor(self) -> Position:
        """Position before which no burial needs anything."""
        return min((row.floor for row in self.active.values()), default=END)

    @property
    def passing(self) -> Position:
        """Up to here what sessions have not read is settled, or about to be: none is set back to before."""
        row = self.active.get(SESSIONS)
        return self.passed if row is None else keys.place_of(row.upto)

    def ready(self) -> list[int]:
        """Stored burials, which can be processed."""
        return [number for number in self.active if number not in self._fresh]

    # -- what comes

    def end_group(self, group: Group, reason: str, over: Sequence[Position], *, is_dead: bool) -> None:
        """A group has ended: bury its messages in flight, unread ones, and its retries except `over`."""
        horizon, order = self._horizon.position, group.session.order
        read, is_kept = group.session.read_at(horizon), self.has_retries(group)
        self._retries.forget(group)
        flights = [
            one
            for one in group.session.flights.values()
            if one.is_stored and one.fate != SETTLED and one.position not in group.rows.out
        ]
        if flights or over or is_kept or order.is_on or read < horizon:
            behind = keys.place(Position(order.read_from(read) + 1)) if order.is_on else b""
            row = self._row(group, reason, read, horizon, flights, is_dead=is_dead)
            self._begin(msgspec.structs.replace(row, behind=behind, is_ended=True), over=over, order=order)
        if order.is_on:
            order.leave()

    def end_session(self, subscriber: Subscriber) -> None:
        """A session has ended: count what it had in flight and delete its retries."""
        horizon, flights = self._horizon.position, subscriber.session.flights.values()
        self._retries.forget(subscriber)
        self.dropped[SESSION_ENDED] += sum(one.is_stored and not one.is_of_group for one in flights)
        if self.has_retries(subscriber):
            row = self._row(subscriber, SESSION_ENDED, horizon, horizon)
            self._begin(msgspec.structs.replace(row, is_ended=True), over=subscriber.over())

    def skip(self, subscriber: Place, upto: Position, reason: str, *, is_dead: bool) -> bool:
        """The place reads on behind `upto`, and gives up what waits for its key there, SKIPPED_KEYS in a
        step; False if there is nothing to do. The caller stores its cursor."""
        session, horizon = subscriber.session, self._horizon.position
        read, upto = session.read_at(horizon), min(upto, horizon)
        waiting = session.order.skip(upto, SKIPPED_KEYS)
        if upto <= read and not waiting:
            return False
        row = self._row(subscriber, reason, min(read, upto), upto, is_dead=is_dead)
        behind = min([keys.place(one.next) for _, one in waiting], default=b"")
        self._begin(msgspec.structs.replace(row, behind=behind), waiting=waiting)
        session.read = max(session.read, upto)
        return True

    def cut(self, commit: Commit, one: Place) -> None:
        """In the writer: the place has been set back. What it reads again is not given up."""
        to = keys.place(one.session.read)
        for number, row in self.active.items():
            if row.upto > to and row.names == one.names:
                self.active[number] = row.cut(to)
                written = self.stepped.get(number, row).cut(to)
                commit.row(Table.META, burial_key(number), None if written.is_over else burial_value(written))

    def pass_sessions(self, read: Position, upto: Position, filters: Iterable[str]) -> None:
        """In the writer: sessions lose unread messages up to `upto`. None of them has read less than `read`,
        or subscribes to more than `filters`."""
        first, last = keys.place(max(self.passed, read)), keys.place(upto)
        ranges = [(text, keys.place(START)) for text in filters]
        row = BurialRow("", "sessions", 0, "", KEPT_TOO_LONG, first, last, ranges)
        self.active[SESSIONS], self._fresh[SESSIONS] = row, Beginning()

    def end_flights(self, one: Place, flights: Iterable[Flight]) -> None:
        """In the writer: forget ended flights of a session or group. The caller stores the cursors."""
        horizon = self._horizon.position
        self._begin(self._row(one, KEPT_TOO_LONG, horizon, horizon, flights, is_dead=True))

    def has_retries(self, subscriber: Place) -> bool:
        """Whether a place has any, also one that is in the batch that is open, and not stored yet."""
        is_fresh = any(flight.fate == SETTLED for flight in subscriber.session.flights.values())
        return is_fresh or count_waiting(self._store, subscriber.whose) > 0

    def _row(
        self,
        one: Place,
        reason: str,
        read: Position,
        upto: Position,
        flights: Iterable[Flight] = (),
        *,
        is_dead: bool = False,
    ) -> BurialRow:
        session = one.session
        groups = one.groups if isinstance(one, Subscriber) else ()
        own = () if one.is_endpoint else session.subscriptions.values()
        return BurialRow(
            *(*one.names, one.keeper, reason, keys.place(read), keys.place(upto)),
            [(its.filter, keys.place(its.since)) for its in own if its.filter not in groups],
            [keys.place(place) for place in session.finished if place <= upto],
            [(keys.place(its.position), its.shard, its.attempts) for its in flights],
            is_dead=is_dead,
        )

    def _begin(
        self,
        row: BurialRow,
        over: Sequence[Position] = (),
        waiting: Sequence[tuple[bytes, KeyRow]] = (),
        order: KeyOrder = NO_ORDER,
    ) -> None:
        number = self._horizon.issue()
        self.active[number], self._fresh[number] = row, Beginning(over, waiting, order)

    # -- with each batch

    def write(self, commit: Commit) -> Done | None:
        """A place ends in the batch that is sealed next, and so does this begin."""
        if not self._fresh:
            return None
        written = dict(self._fresh)
        for number, beginning in written.items():
            row = self.active[number]
            commit.row(Table.META, burial_key(number), burial_value(row))
            put_buried(commit, number, beginning.waiting)
            for root in beginning.over:
                end(commit, Name(row.whose, root))
            if beginning.order.is_on:
                write_changes(commit, row.whose, beginning.order.take())
        return partial(self._written, written)

    def _written(self, written: dict[int, Beginning], answer: object) -> None:
        for number, beginning in written.items():
            if isinstance(answer, Exception):
                beginning.order.unwritten.lost()
            else:
                self._fresh.pop(number, None)

    def recover(self) -> None:
        """A write was lost: write everything again."""
        self._fresh = dict.fromkeys(self.active, Beginning()) | self._fresh
