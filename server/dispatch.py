"""Advances the horizon and hands on what it passes.

One turn: ask how far the horizon may go, take the due entries from the wheel and the plain publishes that
wait for the horizon, merge them in position order, give each to the sessions that are tailing, move the
horizon. A session that has no room stops tailing at that message and reads on by itself (server/replay).

Plain publishes that nobody can replay are never written; they wait here, in RAM, for the horizon to reach
the position that the writer gave them, which is at once unless something before them is still being
synced. Bound: `max_live` of them; a publisher is held back before that (server/mqtt).

One row that cannot be read is passed over, one session to which nothing can be sent loses its connection.

Never early: a turn reads the wall clock first, and the horizon does not pass what it shows.
"""

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from shards.errors import Corrupt
from shards.fate import is_dropped
from shards.read import Reader
from shards.record import decode
from timeline.horizon import Horizon
from timeline.position import Position
from timeline.tail import Tail
from timeline.wheel import Wheel

from .clock import Clock
from .message import Message
from .mqtt.router import Router
from .replay import Replay
from .writer import Entry, Writer

log = logging.getLogger(__name__)

TURN_MESSAGES = 1_000

Handed = Callable[[int], None]
"""Called when a plain publish has been handed on, with the number of sessions that match it."""


@dataclass(slots=True)
class Counts:
    """What dispatch has done since the start."""

    dispatched: int = 0
    expired: int = 0
    early: int = 0
    turns: int = 0
    late_ms: list[int] = field(default_factory=list)
    """Lateness of the messages of the last turn, for the histogram."""


class Dispatch:
    """The horizon's mover."""

    def __init__(
        self,
        horizon: Horizon,
        wheel: Wheel[Entry],
        tail: Tail[Message],
        router: Router,
        reader: Reader,
        replay: Replay,
        writer: Writer,
        clock: Clock,
        *,
        dispatched: Callable[[int], None],
        retain: Callable[[Message], None],
    ) -> None:
        """`dispatched`: called with the number of stored messages that a turn passed; `retain`: with each
        message that has the retain flag."""
        self._horizon = horizon
        self._wheel = wheel
        self._tail = tail
        self._router = router
        self._reader = reader
        self._replay = replay
        self._writer = writer
        self._clock = clock
        self._dispatched = dispatched
        self._retain = retain
        self._live: deque[tuple[Message, Handed | None]] = deque()
        self.counts = Counts()

    @property
    def live(self) -> int:
        """How many plain publishes wait for the horizon."""
        return len(self._live)

    def add_live(self, message: Message, handed: Handed | None) -> None:
        """A message that is not stored; positions come in rising order."""
        self._live.append((message, handed))

    def turn(self, limit: int = TURN_MESSAGES) -> bool:
        """Move the horizon as far as it may go, past at most `limit` stored messages.

        True if there is more to do at once.
        """
        wall_ms = self._clock.wall_ms()
        horizon = self._horizon
        horizon.observe(wall_ms)
        to = horizon.limit(self._wheel.loaded)
        due = self._wheel.advance(to, limit)
        if len(due) >= limit:
            to = due[-1][0]
        if due or self._live:
            self._hand_on(due, to, wall_ms)
        if due:
            self._writer.note_turn(to, wall_ms)
            self._dispatched(len(due))
        horizon.advance(to)
        self.counts.turns += 1
        return len(due) >= limit

    def _hand_on(self, due: list[tuple[Position, Entry]], to: Position, wall_ms: int) -> None:
        """Give out due entries and waiting plain publishes up to `to`, in position order."""
        live, late_ms = self._live, self.counts.late_ms
        for place, (shard, value) in due:
            while live and live[0][0].position < place:
                self._hand_live()
            try:
                if value is None:
                    value = self._reader.value_at(place, shard)
                    assert value is not None, "a row in the wheel is on disk"
                message = Message(place, shard, decode(value), wall_ms)
            except Corrupt as error:
                self._reader.unreadable_row(place, shard, error)
                continue
            if wall_ms < message.due_ms:
                self.counts.early += 1
            late_ms.append(message.late_ms)
            self._give(message, wall_ms)
        self.counts.dispatched += len(due)
        while live and live[0][0].position <= to:
            self._hand_live()

    def _hand_live(self) -> None:
        message, handed = self._live.popleft()
        matched = self._give(message, message.due_ms)
        if handed is not None:
            try:
                handed(matched)
            except Exception:
                log.exception("a publish could not be answered")

    def _give(self, message: Message, wall_ms: int) -> int:
        """Offer a message to every tailing session that it matches; how many match at all."""
        targets = self._router.route(message.record.topic)
        self._tail.append(message.position, message, message.size())
        record = message.record
        if is_dropped(record, message.due_ms, wall_ms):
            self.counts.expired += 1
            return len(targets)
        if record.retain:
            self._retain(message)
        for subscriber, subscriptions in targets.items():
            session = subscriber.session
            if session.tailing:
                try:
                    if subscriber.offer(message, subscriptions):
                        continue
                except Exception:
                    self._replay.give_up(subscriber)
                session.fall_behind(Position(message.position - 1))
                self._replay.wake(subscriber)
        return len(targets)
