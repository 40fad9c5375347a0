"""Queue of a session's subscriptions that must still be sent retained messages, and the progress of the
first.

A SUBSCRIBE that asks for retained messages takes a number, counted per session, which the subscription
stores. They are served one after the other, each in the order of topics. So two numbers and a topic are the
whole state, however many filters wait:

    asked: a/# 1, b/# 2, c 3      done 1, topic "b/17": a/# has been sent, b/# up to b/17, c is to come

This is stored with the read position and the flights, in one value: a message is either behind `topic` and in
flight or acked, or still to come. An UNSUBSCRIBE, or a new request, removes the subscription from the queue.
Bound: one entry a subscription, one topic in all.
"""

from collections.abc import Iterable

from .session import Subscription


class RetainedQueue:
    """Queue of filters, and the topic last sent to the first one."""

    __slots__ = ("_count", "_queue", "topic")

    def __init__(self) -> None:
        self.topic = b""
        """Retained messages up to this topic have been sent to the first subscription."""
        self._queue: dict[str, int] = {}
        self._count = 0

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def first(self) -> str:
        """Filter being served; fails if the queue is empty."""
        return next(iter(self._queue))

    @property
    def done(self) -> int:
        """Number up to which all requests have been served."""
        return self._queue[self.first] - 1 if self._queue else self._count

    def add(self, subscription: Subscription) -> None:
        """Append a subscription, to be served from the first topic on."""
        self.discard(subscription.filter)
        self._count += 1
        self._queue[subscription.filter] = subscription.retained_request = self._count

    def discard(self, topic_filter: str) -> None:
        """Remove a subscription."""
        if topic_filter in self._queue:
            if topic_filter == self.first:
                self.topic = b""
            del self._queue[topic_filter]

    def finish(self) -> None:
        """Remove the first subscription, which has been sent everything."""
        self.discard(self.first)

    def restore(self, subscriptions: Iterable[Subscription], done: int, topic: bytes) -> None:
        """Restore the queue from `done` and `topic`, as stored, and the number of each subscription."""
        waiting = [one for one in subscriptions if one.retained_request > done]
        left = sorted(waiting, key=lambda one: one.retained_request)
        self._queue = {subscription.filter: subscription.retained_request for subscription in left}
        self._count = left[-1].retained_request if left else done
        self.topic = topic if left and left[0].retained_request == done + 1 else b""
