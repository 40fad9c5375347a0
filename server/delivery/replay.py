"""Replay: sessions behind the horizon read from the store, in turns.

A session that was away, is slow, or asked for the past reads from its own position: from the tail as far back
as that reaches, else from the store. A turn is bounded, so that a session with a million messages to catch up
on delays nobody. While others wait, a turn is a tenth as long. A session without room leaves the queue, and
comes back with its next ack or when its socket takes data again. When its read position equals the horizon,
it joins the tail in the same step.

A session with due retries (retries.py) gets these and unread messages in turns, ALTERNATE of each.

What was in flight goes first (beside.py), then retained messages, then what is unread (unread.py). A
session that cannot be served loses its connection; the others go on.
"""

import logging
from collections.abc import Container, Sequence

from shards.commit import Commit
from shards.errors import StoreFailed
from timeline.delivery_rows import Case, Event
from timeline.horizon import Horizon
from timeline.key_order import KeyOrder
from timeline.position import START, Position
from timeline.session import Resends, Subscription

from ..engine.errand import RETRY_S
from ..observe.logs import by, clean
from .beside import ALTERNATE, Beside
from .burials import KEPT_TOO_LONG, Burials
from .cursors import Cursors
from .message import Message
from .place import Place
from .ready import Ready, TurnResult
from .retained import Retained
from .retries import Retries
from .router import Router
from .run import RUN_MAX, Run
from .settling.lives import Lives
from .shared import Group
from .spill_buffer import is_owed
from .subscriber import Subscriber
from .unread import RUN_BYTES, TURN_OWNERS, TURN_ROWS, Unread

log = logging.getLogger(__name__)

TURN_SENT = 100
"""Maximum messages sent to a session in a turn while others wait: the last of 2,000 sessions need not wait
for whole backlogs."""
WAITING = 100
"""Messages that wait for their next try, and are given up in one step."""
TURN_COST = 1_000
"""Cost of retained messages of a session in a turn: 1 for each topic, ..."""
COST_BYTES = 4_096
"""... 1 for each so many bytes of it, ..."""
COST_SENT = 3
"""... this for sending it, ..."""
COST_FILTER = 10
"""... and this for each filter. Some 4 ms in all."""


class Replay:
    """Gives turns to the sessions in `Ready`."""

    def __init__(
        self,
        horizon: Horizon,
        router: Router,
        retained: Retained,
        ready: Ready,
        cursors: Cursors,
        burials: Burials,
        lives: Lives,
        retries: Retries,
        unread: Unread,
        beside: Beside,
    ) -> None:
        self._horizon = horizon
        self._router = router
        self._retained = retained
        self._ready = ready
        self._cursors = cursors
        self._burials = burials
        self._lives = lives
        self._retries = retries
        self._beside = beside
        self._unread = unread
        self.lost = 0
        """Number of times that a session found its read position dropped by retention."""

    @property
    def is_idle(self) -> bool:
        """Whether no session waits for a turn."""
        return not self._ready

    def rewind(self, commit: Commit, subscriber: Place, to: Position) -> None:
        """In the writer: the session or group reads again from `to`, or from the retention floor. What it has
        in flight stays in flight, and is passed over."""
        session, horizon = subscriber.session, self._horizon.position
        floor = self.floor if subscriber.is_group else max(self.floor, self._burials.passing)
        session.rewind(None, max(to, floor), horizon)
        session.order.rewind(session.read, session.finished)  # also where it stood: heads come again
        if subscriber.ahead is not None:
            subscriber.ahead.forget()
        self._burials.cut(commit, subscriber)
        self._retries.set_back(subscriber)
        self._cursors.store(commit, subscriber)
        self._ready.wake(subscriber)

    def skip(self, commit: Commit, subscriber: Place, to: Position, reason: str, *, is_dead: bool) -> bool:
        """In the writer: the session or group reads on behind `to`. Its unread messages before, and in a
        group that orders those that wait there, become dead letters, or are dropped; some in each step. Keys
        that were set back come first. False: there is nothing to do."""
        order, ended = subscriber.session.order, 0
        if order.look_on():
            self._cursors.store(commit, subscriber)
            return True
        for root in order.resting(to, WAITING):
            row = self._retries.waiting_in(commit, subscriber, root)
            case = Case(START, reason=reason, is_dead=is_dead)
            ended += row is not None and self._lives.of_row(commit, row, Event.SKIP, case, subscriber)
        if not self._burials.skip(subscriber, to, reason, is_dead=is_dead) and not ended:
            return False
        self._cursors.store(commit, subscriber)
        self._ready.wake(subscriber)
        return True

    @property
    def floor(self) -> Position:
        """The retention floor: earlier messages are dropped."""
        return self._unread.floor

    def turn(self) -> None:
        """Let the next session in the queue read a bounded stretch."""
        if not self._ready:
            return
        subscriber = self._ready.take()
        if not subscriber.is_reachable or subscriber.session.tailing:
            return  # it has joined the tail since it was woken: its own read position is old
        try:
            has_more, order = self._read_on(subscriber), subscriber.session.order
            if order.unwritten.is_crowded:
                self._await_rows(subscriber, order)
            elif has_more:
                self._ready.wake(subscriber)
        except StoreFailed:
            raise
        except Exception:
            subscriber.close_failed()

    def _await_rows(self, subscriber: Place, order: KeyOrder) -> None:
        """Read on when the rows of its keys are written."""

        def stored(held: int) -> None:
            order.is_awaited = False
            if held < 0 and isinstance(subscriber, Group):
                subscriber.rate_limited.pause(subscriber, RETRY_S)  # nothing can be written now
            else:
                self._ready.wake(subscriber)

        if not order.is_awaited:
            order.is_awaited = True
            self._cursors.persist(subscriber, stored)

    def begin(self, subscriber: Subscriber) -> None:
        """Resume a session on a new connection: resend what was in flight first, in order."""
        session = subscriber.session
        session.fall_behind(self._horizon.position)
        session.resends = Resends([flight for flight in session.flights.values() if not flight.fate])
        has_more = session.resends or subscriber.retained_queue or self._retries.is_due(subscriber)
        if has_more or not session.join(self._horizon.position):
            self._ready.wake(subscriber)

    def _send_retained(self, subscriber: Subscriber) -> TurnResult:
        """Send retained messages to new subscriptions. Newer ones are passed over: they are read like any
        other."""
        waiting, session, left = subscriber.retained_queue, subscriber.session, TURN_COST
        if subscriber.unanswered:
            return TurnResult.BLOCKED
        while waiting:
            if left <= 0:
                return TurnResult.MORE
            subscription = session.subscriptions[waiting.first]
            left -= COST_FILTER
            # What retention has dropped does not come live any more.
            upto = max(session.read, subscription.since, self._unread.floor_of(session.read))
            for topic, size, kept in self._retained.walk(subscription.filter, waiting.topic, upto):
                if left <= 0:
                    return TurnResult.MORE
                left -= 1 + size // COST_BYTES
                if (
                    kept is not None
                    and not self._router.is_denied(topic.decode())
                    and subscriber.may_receive(topic)
                ):
                    if not subscriber.can_take_retained:
                        return TurnResult.BLOCKED
                    message = self._retained.load(kept)
                    if message is not None:
                        left -= COST_SENT
                        may_have = self._unread.owners.allow(message)
                        left -= self._unread.owners.take_cost()
                        if may_have and not subscriber.offer_retained(message, subscription):
                            return TurnResult.BLOCKED
                waiting.topic = topic
                subscriber.dirty.add(subscriber)
            waiting.finish()
        return TurnResult.DONE

    def _read_on(self, subscriber: Place) -> bool:
        """Read a stretch; True if there is more and room for it."""
        session, horizon = subscriber.session, self._horizon.position
        progress = self._beside.resend(subscriber)
        if progress is TurnResult.DONE and isinstance(subscriber, Subscriber):
            progress = self._send_retained(subscriber)
        if progress is not TurnResult.DONE:
            return progress is TurnResult.MORE
        floor = self._unread.floor_of(session.read)
        if not subscriber.is_group and self._burials.passed > floor:
            floor = self._burials.passed
        if session.read < floor:
            session.read = floor
            # What was promised to it alone stood on no slice that could be looked through.
            unstored = self._unread.spill.of(subscriber)
            self._burials.dropped[KEPT_TOO_LONG] += sum(one.position <= floor for one in unstored)
            self.lost += 1
            who = clean(session.client_id)
            log.warning("%s: unread messages expired", who, extra=by(who))
        subscriber.dirty.add(subscriber)
        if isinstance(subscriber, Group) and (picker := subscriber.picker).looks_again:
            self._retries.look_again(subscriber, picker.put_by)
            picker.has_new, picker.put_by = False, START
        order = session.order
        if not order.is_on:
            return self._read_unread(subscriber, horizon)
        if isinstance(subscriber, Group):
            subscriber.rate_limited.look_at_tokens(subscriber)
        return self._read_with_keys(subscriber, order, horizon)

    def _read_with_keys(self, subscriber: Place, order: KeyOrder, horizon: Position) -> bool:
        """`_read_unread`, and send what waits for its key, in turns that go on in the next call. A fair group
        passes over messages while it has no room."""
        has_room = order.turns.is_reader or self._beside.give_following(subscriber, order, order.turns.left)
        has_more, before = False, subscriber.delivered
        if has_room or order.rule.is_fair:
            most = order.turns.left if order.free and order.turns.is_reader else TURN_ROWS
            has_more = self._read_unread(subscriber, horizon, most)
            order.turns.gave(subscriber.delivered - before, is_reader=True)
        if not order.free:
            return has_more
        most = ALTERNATE if order.turns.is_reader else order.turns.left
        return self._beside.give_following(subscriber, order, most)

    def _read_unread(self, subscriber: Place, horizon: Position, most: int = TURN_ROWS) -> bool:
        """Send due retries, and read a stretch, of which some `most` are sent; True if there is more and room
        for it."""
        if self._retries.is_due(subscriber):
            return self._take_turns(subscriber, horizon)
        left = TURN_SENT if self._ready else TURN_ROWS
        if subscriber.session.order.is_on:
            left, most = TURN_ROWS, min(most, left)  # what is passed over is not sent
        has_room = self._read_stretch(subscriber, horizon, left, most)
        self._unread.spill.passed(subscriber, subscriber.session.read)
        return has_room and not self._unread.is_blocked and not self._join(subscriber)

    def _take_turns(self, subscriber: Place, horizon: Position) -> bool:
        """Send some due retries and some unread messages; True if there may be more. The order is kept
        between calls, so that with room for one message at a time they alternate. A reader that stands at the
        bound of keys leaves its turn to the retries, which make room for it."""
        order, self._unread.is_blocked, is_standing = subscriber.session.order, False, False
        for _ in range(2):
            before = subscriber.delivered
            if subscriber.reads_next:
                has_room = self._read_stretch(subscriber, horizon, ALTERNATE)
                self._unread.spill.passed(subscriber, subscriber.session.read)
                is_standing = not has_room and order.room.is_standing
                has_room = has_room or is_standing
            else:
                has_room = self._beside.give_retries(subscriber)
            if has_room or subscriber.delivered > before:
                subscriber.reads_next = not subscriber.reads_next
            if not has_room:
                return False
        if self._retries.is_due(subscriber):
            return True
        return not (is_standing or self._unread.is_blocked or self._join(subscriber))

    def _read_stretch(self, subscriber: Place, horizon: Position, left: int, give: int = TURN_ROWS) -> bool:
        """Read on and send at most `left` messages; False if there was no room for one. Usual messages that
        come by the same subscriptions are sent as a run. `give`: end when so many are given, others have been
        passed over to wait for their keys."""
        session, unread = subscriber.session, self._unread
        rows, read = TURN_ROWS, session.read
        owners, router = unread.owners, self._router
        unread.begin(subscriber)
        run: list[Message] = []
        by: tuple[Subscription, ...] = ()
        size = 0
        ahead, again = self._retries.ahead(subscriber, read), set[Position]()
        give += subscriber.delivered
        for place, messages, found in unread.stretch(subscriber, read, horizon, left):
            has_rows = ahead is not None or subscriber.rows.out or self._retries.is_changing
            if unread.withheld is not None:
                message, unread.withheld = unread.withheld, None
                if session.order.is_on and run:  # keys are met in their order
                    if not self._send(subscriber, run, by, again):
                        return False
                    run, size = [], 0
                has_it = not self._retries.may_read(subscriber, place)
                has_it = has_it or bool(self._retries.having(subscriber, ahead, [place]))
                if not (has_it or self._beside.withhold(subscriber, message)):
                    unread.is_blocked = True
                    unread.blocked.add(subscriber)
                    break
            read = place
            rows -= len(messages) or 1
            if messages and (has_rows or session.finished):
                messages = [one for one in messages if self._retries.may_read(subscriber, one.position)]
                again |= self._retries.having(subscriber, ahead, [one.position for one in messages])
            if messages:
                first = messages[0]
                is_another = bool(run) and (
                    found is not by
                    or first.qos != run[0].qos
                    or not first.is_usual
                    or len(run) + len(messages) > unread.most
                )
                if is_another:
                    if not self._send(subscriber, run, by, again):
                        return False
                    run, size = [], 0
                run += messages
                by = found
                size += first.body_bytes
                left -= len(messages)
                is_whole = len(messages) > 1 or len(run) >= unread.most
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
        subscriber: Place,
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
                self._unread.spill.caught(message.position)
            if message.position in again:
                self._retries.end_former(subscriber, message.position)
        if session.order.is_on and subscriber.delivered == before:
            self._unread.most = min(RUN_MAX, 4 * len(run))  # all were passed over
        else:
            self._unread.look_at_room(subscriber)
        return True

    def _join(self, subscriber: Place) -> bool:
        """Tail if everything up to the horizon has been read, and no key waits for its turn."""
        if subscriber.session.order.free:
            return False
        is_tailing = subscriber.session.join(self._horizon.position)
        if is_tailing and subscriber.ahead is not None:
            subscriber.ahead.begin()
        return is_tailing
