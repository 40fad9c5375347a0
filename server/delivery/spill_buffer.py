"""Spill buffer: unstored messages that were acknowledged but could not be sent yet.

A plain publish is not stored if everybody who subscribes to it at QoS 1 or 2 is connected, caught up and has
room. That is judged when the writer gives it a position, but it is sent when the horizon reaches that
position. Room may be gone by then: others were judged in the same round, a slow sync held the horizon, the
socket filled up. The publish has been acked, and the tail may drop it before the session reads on. So the
session keeps the message itself until it has read past it:

    judged unstored: m1 m2 m3      room left for one: m1 is sent, the session falls behind at m2
    owed:            m2 m3         it reads on: rows of the store and what it is owed, in position order

While a session is behind, its messages are stored. So it is owed at most what waited for the horizon at that
moment. Bound in all: when `bytes` and what waits for the horizon come to `max_bytes`, the writer stores plain
publishes.

At QoS 0 nothing is owed: a session without room reads the message from the tail, if it is still there later.
Otherwise it is `dropped`. To count these, the number of sessions that were put off is noted by position, for
at most the messages in the tail.
"""

from bisect import bisect_right
from collections.abc import Sequence

from timeline.position import Position
from timeline.session import Subscription

from .message import Message
from .place import Place


class SpillBuffer:
    """Messages by subscriber, in position order. `bytes`: of all of them, a shared message counted once."""

    def __init__(self, *, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.bytes = 0
        self._by_subscriber: dict[Place, list[Message]] = {}
        self._owing: dict[Message, int] = {}
        """Number of subscribers that are still owed a message."""
        self._put_off: dict[Position, int] = {}
        """Of QoS 0: how many had no room and have not read it since; in position order."""
        self.dropped = 0
        """Dropped deliveries at QoS 0."""

    def __len__(self) -> int:
        return sum(map(len, self._by_subscriber.values()))

    def add(self, subscriber: Place, message: Message) -> None:
        """The horizon passes a message that is not stored, and the subscriber has no room for it."""
        self._by_subscriber.setdefault(subscriber, []).append(message)
        owing = self._owing.get(message, 0)
        self._owing[message] = owing + 1
        if not owing:
            self.bytes += message.size()

    def of(self, subscriber: Place) -> Sequence[Message]:
        """Messages that the subscriber is still owed."""
        return self._by_subscriber.get(subscriber, ())

    def passed(self, subscriber: Place, read: Position) -> None:
        """The subscriber has read up to `read`."""
        messages = self._by_subscriber.get(subscriber)
        if messages is None:
            return
        count = bisect_right(messages, read, key=lambda message: message.position)
        for message in messages[:count]:
            self._settle(message)
        del messages[:count]
        if not messages:
            del self._by_subscriber[subscriber]

    def forget(self, subscriber: Place) -> None:
        """The session has ended: forget what it was owed."""
        for message in self._by_subscriber.pop(subscriber, ()):
            self._settle(message)

    def put_off(self, place: Position) -> None:
        """The horizon passes an unstored QoS 0 message, and a connected session has no room."""
        self._put_off[place] = self._put_off.get(place, 0) + 1

    def caught(self, place: Position) -> None:
        """Somebody has read it from the tail."""
        waiting = self._put_off.get(place, 0) - 1
        if waiting > 0:
            self._put_off[place] = waiting
        elif not waiting:
            del self._put_off[place]

    def gone(self, floor: Position) -> None:
        """The tail holds nothing up to `floor` any more."""
        put_off = self._put_off
        while put_off and (place := next(iter(put_off))) <= floor:
            self.dropped += put_off.pop(place)

    def _settle(self, message: Message) -> None:
        owing = self._owing[message] - 1
        if owing:
            self._owing[message] = owing
        else:
            del self._owing[message]
            self.bytes -= message.size()


def is_owed(message: Message, subscriptions: Sequence[Subscription]) -> bool:
    """Whether a message that is not stored goes to these at QoS 1 or 2."""
    if message.qos:
        for subscription in subscriptions:
            if subscription.qos:
                return True
    return False
