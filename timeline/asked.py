"""Which subscriptions of a session are still to be sent what is retained, and how far the first of them is.

A SUBSCRIBE that asks for what is retained takes a number, counted per session; the subscription remembers it.
They are served one after the other, each in the order of topics. So two numbers and a topic say all of it,
however many filters wait:

    asked: a/# 1, b/# 2, c 3      done 1, topic "b/17": a/# has been sent, b/# up to b/17, c is to come

That is stored with the read position and the flights, in one value: a message is either behind `topic` and
in flight or acked, or still to come. Who gives a subscription up, or asks anew, is taken out of the line.
Bound: one entry a subscription, one topic in all.
"""

from collections.abc import Iterable

from .session import Subscription


class Asked:
    """A line of filters; the topic sent last belongs to the first."""

    __slots__ = ("_count", "_line", "topic")

    def __init__(self) -> None:
        self.topic = b""
        """What is retained up to this topic has been sent to the first in line."""
        self._line: dict[str, int] = {}
        self._count = 0

    def __len__(self) -> int:
        return len(self._line)

    @property
    def first(self) -> str:
        """The filter that is being served; only while there is one."""
        return next(iter(self._line))

    @property
    def done(self) -> int:
        """Everything asked for up to this number has been sent."""
        return self._line[self.first] - 1 if self._line else self._count

    def add(self, subscription: Subscription) -> None:
        """Put a subscription at the end of the line, to be served from the first topic on."""
        self.discard(subscription.filter)
        self._count += 1
        self._line[subscription.filter] = subscription.asked = self._count

    def discard(self, topic_filter: str) -> None:
        """It is not to be served (any more)."""
        if topic_filter in self._line:
            if topic_filter == self.first:
                self.topic = b""
            del self._line[topic_filter]

    def finish(self) -> None:
        """The first in line has been sent everything."""
        self.discard(self.first)

    def restore(self, subscriptions: Iterable[Subscription], done: int, topic: bytes) -> None:
        """As it was when `done` and `topic` were stored, and with them what each subscription had asked."""
        left = sorted((s for s in subscriptions if s.asked > done), key=lambda s: s.asked)
        self._line = {subscription.filter: subscription.asked for subscription in left}
        self._count = left[-1].asked if left else done
        self.topic = topic if left and left[0].asked == done + 1 else b""
