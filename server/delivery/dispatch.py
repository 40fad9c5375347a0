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

What its owner may not send now goes to nobody and is not retained: it is withheld (owners.py). An unstored
plain publish was checked when it came.

An unreadable row is passed over. A session to which nothing can be sent loses its connection.

Never early: a turn reads the wall clock first, and the horizon does not pass it.
"""

import logging
from collections import deque
from collections.abc import Callable

from shards.errors import Corrupt, StoreFailed
from shards.fate import is_dropped
from shards.properties import headers_of
from shards.recover import Opened
from timeline.position import Position, seq_of
from timeline.wheel import Wheel

from ..engine.clock import Clock
from ..engine.commit_hook import CommitHook
from ..engine.writer import Entry, Writer, entry
from ..fair import Part
from ..observe.trace_context import PARENT
from ..observe.tracing import DISPATCH_COST, Traces
from .alerts import Alerts
from .giving import Giving
from .message import Message
from .run import RUN_MAX
from .verdict import OnVerdict, Verdict

log = logging.getLogger(__name__)

TURN_MESSAGES = 1_000
TURN_COST = 2_000
"""Deliveries in one turn: each is some 2 us here and, for a connection of its own, 10 us at its socket."""
COST_BITS = 12
"""So many bytes of a message in RAM, 4 KiB, cost as much as a delivery."""
_PARENT = PARENT.encode()
RUN_MIN = 16
"""Messages taken from the wheel in one go, at least; those for which there is no time go back."""


class Dispatch(CommitHook):
    """Moves the horizon."""

    def __init__(
        self,
        opened: Opened,
        wheel: Wheel[Entry],
        giving: Giving,
        writer: Writer,
        clock: Clock,
        traces: Traces | None,
        part: Part,
        *,
        node: int,
    ) -> None:
        """`part`: of TURN_COST."""
        self._opened = opened
        self._horizon = opened.horizon
        self._wheel = wheel
        self._giving = giving
        self._router = giving.router
        self._reader = opened.reader
        self._owners = giving.owners
        self._writer = writer
        self._clock = clock
        self._traces = traces
        self._node = node
        self._live: deque[tuple[Message, OnVerdict | None, int, int]] = deque()
        """With the size of each and its deliveries."""
        self.live_bytes = 0
        """RAM of the plain publishes that wait for the horizon."""
        self._run = TURN_MESSAGES
        """Messages that are passed in one go, by how many sessions got those before."""
        self.reach = 0
        """How many deliveries they make; one each of those that came while only one owner was there."""
        self._part = part
        self._marks: deque[tuple[Position, Callable[[], None]]] = deque()
        self.counts = giving.counts
        self.alerts = Alerts(self._router, self._owners, writer)
        writer.add_hook(self)

    @property
    def live(self) -> int:
        """Number of plain publishes that wait for the horizon."""
        return len(self._live)

    @property
    def is_full(self) -> bool:
        """Whether dispatch waits for a batch, as too much of what it has noted is in RAM alone."""
        return self._giving.retained.is_full or self._opened.withheld.is_full

    def add_live(self, message: Message, answer: OnVerdict | None) -> None:
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
        if self.is_full:
            return False  # the batch that changes it plans a round
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
                self._giving.spill.gone(self._giving.tail.floor)
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
            self._opened.waiting.dispatched(given)
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
                    self._opened.owned.passed(owner, len(value))
                # It is noted nowhere: the horizon has not passed it.
                may_have = self._owners.is_known(message) or self._owners.allow_record(message.record)
                if self._owners.cost:
                    cost += self._owners.take_cost()
                if not may_have:
                    name, record = message.id(self._node), message.record
                    self._opened.withheld.note(message.position, name, record.owner)
                    posted = self._router.posted(record.deliver_to, record.owner, message.position)
                    places = self._router.route(record.topic) | posted
                    self.alerts.note(places, record, name, wall_ms, 0, "")
                    continue
            if self._traces is not None and not message.is_usual:
                cost += self._tell(self._traces, message, wall_ms)
            cost += self._giving.give(message, wall_ms, size, TURN_COST) + self._router.take_cost()
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
                matched = self._giving.give(messages[0], messages[0].due_ms, sizes[0], TURN_COST)
            else:
                matched = len(targets)
                self._giving.give_run(messages, sizes, targets)
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
    ) -> tuple[list[Message], list[OnVerdict], list[int]]:
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

    def _tell(self, traces: Traces, message: Message, wall_ms: int) -> int:
        """Make the span of a message that belongs to a trace; returns the cost."""
        properties = message.record.properties
        if _PARENT not in properties or is_dropped(message.record, message.due_ms, wall_ms):
            return 0
        headers, _ = headers_of(properties)
        name, attempt = message.id_text(self._node) if message.is_stored else "", message.try_number(0)
        has_span = traces.dispatched(headers, message.topic, name, message.due_ms, message.late_ms, attempt)
        return DISPATCH_COST if has_span else 0
