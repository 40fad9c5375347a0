"""Deliveries of a dispatched message, one for each receiver; computed on request.

They are stored nowhere. They follow from read positions, messages in flight, retries and dead letters. The
first state in this list that applies counts:

    in_flight    sent and not acked
    withheld     its sender may not send it now
    retry        comes again at `retry_ms`
    waiting      not read yet, or given back and nobody has it
    dead         a dead letter
    dropped      somebody has dropped it, or nobody wanted it any longer, before anybody had it done
    done         read, and nothing of it is left: acked, or it was not to be sent any more

Receivers are the groups that match the topic, the message's endpoint, and sessions that are not done; there
may be thousands of others. Bounds: RECEIVERS_MAX receivers, LOOKS_MAX messages in flight, ROWS_MAX retries
and as many dead letters. Beyond one of these the answer says that there is more.

The writer asks only whether anything is undone (`is_undone`).
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, Literal

from msgspec import UNSET, Raw, Struct, UnsetType

from shards.delivery_rows import DeliveryRow, Name, of_message, of_message_in
from shards.fields import Record, TryRow
from shards.kept import kept_at, result_of
from shards.open_batch import OpenBatch
from shards.read import Found
from shards.record import decode
from shards.store import Store
from timeline.filters import parse_share
from timeline.horizon import Horizon
from timeline.position import MessageId, Position, at_of
from timeline.session import SETTLED, Flight

from ..engine.clock import Clock
from ..settings.times import Instant, time_text
from .membership import Membership
from .outcomes import Outcomes
from .owners import Owners
from .place import Place
from .router import Router, Targets, endpoint_names
from .settling.kept import DeadLetters
from .shared import KEY_PREFIX, Group, endpoint_text
from .tries import Try, tries_of_flight, tries_view

RECEIVERS_MAX = 100
LOOKS_MAX = 100_000
"""Maximum flights and members looked at."""
UNDONE_LOOKS_MAX = 20_000
"""The same maximum in the writer, where it delays everybody by 1 to 4 ms."""
LOOKS_EACH = 50
"""The same maximum for each session or group: some 5 ms in all."""
ROWS_MAX = 500

DeliveryState = Literal["in_flight", "withheld", "retry", "waiting", "dead", "dropped", "done"]
OVER = ("done", "dropped", "dead")
"""States that are final."""
May = Callable[[Iterable[str]], bool]
"""Whether the caller may see what belongs to clients with these keys."""


class Delivery(Struct, kw_only=True, gc=False):
    """Delivery state of a message in one group (`group`, `filter`), or in one session.

    `attempts`: deliveries so far, if still known; `retry_at`: time of the next try; `reason`: of the last
    failure; `by`: the group's member that has it; `lease_until`: for how long; `tries`: the last failed ones;
    `withheld_by`: why its sender may not send it now. `progress`: what the member has said of it last.

    Of one that is done and kept, `by`: who has done it; `started_at`, `ended_at`, `seconds`: when it was
    given to it, when it was done, and how long that took; `answer`: of an endpoint; `result`: the worker's.
    """

    group: str | UnsetType = UNSET
    filter: str | UnsetType = UNSET
    session: str | UnsetType = UNSET
    state: DeliveryState
    attempts: int | UnsetType = UNSET
    retry_at: Instant | UnsetType = UNSET
    reason: str | UnsetType = UNSET
    by: str | UnsetType = UNSET
    lease_until: Instant | UnsetType = UNSET
    tries: list[Try] | UnsetType = UNSET
    withheld_by: str | UnsetType = UNSET
    started_at: Instant | UnsetType = UNSET
    ended_at: Instant | UnsetType = UNSET
    seconds: float | UnsetType = UNSET
    answer: str | UnsetType = UNSET
    result: Any | UnsetType = UNSET
    progress: Any | UnsetType = UNSET


Listed = tuple[list[Delivery], bool]


@dataclass(frozen=True, slots=True, eq=False)
class Deliveries:
    """Read-only lookup."""

    store: Store
    horizon: Horizon
    router: Router
    groups: Membership
    dead_letters: DeadLetters
    owners: Owners
    clock: Clock

    @property
    def outcomes(self) -> Outcomes:
        """Of whole messages."""
        return Outcomes(self.store, self.horizon, self.router, self.groups)

    def of(self, message: MessageId, place: Position, record: Record, may: May) -> Listed:
        """Deliveries of a dispatched or withheld message whose row is at `place`, groups first, and whether
        there are more. Raises Corrupt, StoreFailed."""
        listed, is_cut = self._of(message, place, record, may)
        for one in listed:
            one.withheld_by = (self.owners.why_not(record) if one.state == "withheld" else "") or UNSET
        return listed, is_cut

    def _of(self, message: MessageId, place: Position, record: Record, may: May) -> Listed:
        rows, is_cut = self._rows(message)
        rows = [row for row in rows if row.is_waiting or may((row.keeper,))]
        theirs = {row.addressee: row for row in rows if self.groups.place_of(row) is not None}
        is_noted = self.owners.noted.has(place)
        listed: list[Delivery] = []
        looks = LOOKS_MAX
        for subscriber in self._receivers(place, record, theirs):
            name = subscriber.session.client_id
            lent = _lent(subscriber) if record.qos == 2 else []
            members = len(subscriber.members) if isinstance(subscriber, Group) else 0
            looks -= LOOKS_EACH + members + len(subscriber.session.flights) + sum(map(len, lent))
            if len(listed) == RECEIVERS_MAX or looks < 0:
                return listed, True
            if not may(subscriber.owners):
                continue
            row = theirs.get(name)
            if is_noted and not (row is not None and row.is_waiting):
                if subscriber.is_group:
                    listed.append(_delivery(subscriber, "withheld", attempts=0))
                continue
            is_behind = _is_behind(subscriber, place, record)
            found = self._one(subscriber, place, row, lent, is_behind=is_behind)
            if found is not None:
                listed.append(found)
        if b"://" in record.deliver_to and not self._posted(record, place) and may(("",)):
            own = endpoint_text(endpoint_names(record.deliver_to, record.owner)[0])
            if not any(row.addressee == KEY_PREFIX + own for row in rows):
                state: DeliveryState = "withheld" if is_noted else "done"  # or the group would be there
                listed.append(_at(own, own, state))
        for row in rows:
            if row.is_waiting or self.groups.place_of(row) is not None:
                continue
            if len(listed) == RECEIVERS_MAX:
                return listed, True
            listed.append(_kept(row))
        return listed, is_cut

    def is_undone(self, group: OpenBatch, found: Found) -> bool:
        """In the writer: whether a dispatched message is undone in a session, group or endpoint: unread, in
        flight, or waiting for its next try. Dead letters are not undone; beyond UNDONE_LOOKS_MAX places and
        flights it counts as undone. Raises Corrupt."""
        record, place = decode(found.value), found.position
        if self.owners.noted.has_in(group, found):
            return True
        horizon, looks = self.horizon.position, UNDONE_LOOKS_MAX
        for row in of_message_in(group, found.id):
            one = self.groups.place_of(row)
            if one is None or not row.is_waiting or row.root in one.rows.over:
                continue
            looks -= 1 + len(one.session.flights)
            if looks < 0 or row.root not in one.rows.out or row.root in one.flying():
                return True
        receivers = self.router.route(record.topic), self._posted(record, place)
        for one, subscriptions in chain(*(targets.items() for targets in receivers)):
            session = one.session
            is_subscribed = any(subscription.since < place for subscription in subscriptions)
            if is_subscribed and (session.is_ahead(place, horizon) or _is_behind(one, place, record)):
                return True
            lent = _lent(one) if record.qos == 2 else []
            looks -= 1 + len(session.flights) + sum(map(len, lent))
            if looks < 0 or _flight(one, place, lent) is not None:
                return True
        return False

    def kept(self, message: MessageId, may: May) -> DeliveryRow | None:
        """A retry or dead letter of a message whose slice has gone. Raises StoreFailed."""
        rows, _ = self._rows(message)
        current = (row for row in rows if row.is_waiting and self.groups.place_of(row) is not None)
        dead_letters = (row for row in rows if row.is_dead)
        return next((row for row in chain(current, dead_letters) if may((row.keeper,))), None)

    def _posted(self, record: Record, place: Position) -> Targets:
        return self.router.posted(record.deliver_to, record.owner, place)

    def _rows(self, message: MessageId) -> tuple[list[DeliveryRow], bool]:
        """The deliveries of a message that have rows, and whether there are more."""
        found = of_message(self.store, message)
        rows = [*islice(found, ROWS_MAX)]
        return rows, next(found, None) is not None

    def _receivers(self, place: Position, record: Record, named: Iterable[str]) -> Iterator[Place]:
        """Subscribers that may have deliveries: groups by name, then sessions with messages in flight."""
        targets = self.router.route(record.topic) | self._posted(record, place)
        found = {name: self.groups.named(name) for name in named}
        for one, subscriptions in targets.items():
            if one.is_group and any(subscription.since < place for subscription in subscriptions):
                found[one.session.client_id] = one
        # A group's name begins with NUL, so groups come first.
        yield from filter(None, [found[name] for name in sorted(found)])
        for one in targets:
            if not one.is_group and one.session.flights and one.session.client_id not in found:
                yield one

    def _one(
        self,
        subscriber: Place,
        place: Position,
        row: DeliveryRow | None,
        lent: list[dict[int, Flight]],
        *,
        is_behind: bool,
    ) -> Delivery | None:
        """None: a session with which there is nothing left of it. `is_behind`: it waits for its key."""
        if row is not None and row.root in subscriber.rows.over:
            row = None  # it has been read again: its row goes with the next cursor
        waiting = row if row is not None and row.is_waiting else None
        root, before = (place, 0) if waiting is None else (waiting.root, waiting.attempts)
        flight = _flight(subscriber, root, lent)
        reason, tries = ("", ()) if waiting is None else (waiting.reason, waiting.tries)
        if flight is not None:
            is_back = subscriber.is_group and flight.packet_id in subscriber.session.resends
            state: DeliveryState = "waiting" if is_back or flight.fate else "in_flight"
            by, until_ms = self._holder(subscriber, flight)
            attempts = before + flight.attempts
            known = tries_of_flight(tries, flight, by or subscriber.name)
            found = _delivery(
                subscriber, state, attempts=attempts, reason=reason, by=by, until_ms=until_ms, tries=known
            )
            if flight.progress and state == "in_flight":
                found.progress = Raw(flight.progress)
            return found
        if waiting is not None and root not in subscriber.rows.out:
            ms = at_of(waiting.at)
            is_due = ms <= self.clock.wall_ms() or waiting.is_withheld
            state, retry_ms = ("waiting", None) if is_due else ("retry", ms)
            state = "withheld" if waiting.is_withheld else state
            return _delivery(
                subscriber, state, attempts=before, retry_ms=retry_ms, reason=reason, tries=tries
            )
        if is_behind or (subscriber.is_group and subscriber.session.is_ahead(place, self.horizon.position)):
            return _delivery(subscriber, "waiting", attempts=0)
        if row is not None and not row.is_waiting:
            return _kept(row)
        return self._done(subscriber, place, waiting) if subscriber.is_group else None

    def _done(self, subscriber: Place, root: Position, before: DeliveryRow | None) -> Delivery:
        """With its story, if the place has kept it, or will. `before`: what it was given again from. What is
        kept from before a replay goes with the next cursor."""
        kept, story = kept_at(self.store, Name(subscriber.whose, root)), subscriber.rows.ended.get(root)
        if kept is not None and not subscriber.rows.holds(root):
            story = kept.story._replace(result=result_of(self.store, subscriber.whose, kept))
        elif story is not None:  # its result counts once it is stored
            attempts, tries = (0, []) if before is None else (before.attempts, before.tries)
            story = story._replace(
                attempts=attempts + story.attempts, tries=[*tries, *story.tries], result=None
            )
        else:
            return _delivery(subscriber, "done")
        found = _delivery(subscriber, "done", attempts=story.attempts, by=story.by, tries=story.tries)
        found.ended_at, found.answer = time_text(story.ended_ms), story.answer or UNSET
        if story.held_ms:
            found.started_at = time_text(story.ended_ms - story.held_ms)
            found.seconds = story.held_ms / 1_000
        ttl_ms = subscriber.keeping.result_ms if isinstance(subscriber, Group) else 0
        if story.result is not None and self.clock.wall_ms() < story.ended_ms + ttl_ms:
            found.result = Raw(story.result)
        return found

    def _holder(self, subscriber: Place, flight: Flight) -> tuple[str, int | None]:
        """Which member of a group has it, and until when, wall ms."""
        if isinstance(subscriber, Group):
            for member, theirs in subscriber.lent.items():
                for lent in theirs.values():
                    if lent is flight or (lent.loan is not None and lent.loan.flight is flight):
                        until_s = 0.0 if lent.loan is None else lent.loan.until_s
                        left_ms = round((until_s - self.clock.mono()) * 1_000)
                        return member.name, self.clock.wall_ms() + left_ms if until_s else None
        return "", None


def _is_behind(subscriber: Place, place: Position, record: Record) -> bool:
    """Whether the place has read past the message, and gives it when its key is free."""
    is_behind = subscriber.session.order.is_behind(record.ordering_key, place)
    return is_behind and place not in subscriber.session.finished


def _lent(subscriber: Place) -> list[dict[int, Flight]]:
    """Flights of a group's members: a QoS 2 delivery is in flight only there."""
    return list(subscriber.lent.values()) if isinstance(subscriber, Group) else []


def _flight(subscriber: Place, root: Position, lent: list[dict[int, Flight]]) -> Flight | None:
    """The flight of a message, unless its outcome is decided: then its rows tell."""
    for flight in subscriber.session.flights.values():
        if flight.position == root and flight.loan is None and flight.fate != SETTLED:
            return flight
    for flights in lent:
        for flight in flights.values():
            if flight.position == root and not flight.is_of_group:
                return flight
    return None


def _delivery(subscriber: Place, state: DeliveryState, **more: Any) -> Delivery:
    topic_filter = parse_share(subscriber.text)[1] if isinstance(subscriber, Group) else None
    return _at(subscriber.name, topic_filter, state, **more)


def _kept(row: DeliveryRow) -> Delivery:
    """The delivery of a dead letter, or of a dropped message."""
    text = row.addressee.removeprefix(KEY_PREFIX)
    topic_filter = parse_share(text)[1] if text != row.addressee else None
    state: DeliveryState = "dead" if row.is_dead else "dropped"
    return _at(row.group, topic_filter, state, attempts=row.attempts, reason=row.reason, tries=row.tries)


def _at(
    name: str,
    topic_filter: str | None,
    state: DeliveryState,
    *,
    attempts: int | UnsetType = UNSET,
    retry_ms: int | None = None,
    reason: str = "",
    by: str = "",
    until_ms: int | None = None,
    tries: Sequence[TryRow] = (),
) -> Delivery:
    """A delivery to a group, or to a session: it has no filter."""
    delivery = Delivery(
        state=state,
        attempts=attempts,
        retry_at=UNSET if retry_ms is None else time_text(retry_ms),
        reason=reason or UNSET,
        by=by or UNSET,
        lease_until=UNSET if until_ms is None else time_text(until_ms),
        tries=tries_view(tries) or UNSET,
    )
    if topic_filter is None:
        delivery.session = name
    else:
        delivery.group, delivery.filter = name, topic_filter
    return delivery
