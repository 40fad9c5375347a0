"""What has to hold, said as dully as possible: no slices, no wheel, no horizon.

What was asked for, answered and delivered is checked by the accounts of tests/support/ledger. Here is what
only who sees each step can say: what became durable and when, packet by packet what is sent again, and what
the clock and the stored bound allow. A message is known by its *tag*, the text of its payload, a row by its
position.
"""

from dataclasses import dataclass, field
from typing import Protocol

from server.delivery.message import Message
from shards.record import decode, is_stub
from shards.store import Store, Table
from shards.tables import META_CURSOR, cursor_from
from tests.support.ledger.arrivals import Arrival, Arrivals, Inbox
from tests.support.ledger.messages import Message as Letter
from tests.support.ledger.messages import Messages
from tests.support.ledger.words import Fault
from tests.support.memory_store import MemoryBatch
from timeline.position import END, START, MessageId, Position, at_of, id_position, id_text, message_id

from .client import Client


class Violation(BaseException):
    """A promise that was broken. Not an Exception: the server goes on after those of its callers."""


class Disk(Store, Protocol):
    """A store that lets its batches be looked at, in their order."""

    log: list[MemoryBatch]
    durable: int
    """So many of them can no longer be lost."""


def need(holds: bool, complaint: str) -> None:
    if not holds:
        raise Violation(complaint)


def broken(fault: Fault) -> None:
    raise Violation(str(fault))


@dataclass
class Wanted:
    """A subscription as its client knows it: later positions than `since` have to come."""

    since: Position
    is_acked: bool = False


@dataclass(eq=False)
class Watch(Inbox):
    """What one client has seen."""

    is_persistent: bool = True
    wanted: dict[str, Wanted] = field(default_factory=dict)
    sent: dict[int, Arrival] = field(default_factory=dict)
    """By packet id."""
    unsure: list[Arrival] = field(default_factory=list)
    """What it has acked, and nobody knows whether that is durable."""
    gated: dict[int, tuple[Position, int]] = field(default_factory=dict)
    """By packet id, what waited to be sent when a replay was asked for, and in which turn: it goes first."""
    stragglers: set[Position] = field(default_factory=set)
    """The same of what goes out at QoS 0."""
    held: dict[int, Position] = field(default_factory=dict)
    """QoS 2: packet ids that the client has answered with PUBREC and that are not released yet."""
    last: Position = START

    def note_unsent(self, flights: dict[int, Position]) -> None:
        """A replay is asked for: what is in flight and was never sent belongs to the turn before."""
        for packet_id, place in flights.items():
            known = self.gated.get(packet_id)
            if known is None and packet_id in self.sent:
                known = Position(self.sent[packet_id].place), 0
            if known is None or known[0] != place:
                self.gated[packet_id] = place, self.turn - 1


class Oracle:
    """Everything that was said, and the complaints."""

    def __init__(self, store: Disk, wall_ms: int) -> None:
        self.messages = Messages(wall_ms)
        self.arrivals = Arrivals(self.messages)
        self.messages.book.tell = broken
        self.watches: dict[str, Watch] = {}
        self.requests = 0
        self.delivered: set[str] = set()
        self.sent_ms: dict[str, int] = {}
        """By tag, when it was asked for or decided first."""
        self.clock_ms = wall_ms
        """The highest time that this process has seen."""
        self.refuse_ms = 0
        """Up to here nobody knows what the last process has sent."""
        self.bound_ms = 0
        """Dispatch stays below this, which is on disk."""
        self.floor_ms = 0
        self.passed_over_ms = 0
        """The highest floor ever, also one whose group failed: sessions may have gone on to it."""
        self.checks = 0
        self.store = store
        self._live: set[Position] = set()
        self._dead: set[Position] = set()
        self._written = 0
        self._counted = 0
        self._pending_acks: dict[int, tuple[MemoryBatch, list[Arrival]]] = {}

    @property
    def letters(self) -> dict[str, Letter]:
        return self.messages.by_tag

    # -- time

    def saw(self, wall_ms: int) -> None:
        """The server has looked at the clock."""
        self.clock_ms = max(self.clock_ms, wall_ms)

    def observe(self, wall_ms: int) -> None:
        """The clock shows this."""
        self.messages.clock.shows(wall_ms)

    # -- the log

    def written(self, is_broken: bool) -> None:
        """Batches have been written: which rows are dead, whose cursors were in them."""
        log = self.store.log
        while self._written < len(log):
            index = self._written
            for table, key, value, _ in log[index].changes:
                if table is Table.CURSORS and value is not None:
                    watch = self.watches.get(key.decode())
                    if watch is not None:
                        watch.unsure = [one for one in watch.unsure if not one.is_ack_read]
                        self._pending_acks.setdefault(index, (log[index], []))[1].extend(watch.unsure)
                elif table is Table.MESSAGES and value is not None and is_stub(value):
                    self._dead.add(_place(key))
            self._written += 1

    def synced(self) -> None:
        """More of the log has become durable."""
        log = self.store.log
        while self._counted < self.store.durable:
            index = self._counted
            for table, key, value, _ in log[index].changes:
                if table is Table.META and key == META_CURSOR and value is not None:
                    self.bound_ms = cursor_from(value).bound_ms
                elif table is Table.MESSAGES and value is not None:
                    if is_stub(value):
                        self._live.discard(_place(key))
                    else:
                        self._live.add(_place(key))
            written, pending = self._pending_acks.pop(index, (log[index], []))
            if written.changes == log[index].changes:  # else this stands where a batch was that is lost
                for arrival in pending:
                    arrival.is_ack_read = True
            self._counted += 1

    def cut(self) -> None:
        """The log has lost its tail: look at all of it again."""
        self.synced()
        self._pending_acks.clear()
        self._dead = set()
        for batch in self.store.log:
            for table, key, value, _ in batch.changes:
                if table is Table.MESSAGES and value is not None and is_stub(value):
                    self._dead.add(_place(key))
        self._written = self._counted = len(self.store.log)

    def undurable(self) -> Position:
        """The lowest position in what is written and not durable."""
        places = [
            _place(key)
            for batch in self.store.log[self.store.durable :]
            for table, key, value, _ in batch.changes
            if table is Table.MESSAGES and value is not None
        ]
        return min(places, default=END)

    # -- deliveries

    def delivery(
        self, client: Client, message: Message, qos: int, packet_id: int, attempt: int, *, is_excused: bool
    ) -> None:
        """`is_excused`: the store takes nothing, not even a mark, so there is no bound for it."""
        self.checks += 1
        tag = text_of(message.record.payload)
        place = message.position
        watch = self.watches[client.client_id]
        where = f"{tag} at {at_of(place)} to {client.client_id}"
        need(not message.record.stub, f"a stub was delivered: {where}")
        if message.is_stored:
            need(place in self._live or at_of(place) < self.floor_ms, f"sent before it was durable: {where}")
            need(place not in self._dead, f"sent a cancelled or moved row: {where}")
        waited = watch.gated.pop(packet_id, None)
        has_waited = waited is not None and waited[0] == place
        if not qos and place in watch.stragglers:
            watch.stragglers.discard(place)
        elif attempt > 1 or not has_waited:
            self._order(client, watch, place, packet_id, attempt, where)
        turn = watch.turn
        if waited is not None and has_waited:
            turn = waited[1]
        elif attempt > 1 and packet_id in watch.sent and watch.sent[packet_id].place == place:
            turn = watch.sent[packet_id].turn
        name = id_text(MessageId(message.record.id) or message_id(place, max(message.shard, 0), 0))
        arrival = self.arrivals.arrived(
            watch,
            tag,
            self.messages.clock.high,
            message.record.due_ms,
            attempt,
            qos,
            name=name if message.is_stored else "",
            place=place,
            turn=turn,
            connection=client.number,
        )
        assert arrival.message is not None
        arrival.message.is_excused |= is_excused
        watch.sent[packet_id] = arrival
        if not qos:
            self.arrivals.acked(watch, arrival, arrival.at_ms)
        self.delivered.add(tag)

    def received(self, client_id: str, packet_id: int, place: Position) -> None:
        """The client reads a PUBLISH at QoS 2: it works on it unless it holds the packet id."""
        watch = self.watches[client_id]
        arrival = watch.sent[packet_id]
        if packet_id in watch.held:
            need(watch.held[packet_id] == place, f"{arrival} came under the packet id of another message")
            return
        watch.held[packet_id] = place
        self.arrivals.acked(watch, arrival, arrival.at_ms)

    def acked(self, client_id: str, packet_id: int) -> None:
        """The client has sent a PUBACK."""
        watch = self.watches[client_id]
        arrival = watch.sent[packet_id]
        self.arrivals.acked(watch, arrival, arrival.at_ms)
        watch.unsure.append(arrival)

    def _order(
        self, client: Client, watch: Watch, place: Position, packet_id: int, attempt: int, where: str
    ) -> None:
        subscriber = client.subscriber
        assert subscriber is not None
        flights = subscriber.session.flights
        # What came to nothing is not sent again from here: it waits for its next try, or is a dead letter.
        client.unresent = [p for p in client.unresent if p in flights and not flights[p].fate]
        if attempt > 1:
            need(packet_id in client.unresent, f"sent again out of turn: {where}")
            index = client.unresent.index(packet_id)
            need(not client.unresent[:index], f"sent again out of order: {where}")
            del client.unresent[: index + 1]
            return
        need(not client.unresent, f"new before old: {where}")
        need(place > watch.last, f"out of order, {at_of(watch.last)} was before: {where}")
        watch.last = place

    # -- answers

    def accepted(self, tag: str, message: MessageId, due_ms: int) -> None:
        name = id_text(message)
        letter = self.messages.named(tag, name, due_ms)
        assert letter is not None
        self.messages.accepted(letter, name)
        self.messages.not_moved(letter, due_ms)  # asked for again, and there already

    def decide(self, place: Position, tag: str) -> None:
        """The writer says that a message may still be cancelled or moved."""
        decided = max(self.clock_ms, self.refuse_ms)
        need(at_of(place) > decided, f"{tag} at {at_of(place)} was decided, all up to {decided} is")

    def already_dispatched(self, tag: str, place: Position) -> None:
        decided = max(self.clock_ms, self.refuse_ms)
        need(at_of(place) <= decided, f"409 for {tag} at {at_of(place)}, decided up to {decided}")

    def not_found(self, letter: Letter) -> None:
        earliest = min(due or self.sent_ms[letter.tag] for due in letter.dues)
        if 0 in letter.dues:
            earliest = min(earliest, at_of(id_position(MessageId(int(letter.id, 16)))))
        need(earliest < self.floor_ms, f"404 for {letter}, which cannot have been dropped")


def _place(key: bytes) -> Position:
    return Position(int.from_bytes(key[-12:], "big"))


def tag_of(value: bytes) -> str:
    return text_of(decode(value).payload)


def text_of(payload: bytes) -> str:
    """The tag in a payload, which may have been filled up to be large."""
    return payload.rstrip(b".").decode()
