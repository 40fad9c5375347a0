"""Dispatch: advances the horizon and hands the passed messages to subscribers.

One turn: ask how far the horizon may go, take the due entries from the wheel and the plain publishes that
wait for the horizon, merge them in position order, give each to the tailing sessions, move the horizon. A
session without room stops tailing at that message and reads on by itself (replay.py).

Plain publishes that nobody can replay are never written. They wait here, in RAM, until the horizon reaches
the position that the writer gave them: at once, unless something before them is still being synced. If a
session has no room then, the message goes to its spill buffer. Publishers are held back by `live` and
`live_bytes` (server/mqtt).

A turn has a budget in deliveries and bytes, and ends between two messages once TURN_COST is spent. If more
sessions want one message, the rest fall behind and read on in turns of their own. How many entries are taken
from the wheel at once follows from the cost of those before.

A message with `deliver_to` also goes to the group of that endpoint, whatever its topic. For a URL the group
is made here, with the first message for its origin (url_groups.py).

A message that no session, group or endpoint asks for is counted as unclaimed. A place that is away, paused or
full still asks for it.

What its owner may no longer send goes to nobody and is not retained (owners.py); what an absent owner has
sent waits (awaited.py). An unstored plain publish
was checked when it came.

An unreadable row is passed over. A session to which nothing can be sent loses its connection.

Never early: a turn reads the wall clock first, and the horizon does not pass it.
"""

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from shards.errors import Corrupt, StoreFailed
from shards.fate import is_dropped
from shards.properties import headers_of
from shards.read import Reader
from timeline.horizon import Horizon
from timeline.position import Position, seq_of
from timeline.session import Subscription
from timeline.tail import Tail
from timeline.wheel import Wheel

from ..engine.clock import Clock
from ..engine.commit_hook import CommitHook
from ..engine.writer import Entry, Writer, entry
from ..fair import Part
from ..observe.trace_context import PARENT
from ..observe.tracing import DISPATCH_COST, Traces
from .awaited import Awaited
from .message import Message
from .owners import Owners
from .ready import Ready
from .retained import Retained
from .router import Router, Targets
from .run import RUN_MAX, Run
from .shared import Group
from .spill_buffer import SpillBuffer, is_owed
from .subscriber import Subscriber
from .url_groups import UrlGroups
from .verdict import Answer, Verdict

log = logging.getLogger(__name__)

TURN_MESSAGES = 1_000
TURN_COST = 2_000
"""Deliveries in one turn: each is some 2 us here and, for a connection of its own, 10 us at its socket."""
MADE_COST = 100
"""... and to make the group of an origin costs as much as so many."""
COST_BITS = 12
"""So many bytes of a message in RAM, 4 KiB, cost as much as a delivery."""
_PARENT = PARENT.encode()
OWN_TOPICS = (b"$SYS/", b"$dead/")
"""Topic prefix of the server's own messages."""
RUN_MIN = 16
"""Messages taken from the wheel in one go, at least; those for which there is no time go back."""


@dataclass(slots=True)
class Counts:
    """Counters since the start."""

    dispatched: int = 0
    expired: int = 0
    early: int = 0
    unclaimed: int = 0
    """Messages of clients that nobody asked for, and that were not retained either."""
    turns: int = 0
    late_ms: list[int] = field(default_factory=list)
    """Lateness of the messages of the last turns, for the histogram."""

    def take_late(self) -> list[int]:
        """Return `late_ms` and reset it."""
        late_ms, self.late_ms = self.late_ms, []
        return late_ms


class Dispatch(CommitHook):
    """Moves the horizon."""

    def __init__(
        self,
        horizon: Horizon,
        wheel: Wheel[Entry],
        tail: Tail[Message],
        router: Router,
        reader: Reader,
        ready: Ready,
        spill: SpillBuffer,
        retained: Retained,
        url_groups: UrlGroups,
        owners: Owners,
        awaited: Awaited,
        writer: Writer,
        clock: Clock,
        traces: Traces | None,
        part: Part,
        *,
        node: int,
        dispatched: Callable[[int], None],
        passed: Callable[[bytes, int], None],
    ) -> None:
        """`part`: of TURN_COST. `dispatched`: called with the number of stored messages that a turn passed;
        `passed` with the owner of each that has one, and its bytes."""
        self._horizon = horizon
        self._wheel = wheel
        self._tail = tail
        self._router = router
        self._reader = reader
        self._ready = ready
        self._spill = spill
        self._retained = retained
        self._url_groups = url_groups
        self._owners = owners
        self._awaited = awaited
        self._writer = writer
        self._clock = clock
        self._traces = traces
        self._node = node
        self._dispatched = dispatched
        self._passed = passed
        self._live: deque[tuple[Message, Answer | None, int, int]] = deque()
        """With the size of each and its deliveries."""
        self.live_bytes = 0
        """RAM of the plain publishes that wait for the horizon."""
        self._run = TURN_MESSAGES
        """Messages that are passed in one go, by how many sessions got those before."""
        self.reach = 0
        """How many deliveries they make; one each of those that came while only one owner was there."""
        self._part = part
        self._marks: deque[tuple[Position, Callable[[], None]]] = deque()
        self.counts = Counts()
        writer.add_hook(self)

    @property
    def live(self) -> int:
        """Number of plain publishes that wait for the horizon."""
        return len(self._live)

    def add_live(self, message: Message, answer: Answer | None) -> None:
        """A message that is not stored; positions come in rising order. `answer`: once it is handed on."""
        size = message.size()
        reach = 1 if self._part.now == 1.0 else max(1, len(self._router.route(message.topic)))
        self._live.append((message, answer, size, reach))
        self.live_bytes += size
        self.reach += reach

    def retract(self, first_seq: int, last_seq: int) -> None:
        """Forget waiting plain publishes with a seq above the first and up to the last: their group commit
        failed, and they were answered with an error."""
        kept = [one for one in self._live if not first_seq < seq_of(one[0].position) <= last_seq]
        if len(kept) < len(self._live):
            self._live = deque(kept)
            self.live_bytes = sum(size for _, _, size, _ in kept)
            self.reach = sum(reach for _, _, _, reach in kept)

    def add_mark(self, place: Position, passed: Callable[[], None]) -> None:
        """Call `passed` when the horizon has come to `place`; these come in rising order too."""
        self._marks.append((place, passed))

    def turn(self, limit: int = TURN_MESSAGES) -> bool:
        """Move the horizon past at most `limit` stored messages, and `limit` others. True if there is more to
        do at once."""
        wall_ms = self._clock.wall_ms()
        horizon = self._horizon
        horizon.observe(wall_ms)
        end = horizon.limit(self._wheel.loaded)
        self.counts.turns += 1
        passed = spent = 0
        most = int(TURN_COST * self._part.now)
        if self._retained.is_full:
            return False  # the batch that empties it plans a round
        while True:
            to, count, cost = self._pass_run(end, min(self._run, limit), most - spent, wall_ms)
            horizon.advance(to)
            while self._marks and self._marks[0][0] <= to:
                self._marks.popleft()[1]()
            passed += count
            spent += cost
            if count:
                self._run = min(TURN_MESSAGES, max(RUN_MIN, most * count // (cost + 1)))
            if to >= end or passed >= limit or spent >= most:
                self._spill.gone(self._tail.floor)
                return to < end

    def _pass_run(self, end: Position, run: int, most: int, wall_ms: int) -> tuple[Position, int, int]:
        """Pass at most `run` stored messages and `run` others, while they cost less than `most`, but one at
        least: how far, how many, what they cost."""
        live, to = self._live, end
        if len(live) > run:
            to = min(to, live[run - 1][0].position)
        due = self._wheel.advance(to, run)
        if len(due) >= run:
            to = due[-1][0]
        if not due and not live:
            return to, 0, 0
        given, count, cost = self._hand_on(due, to, most, wall_ms)
        if given < len(due):
            to = Position(due[given][0] - 1)
            for place, (shard, value) in due[given:]:
                self._wheel.add(place, *entry(shard, value))
        if live and live[0][0].position <= to:
            to = Position(live[0][0].position - 1)
        if given:
            self.counts.dispatched += given
            self._writer.note_turn(to, wall_ms)
            self._dispatched(given)
        return to, count, cost

    def _hand_on(
        self, due: list[tuple[Position, Entry]], to: Position, most: int, wall_ms: int
    ) -> tuple[int, int, int]:
        """Give out due entries and waiting plain publishes up to `to`, in position order: how many entries,
        how many of both, and what they cost."""
        live, late_ms = self._live, self.counts.late_ms
        given = count = cost = 0
        self._router.take_cost()  # what others have spent
        for place, (shard, value) in due:
            if live and live[0][0].position < place:
                handed, spent = self._hand_live(place, most - cost)
                count += handed
                cost += spent
            if cost >= most:
                return given, count, cost
            try:
                if value is None:
                    value = self._reader.value_at(place, shard)
                    assert value is not None, "a row in the wheel is on disk"
                message = Message(place, shard, None, wall_ms, value)
            except Corrupt as error:
                given += 1
                count += 1
                self._reader.unreadable_row(place, shard, error)
                continue
            except StoreFailed:
                if not count:
                    raise
                # What has been given out is behind the horizon; this one is tried again in the next turn.
                return given, count, max(cost, most)
            given += 1
            count += 1
            if wall_ms < message.due_ms:
                self.counts.early += 1
            late_ms.append(message.late_ms)
            size = message.size()
            cost += size >> COST_BITS
            if message.is_judged:
                if owner := message.sender[0]:
                    self._passed(owner, len(value))
                may_have = self._owners.allow(message)
                if self._owners.cost:
                    cost += self._owners.take_cost()
                if not may_have:
                    self._withhold(message, size)
                    continue
            if self._traces is not None and not message.is_usual:
                cost += self._tell(self._traces, message, wall_ms)
            cost += self._give(message, wall_ms, size) + self._router.take_cost()
        handed, spent = self._hand_live(Position(to + 1), most - cost)
        return given, count + handed, cost + spent

    def _hand_live(self, before: Position, most: int) -> tuple[int, int]:
        """Give out the plain publishes that wait before a place, while they cost less than `most`: how many,
        and what they cost."""
        live, count, cost = self._live, 0, 0
        while live and cost < most and live[0][0].position < before:
            targets = self._router.route(live[0][0].topic)
            messages, answers, sizes = self._next_run(before, most - cost, len(targets))
            count += len(messages)
            cost += sum([size >> COST_BITS for size in sizes])
            if len(messages) == 1:
                if self._traces is not None and not messages[0].is_usual:
                    cost += self._tell(self._traces, messages[0], messages[0].due_ms)
                matched = self._give(messages[0], messages[0].due_ms, sizes[0])
            else:
                matched = len(targets)
                self._give_run(messages, sizes, targets)
            cost += matched * len(messages) + self._router.take_cost()
            verdict = Verdict.TAKEN if matched else Verdict.UNWANTED
            for answer in answers:
                try:
                    answer(verdict, 0)
                except Exception:
                    log.exception("publish: the answer failed")
        return count, cost

    def _next_run(
        self, before: Position, most: int, matched: int
    ) -> tuple[list[Message], list[Answer], list[int]]:
        """The next plain publish and those behind it that go to the same `matched` subscribers in the same
        way, while they cost less than `most`; with their answers and sizes."""
        live = self._live
        message, answer, size, reach = live.popleft()
        messages, answers, sizes = [message], [] if answer is None else [answer], [size]
        if message.is_usual:
            topic, qos = message.topic, message.qos
            left = min(most, RUN_MAX * (matched + 1)) - matched - 1 - (size >> COST_BITS)
            while live and left > 0:
                message, answer, size, own = live[0]
                if (
                    message.topic != topic
                    or message.qos != qos
                    or not message.is_usual
                    or message.position >= before
                ):
                    break
                live.popleft()
                reach += own
                messages.append(message)
                sizes.append(size)
                if answer is not None:
                    answers.append(answer)
                left -= matched + 1 + (size >> COST_BITS)
        self.live_bytes -= sum(sizes)
        self.reach -= reach
        return messages, answers, sizes

    def _give_run(self, messages: list[Message], sizes: list[int], targets: Targets) -> None:
        """`_give` of unstored usual messages, all to the same subscribers, in order."""
        run = Run(messages)
        self._router.pass_over(messages[0].topic, len(messages))
        self._tail.extend([place for place, _ in run.addresses], messages, sizes)
        if not targets:
            self._nobody(messages[0], len(messages))
        for subscriber, subscriptions in targets.items():
            given = 0
            if subscriber.session.tailing:
                try:
                    given = subscriber.offer_run(run, subscriptions)
                    while given < len(messages) and subscriber.offer(messages[given], subscriptions):
                        given += 1
                except Exception:
                    subscriber.close_failed()
                if given < len(messages):
                    self._put_off(subscriber, messages[given])
            for message in messages[given:]:
                self._pass_over(message, subscriber, subscriptions)

    def _give(self, message: Message, wall_ms: int, size: int) -> int:
        """Offer a message to every tailing session that it matches. Returns the cost: 1 for each match."""
        targets, made = self._router.route(message.topic), 0
        self._router.pass_over(message.topic)
        self._tail.append(message.position, message, size)
        if not message.is_usual:
            record = message.record
            if is_dropped(record, message.due_ms, wall_ms):
                self.counts.expired += 1
                return len(targets)
            if record.deliver_to:
                made += self._url_groups.meet(record, message.position)
                targets = targets | self._router.posted(record.deliver_to, record.owner, message.position)
            if record.retain:
                self._retain(message)
        if not targets:
            self._nobody(message, 1)
            return 0
        is_unstored = message.shard < 0
        most = TURN_COST
        for subscriber, subscriptions in targets.items():
            if subscriber.session.tailing:
                most -= 1
                try:
                    if most >= 0 and subscriber.offer(message, subscriptions):
                        continue
                except Exception:
                    subscriber.close_failed()
                self._put_off(subscriber, message)
            if is_unstored:
                self._pass_over(message, subscriber, subscriptions)
            elif subscriber.is_endpoint:
                _note(subscriber, message)
        return len(targets) + MADE_COST * made

    def _withhold(self, message: Message, size: int) -> None:
        """Nobody gets the message now. It waits for its owner, or places that are behind read it, as that may
        be allowed again."""
        if self._awaited.note(message):
            return
        self._tail.append(message.position, message, size)
        if message.is_usual:
            return
        record = message.record
        for endpoint in self._router.posted(record.deliver_to, record.owner, message.position):
            if not endpoint.session.tailing:
                _note(endpoint, message)

    def _nobody(self, message: Message, count: int) -> None:
        """Count messages that nobody asks for; not the server's own, nor retained ones."""
        if not message.retain and not message.topic.startswith(OWN_TOPICS):
            self.counts.unclaimed += count

    def _tell(self, traces: Traces, message: Message, wall_ms: int) -> int:
        """Make the span of a message that belongs to a trace; returns the cost."""
        properties = message.record.properties
        if _PARENT not in properties or is_dropped(message.record, message.due_ms, wall_ms):
            return 0
        headers, _ = headers_of(properties)
        name, attempt = message.id_text(self._node) if message.is_stored else "", message.try_number(0)
        is_told = traces.dispatched(headers, message.topic, name, message.due_ms, message.late_ms, attempt)
        return DISPATCH_COST if is_told else 0

    def _pass_over(
        self, message: Message, subscriber: Subscriber, subscriptions: tuple[Subscription, ...]
    ) -> None:
        """Keep an unstored message for a session without room, unless it is QoS 0."""
        if is_owed(message, subscriptions):
            self._spill.add(subscriber, message)
        elif subscriber.is_reachable:
            self._spill.put_off(message.position)

    def _retain(self, message: Message) -> None:
        try:
            self._retained.note(message)
        except Corrupt as error:
            log.error("retained message not updated: the stored one is unreadable: %s", error)

    def _put_off(self, subscriber: Subscriber, message: Message) -> None:
        """Let the session read this message and later ones from the store."""
        subscriber.session.fall_behind(Position(message.position - 1))
        self._ready.wake(subscriber)


def _note(subscriber: Subscriber, message: Message) -> None:
    """An endpoint that is behind has the message still to read."""
    if isinstance(subscriber, Group) and subscriber.ahead is not None:
        subscriber.ahead.note(message.position, message.shard)
