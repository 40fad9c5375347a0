"""A whole server without a loop, taken apart into its smallest steps, and an oracle that watches it.

Every method is one thing that can happen: a request, a piece of a round, a failure. A test calls them in any
order; what the server owes its users then has to hold, whatever the order was. The bounds are tiny (a wheel
of 8 entries, shards of 3 rows, a tail of 4, windows of 2 or 3), so that a few dozen messages reach each.
"""

from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from random import Random
from typing import Any

from server.codec import wire
from server.codec.packets import Ack
from server.core import Core
from server.delivery.link import Closing
from server.delivery.message import Message
from server.delivery.publish_request import PublishRequest
from server.delivery.subscriber import Subscriber
from server.delivery.verdict import Verdict
from server.engine.writer import Busy
from server.mqtt.acks import Acks
from server.settings.config import Config, Limits, Replay, Sessions, Shards, Tail, Wheel
from shards import keys
from shards.commit import Commit, Control, Draft, Known, Outcome, Refused
from shards.errors import StoreFailed
from shards.expiry import expire
from shards.fields import Record
from shards.garbage import clear, forget, left, look, look_through
from shards.record import CANCELLED, decode, encode, is_stub, names_of, topic_of
from shards.recover import count_owned, count_pending, read_directory
from shards.steps import Bits, Steps
from shards.store import Table
from shards.verify import verify_counts
from tests.support.clock import HandClock
from tests.support.ledger.arrivals import Rewind
from tests.support.ledger.messages import Message as Letter
from tests.support.memory_store import MemoryStore
from tests.support.stepper import Stepper
from timeline.filters import matches
from timeline.position import END, MessageId, Position, at_of, before
from timeline.session import Flight, Subscription
from timeline.structures import overlap

from .client import Client
from .jobs import Jobs
from .oracle import Disk, Oracle, Violation, Wanted, Watch, need, tag_of

START_MS = 1_800_000_000_000 + 890_000
"""Ten seconds before a quarter of an hour ends."""
DAY_MS = 86_400_000
TOPICS = ("a/1", "a/2", "b/1/x", "b/2/x", "b/3/y")
FILTERS = ("#", "a/+", "b/#", "a/1", "b/+/x")
PERSISTENT = ("p0", "p1", "p2")
CLEAN = "c0"
CLIENTS = (*PERSISTENT, CLEAN)
WINDOWS = {"p0": 2, "p1": 3, "p2": 2, "c0": 3}
QOS = {"p0": 1, "p1": 2, "p2": 2, "c0": 1}
OWNERS = (b"", b"meter-7", b"ops")
DEDUPE_KEYS = tuple(bytes([n]) * 16 for n in range(3))

CONFIG = Config(
    wheel=Wheel(max_entries=8, max_bytes=1 << 20),
    tail=Tail(max_entries=4, max_bytes=1 << 20),
    shards=Shards(cap_messages=3, cap_bytes=1 << 20, structure_above=4, max_structures=6),
    sessions=Sessions(max_in_flight=3),
    limits=Limits(sessions=10, queued=200),
    replay=Replay(),
)


def in_steps(commit: Commit, bits: Bits[Any]) -> Steps:
    return Steps(commit.open_batch.in_order(bits))


class Rig:
    """One server under test, over every restart."""

    def __init__(self) -> None:
        self.store: Disk = self._first_store()
        self.clock = self._first_clock()
        self.oracle = Oracle(self.store, START_MS)
        self.clients: dict[str, Client] = {}
        self.dying: deque[Client] = deque()
        self.is_expiring = False
        self.former: dict[str, Watch] = {}
        """By client, the session that a clean start gives up, until that is durable."""
        self.tags = 0
        self.spoilt = 0
        """Requests that have spoilt their group, in the life of this server."""
        self.splits = 0
        """Splits that lives before this one have brought to their end."""
        self.history: list[str] = []
        self.stepper = Stepper(self.store, self.clock, CONFIG)
        self._begin()

    @property
    def core(self) -> Core:
        return self.stepper.core

    def _first_store(self) -> Disk:
        return MemoryStore()

    def _first_clock(self) -> HandClock:
        return HandClock(START_MS)

    # -- requests

    def put(self, wishes: Sequence[tuple[int, str]], payload: int = 0) -> None:
        """Schedule messages, all or none: (due ms from now or 0: as soon as possible, topic)."""
        self.oracle.requests += 1
        drafts = []
        for delay_ms, topic in wishes:
            self.tags += 1
            due_ms = max(1, self.clock.now_ms + delay_ms) if delay_ms else 0
            drafts.append(self._draft(f"m{self.tags}", topic, due_ms, payload=payload))
        self._submit_put(drafts)

    def put_keyed(self, number: int, times: int = 1) -> None:
        """Schedule under an idempotency key; the same request each time, `times` of it in one list."""
        self.oracle.requests += 1
        due_ms = START_MS + (0, 900, 400_000)[number]
        drafts = [self._draft(f"key{number}", TOPICS[number], due_ms, DEDUPE_KEYS[number])] * times
        self._submit_put(drafts)

    def spoil(self, delay_ms: int, topic: str) -> None:
        """A request that fails when it has placed half of what it wants."""
        self.tags += 1
        record = Record(
            topic.encode(), f"spoilt{self.tags}".encode(), self.clock.now_ms, 1, owner=self._owner()
        )
        message = encode(record)
        dues = (self.clock.now_ms + delay_ms, self.clock.now_ms + 40 * DAY_MS)

        def steps(commit: Commit) -> Bits[None]:
            for due_ms in dues:
                commit.put([Draft(due_ms, topic.encode(), message)])
                yield
            self.spoilt += 1
            raise ZeroDivisionError

        with suppress(StoreFailed, Busy):
            self.core.writer.submit(
                lambda commit: in_steps(commit, steps(commit)), lambda answer: None, cost=len(dues)
            )

    def publish(self, topic: str, qos: int) -> None:
        """A plain publish over MQTT: stored only if somebody can replay it."""
        self.oracle.requests += 1
        self.tags += 1
        tag = f"q{self.tags}"
        self._letter(tag, topic, 0)
        record = Record(topic.encode(), tag.encode(), 0, qos, owner=self._owner())

        def answer(verdict: Verdict, message: int) -> None:
            if message:
                self.oracle.accepted(tag, MessageId(message), 0)

        self.core.publishing.publish([(PublishRequest(record), answer)])

    def cancel(self, index: int) -> None:
        letter, message = self._pick(index)
        if letter is None:
            return
        letter.is_cancel_asked = True

        def done(answer: Control | Exception) -> None:
            if isinstance(answer, Exception):
                return
            if answer.outcome is Outcome.DONE:
                self.oracle.messages.cancelled(letter)
            elif answer.outcome is Outcome.ALREADY_DISPATCHED:
                assert answer.found is not None
                self.oracle.already_dispatched(letter.tag, answer.found.position)
            else:
                need(answer.outcome is Outcome.NOT_FOUND, f"cancel answered {answer.outcome}")
                self.oracle.not_found(letter)

        self._submit(lambda commit: self._decided(letter.tag, commit.cancel(message)), done)

    def move(self, index: int, delay_ms: int) -> None:
        letter, message = self._pick(index)
        if letter is None:
            return
        due_ms = max(1, self.clock.now_ms + delay_ms) if delay_ms else 0
        self.oracle.observe(self.clock.now_ms)
        self.oracle.messages.wish(letter, due_ms)

        def done(answer: Control | Exception) -> None:
            if isinstance(answer, Exception):
                return
            if answer.outcome is Outcome.DONE:
                self.oracle.messages.moved(letter, due_ms)
                return
            self.oracle.messages.not_moved(letter, due_ms)
            if answer.outcome is Outcome.CANCELLED:
                need(letter.is_cancel_asked, f"{letter.tag} is cancelled, nobody asked for it")
            elif answer.outcome is Outcome.ALREADY_DISPATCHED:
                assert answer.found is not None
                self.oracle.already_dispatched(letter.tag, answer.found.position)
            else:
                self.oracle.not_found(letter)

        self._submit(lambda commit: self._decided(letter.tag, commit.move(message, due_ms)), done)

    def expire(self, retention_s: int) -> None:
        """What housekeeping does: seal passed slices; then drop those whose retention is over, and sweep."""
        if self.is_expiring:
            return
        passed = self.core.directory.passed(self.core.horizon.position)

        def seal(commit: Commit) -> None:
            for piece in passed:
                commit.open_batch.passed(piece)

        def sealed(answer: Any) -> None:
            self.is_expiring = not isinstance(answer, Exception) and self._drop(retention_s)

        self.is_expiring = self._submit(seal, sealed)

    def _drop(self, retention_s: int) -> bool:
        directory = self.core.directory
        plan = directory.expired(self.core.opened.open_batch.running_ms // 1000, retention_s)

        def drop(commit: Commit) -> None:
            if plan:
                expire(commit, plan)
                self.oracle.floor_ms = max(self.oracle.floor_ms, plan[-1].end_ms)
                self.oracle.passed_over_ms = max(self.oracle.passed_over_ms, plan[-1].end_ms)

        def dropped(answer: Any) -> None:
            self.is_expiring = False

        return self._submit(drop, dropped)

    def sweep(self) -> None:
        """Forget what an expired slice had given away: looked up now, decided when the writer comes to it."""
        note = next(left(self.store), None)
        if note is None:
            return
        found = look(self.store, *note, 1_000, 1 << 20)

        def decide(commit: Commit) -> None:
            forget(commit, found.names)
            clear(commit, *note)

        self._submit(decide, lambda answer: None)

    # -- pieces of a round

    def heartbeat(self) -> None:
        self.oracle.saw(self.clock.now_ms)
        self.stepper.heartbeat()

    def compose(self, *, is_large: bool = False, is_slow: bool = False) -> None:
        """`is_large`: so that what is due is dispatched before the group is written. `is_slow`: no more than
        a step of a request of several, if there is one; the next time it goes on."""
        if self.core.writer.can_compose:
            self.oracle.saw(self.clock.now_ms)
        batches = len(self.store.log) - self.stepper.unsynced
        self.stepper.compose((lambda: self.dispatch(4)) if is_large else None, 0.0 if is_slow else 1.0)
        self.oracle.written(self.core.writer.broken is not None)
        assert len(self.store.log) - self.stepper.unsynced == batches, "a group is one batch"

    def settle(self) -> None:
        """The oldest sync is done."""
        if self.stepper.sync():
            self.oracle.synced()
            if self.core.writer.broken is None:
                self.core.writer.settle()

    def dispatch(self, limit: int) -> None:
        self.oracle.saw(self.clock.now_ms)
        self.stepper.dispatch(limit)

    def load(self, rows: int) -> None:
        self.stepper.load(rows)

    def replay(self) -> None:
        self.stepper.replay()

    def release(self) -> None:
        self.stepper.step()

    def split(self, index: int, r: Random) -> None:
        self.jobs.begin(index, r)

    def tick(self, by_ms: int) -> None:
        self.clock.step(by_ms)
        self.oracle.observe(self.clock.now_ms)

    # -- clients

    def connect(self, client_id: str, *, clean: bool = False) -> None:
        """CONNECT; a connection that the client still has is taken over."""
        is_persistent = client_id != CLEAN
        client = Client(client_id, self, self._closed)
        subscriber, is_present = self.core.clients.claim(
            client.link,
            client_id,
            clean_start=clean,
            expiry_s=10 * 365 * 86_400 if is_persistent else 0,
            window=WINDOWS[client_id],
        )
        assert subscriber is not None
        self.clients[client_id] = client
        if not is_present:
            former = self.oracle.watches.get(client_id)
            if former is not None and is_persistent:
                self.former.setdefault(client_id, former)
            self.oracle.watches[client_id] = Watch(client_id, is_persistent=is_persistent)

        def opened(is_durable: bool) -> None:
            if is_durable and subscriber is self.core.sessions.get(client_id):
                self.former.pop(client_id, None)
            if client.is_closed:
                return
            if subscriber.link is not client.link or not is_durable:
                client.close(Closing.FAILED)
                return
            client.open(subscriber)
            if not is_present:
                self.oracle.watches[client_id].held.clear()
            self.core.clients.resume(subscriber)

        self.core.clients.begin(subscriber, None, opened, is_new=not is_present)

    def disconnect(self, client_id: str) -> None:
        """The client's socket closes; the server is told by `bury`."""
        client = self.clients.get(client_id)
        if client is not None:
            client.close(Closing.FAILED)

    def bury(self) -> None:
        """The event loop says that the oldest closed socket is gone."""
        if self.dying:
            client = self.dying.popleft()
            subscriber, client.subscriber = client.subscriber, None
            if subscriber is not None and subscriber.link is client.link:
                self.core.clients.leave(subscriber, is_clean=False)

    def subscribe(self, client_id: str, topic_filter: str, back_ms: int | None) -> None:
        """SUBSCRIBE; `back_ms`: with replay-from, this long ago."""
        client = self._open_client(client_id)
        if client is None:
            return
        subscriber, core = self._subscriber(client), self.core
        watch = self.oracle.watches[client_id]
        horizon = core.horizon.position
        start = None if back_ms is None else before(max(0, self.clock.now_ms - back_ms))
        if topic_filter not in subscriber.session.subscriptions:
            watch.wanted[topic_filter] = wanted = Wanted(horizon)
            if start is not None and start < horizon:
                wanted.since = max(start, before(self.oracle.floor_ms))
                watch.rewinds.append(Rewind(start, topic_filter, watch.turn + 1))
                watch.last = min(watch.last, start)
                if subscriber.barrier is not None:
                    watch.stragglers |= {waiting[0].position for waiting in subscriber.barrier.waiting}
                watch.note_unsent({f.packet_id: f.position for f in subscriber.session.flights.values()})
        core.subscriptions.subscribe(subscriber, Subscription(topic_filter, QOS[client_id], horizon), start)

        def stored(is_durable: bool) -> None:
            if client.is_closed:
                return
            if not is_durable:
                client.close(Closing.FAILED)
            elif topic_filter in watch.wanted:
                watch.wanted[topic_filter].is_acked = True

        if subscriber.session.is_persistent:
            core.clients.store(subscriber, stored)
        else:
            stored(True)

    def read(self, client_id: str, index: int) -> None:
        """The client comes to one of the packets that were sent to it, and answers it."""
        client = self._open_client(client_id)
        if client is None or not client.unread:
            return
        kind, packet_id = client.unread.pop(index % len(client.unread))
        watch = self.oracle.watches[client_id]
        flight = self._subscriber(client).session.flights.get(packet_id)
        if kind == wire.PUBREL:
            watch.held.pop(packet_id, None)
            self._answer(client, wire.PUBCOMP, packet_id)
        elif flight is None:
            return  # acked late, from an earlier connection
        elif flight.qos == 2:
            self.oracle.received(client_id, packet_id, flight.position)
            self._answer(client, wire.PUBREC, packet_id)
        else:
            self._ack(client, flight)

    def ack_late(self, client_id: str, index: int) -> None:
        """PUBACK of a message that the client may have had on an earlier connection."""
        client = self._open_client(client_id)
        if client is None:
            return
        sent = self.oracle.watches[client_id].sent
        flights = [
            flight
            for packet_id, flight in self._subscriber(client).session.flights.items()
            if flight.qos == 1 and packet_id in sent and sent[packet_id].place == flight.position
        ]
        if flights:
            self._ack(client, flights[index % len(flights)])

    def _ack(self, client: Client, flight: Flight) -> None:
        self.oracle.acked(client.client_id, flight.packet_id)
        self._answer(client, wire.PUBACK, flight.packet_id)

    def _answer(self, client: Client, kind: int, packet_id: int) -> None:
        acks = Acks(
            self.core.settling,
            self.core.publishing,
            client,
            client.refuse,
            max_delay_ms=self.core.config.limits.max_delay_ms,
        )
        acks.on_ack(Ack(kind, packet_id), self._subscriber(client))

    def _subscriber(self, client: Client) -> Subscriber:
        assert client.subscriber is not None
        return client.subscriber

    def _open_client(self, client_id: str) -> Client | None:
        client = self.clients.get(client_id)
        return client if client is not None and client.is_open else None

    def room(self, client_id: str, room: int | None) -> None:
        """The client's socket takes so many more messages."""
        client = self._open_client(client_id)
        if client is None:
            return
        client.link.room = room
        if room != 0:
            self.core.groups.read_on(self._subscriber(client))

    # -- failures

    def fail_write(self) -> None:
        """The next group cannot be written."""
        self.store.fail_writes = True
        self.compose(is_large=self.core.writer.queued > 1)
        while self.core.writer.is_deciding:
            self.compose()
        self.store.fail_writes = False

    def fail_sync(self) -> None:
        """The oldest sync fails."""
        if self.stepper.unsynced and self.core.writer.broken is None:
            self.stepper.fail_sync()

    def recover(self, survivors: int, *, is_refused: bool = False) -> None:
        """The server tries to take the store into use again, with what has survived, or only to read it."""
        if self.core.writer.broken is None:
            return
        self.store.survivors = min(survivors, len(self.store.log) - self.store.durable)
        self.store.fail_writes = is_refused
        need(self.stepper.recover() is not is_refused, "the store does not come back")
        self.store.fail_writes = False
        self.oracle.cut()
        self.oracle.floor_ms = at_of(self.core.directory.floor)

    def mark(self, *, is_refused: bool = False) -> None:
        """No group can be written: the bound is marked, unless the disk takes not even that."""
        writer = self.core.writer
        bound_ms = writer.mark_ms
        if bound_ms is None:
            return
        self.store.fail_marks = is_refused
        try:
            self.store.mark(bound_ms)
            writer.marked(bound_ms, None)
        except StoreFailed as error:
            writer.marked(bound_ms, error)

    def kill(self, survivors: int, wall_by_ms: int) -> None:
        """kill -9, and a start on what is left, with the wall clock anywhere."""
        undurable = len(self.store.log) - self.store.durable
        self.store.durable = len(self.store.log) - max(0, undurable - survivors)
        self.oracle.synced()
        self.store.crash(0)
        self.oracle.cut()
        self.clock.step(wall_by_ms)
        self._forget()
        self.stepper.start()
        self._begin()

    def _forget(self) -> None:
        """What a process knew goes with it."""
        self.clients.clear()
        self.dying.clear()
        self.is_expiring = False
        self.splits += self.jobs.cut

    def _begin(self) -> None:
        """A server has started on what there is."""
        core = self.core
        self.spoilt = 0
        oracle = self.oracle
        oracle.written(False)
        oracle.clock_ms = max(self.clock.now_ms, at_of(core.horizon.position))
        oracle.observe(self.clock.now_ms)
        oracle.refuse_ms = max(oracle.bound_ms, self.store.marked_ms())
        oracle.floor_ms = at_of(core.directory.floor)
        self._restore_watches(core)
        self._check_whole()
        self.jobs = Jobs(core, self.store, self._submit)
        self.free = core.horizon.position
        """Up to here the horizon may be whatever the bound says."""

    def _check_owners(self) -> None:
        """What each owner has pending, by its counters and by the rows."""
        core = self.core
        owned, amounts = core.opened.owned, count_owned(self.store, core.reader, core.horizon.position)
        for owner in filter(None, OWNERS):
            said, counted = (owned.pending(owner), owned.pending_bytes(owner)), amounts.get(owner, (0, 0))
            need(said == counted, f"{owner!r} has {said} pending, counted {counted}")

    def _owner(self) -> bytes:
        """Whose the request is that is being made."""
        return OWNERS[self.oracle.requests % len(OWNERS)]

    def _restore_watches(self, core: Core) -> None:
        oracle = self.oracle
        for client_id in CLIENTS:
            subscriber = core.sessions.get(client_id)
            former = self.former.pop(client_id, None)
            if former is not None and subscriber is not None and subscriber.session.subscriptions:
                former.held, former.once = {}, set()
                oracle.watches[client_id] = former
            watch = oracle.watches.get(client_id)
            if subscriber is None:
                need(
                    watch is None or not any(w.is_acked for w in watch.wanted.values()) or client_id == CLEAN,
                    f"session {client_id} is gone",
                )
                oracle.watches.pop(client_id, None)
                continue
            assert watch is not None
            filters = set(subscriber.session.subscriptions)
            need(client_id != CLEAN or not filters, "a clean session came back")
            for topic_filter, wanted in list(watch.wanted.items()):
                if topic_filter not in filters:
                    need(not wanted.is_acked, f"{client_id} lost its subscription to {topic_filter}")
                    del watch.wanted[topic_filter]
            need(filters <= set(watch.wanted), f"{client_id} has subscriptions that nobody asked for")
            for wanted in watch.wanted.values():
                wanted.is_acked = True
            watch.unsure.clear()
            watch.last = subscriber.session.read

    # -- what has to hold

    def delivered(self, client: Client, message: Message, qos: int, packet_id: int, attempt: int) -> None:
        is_excused = self.core.horizon.unbounded
        self.oracle.delivery(client, message, qos, packet_id, attempt, is_excused=is_excused)

    def check(self) -> None:
        """What holds after every step."""
        core = self.core
        horizon = core.horizon
        core.wheel.check()
        need(core.writer.given_up == self.spoilt, "a group was given up")
        need(len(core.wheel) <= CONFIG.wheel.max_entries, "the wheel is over its bound")
        need(len(core.tail) <= CONFIG.tail.max_entries, "the tail is over its bound")
        need(horizon.position <= core.wheel.loaded, "the horizon is beyond what is loaded")
        need(
            horizon.position <= max(self.free, Position(before(self.oracle.clock_ms) | horizon.seq)),
            "the horizon is beyond the clock",
        )
        if not horizon.unbounded:
            bound = before(max(self.oracle.bound_ms, self.store.marked_ms()))
            need(horizon.position <= max(self.free, bound), "the horizon is beyond the durable bound")
        else:
            self.free = horizon.position
        need(horizon.position < self.oracle.undurable(), "the horizon is beyond what is durable")
        if core.writer.broken is None and not core.writer.is_deciding:
            counted = count_pending(core.reader, horizon.position)
            need(
                core.opened.waiting.pending == counted,
                f"pending is {core.opened.waiting.pending}, counted {counted}",
            )
            held = sum(1 for _ in core.reader.held())
            need(core.opened.waiting.held == held, f"held is {core.opened.waiting.held}, counted {held}")
            if len(self.history) % 4 == 0:  # a look reads the row; before that dispatch may be the first
                self._check_owners()
        for subscriber in core.sessions:
            session = subscriber.session
            need(len(session.flights) <= session.window, "more in flight than the window")
            need(session.read <= horizon.position, f"{session.client_id} has read beyond the horizon")

    def drain(self) -> None:
        """Let everything end well, however far away its due, and see that all promises were kept."""
        self.recover(0)
        quiet = 0
        for _ in range(6_000):
            self._round()
            if not self._is_quiet():
                quiet = 0
                continue
            quiet += 1
            if quiet < 3:
                continue
            next_ms = self._next_due()
            if next_ms is None:
                break
            self.tick(next_ms - self.clock.now_ms)
        else:
            raise Violation("it does not drain")
        self.check()
        self._check_stored()
        self._check_letters()

    def _round(self) -> None:
        self.clock.mono_s += 0.001
        for client_id in CLIENTS:
            client = self.clients.get(client_id)
            if client is None or client.is_closed:
                if client_id != CLEAN:
                    self.connect(client_id)
            elif client.link.room is not None:
                self.room(client_id, None)
            self.read(client_id, 0)
        self.heartbeat()
        self.compose()
        self.settle()
        self.dispatch(5)
        self.load(5)
        self.replay()
        self.bury()
        self.sweep()
        self.release()
        self.jobs.finish()
        self.check()

    def _is_quiet(self) -> bool:
        core = self.core
        return (
            core.is_settled()
            and not self.stepper.unsynced
            and self.jobs.is_over
            and not self.dying
            and not any(s.session.flights for s in core.sessions if s.link is not None)
        )

    def _next_due(self) -> int | None:
        core = self.core
        dues = [at_of(place) for place, _, _ in core.reader.held()]
        rows = core.reader.read(Position(core.horizon.position + 1), END)
        dues += [at_of(place) for place, _, value in rows if not is_stub(value)]
        need(bool(dues) or not core.opened.waiting.pending, "messages are pending and due never")
        return min(dues) if dues else None

    def _check_whole(self) -> None:
        """After a start: each request that was not answered is there whole, or not at all."""
        there = dict.fromkeys(self._rows(), 1)
        by_request: dict[str, list[Letter]] = {}
        for letter in self.oracle.letters.values():
            by_request.setdefault(letter.request, []).append(letter)
        for letters in by_request.values():
            dues = [due or self.oracle.sent_ms[letter.tag] for letter in letters for due in letter.dues]
            is_open = not any(letter.is_cancel_asked or letter.is_accepted for letter in letters)
            if is_open and min(dues) >= self.oracle.floor_ms:
                self.oracle.messages.stored(Counter(there), letters)

    def _rows(self) -> list[str]:
        """The tag of every live row."""
        tags = []
        for table in (Table.MESSAGES, Table.HELD):
            for _, value in self.store.scan(table, b"", keys.LAST):
                if not is_stub(value):
                    tags.append(tag_of(value))
        return tags

    def _check_stored(self) -> None:
        core = self.core
        for directory in (core.directory, read_directory(self.store, 1_000)):
            faults = verify_counts(self.store, directory)
            need(not faults, f"counts are wrong: {[str(f) for f in faults]}")
            notes = list(left(self.store))
            stored = [key for key, _ in self.store.scan(Table.MESSAGES, b"", keys.LAST)]
            rows = sum(not any(start <= key < end for start, end in notes) for key in stored)
            need(sum(piece.count for piece in directory) == rows, "rows without a shard")
            for piece in directory:
                for shard in piece.shards.values():
                    need(
                        shard.count <= CONFIG.shards.cap_messages,
                        f"shard {shard.number} has {shard.count} rows",
                    )
        self._check_forgotten()
        for piece in core.directory:
            for shard in piece.readable():
                pattern = core.reader.structures.pattern(shard.structure).split("/")
                end = (int.from_bytes(shard.prefix, "big") + 1).to_bytes(10, "big")
                for _, value in self.store.scan(Table.MESSAGES, shard.prefix, end):
                    topic = topic_of(value).decode().split("/")
                    need(overlap(pattern, topic), f"{topic} lies in a shard of {pattern}")

    def _check_forgotten(self) -> None:
        """What counts as absent in `dedupe` and `moved` is known by a row that is still there."""
        tables = (Table.MESSAGES, Table.HELD)
        values = [value for table in tables for _, value in self.store.scan(table, b"", keys.LAST)]
        known = {name for value in values for name in names_of(value)}
        floor = self.core.directory.floor
        for table in (Table.DEDUPE, Table.MOVED):
            absent = look_through(self.store, table, b"", 1 << 20, 1 << 30, floor).names
            lost = [key.hex() for _, key in absent if key not in known]
            need(not lost, f"never forgotten in {table.value}: {lost}")

    def _check_letters(self) -> None:
        rows = self._rows()
        for letter in self.oracle.letters.values():
            if letter.is_accepted:
                self._check_letter(letter, rows.count(letter.tag))

    def _check_letter(self, letter: Letter, copies: int) -> None:
        tag, oracle, core = letter.tag, self.oracle, self.core
        need(copies <= 1 or tag.startswith("key"), f"{tag} is stored {copies} times")
        found = core.reader.find(_id_of(letter))
        if letter.is_cancelled:
            need(found is None or bool(decode(found.value).stub & CANCELLED), f"{tag} has come to life again")
            return
        if found is None:
            oracle.not_found(letter)
            return
        if is_stub(found.value):
            need(letter.is_cancel_asked, f"{tag} was cancelled by nobody")
            return
        need(tag_of(found.value) == tag, f"the id of {tag} names {tag_of(found.value)}")
        need(found.position <= core.horizon.position, f"{tag} is still pending")
        if at_of(found.position) < oracle.passed_over_ms:
            return
        for client_id, watch in oracle.watches.items():
            for topic_filter, wanted in watch.wanted.items():
                if wanted.is_acked and wanted.since < found.position and matches(topic_filter, letter.topic):
                    need(
                        watch.has(letter),
                        f"{tag} at {at_of(found.position)} never came to {client_id} ({topic_filter})",
                    )

    # -- leaves

    def _closed(self, client: Client) -> None:
        self.dying.append(client)
        watch = self.oracle.watches.get(client.client_id)
        if watch is not None and not watch.is_persistent and self.clients[client.client_id] is client:
            watch.wanted.clear()

    def _decided(self, tag: str, control: Control) -> Control:
        found = control.found
        self.oracle.sent_ms[tag] = min(self.oracle.sent_ms[tag], self.clock.now_ms)
        is_first = control.outcome is Outcome.DONE and found is not None and not is_stub(found.value)
        if is_first and found is not None and found.shard is not None:
            self.oracle.decide(found.position, tag)
        return control

    def _letter(self, tag: str, topic: str, due_ms: int) -> None:
        self.oracle.observe(self.clock.now_ms)
        letter = self.oracle.letters.get(tag)
        if letter is None:
            self.oracle.messages.ask(tag, topic, due_ms, str(self.oracle.requests))
            self.oracle.sent_ms[tag] = self.clock.now_ms
        else:
            self.oracle.messages.wish(letter, due_ms)

    def _draft(self, tag: str, topic: str, due_ms: int, key: bytes = b"", payload: int = 0) -> Draft:
        self._letter(tag, topic, due_ms)
        record = Record(
            topic.encode(),
            tag.encode() + b"." * payload,
            due_ms,
            1 + (self.tags + len(topic)) % 2,
            key=key,
            owner=self._owner(),
        )
        return Draft(due_ms, record.topic, encode(record), key, key)

    def _submit_put(self, drafts: list[Draft]) -> None:
        def done(answer: list[MessageId | Known] | Exception) -> None:
            if isinstance(answer, Exception):
                return
            need(len(answer) == len(drafts), "an answer for each message")
            for draft, one in zip(drafts, answer, strict=True):
                message = one.id if isinstance(one, Known) else one
                self.oracle.accepted(tag_of(draft.value), message, draft.due_ms)

        self._submit(lambda commit: in_steps(commit, commit.put_in_steps(drafts, step=1)), done, len(drafts))

    def _submit(self, decide: Callable[[Commit], Any], done: Callable[[Any], None], cost: int = 1) -> bool:
        def checked(answer: Any) -> None:
            if isinstance(answer, Exception) and not isinstance(answer, Refused | StoreFailed):
                raise Violation(f"a request failed: {answer!r}") from answer
            done(answer)

        try:
            self.core.writer.submit(decide, checked, cost=cost)
        except (StoreFailed, Busy):
            return False
        return True

    def _pick(self, index: int) -> tuple[Letter | None, MessageId]:
        letters = [letter for letter in self.oracle.letters.values() if letter.is_accepted]
        if not letters:
            return None, MessageId(0)
        letter = letters[-1 - index % len(letters)]
        return letter, _id_of(letter)


def _id_of(letter: Letter) -> MessageId:
    return MessageId(int(letter.id, 16))
