"""A whole server without a loop, turned by hand, on a store of any kind and a clock that is set.

One `round` is what the server does in one turn of its loop, with the sync in its place; between any two steps
`reached(point)` is called, where a test may look, or end the process.
"""

from collections.abc import Callable, Iterable
from typing import Any

from server.config import Config
from server.core import Core
from server.delivery.message import Message
from server.delivery.subscriber import Closing, Subscriber
from shards.commit import Draft
from shards.errors import StoreFailed
from shards.record import Record, encode
from shards.store import Store
from tests.support.clock import HandClock
from timeline.position import MessageId
from timeline.session import Subscription

POINTS = (
    *("deciding", "composed", "writing", "written", "overtaken", "flushed"),
    *("answered", "settled"),
    *("handing on", "dispatched", "loaded", "read on"),
)
Taken = Callable[["HandLink", Message, int, int], None]
"""Called with each delivery: link, message, packet id (0 at QoS 0), attempt."""


class HandLink:
    """A connection that takes everything."""

    has_room = True

    def __init__(self, taken: Taken) -> None:
        self._taken = taken
        self.closed: list[int] = []

    def close(self, why: Closing) -> None:
        self.closed.append(why)

    def send(
        self,
        message: Message,
        qos: int,
        packet_id: int,
        subscriptions: tuple[Subscription, ...],
        attempt: int,
        is_retained: bool = False,
        is_first: bool = False,
    ) -> None:
        self._taken(self, message, packet_id, attempt)

    def release(self, packet_id: int) -> None:
        raise AssertionError("nothing here is QoS 2")


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
        self.core = Core(config or Config(), clock, store, wake=lambda: None)

    def round(self) -> None:
        """One turn of the server's loop."""
        core, reached = self.core, self.reached
        self.clock.mono_s += 0.25
        core.heartbeat()
        self._mark()
        group = core.writer.compose()
        reached("composed")
        if group is not None:
            # The sync runs in a thread: dispatch and replay go on meanwhile.
            core.dispatch.turn()
            core.replay.turn()
            reached("overtaken")
            try:
                self.store.flush()
            except StoreFailed as error:
                core.writer.fail(error)
            else:
                reached("flushed")
                core.writer.settle()
        reached("settled")
        core.dispatch.turn()
        reached("dispatched")
        if core.loader.is_behind:
            core.loader.step()
        reached("loaded")
        core.replay.turn()
        reached("read on")
        core.held.step()
        if core.writer.broken is not None:
            core.writer.recover()

    def _mark(self) -> None:
        bound_ms = self.core.writer.mark_ms
        if bound_ms is not None:
            self.store.mark(bound_ms)
            self.core.writer.marked(bound_ms, None)

    def settle(self, rounds: int = 2_000) -> None:
        """Rounds until nothing is left to do at this time."""
        for _ in range(rounds):
            self.round()
            if self.core.is_settled() and not self.core.loader.is_behind:
                return
        raise AssertionError("it does not settle")

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
        broker = self.core.broker
        link = HandLink(taken)
        subscriber, _ = broker.claim(link, client_id, clean=False, expiry_s=10_000_000, window=window)
        assert subscriber is not None
        broker.store(subscriber, lambda is_durable: None)
        broker.resume(subscriber)
        for topic_filter in filters:
            broker.subscribe(subscriber, Subscription(topic_filter, 1, broker.horizon), None)
        broker.store(subscriber, lambda is_durable: None)
        self.round()
        return subscriber

    def leave(self, subscriber: Subscriber) -> None:
        self.core.broker.leave(subscriber)
        self.round()

    def ack(self, subscriber: Subscriber, packet_id: int) -> None:
        if subscriber.session.ack(packet_id) is not None:
            subscriber.dirty.add(subscriber)
            if not subscriber.session.tailing:
                self.core.broker.read_on(subscriber)
