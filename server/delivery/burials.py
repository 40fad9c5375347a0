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

import msgspec

from shards import keys
from shards.burials import BurialRow, burial_key, burial_value, burials
from shards.commit import Commit
from shards.delivery_rows import count_waiting
from shards.order import put_buried, write_changes
from shards.store import Store, Table
from timeline.horizon import Horizon
from timeline.key_order import KeyOrder
from timeline.key_rows import KeyRow
from timeline.position import END, START, Position
from timeline.session import SETTLED, Flight

from ..engine.commit_hook import CommitHook, Done
from ..engine.writer import Writer
from .retries import Retries
from .shared import ENDPOINT_PREFIX, Group
from .subscriber import Subscriber

GROUP_EXPIRED, GROUP_DELETED, ENDPOINT_DELETED = "group expired", "group deleted", "endpoint deleted"
SESSION_ENDED = "session ended"
SKIPPED, KEPT_TOO_LONG = "skipped", "kept too long"
SKIPPED_KEYS = 1_000
"""Keys whose followers are given up in one step: some 6 ms."""
SESSIONS = 0
"""Number of the burial of sessions' unread messages. `Horizon.issue` begins later."""


class Burials(CommitHook):
    """Pending burials by number."""

    def __init__(self, store: Store, horizon: Horizon, retries: Retries, writer: Writer) -> None:
        """Raises Corrupt, StoreFailed."""
        self._store = store
        self._horizon = horizon
        self._retries = retries
        self.active: dict[int, BurialRow] = dict(burials(store))
        self._fresh: set[int] = set()
        """Burials that are not in a batch yet."""
        self.dropped: Counter[str] = Counter()
        """Messages that nobody has finished and that are no dead letters, by reason."""
        last = self.active.get(SESSIONS)
        self.passed = START if last is None else keys.place_of(last.read)
        """Up to here what sessions had not read is settled: they read on behind it."""
        if last is not None and last.is_read:
            del self.active[SESSIONS]
        self._behind: dict[int, Sequence[tuple[bytes, KeyRow]]] = {}
        """Of `_fresh`: keys whose followers are to be settled."""
        self._left: list[tuple[bytes, KeyOrder]] = []
        """Orders of groups that have ended: what is not written of them is in the next batch."""
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

    def end_group(self, group: Group, reason: str, over: Iterable[Position], *, is_dead: bool) -> None:
        """A group has ended: bury its messages in flight, unread ones, and its retries except `over`."""
        read = group.session.read_at(self._horizon.position)
        self._retries.forget(group)
        flights = [
            (keys.place(flight.position), flight.shard, flight.attempts)
            for flight in group.session.flights.values()
            if flight.is_stored and flight.fate != SETTLED and flight.position not in group.rows.out
        ]
        has_retries, order = self.has_retries(group), group.session.order
        if flights or has_retries or order.is_on or read < self._horizon.position:
            row = self._row(group, read, self._horizon.position, reason, is_dead=is_dead)
            row.over.extend(map(keys.place, over))
            if order.is_on:
                behind = keys.place(Position(order.read_from(read) + 1))
                row = msgspec.structs.replace(row, behind=behind, behind_upto=keys.place(read), is_ended=True)
                order.leave()
                self._left.append((group.whose, order))
            self._add(row, flights=flights, has_retries=has_retries)

    def end_session(self, subscriber: Subscriber) -> None:
        """A session has ended: count what it had in flight and delete its retries."""
        horizon, flights = self._horizon.position, subscriber.session.flights.values()
        self._retries.forget(subscriber)
        self.dropped[SESSION_ENDED] += sum(one.is_stored and not one.is_of_group for one in flights)
        if not self.has_retries(subscriber):
            return
        row = self._row(subscriber, horizon, horizon, SESSION_ENDED, is_dead=False)
        row.over.extend(map(keys.place, subscriber.over()))
        self._add(row, flights=[], has_retries=True)

    def skip(self, subscriber: Subscriber, upto: Position, reason: str, *, is_dead: bool) -> bool:
        """The place reads on behind `upto`, and gives up what waits for its key there, SKIPPED_KEYS in a
        step; False if there is nothing to do. The caller stores its cursor."""
        session = subscriber.session
        read = session.read_at(self._horizon.position)
        upto = min(upto, self._horizon.position)
        behind = session.order.skip(upto, SKIPPED_KEYS)
        if upto <= read and not behind:
            return False
        last, upto = min(read, upto), max(read, upto)
        row = self._row(subscriber, read, upto, reason, is_dead=is_dead)
        if behind:
            first = keys.place(min([one.next for _, one in behind]))
            row = msgspec.structs.replace(row, behind=first, behind_upto=keys.place(last))
        self._add(row, flights=[], has_retries=False, behind=behind)
        session.read = max(session.read, upto)
        return True

    def pass_sessions(self, read: Position, upto: Position, filters: Iterable[str]) -> None:
        """In the writer: sessions lose unread messages up to `upto`. None of them has read less than `read`,
        or subscribes to more than `filters`."""
        row = BurialRow(
            addressee="",
            group="sessions",
            incarnation=0,
            keeper="",
            filters=[(text, keys.place(START)) for text in filters],
            endpoint="",
            read=keys.place(max(self.passed, read)),
            upto=keys.place(upto),
            finished=[],
            flights=[],
            has_retries=False,
            reason=KEPT_TOO_LONG,
            is_dead=False,
        )
        self.active[SESSIONS] = row
        self._fresh.add(SESSIONS)

    def end_flights(self, subscriber: Subscriber, flights: Iterable[Flight]) -> None:
        """In the writer: forget ended flights of a session or group. The caller stores the cursors."""
        horizon = self._horizon.position
        row = self._row(subscriber, horizon, horizon, KEPT_TOO_LONG, is_dead=True)
        ended = [(keys.place(one.position), one.shard, one.attempts) for one in flights]
        self._add(row, flights=ended, has_retries=False)

    def has_retries(self, subscriber: Subscriber) -> bool:
        """Whether a place has any, also one that is in the batch that is open, and not stored yet."""
        is_fresh = any(flight.fate == SETTLED for flight in subscriber.session.flights.values())
        return is_fresh or count_waiting(self._store, subscriber.whose) > 0

    def _row(
        self, subscriber: Subscriber, read: Position, upto: Position, reason: str, *, is_dead: bool
    ) -> BurialRow:
        session, owners = subscriber.session, subscriber.owners
        return BurialRow(
            addressee=session.client_id,
            group=subscriber.name,
            incarnation=subscriber.incarnation,
            keeper=min(owners) if len(owners) == 1 else "",
            filters=[
                (one.filter, keys.place(one.since))
                for one in session.subscriptions.values()
                if one.filter not in subscriber.groups
            ],
            endpoint=subscriber.name.removeprefix(ENDPOINT_PREFIX) if subscriber.is_endpoint else "",
            read=keys.place(read),
            upto=keys.place(upto),
            finished=[keys.place(place) for place in session.finished if place <= upto],
            flights=[],
            has_retries=False,
            reason=reason,
            is_dead=is_dead,
        )

    def _add(
        self,
        row: BurialRow,
        *,
        flights: Sequence[tuple[bytes, int, int]],
        has_retries: bool,
        behind: Sequence[tuple[bytes, KeyRow]] = (),
    ) -> None:
        """`behind`: keys whose followers are to be settled, unless the rows of its keys say so."""
        number = self._horizon.issue()
        self.active[number] = msgspec.structs.replace(row, flights=list(flights), has_retries=has_retries)
        if behind:
            self._behind[number] = behind
        self._fresh.add(number)

    # -- with each batch

    def write(self, commit: Commit) -> Done:
        """A place ends in the batch that is sealed next, and so does this begin."""
        written = list(self._fresh)
        for number in written:
            commit.row(Table.META, burial_key(number), burial_value(self.active[number]))
            put_buried(commit, number, self._behind.get(number, ()))
        left = list(self._left)
        for whose, order in left:
            write_changes(commit, whose, order.take())

        def done(answer: object) -> None:
            if isinstance(answer, Exception):
                for _, order in left:
                    order.unwritten.lost()
                return
            self._fresh.difference_update(written)
            self._left = [one for one in self._left if one not in left]
            for number in written:
                self._behind.pop(number, None)

        return done

    def recover(self) -> None:
        """A write was lost: write everything again."""
        self._fresh.update(self.active)
