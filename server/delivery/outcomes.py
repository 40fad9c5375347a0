"""The outcome of a message: what has become of it at all its groups and endpoints together.

It is stored nowhere. A message that is not dispatched has the outcome of its state. Of a dispatched one each
delivery has an outcome, and the worst counts, in the order of WORST:

    failed       a dead letter
    withheld     its sender may not send it now
    retrying     a try has failed, and it comes again
    running      in flight
    queued       not read yet, or returned untried
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
from typing import Final, Literal, get_args

from shards import keys
from shards.delivery_rows import DeliveryRow, Name, of_rows, recorded
from shards.errors import Corrupt
from shards.fields import Record
from shards.state import DISPATCHED, State
from shards.store import Store, Table
from shards.tables import RecordRow, state_row_of
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
LOOKS_MAX = 100_000
"""Flights and rows of one `Look`, some 50 ms."""


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


class Look:
    """Outcomes of many messages, cheap for rising positions. For one step of a call: places change after."""

    def __init__(self, outcomes: Outcomes) -> None:
        self._all = outcomes
        self._rows: Iterator[tuple[Name, RecordRow]] = iter(())
        self._row: tuple[Name, RecordRow] | None = None
        self._at = END
        self._groups: dict[int, tuple[Targets, list[Group]]] = {}
        """By the identity of the router's answer, which is kept with them."""
        self._flights: dict[Group, dict[Position, Dispatched]] = {}
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
        rows: dict[tuple[str, int], DeliveryRow | None] = {
            (row.addressee, row.incarnation): row for row in self._rows_at(place)
        }
        for targets in (self._all.router.route(record.topic), posted):
            for group in self._groups_in(targets):
                if any([one.since < place for one in targets[group]]):  # noqa: C419 - most have one
                    rows.setdefault((group.session.client_id, group.incarnation), None)
            is_claimed = is_claimed or any(one.since < place for own in targets.values() for one in own)
        found = [self._of_one(*name, row, place, record) for name, row in rows.items()]
        return min([*found, "done" if is_claimed else "unclaimed"], key=WORST.index)

    def _of_one(
        self, name: str, incarnation: int, row: DeliveryRow | None, place: Position, record: Record
    ) -> Dispatched:
        """Of the delivery to one place. `row`: its own, if it has one."""
        one = self._all.groups.named(name)
        if one is not None and one.incarnation != incarnation:
            one = None  # it has ended
        waits = row is not None and row.is_waiting and one is not None and not one.rows.holds(place)
        if isinstance(one, Group):
            session, flying = one.session, self._flying(one).get(place)
            if flying is not None:
                return flying
            is_behind = session.order.is_behind(record.ordering_key, place) and place not in session.finished
            if not waits and (is_behind or session.is_ahead(place, self._all.horizon.position)):
                return "queued"
        if row is None or row.is_waiting:
            return "done" if row is None or not waits else "withheld" if row.is_withheld else "retrying"
        if row.is_dead:
            return "failed"
        return "dropped" if name.startswith(keys.GROUP_PREFIX) else "done"

    def _flying(self, group: Group) -> dict[Position, Dispatched]:
        """Of what a group has in flight, by position."""
        found = self._flights.get(group)
        if found is None:
            session, out = group.session, group.rows.out
            found = self._flights[group] = {one.position: "running" for one in group.lent_alone()}
            for one in session.flights.values():
                is_idle, is_again = one.fate or one.packet_id in session.resends, one.position in out
                if one.fate != SETTLED:
                    idle: Dispatched = "retrying" if one.attempts or is_again else "queued"
                    found[one.position] = idle if is_idle else "running"
            self._looks += 1 + len(found) + len(group.lent)
        return found

    def _groups_in(self, targets: Targets) -> list[Group]:
        known = self._groups.get(id(targets))
        if known is None:
            self._looks += len(targets)
            known = self._groups[id(targets)] = targets, [one for one in targets if isinstance(one, Group)]
        return known[1]

    def _rows_at(self, place: Position) -> Iterator[DeliveryRow]:
        """Rows of the deliveries of the message there. What cannot be read is skipped."""
        skipped = SKIPS if place < self._at else 0
        self._at = place
        while skipped >= SKIPS or (self._row is not None and self._row[0].root < place):
            if skipped >= SKIPS:
                self._rows, skipped = recorded(self._all.store, place, END), 0
            self._row, skipped = next(self._rows, None), skipped + 1
        while self._row is not None and self._row[0].root == place:
            name, row = self._row
            self._row = next(self._rows, None)
            self._looks += 1
            state = self._all.store.get(Table.DELIVERIES, keys.state(*name))
            with suppress(Corrupt):
                if state is not None:
                    yield of_rows(name, state_row_of(state), row)
