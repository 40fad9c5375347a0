"""Gives a message that the horizon passes to those who are there: the places that tail and subscribe to it.

A place without room falls behind at that message, and is kept an unstored one (spill_buffer.py). A message
with `deliver_to` also goes to the group of that endpoint, whatever its topic. For a URL the group is made
here, with the first message for its origin (url_groups.py).

A message that no session, group or endpoint asks for is counted as unclaimed. A place that is away, paused or
full still asks for it.
"""

import logging
from dataclasses import dataclass, field

from shards.errors import Corrupt
from shards.fate import is_dropped
from timeline.position import Position
from timeline.session import Subscription
from timeline.tail import Tail

from .message import Message
from .owners import ALERTS, Owners
from .place import Place
from .ready import Ready
from .retained import Retained
from .router import Router, Targets
from .run import Run
from .spill_buffer import SpillBuffer, is_owed
from .url_groups import UrlGroups

log = logging.getLogger(__name__)

MADE_COST = 100
"""... and to make the group of an origin costs as much as so many."""
OWN_TOPICS = (b"$SYS/", b"$dead/", ALERTS)
"""Topic prefix of the server's own messages."""


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


class Giving:
    """Gives to all that a message goes to."""

    def __init__(
        self,
        tail: Tail[Message],
        router: Router,
        ready: Ready,
        spill: SpillBuffer,
        retained: Retained,
        url_groups: UrlGroups,
        owners: Owners,
    ) -> None:
        self.tail = tail
        self.router = router
        self._ready = ready
        self.spill = spill
        self.retained = retained
        self._url_groups = url_groups
        self.owners = owners
        self.counts = Counts()

    def give(self, message: Message, wall_ms: int, size: int, most: int) -> int:
        """Offer a message to every tailing session that it matches. Returns the cost: 1 for each match.
        `most`: to so many; the others fall behind."""
        targets, made = self.router.route(message.topic), 0
        self.router.pass_over(message.topic)
        self.tail.append(message.position, message, size)
        if not message.is_usual:
            record = message.record
            if is_dropped(record, message.due_ms, wall_ms):
                self.counts.expired += 1
                return len(targets)
            if record.deliver_to:
                made += self._url_groups.meet(record, message.position)
                targets = targets | self.router.posted(record.deliver_to, record.owner, message.position)
            if record.retain:
                self._retain(message)
        if not targets:
            self._nobody(message, 1)
            return 0
        is_unstored = message.shard < 0
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
            elif subscriber.ahead is not None:
                subscriber.ahead.note(message.position, message.shard)
        return len(targets) + MADE_COST * made

    def give_run(self, messages: list[Message], sizes: list[int], targets: Targets) -> None:
        """`_give` of unstored usual messages, all to the same subscribers, in order."""
        run = Run(messages)
        self.router.pass_over(messages[0].topic, len(messages))
        self.tail.extend([place for place, _ in run.addresses], messages, sizes)
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

    def _pass_over(
        self, message: Message, subscriber: Place, subscriptions: tuple[Subscription, ...]
    ) -> None:
        """Keep an unstored message for a session without room, unless it is QoS 0."""
        if is_owed(message, subscriptions):
            self.spill.add(subscriber, message)
        elif subscriber.is_reachable:
            self.spill.put_off(message.position)

    def _put_off(self, subscriber: Place, message: Message) -> None:
        """Let the session read this message and later ones from the store."""
        subscriber.session.fall_behind(Position(message.position - 1))
        self._ready.wake(subscriber)

    def _retain(self, message: Message) -> None:
        try:
            self.retained.note(message)
        except Corrupt as error:
            log.error("retained message not updated: the stored one is unreadable: %s", error)

    def _nobody(self, message: Message, count: int) -> None:
        """Count messages that nobody asks for; not the server's own, nor retained ones."""
        if not message.retain and not message.topic.startswith(OWN_TOPICS):
            self.counts.unclaimed += count
