"""A session: one read position on the timeline, and what is in flight.

A session does not own a queue. It has *read* the timeline up to a position; of what it was sent at QoS 1
or 2 it remembers what has not been acked. Everything else (what it missed, what comes next) is the
timeline itself.

While it keeps up it is *tailing*: its read position is the horizon, whatever that is. It stops tailing at
the first message that it has no room for, reads on by itself, and tails again when its read position
equals the horizon.

Each subscription has a `since`: it matches only later positions. So a new filter on an old session does
not replay the past, and a filter that is sent again on each reconnect changes nothing. `replay_from`
asks for the past: the read position goes back, and every other subscription's `since` becomes the old
read position, so that they do not see again what they saw.

What is stored (the *cursor*) is the read position and the flights, together: a message is either behind
both and done with, or in flight and sent again first, in order, or ahead and still to come.
"""

from dataclasses import dataclass

from .position import Position

PACKET_ID_MAX = 65_535


@dataclass(slots=True)
class Flight:
    """A message that was sent and is not acked.

    `phase` of a QoS 2 message: 1 once it is known to be there, 2 when that is durable.
    """

    packet_id: int
    position: Position
    shard: int
    qos: int
    attempts: int = 1
    phase: int = 0
    group: object = None
    """The shared subscription that it belongs to, if any: (group, packet id there; 0: at QoS 2), or just its
    name before the groups have been restored."""
    age: int = 0
    """How many sweeps for unacked messages have seen it."""
    is_retained: bool = False
    """It was sent because of a SUBSCRIBE, and is again so."""
    size: int = 0
    """What it counts for in `Session.flight_bytes`."""

    @property
    def is_of_group(self) -> bool:
        """The shared subscription remembers it, and gives it to another when this session is gone."""
        return isinstance(self.group, tuple) and bool(self.group[1])


@dataclass(slots=True)
class Subscription:
    """A filter of a session; it matches positions later than `since`."""

    filter: str
    qos: int
    since: Position
    no_local: bool = False
    retain_as_published: bool = False
    identifier: int = 0


class Session:
    """State of one client id.

    `window`: how many messages may be in flight at once. `max_bytes`: from so many bytes in flight on there
    is no room, 0: any number; only with such a bound are they counted.
    """

    def __init__(
        self, client_id: str, *, read: Position, expiry_s: int, window: int, max_bytes: int = 0
    ) -> None:
        self.client_id = client_id
        self.expiry_s = expiry_s
        self.window = window
        self.max_bytes = max_bytes
        self.flight_bytes = 0
        self.read = read
        self.tailing = False
        self.subscriptions: dict[str, Subscription] = {}
        self.flights: dict[int, Flight] = {}
        """By packet id, in the order in which they were first sent."""
        self.received: dict[int, bool] = {}
        """Packet ids of QoS 2 publishes of the client that it has not released; True: durable."""
        self.changes = 0
        """How often its subscriptions have changed: what is stored of them goes with the cursor."""
        self._last_id = 0

    @property
    def is_persistent(self) -> bool:
        return self.expiry_s > 0

    @property
    def has_room(self) -> bool:
        if 0 < self.max_bytes <= self.flight_bytes:
            return False
        return len(self.flights) < self.window

    def read_at(self, horizon: Position) -> Position:
        """Up to where the session has read, when the horizon is there."""
        return horizon if self.tailing else self.read

    # -- subscriptions

    def subscribe(self, wanted: Subscription, horizon: Position, replay_from: Position | None = None) -> bool:
        """Add or replace a subscription; True if its filter is new.

        A filter that is there already keeps its `since`; sent again as it was, it changes nothing.
        """
        known = self.subscriptions.get(wanted.filter)
        self.subscriptions[wanted.filter] = wanted
        if known is not None:
            wanted.since = known.since
            self.changes += wanted != known
            return False
        self.changes += 1
        wanted.since = horizon
        if replay_from is not None and replay_from < horizon:
            self.rewind(wanted, replay_from, horizon)
        return True

    def rewind(self, wanted: Subscription | None, to: Position, horizon: Position) -> None:
        """Read again from `to`: for one subscription, or for all of them."""
        old = self.read_at(horizon)
        for other in self.subscriptions.values():
            if wanted is None:
                other.since = min(other.since, to)
            elif other is not wanted:
                other.since = max(other.since, old)
        if wanted is not None:
            wanted.since = to
        self.read = min(old, to)
        self.tailing = False
        self.changes += 1

    def unsubscribe(self, topic_filter: str) -> bool:
        is_known = self.subscriptions.pop(topic_filter, None) is not None
        self.changes += is_known
        return is_known

    # -- reading

    def fall_behind(self, before: Position) -> None:
        """Stop tailing: the session has read all up to `before`, but no more."""
        if self.tailing:
            self.tailing = False
            self.read = before

    def join(self, horizon: Position) -> bool:
        """Tail if everything up to the horizon has been read."""
        self.tailing = self.read >= horizon
        return self.tailing

    # -- in flight

    def take(self, position: Position, shard: int, qos: int, size: int = 0) -> int:
        """Put a message in flight; its packet id. The caller has looked for room.

        `size`: its bytes, if `max_bytes` is to count them.
        """
        flights = self.flights
        packet_id = self._last_id
        while True:
            packet_id = packet_id + 1 if packet_id < PACKET_ID_MAX else 1
            if packet_id not in flights:
                break
        self._last_id = packet_id
        flights[packet_id] = flight = Flight(packet_id, position, shard, qos)
        if size:
            self.weigh(flight, size)
        return packet_id

    def weigh(self, flight: Flight, size: int) -> None:
        """Count the bytes of a flight, once: when it is sent, or sent again after a start."""
        if not flight.size:
            flight.size = size
            self.flight_bytes += size

    def ack(self, packet_id: int) -> Flight | None:
        """The subscriber has it: no longer in flight. None if it was not."""
        flight = self.flights.pop(packet_id, None)
        if flight is not None and flight.size:
            self.flight_bytes -= flight.size
            flight.size = 0
        return flight

    def received_now(self, packet_id: int) -> bool:
        """The subscriber has said PUBREC: from now on only PUBREL is sent. False if it is not in flight."""
        flight = self.flights.get(packet_id)
        if flight is None or flight.qos != 2:
            return False
        flight.phase = max(flight.phase, 1)
        return True

    def restore(self, flights: list[Flight]) -> None:
        """Take over what was in flight when the cursor was stored."""
        self.flights = {flight.packet_id: flight for flight in flights}
        self.flight_bytes = 0
        self._last_id = flights[-1].packet_id if flights else 0
