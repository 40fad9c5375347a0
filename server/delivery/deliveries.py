"""What has become of a dispatched message with each who was to get it: made up when somebody asks.

It is stored nowhere, because it follows from what is: where a session or group has read to, what it has in
flight, which retries and dead letters there are of the message. The first of these that holds is told:

    in_flight    sent and not acked
    retry        comes again at `retry_ms`
    waiting      not read yet, or given back and nobody has it
    dead         a dead letter
    done         read, and nothing of it is left: acked, or it was not to be sent any more

Told of are the groups that match the topic, that of the endpoint it is delivered to, and whoever has
something left of it; a session that has none is not told of: there may be thousands. Bounds: TOLD_MAX of
them, LOOKS_MAX of what is in flight, ROWS_MAX retries and as many dead letters. Beyond one of these the
answer says that there is more.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Literal

from shards.read import Reader
from shards.retries import Standing, retries_of_message
from shards.tables import DeadRow
from timeline.filters import parse_share
from timeline.horizon import Horizon
from timeline.position import MessageId, Position, at_of
from timeline.session import SETTLED, Flight

from .membership import Membership
from .router import Router
from .settling.letters import Letters
from .shared import KEY_PREFIX, Group
from .subscriber import Subscriber

TOLD_MAX = 100
LOOKS_MAX = 100_000
"""Flights and members looked at, ..."""
LOOKS_EACH = 50
"""... and so many for each session or group: some 5 ms in all."""
ROWS_MAX = 500

DeliveryState = Literal["in_flight", "retry", "waiting", "dead", "done"]
May = Callable[[Iterable[str]], bool]
"""Whether what belongs to clients that have shown these keys is there for who asks."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """What has become of a message with one session or group."""

    name: str
    """The client id, or the group as people call it."""
    filter: str | None
    """What the group subscribes to; None: it is a session."""
    state: DeliveryState
    attempts: int | None = None
    """Deliveries so far; None: nobody has counted them any more."""
    retry_ms: int | None = None
    reason: str = ""
    """Why the last attempt came to nothing, if that is known."""


class Deliveries:
    """Looks it up. Changes nothing."""

    def __init__(
        self, reader: Reader, horizon: Horizon, router: Router, groups: Membership, letters: Letters
    ) -> None:
        self._reader = reader
        self._horizon = horizon
        self._router = router
        self._groups = groups
        self._letters = letters

    def of(
        self, message: MessageId, place: Position, topic: bytes, qos: int, may: May, deliver_to: bytes = b""
    ) -> tuple[list[Delivery], bool]:
        """Those of the message whose row is at `place`, groups first, and whether there are more.

        For one that dispatch has passed. Raises Corrupt, StoreFailed.
        """
        standing, is_cut = self._standing(message)
        dead, is_cut_too = self._dead(message, may)
        told: list[Delivery] = []
        looks = LOOKS_MAX
        for subscriber in self._receivers(place, topic, deliver_to, [*standing, *dead]):
            name = subscriber.session.client_id
            lent = _lent(subscriber) if qos == 2 else []
            members = len(subscriber.members) if isinstance(subscriber, Group) else 0
            looks -= LOOKS_EACH + members + len(subscriber.session.flights) + sum(map(len, lent))
            if len(told) == TOLD_MAX or looks < 0:
                return told, True
            letter = dead.pop(name, None)
            if not may(subscriber.owners):
                continue
            found = self._one(subscriber, place, standing.get(name, []), letter, lent)
            if found is not None:
                told.append(found)
        for row in dead.values():
            if self._groups.named(row.addressee) is not None:
                continue
            if len(told) == TOLD_MAX:
                return told, True
            told.append(_of_dead(row))
        return told, is_cut or is_cut_too

    def _standing(self, message: MessageId) -> tuple[dict[str, list[Standing]], bool]:
        """The retries of a message by addressee, and whether there are more."""
        standing: dict[str, list[Standing]] = {}
        found = retries_of_message(self._reader, self._horizon.position, message)
        for one in islice(found, ROWS_MAX):
            standing.setdefault(one.addressee, []).append(one)
        return standing, next(found, None) is not None

    def _dead(self, message: MessageId, may: May) -> tuple[dict[str, DeadRow], bool]:
        """The last dead letter of a message by addressee, and whether there are more."""
        found = self._letters.of_message(message)
        dead = {row.addressee: row for _, row in islice(found, ROWS_MAX) if may((row.keeper,))}
        return dead, next(found, None) is not None

    def _receivers(
        self, place: Position, topic: bytes, deliver_to: bytes, named: Iterable[str]
    ) -> Iterator[Subscriber]:
        """Who may have something to do with the message: groups by name, then sessions.

        A topic may have ten thousand sessions, most of which have nothing in flight.
        """
        targets = self._router.route(topic) | self._router.posted(deliver_to)
        found = {name: self._groups.named(name) for name in named}
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
        subscriber: Subscriber,
        place: Position,
        standing: list[Standing],
        dead: DeadRow | None,
        lent: list[dict[int, Flight]],
    ) -> Delivery | None:
        """None: a session with which there is nothing left of it."""
        places = {place: 0} | {one.place: one.retry.attempts for one in standing}
        flight = _flight(subscriber, places, lent)
        if flight is not None:
            is_back = subscriber.is_group and flight.packet_id in subscriber.session.resends
            attempts = places[flight.position] + flight.attempts
            reason = next((_reason(one) for one in standing if one.place == flight.position), "")
            state: DeliveryState = "waiting" if is_back or flight.fate else "in_flight"
            return _told(subscriber, state, attempts, reason=reason)
        read = subscriber.session.read_at(self._horizon.position)
        unread = [one for one in standing if one.is_waiting or one.place > read]
        if unread:
            first = min(unread, key=lambda one: (one.is_waiting, one.place))
            if first.is_waiting:
                ms = at_of(first.place)
                return _told(subscriber, "retry", first.retry.attempts, ms, _reason(first))
            return _told(subscriber, "waiting", first.retry.attempts, reason=_reason(first))
        if place > read and subscriber.is_group:
            return _told(subscriber, "waiting", 0)
        if dead is not None:
            return _of_dead(dead)
        return _told(subscriber, "done") if subscriber.is_group else None


def _lent(subscriber: Subscriber) -> list[dict[int, Flight]]:
    """What a group has given out: at QoS 2 that is in flight with the member alone."""
    return list(subscriber.lent.values()) if isinstance(subscriber, Group) else []


def _flight(
    subscriber: Subscriber, places: dict[Position, int], lent: list[dict[int, Flight]]
) -> Flight | None:
    """What the session or group has in flight of a message that stands at these places.

    Not what has been decided to be something else: its rows say what.
    """
    for flight in subscriber.session.flights.values():
        if flight.position in places and flight.loan is None and flight.fate != SETTLED:
            return flight
    for flights in lent:
        for flight in flights.values():
            if flight.position in places and not flight.is_of_group:
                return flight
    return None


def _told(
    subscriber: Subscriber,
    state: DeliveryState,
    attempts: int | None = None,
    retry_ms: int | None = None,
    reason: str = "",
) -> Delivery:
    topic_filter = parse_share(subscriber.text)[1] if isinstance(subscriber, Group) else None
    return Delivery(subscriber.name, topic_filter, state, attempts, retry_ms, reason)


def _of_dead(row: DeadRow) -> Delivery:
    text = row.addressee.removeprefix(KEY_PREFIX)
    topic_filter = parse_share(text)[1] if text != row.addressee else None
    return Delivery(row.group, topic_filter, "dead", row.attempts, reason=row.reason)


def _reason(one: Standing) -> str:
    return one.retry.reason.decode(errors="replace")
