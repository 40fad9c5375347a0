"""A session: a read position on the timeline, and the messages in flight.

A session does not own a queue. It has *read* the timeline up to a position, and remembers the unacked
messages that it was sent at QoS 1 or 2. Everything else (missed messages, coming ones) is the timeline
itself.

While it keeps up it is *tailing*: its read position is the horizon. It stops tailing at the first message
without room, reads on by itself, and tails again when its read position equals the horizon.

Each subscription has a `since`: it matches only later positions. So a new filter on an old session does not
replay the past, and a filter that is sent again on each reconnect changes nothing. `replay_from` asks for the
past: the read position goes back, and every other subscription's `since` becomes the old read position, so
that they do not get messages again.

The stored *cursor* is the read position and the flights together: a message is either behind both and done,
or in flight and resent first, in order, or ahead and still to come.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from struct import Struct
from typing import NamedTuple

from sortedcontainers import SortedDict

from .finished import Finished
from .key_order import NO_ORDER, KeyOrder
from .position import Position

PACKET_ID_MAX = 65_535
LOSSES_MAX = 8
"""Maximum number of lost tries with details in a flight; must stay small."""
LOSS = Struct(">HII")
"""When a try was lost, wall ms in 48 bits, and how long it was held, ms."""
MS_MAX = 0xFFFFFFFF
RETIRED_MAX = 1_000
"""Packet ids that a session keeps out of use because their QoS 2 exchange was given up."""
IN_FLIGHT, FAILED, SETTLED = 0, 1, 2
"""`Flight.fate`: can be acked; failed, outcome undecided; outcome decided in a batch that is not durable
yet."""


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
    loan: "Loan | None" = None
    """The loan, if it came by a shared subscription."""
    is_retained: bool = False
    """Whether it is a retained message, sent because of a SUBSCRIBE."""
    fate: int = IN_FLIGHT
    """FAILED: it is not resent from here. SETTLED: it is no longer stored either."""
    returns: int = 0
    """Group's flight: times that a member has returned the message in order, without a try."""
    until_ms: int = 0
    """Group's flight: end of the durable lease, ms of running time; 0: none."""
    number: int = 0
    """Group's flight: `Loan.number` of that lease; 0: none, or an older version's."""
    holder: int = 0
    """Group's flight: the client that has it over MQTT (server/delivery/subscriber.py); 0: none."""
    losses: "Losses | None" = None
    """Its attempts but for the last, as their connection, or the server, was lost before an answer; None: it
    was not sent again, or an older version did."""
    key: bytes = b""
    """Flight of a group that orders: its ordering key, which it is the head of; empty: of none."""
    progress: bytes = b""
    """Group's flight: how far its member says that it is (server/delivery/progress.py); empty: unsaid."""
    stored: bytes = field(default=b"", compare=False)
    """Cached stored form, valid while `stored_as` equals the attempts: it is written with each cursor. With
    60,000 flights a new one takes 5 ms; it took 28 when all were encoded each time."""
    stored_as: int = field(default=-1, compare=False)
    """-1: no valid cache. A flight returned before it was sent has 0 attempts."""

    @property
    def is_stored(self) -> bool:
        """Whether its message is stored and can be read again."""
        return self.shard >= 0

    @property
    def origin(self) -> tuple[Position, int]:
        """Position and shard of the message's row."""
        return self.position, self.shard

    def begin_again(self, at_ms: int, ended_ms: int = 0) -> None:
        """Note a resend at that wall time, after a delivery without an answer.

        `ended_ms`: end of the earlier delivery's connection, wall ms; 0: unknown.
        """
        if self.attempts:
            known = b"" if self.losses is None else self.losses.known
            if ended_ms:
                loss = LOSS.pack(ended_ms >> 32, ended_ms & MS_MAX, self.held_ms(ended_ms))
                known = (known + loss)[-LOSSES_MAX * LOSS.size :]
            self.losses = Losses(at_ms, known)
        if self.progress:
            self.progress, self.stored_as = b"", -1
        self.attempts += 1

    def held_ms(self, until_ms: int) -> int:
        """How long its last try was held by that wall time; 0: unknown, as for a first try."""
        return 0 if self.losses is None else min(max(0, until_ms - self.losses.at_ms), MS_MAX)

    def end_lease(self) -> None:
        """Group's flight: end its durable lease."""
        self.until_ms, self.number, self.holder, self.stored_as = 0, 0, 0, -1

    def lease_until(self, until_ms: int) -> None:
        """Group's flight: its durable lease ends then, ms of running time."""
        self.until_ms, self.stored_as = until_ms, -1

    @property
    def is_leased(self) -> bool:
        """Group's flight: a start leases it on to whoever has it."""
        return self.until_ms > 0 or self.holder > 0

    @property
    def is_of_group(self) -> bool:
        """The shared subscription remembers it, and gives it to another when this session is gone."""
        return self.loan is not None and self.loan.flight is not None


@dataclass(slots=True)
class Losses:
    """The lost tries of a flight that was resent."""

    at_ms: int
    """Time of the last resend, wall ms."""
    known: bytes = b""
    """The last LOSSES_MAX tries with details. In RAM only."""

    def each(self) -> list[tuple[int, int]]:
        """The known ones, in order of time: when it was lost, wall ms, and `held_ms` then."""
        return [(high << 32 | low, ms) for high, low, ms in LOSS.iter_unpack(self.known)]


@dataclass(slots=True)
class Loan:
    """A message that a member of a shared subscription has in flight on behalf of the group.

    At QoS 1 it is in flight twice: here under the packet id that the client acks, and with the group
    (`flight`), so that it comes back when the member leaves. At QoS 2 it is the member's alone.
    """

    share: str
    """`$share/group/filter`, as it was subscribed to."""
    flight: Flight | None = None
    until_s: float = 0.0
    """The *lease*: the message is the member's until then, s of monotonic time; 0: without limit."""
    term_ms: int = 0
    """Length of the lease from when it was given, or extended."""
    lease: int = 0
    """The lease's name in its queue (server/delivery/settling/leases.py)."""
    is_overdue: bool = False
    """The ack timeout has passed: the group has taken it back. The member may still finish it."""
    number: int = 0
    """The number by which a lease id finds it (server/delivery/settling/leases.py); 0: none."""
    since_s: float = 0.0
    """Time at which the member got it, s of monotonic time."""
    answer: str = ""
    """Its answer, for the story: the status of a post."""
    is_told: bool = False
    """The story of its end is noted."""


class Returned:
    """Flights of all groups that no member has: counted, as `most` of them may wait so."""

    __slots__ = ("failing", "is_missed", "most", "waiting")

    def __init__(self, most: int) -> None:
        self.most = most
        self.waiting = 0
        """Returned flights: the next member gets them."""
        self.failing = 0
        """Failed flights whose outcome is not written yet."""
        self.is_missed = False
        """Whether a message waits for room."""

    @property
    def has_room(self) -> bool:
        """Whether one more flight may wait for the next member."""
        return self.waiting + self.failing < self.most


class Resends:
    """Flights that wait to be sent again: by rank, then packet id. Each operation is O(log n)."""

    def __init__(self, flights: Iterable[Flight] = (), returned: Returned | None = None) -> None:
        """`flights`, in order. `returned`: counter for a group's."""
        self._returned = returned
        self._ranks: dict[int, int] = {}
        self._flights: SortedDict[tuple[int, int], Flight] | None = None
        """None: it has never had one, as most sessions. An empty one takes 1.6 KB."""
        for rank, flight in enumerate(flights):
            self.add(flight, rank)

    def __len__(self) -> int:
        return len(self._ranks)

    def __contains__(self, packet_id: int) -> bool:
        return packet_id in self._ranks

    def add(self, flight: Flight, rank: int) -> None:
        """Insert a flight in order; one that is already here stays."""
        flights, before = self._flights, len(self._ranks)
        if flights is None:
            flights = self._flights = SortedDict()
        if self._ranks.setdefault(flight.packet_id, rank) == rank:
            flights[rank, flight.packet_id] = flight
            self._count(len(self._ranks) - before)

    def first(self) -> Flight:
        """The next flight. There must be one."""
        assert self._flights is not None
        flight: Flight = self._flights.peekitem(0)[1]
        return flight

    def discard(self, packet_id: int) -> None:
        """Remove a flight that was resent or acked."""
        rank = self._ranks.pop(packet_id, None)
        if rank is not None:
            assert self._flights is not None
            del self._flights[rank, packet_id]
            self._count(-1)

    def clear(self) -> None:
        self._count(-len(self._ranks))
        self._ranks.clear()
        self._flights = None

    def _count(self, more: int) -> None:
        if self._returned is not None:
            self._returned.waiting += more


class Terms(NamedTuple):
    """Retry options of a subscription; None: the server's settings."""

    ack_timeout_ms: int | None = None
    """Ack timeout, after which a message is redelivered; 0: none."""
    max_attempts: int | None = None
    """Maximum number of deliveries, after which a message is dead; 0: no limit."""
    backoff_ms: tuple[int, ...] | None = None
    """Waits after failed attempts; the last one repeats."""

    def changed_by(self, changes: "Terms") -> "Terms":
        """These terms, overridden by those that `changes` sets."""
        return Terms._make([own if new is None else new for own, new in zip(self, changes, strict=True)])


USUAL = Terms()


@dataclass(slots=True)
class Subscription:
    """A filter of a session; matches positions later than `since`."""

    filter: str
    qos: int
    since: Position
    no_local: bool = False
    retain_as_published: bool = False
    identifier: int = 0
    retained_request: int = 0
    """Number of its last request for retained messages (timeline/retained_queue.py); 0: never."""
    terms: Terms = USUAL
    lease_ms: int = field(default=0, compare=False)
    """Member of a group: its lease time, which it is told, ms; 0: without limit."""
    is_plain: bool = field(default=True, compare=False)
    """Deliveries by it say nothing that others' do not: neither an identifier nor a lease."""

    def __post_init__(self) -> None:
        self.is_plain = not (self.identifier or self.lease_ms)

    def lease_for(self, lease_ms: int) -> None:
        """Set the lease of messages sent from now on."""
        self.lease_ms = lease_ms
        self.__post_init__()


class Session:
    """State of one client id. `window`: how many messages may be in flight at once."""

    def __init__(
        self,
        client_id: str,
        *,
        read: Position,
        expiry_s: int,
        window: int,
        returned: Returned | None = None,
    ) -> None:
        """`returned`: counter for its resends."""
        self.client_id = client_id
        self.expiry_s = expiry_s
        """0: the session ends with its connection."""
        self.window = window
        self.read = read
        self.tailing = False
        self.subscriptions: dict[str, Subscription] = {}
        self.filter_bytes = 0
        """Total size of the filters, bytes."""
        self.flights: dict[int, Flight] = {}
        """By packet id, in the order of their first delivery."""
        self.received: dict[int, bool] = {}
        """Packet ids of QoS 2 publishes of the client that it has not released; True: durable."""
        self.resends = Resends(returned=returned)
        """Flights of an earlier connection that have not been resent on this one."""
        self.retired: dict[int, None] = {}
        """Packet ids of messages that were given up before the client had ended the exchange: it may hold the
        id still, and would take another message under it for the same, or end that one by its ack. The oldest
        first, at most RETIRED_MAX."""
        self.finished = Finished()
        """Finished positions ahead of the read position, or those in flight since before it was set back."""
        self.changes = 0
        """Number of changes of its subscriptions: their stored state belongs to the cursor."""
        self.order: KeyOrder = NO_ORDER
        """Of a group whose keys count."""
        self.progress_bytes = 0
        """At least the bytes of `progress` of all flights."""
        self._last_id = 0

    @property
    def is_persistent(self) -> bool:
        return self.expiry_s > 0

    @property
    def has_room(self) -> bool:
        return len(self.flights) < self.window

    def read_at(self, horizon: Position) -> Position:
        """The read position, given the horizon."""
        return horizon if self.tailing else self.read

    def is_ahead(self, place: Position, horizon: Position) -> bool:
        """Whether a message at this position is still unread."""
        return place > self.read_at(horizon) and place not in self.finished

    # -- subscriptions

    def subscribe(self, wanted: Subscription, horizon: Position, replay_from: Position | None = None) -> bool:
        """Add or replace a subscription; True if its filter is new.

        A filter that is there already keeps its `since`; sent again as it was, it changes nothing.
        """
        known = self.subscriptions.get(wanted.filter)
        self.subscriptions[wanted.filter] = wanted
        if known is not None:
            wanted.since, wanted.retained_request = known.since, known.retained_request
            self.changes += wanted != known
            return False
        self.changes += 1
        self.filter_bytes += len(wanted.filter.encode())
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
        if wanted is None:
            self.finished = Finished([place for place in self.finished if place <= to])
        self.tailing = False
        self.changes += 1

    def unsubscribe(self, topic_filter: str) -> bool:
        if self.subscriptions.pop(topic_filter, None) is None:
            return False
        self.changes += 1
        self.filter_bytes -= len(topic_filter.encode())
        return True

    # -- reading

    def fall_behind(self, before: Position) -> None:
        """Stop tailing: the session has read everything before `before`, and nothing after."""
        if self.tailing:
            self.tailing = False
            self.read = before

    def join(self, horizon: Position) -> bool:
        """Tail if everything up to the horizon has been read."""
        self.tailing = self.read >= horizon
        return self.tailing

    def finish_ahead(self, place: Position, horizon: Position, key: bytes = b"") -> bool:
        """Skip the message at `place`, which has that ordering key, when it would be given; False if it has
        been."""
        self.forget_finished(horizon)
        is_unread = place > self.read_at(horizon) or self.order.is_behind(key, place)
        return is_unread and self.finished.add(place)

    def forget_finished(self, horizon: Position) -> None:
        """Forget finished positions that are behind the read position, and before what waits for its key."""
        read = self.read_at(horizon)
        self.finished.forget(self.order.read_from(read))

    # -- in flight

    def has(self, flight: Flight) -> bool:
        """Whether it is still in flight."""
        return self.flights.get(flight.packet_id) is flight

    def launch(self, position: Position, shard: int, qos: int) -> Flight:
        """Put a message in flight. The caller has checked for room."""
        flights, retired = self.flights, self.retired
        packet_id = self._last_id
        while True:
            packet_id = packet_id + 1 if packet_id < PACKET_ID_MAX else 1
            if packet_id not in flights and packet_id not in retired:
                break
        self._last_id = packet_id
        flights[packet_id] = flight = Flight(packet_id, position, shard, qos)
        return flight

    def launch_run(self, addresses: Iterable[tuple[Position, int]], qos: int) -> list[Flight]:
        """`launch` of several, by (position, shard)."""
        flights, retired = self.flights, self.retired
        packet_id = self._last_id
        launched: list[Flight] = []
        for place, shard in addresses:
            while True:
                packet_id = packet_id + 1 if packet_id < PACKET_ID_MAX else 1
                if packet_id not in flights and packet_id not in retired:
                    break
            flights[packet_id] = flight = Flight(packet_id, place, shard, qos)
            launched.append(flight)
        self._last_id = packet_id
        return launched

    def ack(self, packet_id: int) -> Flight | None:
        """End the flight that the subscriber acked; None if it was not in flight."""
        self.resends.discard(packet_id)
        flight = self.flights.pop(packet_id, None)
        if flight is not None and flight.key:
            self.land(flight)
        return flight

    def lead(self, flight: Flight, key: bytes) -> None:
        """The flight is the head of its key."""
        if self.order.is_on and key and not flight.key:
            flight.key = key
            self.order.launch(key)

    def resume(self, flight: Flight) -> bool:
        """The flight is the retry that a key waits for, and its head again; False: it is another."""
        key = self.order.head_of(flight.position)
        if key is None:
            return False
        flight.key = key
        self.order.launch(key)
        self.order.end_head(key)
        return True

    def land(self, flight: Flight) -> None:
        """The flight is the head of its key no more."""
        key, flight.key = flight.key, b""
        if self.order.is_on:
            self.order.land(key)

    def forget_order(self) -> None:
        """Keys count no more: what is in flight is the head of none, also if they count again. O(flights)."""
        self.order = NO_ORDER
        for flight in self.flights.values():
            flight.key = b""

    def ack_run(self, packet_ids: Iterable[int]) -> tuple[list[Flight], bool]:
        """Ack these QoS 1 packets. Returns the ended flights, and whether all packets were acked.

        It stops at the first of another QoS. Packets that were not in flight are skipped.
        """
        flights, resends = self.flights, self.resends
        ended: list[Flight] = []
        for packet_id in packet_ids:
            flight = flights.get(packet_id)
            if flight is None:
                self.retired.pop(packet_id, None)
                continue
            if flight.qos != 1:
                return ended, False
            del flights[packet_id]
            if resends:
                resends.discard(packet_id)
            ended.append(flight)
        return ended, True

    def give_up(self, flight: Flight) -> None:
        """Give up an unacked flight that is not sent again.

        At QoS 2 its packet id stays out of use until the client has ended the exchange, or the session ends.
        """
        self.ack(flight.packet_id)
        if flight.qos == 2:
            self.retire([flight.packet_id])

    def retire(self, packet_ids: Iterable[int]) -> None:
        """Keep packet ids out of use; at the bound the oldest one may be used again."""
        self.retired.update(dict.fromkeys(packet_ids))
        while len(self.retired) > RETIRED_MAX:
            del self.retired[next(iter(self.retired))]
        self.resize(self.window)

    def resize(self, window: int) -> None:
        """Set how many messages may be in flight: at most the number of free packet ids."""
        self.window = min(window, PACKET_ID_MAX - len(self.retired))

    def restore(self, flights: list[Flight]) -> None:
        """Restore the flights of a stored cursor."""
        self.flights = {flight.packet_id: flight for flight in flights}
        self.progress_bytes = sum(len(flight.progress) for flight in flights)
        self._last_id = flights[-1].packet_id if flights else 0
