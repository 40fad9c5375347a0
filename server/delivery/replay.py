"""Replay: sessions behind the horizon read from the store, in turns.

A session that was away, is slow, or asked for the past reads from its own position: from the tail as far back
as that reaches, else from the store. A turn is bounded, so that a session with a million messages to catch up
on delays nobody. While others wait, a turn is a tenth as long. A session without room leaves the queue, and
comes back with its next ack or when its socket takes data again. When its read position equals the horizon,
it joins the tail in the same step.

A session with due retries (retries.py) gets these and unread messages in turns, ALTERNATE of each.

Messages that their owner may no longer send (owners.py), and unreadable rows, are passed over. A session that
cannot be served loses its connection; the others go on.
"""

import logging
from collections.abc import Callable, Container, Iterator, Sequence
from enum import Enum, auto
from heapq import merge
from itertools import islice
from operator import itemgetter

from shards.commit import Commit
from shards.errors import Corrupt, StoreFailed
from shards.read import Reader, Row
from shards.record import encode, is_moved, is_stub, topic_of, usual
from timeline.horizon import Horizon
from timeline.key_order import KeyOrder
from timeline.position import START, Position
from timeline.session import Flight, Resends, Subscription
from timeline.tail import Tail

from ..engine.errand import RETRY_S
from ..observe.logs import by, shown
from .awaited import Awaited
from .burials import KEPT_TOO_LONG, Burials
from .by_key import ALTERNATE, FORBIDDEN, WAIT_MS, WITHHELD, ByKey
from .cursors import Cursors
from .endpoint_rows import EndpointRows
from .membership import Membership
from .message import Message
from .owners import Owners
from .ready import Ready
from .retained import Retained
from .retries import Retries
from .router import Router
from .run import RUN_MAX, Run
from .sent import Sent
from .settling.undone import EXPIRED, NEVER, UNREADABLE, Undone
from .shared import Group
from .spill_buffer import SpillBuffer, is_owed
from .subscriber import Subscriber
from .tries import LOST

log = logging.getLogger(__name__)

TURN_ROWS = 1_000
"""Messages read in a turn, over all sessions."""
TURN_SENT = 100
"""Of them, how many are sent while others wait: so that the last of 2,000 sessions need not wait for whole
backlogs."""
RUN_BYTES = 1 << 16
"""Of messages that are read before they are sent."""
TURN_OWNERS = 2_000
"""Maximum cost in a turn of checks that are not cached, of owners and receivers (owners.py, router.py)."""
WAITING = 100
"""Messages that wait for their next try, and are given up in one step."""
TURN_RESENDS = 250
"""Messages resent in a turn: some 5 ms."""
TURN_COST = 1_000
"""Cost of retained messages of a session in a turn: 1 for each topic, ..."""
COST_BYTES = 4_096
"""... 1 for each so many bytes of it, ..."""
COST_SENT = 3
"""... this for sending it, ..."""
COST_FILTER = 10
"""... and this for each filter. Some 4 ms in all."""


class Progress(Enum):
    """Result of a part of a turn."""

    DONE = auto()
    MORE = auto()
    """The turn's budget is used up; the rest follows in the next turn."""
    BLOCKED = auto()
    """No room: the next ack, or the socket, wakes the subscriber."""


class Replay:
    """Gives turns to the sessions in `Ready`."""

    def __init__(
        self,
        reader: Reader,
        horizon: Horizon,
        tail: Tail[Message],
        router: Router,
        spill: SpillBuffer,
        retained: Retained,
        ready: Ready,
        cursors: Cursors,
        burials: Burials,
        groups: Membership,
        undone: Undone,
        retries: Retries,
        sent: Sent,
        owners: Owners,
        awaited: Awaited,
        by_key: ByKey,
        endpoint_rows: EndpointRows,
        *,
        wall_ms: Callable[[], int],
        dispatched_ms: Callable[[Position], int | None],
    ) -> None:
        self._reader = reader
        self._horizon = horizon
        self._tail = tail
        self._router = router
        self._spill = spill
        self._retained = retained
        self._ready = ready
        self._cursors = cursors
        self._burials = burials
        self._groups = groups
        self._undone = undone
        self._retries = retries
        self._sent = sent
        self._owners = owners
        self._awaited = awaited
        self._by_key = by_key
        self._is_blocked = False
        """Whether the last stretch ended before a message whose owner is absent."""
        self._run_most = 1
        """How many messages the stretch reads before they are sent: as many as there is room for, and more
        while all wait for their keys."""
        self._endpoint_rows = endpoint_rows
        self._wall_ms = wall_ms
        self._dispatched_ms = dispatched_ms
        self.lost = 0
        """Number of times that a session found its read position dropped by retention."""

    @property
    def is_idle(self) -> bool:
        """Whether no session waits for a turn."""
        return not self._ready

    def rewind(self, commit: Commit, subscriber: Subscriber, to: Position) -> None:
        """In the writer: the session or group reads again from `to`, or from the retention floor. What it has
        in flight stays in flight, and is passed over."""
        session, horizon = subscriber.session, self._horizon.position
        before = session.read_at(horizon)
        floor = self.floor if subscriber.is_group else max(self.floor, self._burials.passing)
        session.rewind(None, max(to, floor), horizon)
        if session.order is not None and session.read < before:
            session.order.rewind(session.read, session.finished)
        if isinstance(subscriber, Group) and subscriber.ahead is not None:
            subscriber.ahead.forget()
        self._retries.set_back(subscriber)
        self._cursors.store(commit, subscriber)
        self._ready.wake(subscriber)

    def skip(
        self, commit: Commit, subscriber: Subscriber, to: Position, reason: str, *, is_dead: bool
    ) -> bool:
        """In the writer: the session or group reads on behind `to`. Its unread messages before, and in a
        group that orders those that wait there, become dead letters, or are dropped; some in each step. Keys
        that were set back come first. False: there is nothing to do."""
        order, ended = subscriber.session.order, 0
        if order is not None and order.look_on():
            self._cursors.store(commit, subscriber)
            return True
        for root in [] if order is None else order.resting(to, WAITING):
            ended += self._undone.give_up(commit, subscriber, root, reason, is_dead=is_dead)
        if not self._burials.skip(subscriber, to, reason, is_dead=is_dead) and not ended:
            return False
        self._cursors.store(commit, subscriber)
        self._ready.wake(subscriber)
        return True

    @property
    def floor(self) -> Position:
        """The retention floor: earlier messages are dropped."""
        return self._reader.directory.floor

    def turn(self) -> None:
        """Let the next session in the queue read a bounded stretch."""
        if not self._ready:
            return
        subscriber = self._ready.take()
        if not subscriber.is_reachable or subscriber.session.tailing:
            return  # it has joined the tail since it was woken: its own read position is old
        try:
            has_more, order = self._read_on(subscriber), subscriber.session.order
            if order is not None and order.unwritten.is_crowded:
                self._await_rows(subscriber, order)
            elif has_more:
                self._ready.wake(subscriber)
        except StoreFailed:
            raise
        except Exception:
            subscriber.close_failed()

    def _await_rows(self, subscriber: Subscriber, order: KeyOrder) -> None:
        """Read on when the rows of its keys are written."""

        def stored(held: int) -> None:
            order.is_awaited = False
            if held < 0 and isinstance(subscriber, Group):
                subscriber.pause_for(RETRY_S)  # nothing can be written now
            else:
                self._ready.wake(subscriber)

        if not order.is_awaited:
            order.is_awaited = True
            self._cursors.secure(subscriber, stored)

    def begin(self, subscriber: Subscriber) -> None:
        """Resume a session on a new connection: resend what was in flight first, in order."""
        session = subscriber.session
        session.fall_behind(self._horizon.position)
        session.resends = Resends([flight for flight in session.flights.values() if not flight.fate])
        has_more = session.resends or subscriber.retained_queue or self._retries.is_due(subscriber)
        if has_more or not session.join(self._horizon.position):
            self._ready.wake(subscriber)

    def _resend(self, subscriber: Subscriber) -> Progress:
        """Send again what the window takes, TURN_RESENDS at most."""
        resends = subscriber.session.resends
        for _ in range(TURN_RESENDS):
            if not resends:
                return Progress.DONE
            if not subscriber.can_resend:
                return Progress.BLOCKED
            flight = resends.first()
            if not self._send_again(subscriber, flight):
                return Progress.BLOCKED
            resends.discard(flight.packet_id)
            if not resends and subscriber.groups:
                self._groups.meet(subscriber)
        return Progress.MORE if resends else Progress.DONE

    def _send_again(self, subscriber: Subscriber, flight: Flight) -> bool:
        """Send a flight again or end it; False: there is no room for this one."""
        subscriber.dirty.add(subscriber)
        if flight.phase:
            if subscriber.link is not None:
                subscriber.link.release(flight.packet_id)
            return True
        message = self._sent.message(self._groups.loans.place_of(subscriber, flight), flight)
        may_have = (
            message is not None and subscriber.may_receive(message.topic) and self._owners.allow(message)
        )
        if message is None and flight.is_stored:
            self._undone.lose(subscriber, flight, UNREADABLE, delay_ms=NEVER)
        elif subscriber.is_group and message is not None and self._is_over(message, flight):
            self._undone.lose(subscriber, flight, EXPIRED, delay_ms=NEVER)
        elif message is not None and flight.is_stored and not subscriber.may_receive(message.topic):
            lender = None if flight.loan is None else self._groups.get(flight.loan.share)
            self._undone.fail(subscriber, flight, FORBIDDEN, delay_ms=NEVER, addressee=lender, outcome=LOST)
        elif message is not None and flight.is_stored and not may_have and self._awaited.waits(message):
            self._undone.fail(subscriber, flight, WITHHELD, delay_ms=WAIT_MS, is_attempt=False)
        elif message is None or not may_have or self._is_over(message, flight):
            self._groups.loans.give_up(subscriber, flight)
        elif (
            0
            < self._undone.terms(subscriber, message).max_attempts
            <= message.counted_before + flight.attempts
        ):
            attempts = message.attempts_before + flight.attempts
            self._undone.lose(subscriber, flight, f"not acked after {attempts} deliveries")
        else:
            if subscriber.resend(message, flight, self._asked(subscriber, message, flight)):
                return True
            if not subscriber.bars(message):
                return False
            # It becomes a retry and waits for a member that may receive it. Others go on.
            self._undone.fail(subscriber, flight, FORBIDDEN, delay_ms=0, is_attempt=False)
        return True

    def _is_over(self, message: Message, flight: Flight) -> bool:
        """It has expired meanwhile. What was begun at QoS 2 is finished: [MQTT-4.3.3-7]."""
        return flight.qos == 1 and message.is_expired(self._wall_ms())

    def _asked(self, subscriber: Subscriber, message: Message, flight: Flight) -> tuple[Subscription, ...]:
        """The subscriptions that a flight comes by: its group's, or the session's own that match."""
        if flight.loan is not None:
            own = subscriber.session.subscriptions.get(flight.loan.share)
            return () if own is None else (own,)
        return self._router.route(message.topic).get(subscriber, ())

    def _send_retained(self, subscriber: Subscriber) -> Progress:
        """Send retained messages to new subscriptions. Newer ones are passed over: they are read like any
        other."""
        asked, session, left = subscriber.retained_queue, subscriber.session, TURN_COST
        if subscriber.unanswered:
            return Progress.BLOCKED
        while asked:
            if left <= 0:
                return Progress.MORE
            subscription = session.subscriptions[asked.first]
            left -= COST_FILTER
            upto = max(session.read, subscription.since)
            if not self._tail.covers(session.read):
                upto = max(upto, self.floor)  # what retention has dropped does not come live any more
            for topic, size, kept in self._retained.walk(subscription.filter, asked.topic, upto):
                if left <= 0:
                    return Progress.MORE
                left -= 1 + size // COST_BYTES
                if (
                    kept is not None
                    and not self._router.is_denied(topic.decode())
                    and subscriber.may_receive(topic)
                ):
                    if not subscriber.can_take_retained:
                        return Progress.BLOCKED
                    message = self._retained.load(kept)
                    if message is not None:
                        left -= COST_SENT
                        may_have = self._owners.allow(message)
                        left -= self._owners.take_cost()
                        if may_have and not subscriber.offer_retained(message, subscription):
                            return Progress.BLOCKED
                asked.topic = topic
                subscriber.dirty.add(subscriber)
            asked.finish()
        return Progress.DONE

    def _read_on(self, subscriber: Subscriber) -> bool:
        """Read a stretch; True if there is more and room for it."""
        session, horizon = subscriber.session, self._horizon.position
        resent = self._resend(subscriber)
        progress = self._send_retained(subscriber) if resent is Progress.DONE else resent
        if progress is not Progress.DONE:
            return progress is Progress.MORE
        floor = START if self._tail.covers(session.read) else self._reader.directory.floor
        if not subscriber.is_group and self._burials.passed > floor:
            floor = self._burials.passed
        if session.read < floor:
            session.read = floor
            # What was promised to it alone stood on no slice that could be looked through.
            unstored = self._spill.of(subscriber)
            self._burials.dropped[KEPT_TOO_LONG] += sum(one.position <= floor for one in unstored)
            self.lost += 1
            who = shown(session.client_id)
            log.warning("%s: unread messages expired", who, extra=by(who))
        subscriber.dirty.add(subscriber)
        if isinstance(subscriber, Group) and subscriber.looks_again:
            self._retries.look_again(subscriber, subscriber.put_by)
            subscriber.picker.has_new, subscriber.put_by = False, START
        order = session.order
        if order is None:
            return self._read_unread(subscriber, horizon)
        if isinstance(subscriber, Group):
            subscriber.look_at_tokens()
        return self._read_with_keys(subscriber, order, horizon)

    def _read_with_keys(self, subscriber: Subscriber, order: KeyOrder, horizon: Position) -> bool:
        """`_read_unread`, and send what waits for its key, in turns that go on in the next call. A fair group
        passes over messages while it has no room."""
        has_room = order.turns.is_reader or self._by_key.give_following(subscriber, order, order.turns.left)
        has_more, before = False, subscriber.delivered
        if has_room or order.rule.is_fair:
            most = order.turns.left if order.free and order.turns.is_reader else TURN_ROWS
            has_more = self._read_unread(subscriber, horizon, most)
            order.turns.gave(subscriber.delivered - before, is_reader=True)
        if not order.free:
            return has_more
        most = ALTERNATE if order.turns.is_reader else order.turns.left
        return self._by_key.give_following(subscriber, order, most)

    def _read_unread(self, subscriber: Subscriber, horizon: Position, most: int = TURN_ROWS) -> bool:
        """Send due retries, and read a stretch, of which some `most` are sent; True if there is more and room
        for it."""
        if self._retries.is_due(subscriber):
            return self._take_turns(subscriber, horizon)
        left = TURN_SENT if self._ready else TURN_ROWS
        if subscriber.session.order is not None:
            left, most = TURN_ROWS, min(most, left)  # what is passed over is not sent
        has_room = self._read_stretch(subscriber, horizon, left, most)
        self._spill.passed(subscriber, subscriber.session.read)
        return has_room and not self._is_blocked and not self._join(subscriber)

    def _take_turns(self, subscriber: Subscriber, horizon: Position) -> bool:
        """Send some due retries and some unread messages; True if there may be more. The order is kept
        between calls, so that with room for one message at a time they alternate. A reader that stands at the
        bound of keys leaves its turn to the retries, which make room for it."""
        order, self._is_blocked, is_standing = subscriber.session.order, False, False
        for _ in range(2):
            before = subscriber.delivered
            if subscriber.reads_next:
                has_room = self._read_stretch(subscriber, horizon, ALTERNATE)
                self._spill.passed(subscriber, subscriber.session.read)
                is_standing = not has_room and order is not None and order.room.is_standing
                has_room = has_room or is_standing
            else:
                has_room = self._by_key.give_retries(subscriber)
            if has_room or subscriber.delivered > before:
                subscriber.reads_next = not subscriber.reads_next
            if not has_room:
                return False
        if self._retries.is_due(subscriber):
            return True
        return not (is_standing or self._is_blocked or self._join(subscriber))

    def _read_stretch(
        self, subscriber: Subscriber, horizon: Position, left: int, give: int = TURN_ROWS
    ) -> bool:
        """Read on and send at most `left` messages; False if there was no room for one. Usual messages that
        come by the same subscriptions are sent as a run. `give`: end when so many are given, others have been
        passed over to wait for their keys."""
        session = subscriber.session
        self._is_blocked = False
        rows, read = TURN_ROWS, session.read
        owners, router = self._owners, self._router
        owners.take_cost()  # what others have spent
        router.take_cost()
        run: list[Message] = []
        by: tuple[Subscription, ...] = ()
        size, self._run_most = 0, _most(subscriber)
        ahead, again = self._retries.ahead(subscriber, read), set[Position]()
        give += subscriber.delivered
        for place, messages, found in self._stretch(subscriber, read, horizon, left):
            if self._is_blocked:
                break
            read = place
            rows -= len(messages) or 1
            has_rows = ahead is not None or subscriber.rows.out or self._retries.is_changing
            if messages and (has_rows or session.finished):
                messages = [one for one in messages if self._retries.may_read(subscriber, one.position)]
                again |= self._retries.having(subscriber, ahead, [one.position for one in messages])
            if messages:
                first = messages[0]
                is_another = bool(run) and (
                    found is not by
                    or first.qos != run[0].qos
                    or not first.is_usual
                    or len(run) + len(messages) > self._run_most
                )
                if is_another:
                    if not self._send(subscriber, run, by, again):
                        return False
                    run, size = [], 0
                run += messages
                by = found
                size += first.body_bytes
                left -= len(messages)
                is_whole = len(messages) > 1 or len(run) >= self._run_most
                if is_whole or size >= RUN_BYTES or not first.is_usual:
                    if not self._send(subscriber, run, by, again):
                        return False
                    run, size = [], 0
            if not left or owners.cost + router.cost >= TURN_OWNERS or subscriber.delivered >= give:
                break
        else:
            read = horizon if rows else read
        if run and not self._send(subscriber, run, by, again):
            return False
        session.read = read
        return True

    def _send(
        self,
        subscriber: Subscriber,
        run: Sequence[Message],
        subscriptions: tuple[Subscription, ...],
        again: Container[Position],
    ) -> bool:
        """Send messages in their order; False: there was no room for one, and what is before it is read.
        `again`: where those are that have rows."""
        session, before = subscriber.session, subscriber.delivered
        given = subscriber.offer_run(Run(run), subscriptions) if len(run) > 1 else 0
        if given:
            session.read = run[given - 1].position
        for number, message in enumerate(run):
            if number >= given:
                if not subscriber.offer(message, subscriptions):
                    session.read = Position(message.position - 1)
                    return False
                session.read = message.position
            if message.shard < 0 and not is_owed(message, subscriptions):
                self._spill.caught(message.position)
            if message.position in again:
                self._retries.end_former(subscriber, message.position)
        has_passed = session.order is not None and subscriber.delivered == before
        self._run_most = min(RUN_MAX, 4 * len(run)) if has_passed else _most(subscriber)
        return True

    def _stretch(
        self, subscriber: Subscriber, read: Position, horizon: Position, left: int
    ) -> Iterator[tuple[Position, Sequence[Message], tuple[Subscription, ...]]]:
        """The next positions behind `read`, each with the message if the subscriber is to get it, and the
        subscriptions that it comes by; of a run in the tail the last position, and the run. `left`: messages
        at most."""
        wall_ms = self._wall_ms()
        if self._tail.covers(read) and not subscriber.is_endpoint:
            rows = self._tail.after(read, TURN_ROWS)
            at = 0
            while at < len(rows):
                some = rows[at : at + max(1, min(left, self._run_most))]
                at += len(some)
                run, found = self._run(subscriber, some, wall_ms)
                if run:
                    left -= len(run)
                    yield some[-1][0], run, found
                    continue
                for place, message in some:
                    found = self._wanted(subscriber, place, message.topic)
                    is_wanted = (
                        found
                        and not _is_missed(subscriber, message)
                        and not message.is_dropped(wall_ms, self._dispatched_ms)
                        and self._may_have(subscriber, message)
                    )
                    if is_wanted:
                        left -= 1
                        message.refresh(wall_ms)
                    yield place, (message,) if is_wanted else (), found
            return
        for place, shard, value in islice(self._rows(subscriber, read, horizon), TURN_ROWS):
            layout = usual(value)
            if layout is not None:
                found = ()
                if not subscriber.is_endpoint:
                    found = self._wanted(subscriber, place, value[layout[2] : layout[3]])
                whole = Message(place, shard, None, wall_ms, value, layout) if found else None
                if whole is None or (whole.is_judged and not self._may_have(subscriber, whole)):
                    yield place, (), ()
                else:
                    yield place, (whole,), found
                continue
            try:
                found = ()
                if not is_moved(value) and not is_stub(value):
                    found = self._router.wanted_in(subscriber, place, value)
                    if not found and subscriber.is_group:
                        self._router.pass_over(topic_of(value), reader=subscriber)
                whole = Message(place, shard, None, wall_ms, value) if found else None
            except Corrupt as error:
                log.error("message at %024x in shard %d: unreadable, skipped: %s", place, shard, error)
                whole = None
            if (
                whole is None
                or whole.is_dropped(wall_ms, self._dispatched_ms)
                or not self._may_have(subscriber, whole)
            ):
                yield place, (), ()
            else:
                yield place, (whole,), found

    def _wanted(self, subscriber: Subscriber, place: Position, topic: bytes) -> tuple[Subscription, ...]:
        """`Router.wanted`. Counts the messages that a group passes over."""
        found = self._router.wanted(subscriber, place, topic)
        if not found and subscriber.is_group:
            self._router.pass_over(topic, reader=subscriber)
        return found

    def _may_have(self, subscriber: Subscriber, message: Message) -> bool:
        """Whether the owner may send it. If not, the subscriber passes it, or stands still before it."""
        if self._owners.allow(message):
            return True
        self._is_blocked = self._awaited.blocks(subscriber, message)
        return False

    def _run(
        self, subscriber: Subscriber, rows: Sequence[tuple[Position, Message]], wall_ms: int
    ) -> tuple[list[Message], tuple[Subscription, ...]]:
        """All messages of these rows of the tail, if they are a run that the subscriber gets; else none."""
        place, first = rows[0]
        qos = first.qos
        run = [
            message
            for _, message in rows
            if message.is_usual and message.qos == qos and (qos or message.shard >= 0)
        ]
        by = self._router.wanted(subscriber, place, first.topic)
        if not by or len(run) < len(rows) or sum([message.body_bytes for message in run]) >= RUN_BYTES:
            return [], by
        for topic in {message.topic for message in run}:
            is_spent = self._router.cost >= TURN_OWNERS
            if is_spent or self._router.wanted(subscriber, place, topic) is not by:
                return [], by
        for message in run:
            if message.is_judged and not self._owners.is_known(message):
                return [], by
        for message in run:
            message.refresh(wall_ms)
        return run, by

    def _rows(self, subscriber: Subscriber, read: Position, horizon: Position) -> Iterator[Row]:
        """Rows behind `read`, merged with the subscriber's spill buffer."""
        if isinstance(subscriber, Group) and subscriber.ahead is not None:
            return self._endpoint_rows.after(subscriber.ahead, read)
        structures = self._reader.structures.overlapping(subscriber.filters)
        rows = self._reader.read(Position(read + 1), Position(horizon + 1), structures)
        owed = self._spill.of(subscriber)
        if not owed:
            return rows
        return merge(rows, _encoded(owed), key=itemgetter(0))

    def _join(self, subscriber: Subscriber) -> bool:
        """Tail if everything up to the horizon has been read, and no key waits for its turn."""
        if subscriber.session.order is not None and subscriber.session.order.free:
            return False
        is_tailing = subscriber.session.join(self._horizon.position)
        if is_tailing and isinstance(subscriber, Group) and subscriber.ahead is not None:
            subscriber.ahead.begin()
        return is_tailing


def _most(subscriber: Subscriber) -> int:
    """How many messages to read before they are sent."""
    return max(1, min(RUN_MAX, subscriber.find_room()))


def _is_missed(subscriber: Subscriber, message: Message) -> bool:
    """Unstored QoS 0 is only for clients that were connected, however long it stays in the tail."""
    return not message.is_stored and not message.qos and message.due_ms < subscriber.presence.connected_ms


def _encoded(owed: Sequence[Message]) -> Iterator[Row]:
    """As rows, one after another as they are asked for."""
    for message in owed:
        yield message.position, message.shard, encode(message.record)
