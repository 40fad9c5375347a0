"""A whole server without a loop and what a test does with it, on a store of any kind and a clock that is set.

It asks, connects and acks; the steps are those of tests/support/stepper.py. At each of `POINTS`
`reached(point)` is called, where a test may look, or end the process.
"""

from collections.abc import Callable, Iterable
from typing import Any

from server.core import Core
from server.delivery.message import Message as Sent
from server.delivery.subscriber import Subscriber
from server.settings.config import Config
from shards.commit import Draft
from shards.fields import Record
from shards.record import encode
from shards.store import Store
from tests.support.clock import HandClock
from tests.support.ledger.arrivals import Arrivals, Inbox
from tests.support.ledger.messages import Message
from tests.support.link import FakeLink, Taken
from tests.support.stepper import Stepper
from timeline.position import MessageId
from timeline.session import Subscription

POINTS = (
    *("deciding", "composed", "writing", "written", "overtaken", "flushed"),
    *("answered", "settled"),
    *("handing on", "dispatched", "loaded", "read on"),
)


class Hand:
    """The core and what a test does with it."""

    def __init__(
        self,
        store: Store,
        clock: HandClock,
        config: Config | None = None,
        reached: Callable[[str], None] = print,
    ) -> None:
        self.clock = clock
        self.store = store
        self.reached = reached
        self.stepper = Stepper(store, clock, config, reached)

    @property
    def core(self) -> Core:
        return self.stepper.core

    def round(self) -> None:
        """One turn of the server's loop, which takes its time."""
        self.clock.mono_s += 0.25
        self.stepper.round()

    def rest(self) -> None:
        """Rounds until nothing is left to do at this time."""
        self.stepper.rest(self.round)

    def ask(self, decide: Callable[[Any], Any], done: Callable[[Any], None], cost: int = 1) -> None:
        """A request; `decide` is watched, and so is what comes after its answer."""

        def decided(commit: Any) -> Any:
            self.reached("deciding")
            return decide(commit)

        def answered(answer: Any) -> None:
            done(answer)
            self.reached("answered")

        self.core.writer.submit(decided, answered, cost=cost)

    def put(self, wishes: Iterable[tuple[str, str, int]], done: Callable[[list[MessageId]], None]) -> None:
        """Schedule (topic, payload, due ms), all or none."""
        drafts = [
            Draft(due_ms, topic.encode(), encode(Record(topic.encode(), payload.encode(), due_ms)))
            for topic, payload, due_ms in wishes
        ]

        def answered(answer: Any) -> None:
            if not isinstance(answer, Exception):
                done(answer)

        self.ask(lambda commit: commit.put(drafts), answered, len(drafts))

    def cancel(self, message: MessageId, done: Callable[[Any], None]) -> None:
        self.ask(lambda commit: commit.cancel(message), done)

    def move(self, message: MessageId, due_ms: int, done: Callable[[Any], None]) -> None:
        self.ask(lambda commit: commit.move(message, due_ms), done)

    def connect(self, client_id: str, taken: Taken, *filters: str, window: int = 1_000) -> Subscriber:
        """A persistent session with a connection and its filters; durable when this returns."""
        core = self.core
        link = FakeLink(taken)
        subscriber, _ = core.clients.claim(
            link, client_id, clean_start=False, expiry_s=10_000_000, window=window
        )
        assert subscriber is not None
        core.clients.store(subscriber, lambda is_durable: None)
        core.clients.resume(subscriber)
        for topic_filter in filters:
            core.subscriptions.subscribe(
                subscriber, Subscription(topic_filter, 1, core.horizon.position), None
            )
        core.clients.store(subscriber, lambda is_durable: None)
        self.round()
        return subscriber

    def leave(self, subscriber: Subscriber) -> None:
        self.core.clients.leave(subscriber, is_clean=False)
        self.round()

    def ack(self, subscriber: Subscriber, packet_id: int) -> None:
        if subscriber.session.ack(packet_id) is not None:
            subscriber.dirty.add(subscriber)
            if not subscriber.session.tailing:
                self.core.groups.read_on(subscriber)


class Audit:
    """A persistent session that acks all it gets, and who cancels and moves: all as the account knows it."""

    hand: Hand
    """The server as it runs now."""

    def __init__(self, account: Arrivals, name: str) -> None:
        self.account, self.messages = account, account.messages
        self.inbox = account.inboxes.setdefault(name, Inbox(name))
        self._unacked: list[int] = []

    def connect(self, *filters: str) -> None:
        self._unacked.clear()
        self.inbox.open()
        self._subscriber = self.hand.connect(self.inbox.name, self._taken, *filters)

    def shows(self) -> None:
        self.messages.clock.shows(self.hand.clock.now_ms)

    def rest(self) -> None:
        self.hand.rest()
        while self._unacked:
            for packet_id in self._unacked:
                self.hand.ack(self._subscriber, packet_id)
            self._unacked.clear()
            self.hand.rest()

    def cancel(self, message: Message) -> bool:
        """Whether it was taken back."""
        message.is_cancel_asked = True
        answer = self._answer(lambda done: self.hand.cancel(name_of(message), done))
        (self.messages.cancelled if answer == "done" else self.messages.not_cancelled)(message)
        return message.is_cancelled

    def move(self, message: Message, due_ms: int) -> bool:
        self.messages.wish(message, due_ms)
        answer = self._answer(lambda done: self.hand.move(name_of(message), due_ms, done))
        (self.messages.moved if answer == "done" else self.messages.not_moved)(message, due_ms)
        return answer == "done"

    def _answer(self, ask: Callable[[Callable[[Any], None]], None]) -> str:
        answers: list[Any] = []
        ask(answers.append)
        self.hand.round()
        outcome = answers[0].outcome.value
        assert outcome in ("done", "already-dispatched"), outcome
        return str(outcome)

    def _taken(self, sent: Sent, qos: int, packet_id: int, attempt: int) -> None:
        tag, now_ms = sent.record.payload.decode(), self.hand.clock.now_ms
        arrival = self.account.arrived(self.inbox, tag, now_ms, sent.record.due_ms, attempt, qos)
        self.account.acked(self.inbox, arrival, now_ms)
        self._unacked.append(packet_id)


def name_of(message: Message) -> MessageId:
    return MessageId(int(message.id, 16))
