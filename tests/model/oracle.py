"""What has to hold, said as dully as possible: no slices, no wheel, no horizon.

The oracle is told what was asked, what was answered, what the clock showed, what became durable and what
was delivered, and complains as soon as two of them do not fit. It knows a message by its *tag*, the text
of its payload, and a row by its position.
"""

from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from server.delivery.message import Message
from shards.memory import MemoryBatch
from shards.record import decode, is_stub
from shards.store import Store, Table
from shards.tables import META_CURSOR, cursor_from
from timeline.filters import matches
from timeline.position import END, START, MessageId, Position, at_of, id_position, message_id

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


@dataclass
class Letter:
    """One message as its sender knows it."""

    tag: str
    topic: str
    request: int
    dues: set[int]
    """What its due may be at the moment; more than one while a move is not answered."""
    sent_ms: int
    ids: list[MessageId] = field(default_factory=list)
    cancelled: set[MessageId] = field(default_factory=set)
    is_acked: bool = False
    is_cancel_asked: bool = False

    @property
    def is_cancelled(self) -> bool:
        """A key may be used again when its first message has been dropped: that is a message of its own."""
        return bool(self.ids) and self.ids[-1] in self.cancelled


@dataclass
class Wanted:
    """A subscription as its client knows it: later positions than `since` have to come."""

    since: Position
    is_acked: bool = False


@dataclass
class Rewind:
    """A replay that was asked for: what matches `filter` behind `to` may come again."""

    to: Position
    filter: str
    turn: int


class Sent(NamedTuple):
    """What went out last under a packet id."""

    tag: str
    place: Position
    turn: int


@dataclass
class Watch:
    """What one client has seen.

    A *turn* is the number of replays that it had asked for when a message was first sent. `acked`: (position,
    turn) of what it has acked, `done`: of what it has acked and durably so.
    """

    is_persistent: bool
    wanted: dict[str, Wanted] = field(default_factory=dict)
    got: set[str] = field(default_factory=set)
    """What it has acked, or got at QoS 0: the rest may have been lost with its connection."""
    sent: dict[int, Sent] = field(default_factory=dict)
    """By packet id."""
    acked: set[tuple[Position, int]] = field(default_factory=set)
    done: set[tuple[Position, int]] = field(default_factory=set)
    gated: dict[int, Sent] = field(default_factory=dict)
    """By packet id, what waited to be sent when a replay was asked for: it still goes out first."""
    stragglers: set[Position] = field(default_factory=set)
    """The same of what goes out at QoS 0."""
    held: dict[int, Position] = field(default_factory=dict)
    """QoS 2: packet ids that the client has answered with PUBREC and that are not released yet."""
    done_once: set[tuple[Position, int]] = field(default_factory=set)
    """QoS 2: what the client has worked on."""
    rewinds: list[Rewind] = field(default_factory=list)
    last: Position = START

    @property
    def turn(self) -> int:
        return len(self.rewinds)

    def note_unsent(self, flights: dict[int, Position]) -> None:
        """A replay is asked for: what is in flight and was never sent belongs to the turn before."""
        for packet_id, place in flights.items():
            known = self.gated.get(packet_id) or self.sent.get(packet_id)
            if known is None or known.place != place:
                self.gated[packet_id] = Sent("", place, self.turn - 1)

    def may_come(self, place: Position, turn: int, topic: str) -> bool:
        """Whether this is no repetition of what is done, or one that was asked for."""
        if (place, turn) in self.done:
            return False
        done = [t for t in range(turn) if (place, t) in self.done]
        return not done or any(
            r.turn > done[-1] and place > r.to and matches(r.filter, topic) for r in self.rewinds
        )


class Oracle:
    """Everything that was said, and the complaints."""

    def __init__(self, store: Disk, wall_ms: int) -> None:
        self.letters: dict[str, Letter] = {}
        self.watches: dict[str, Watch] = {}
        self.requests = 0
        self.delivered: set[str] = set()
        self.delivered_ids: set[int] = set()
        self.excused: set[str] = set()
        """Sent while the store took nothing, not even a mark: there was no bound for them."""
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
        self._shown: dict[tuple[str, int], int] = {}
        self._live: set[Position] = set()
        self._dead: set[Position] = set()
        self._written = 0
        self._counted = 0
        self._pending_acks: dict[int, tuple[MemoryBatch, dict[str, set[tuple[Position, int]]]]] = {}

    # -- time

    def saw(self, wall_ms: int) -> None:
        """The server has looked at the clock."""
        self.clock_ms = max(self.clock_ms, wall_ms)

    def observe(self, wall_ms: int) -> None:
        """The clock shows this."""
        for key, shown in self._shown.items():
            self._shown[key] = max(shown, wall_ms)

    def asked(self, tag: str, due_ms: int, wall_ms: int) -> None:
        """The sender wants `tag` at `due_ms` from now on."""
        self._shown[tag, due_ms] = max(self._shown.get((tag, due_ms), 0), wall_ms)

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
                        _, acked = self._pending_acks.setdefault(index, (log[index], {}))
                        acked[key.decode()] = set(watch.acked)
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
            written, pending = self._pending_acks.pop(index, (log[index], {}))
            if written.changes == log[index].changes:  # else this stands where a batch was that is lost
                for client_id, acked in pending.items():
                    watch = self.watches.get(client_id)
                    if watch is not None:
                        watch.done |= acked
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

    def delivery(self, client: Client, message: Message, qos: int, packet_id: int, attempt: int) -> None:
        self.checks += 1
        tag = text_of(message.record.payload)
        place = message.position
        watch = self.watches[client.client_id]
        where = f"{tag} at {at_of(place)} to {client.client_id}"
        need(tag in self.letters, f"a message that nobody sent: {where}")
        letter = self.letters[tag]
        message_name = message.record.id or message_id(place, max(message.shard, 0), 0)
        need(message_name not in letter.cancelled, f"delivered after a 204: {where}")
        due_ms = message.record.due_ms
        need(not message.record.stub, f"a stub was delivered: {where}")
        if due_ms:
            need(self._shown.get((tag, due_ms), 0) >= due_ms, f"early, due {due_ms}: {where}")
        if message.is_stored:
            need(place in self._live or at_of(place) < self.floor_ms, f"sent before it was durable: {where}")
            need(place not in self._dead, f"sent a cancelled or moved row: {where}")
        waited = watch.gated.pop(packet_id, None)
        has_waited = waited is not None and waited.place == place
        if not qos and place in watch.stragglers:
            watch.stragglers.discard(place)
        elif attempt > 1 or not has_waited:
            self._order(client, watch, place, packet_id, attempt, where)
        turn = watch.turn
        if waited is not None and has_waited:
            turn = waited.turn
        elif attempt > 1 and packet_id in watch.sent and watch.sent[packet_id].place == place:
            turn = watch.sent[packet_id].turn
        need(watch.may_come(place, turn, letter.topic), f"again after a durable ack: {where}")
        watch.sent[packet_id] = Sent(tag, place, turn)
        if not qos:
            watch.got.add(tag)
        self.delivered.add(tag)
        self.delivered_ids.add(message_name)

    def received(self, client_id: str, packet_id: int, place: Position) -> None:
        """The client reads a PUBLISH at QoS 2: it works on it unless it holds the packet id."""
        watch = self.watches[client_id]
        tag, _, turn = watch.sent[packet_id]
        if packet_id in watch.held:
            need(watch.held[packet_id] == place, f"{tag} came under the packet id of another message")
            return
        need((place, turn) not in watch.done_once, f"{tag} came twice to {client_id} at QoS 2")
        watch.held[packet_id] = place
        watch.done_once.add((place, turn))
        watch.got.add(tag)

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

    def accepted(self, tag: str, message: MessageId) -> None:
        letter = self.letters[tag]
        letter.is_acked = True
        if message not in letter.ids:
            letter.ids.append(message)

    def decide(self, place: Position, tag: str) -> None:
        """The writer says that a message may still be cancelled or moved."""
        decided = max(self.clock_ms, self.refuse_ms)
        need(at_of(place) > decided, f"{tag} at {at_of(place)} was decided, all up to {decided} is")

    def cancelled(self, tag: str, message: MessageId) -> None:
        is_known = message in self.delivered_ids and tag not in self.excused
        need(not is_known, f"204 for what was delivered: {tag}")
        self.letters[tag].cancelled.add(message)

    def already_dispatched(self, tag: str, place: Position) -> None:
        decided = max(self.clock_ms, self.refuse_ms)
        need(at_of(place) <= decided, f"409 for {tag} at {at_of(place)}, decided up to {decided}")

    def not_found(self, tag: str) -> None:
        letter = self.letters[tag]
        earliest = min(due or letter.sent_ms for due in letter.dues)
        if 0 in letter.dues:
            earliest = min(earliest, at_of(id_position(letter.ids[-1])))
        need(earliest < self.floor_ms, f"404 for {tag}, which cannot have been dropped")


def _place(key: bytes) -> Position:
    return Position(int.from_bytes(key[-12:], "big"))


def tag_of(value: bytes) -> str:
    return text_of(decode(value).payload)


def text_of(payload: bytes) -> str:
    """The tag in a payload, which may have been filled up to be large."""
    return payload.rstrip(b".").decode()
