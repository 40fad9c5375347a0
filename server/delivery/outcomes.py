"""The outcome of a message: what has become of it at all its groups and endpoints together.

It is stored nowhere. A message that is not dispatched has the outcome of its state. Of a dispatched one each
delivery has an outcome, and the worst counts, in the order of WORST:

    failed       a dead letter
    withheld     its sender may not send it now
    retrying     a try has failed, and it comes again
    running      in flight
    queued       not read yet, or it comes again untried
    dropped      given up undone, and no dead letter
    done         read, and nothing of it is left
    unclaimed    no place was to get it

All places count, whether the caller sees them or not: an outcome names none. Of a session only a dead letter,
a retry and what is withheld from it alone count, which have rows. What only sessions were to get is done once
it is dispatched, and so is what is retained, or has gone to a URL whose endpoint the server has forgotten.
Places count as they are now: a group that was deleted claims nothing.

A list asks for many messages (`Look`): one pass over the rows of deliveries beside its own, places routed
once for all topics with the same subscribers, the flights of a group read once.
"""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, get_args

from shards import keys
from shards.delivery_rows import Name, recorded
from shards.errors import Corrupt
from shards.fields import Record
from shards.state import DISPATCHED, State
from shards.store import Store, Table
from shards.tables import DEAD, UNDONE, WITHHELD, RecordRow, StateRow, state_row_of
from timeline.horizon import Horizon
from timeline.position import END, Position
from timeline.session import SETTLED

from .membership import Membership
from .router import Router, Targets
from .shared import Group

Dispatched = Literal["failed", "withheld", "retrying", "running", "queued", "dropped", "done", "unclaimed"]
Outcome = Literal[Dispatched, "pending", "expired", "cancelled"]
WORST: Final[tuple[Dispatched, ...]] = get_args(Dispatched)
SKIPS = 16
"""Rows of other messages that are passed before the pass begins anew behind them."""
LOOKS_MAX, LOOKS_ROW = 100_000, 50
"""Flights of one `Look`, some 50 ms; a row costs as many."""


@dataclass(frozen=True, slots=True, eq=False)
class Outcomes:
    """Read-only lookup."""

    store: Store
    horizon: Horizon
    router: Router
    groups: Membership

    def of(self, place: Position, record: Record, state: State) -> Outcome:
        """The outcome of one message whose row is at `place`. Raises StoreFailed."""
        return Look(self).of(place, record, state)


class Reader(NamedTuple):
    """A group, at one moment."""

    group: Group
    key: tuple[str, int]
    since: Position
    read: Position
    is_plain: bool
    """Whether all that it has not read is behind `read`."""

    def is_unread(self, place: Position, record: Record) -> bool:
        session = self.group.session
        is_behind = place > self.read or session.order.is_behind(record.ordering_key, place)
        return is_behind and place not in session.finished


class Asked(NamedTuple):
    """Who is to get the messages of a topic. `targets`: kept, as it is known by its identity."""

    targets: Targets
    since: Position
    """Since when there is somebody."""
    behind: Position
    """What is behind it is unread by a group that is plain."""
    busy: list[Reader]
    """The groups that are not."""


class Look:
    """Outcomes of many messages, cheap for rising positions. For one step of a call: places change after."""

    def __init__(self, outcomes: Outcomes) -> None:
        self._all = outcomes
        self._rows: Iterator[tuple[Name, RecordRow]] = iter(())
        self._row: tuple[Name, RecordRow] | None = None
        self._at, self._next = END, END
        """Where rows were last looked for, and the root of the next row."""
        self._asked: dict[int, Asked] = {}
        self._readers: dict[Group, Reader] = {}
        self._flying: dict[Position, dict[tuple[str, int], Dispatched]] = {}
        """Outcomes of what these have in flight, by position and group."""
        self._looks = 0

    @property
    def is_full(self) -> bool:
        """Whether the step should end."""
        return self._looks >= LOOKS_MAX

    def of(self, place: Position, record: Record, state: State) -> Outcome:
        """The outcome of a message whose row is at `place`. Raises StoreFailed."""
        if state != DISPATCHED:
            return state
        posted = self._all.router.posted(record.deliver_to, record.owner, place)
        is_claimed = record.retain or (b"://" in record.deliver_to and not posted)
        rows = {} if self._at < place < self._next else self._rows_at(place)
        found = [self._of_row(*key, row, place, record) for key, row in rows.items()] if rows else []
        for targets in (self._all.router.route(record.topic), posted):
            if targets:
                _, since, behind, busy = self._asked.get(id(targets)) or self._ask(targets)
                is_claimed = is_claimed or since < place
                if behind < place:
                    found.append("queued")
                for reader in busy:
                    is_theirs = reader.since < place and reader.key not in rows
                    if is_theirs and reader.is_unread(place, record):
                        found.append("queued")
        if place in self._flying:
            found += [one for key, one in self._flying[place].items() if key not in rows]
        found.append("done" if is_claimed else "unclaimed")
        return found[0] if len(found) == 1 else min(found, key=WORST.index)

    def _of_row(
        self, name: str, incarnation: int, row: StateRow, place: Position, record: Record
    ) -> Dispatched:
        """Of a delivery of a place that has a row of that state."""
        one = self._all.groups.named(name)
        if one is not None and one.incarnation != incarnation:
            one = None
        waits = row.state in UNDONE and one is not None and not one.rows.holds(place)
        undone = None
        if isinstance(one, Group):
            reader = self._reader(one)
            undone = self._flying.get(place, {}).get(reader.key)
            if undone == "queued" and row.attempts and place in one.rows.out:
                undone = "retrying"
            if undone is None and not waits and reader.is_unread(place, record):
                undone = "queued"
        if undone is not None or (one is not None and place in one.rows.over):
            return undone or "done"  # its row goes with the next cursor
        if row.state in UNDONE:
            again: Dispatched = "retrying" if row.attempts else "queued"
            return "done" if not waits else "withheld" if row.state == WITHHELD else again
        if row.state == DEAD:
            return "failed"
        return "dropped" if name.startswith(keys.GROUP_PREFIX) else "done"

    def _ask(self, targets: Targets) -> Asked:
        self._looks += len(targets)
        readers = [self._reader(one) for one in targets if isinstance(one, Group)]
        since = min(one.since for own in targets.values() for one in own)
        behind = min((max(one.since, one.read) for one in readers if one.is_plain), default=END)
        busy = [one for one in readers if not one.is_plain]
        found = self._asked[id(targets)] = Asked(targets, since, behind, busy)
        return found

    def _reader(self, group: Group) -> Reader:
        if group not in self._readers:
            session, key = group.session, (group.session.client_id, group.incarnation)
            for one in group.lent_alone() if group.lent else ():
                self._flying.setdefault(one.position, {})[key] = "running"
            for one in session.flights.values():
                if one.fate != SETTLED:
                    idle: Dispatched = "retrying" if one.attempts else "queued"
                    is_idle = one.fate or one.packet_id in session.resends
                    self._flying.setdefault(one.position, {})[key] = idle if is_idle else "running"
            self._looks += 1 + len(session.flights) + len(group.lent)
            since = min([one.since for one in session.subscriptions.values()], default=END)
            is_plain = not (session.finished or session.order.is_on)
            read = session.read_at(self._all.horizon.position)
            self._readers[group] = Reader(group, key, since, read, is_plain)
        return self._readers[group]

    def _rows_at(self, place: Position) -> dict[tuple[str, int], StateRow]:
        """States of the deliveries of the message there that have rows, by their places. What cannot be read
        is skipped."""
        skipped = SKIPS if place <= self._at else 0
        self._at, found = place, dict[tuple[str, int], StateRow]()
        while skipped >= SKIPS or (self._row is not None and self._row[0].root < place):
            if skipped >= SKIPS:
                self._rows, skipped = recorded(self._all.store, place, END), 0
            self._row, skipped = next(self._rows, None), skipped + 1
        while self._row is not None and self._row[0].root == place:
            name, row = self._row
            self._row = next(self._rows, None)
            self._looks += LOOKS_ROW
            state = self._all.store.get(Table.DELIVERIES, keys.state(*name))
            with suppress(Corrupt):
                if state is not None:
                    found[row.addressee, row.incarnation] = state_row_of(state)
        self._next = END if self._row is None else self._row[0].root
        return found
