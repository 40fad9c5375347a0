"""Ready queue: sessions that may have messages to read and room for them, in the order of waking.

A session that has no room says so (`offer` gives False) and falls behind; it is woken by what makes room: its
next ack, its socket that takes data again, its next connection. It then waits here for its turn
(server/delivery/replay). A session is here once, however often it is woken, so the queue is bounded with the
sessions.
"""

from collections import deque
from collections.abc import Callable
from enum import Enum, auto

from timeline.horizon import Horizon

from .place import Place
from .shared import Group


class TurnResult(Enum):
    """Result of a part of a turn."""

    DONE = auto()
    MORE = auto()
    """The turn's budget is used up; the rest follows in the next turn."""
    BLOCKED = auto()
    """No room: the next ack, or the socket, wakes the subscriber."""


class Ready:
    """Queue of sessions that may continue reading."""

    def __init__(self, horizon: Horizon, wake: Callable[[], None]) -> None:
        """`wake`: somebody waits for a turn."""
        self._horizon = horizon
        self._queue: deque[Place] = deque()
        self._wake = wake

    def __len__(self) -> int:
        return len(self._queue)

    def wake(self, subscriber: Place) -> None:
        """Queue a subscriber that may have room and something to read."""
        if subscriber.is_ready or not subscriber.is_reachable or subscriber.session.tailing:
            return
        subscriber.is_ready = True
        self._queue.append(subscriber)
        self._wake()

    def call(self, subscriber: Place) -> None:
        """Queue it also if it tails: something waits for it that is not unread."""
        subscriber.session.fall_behind(self._horizon.position)
        self.wake(subscriber)

    def look(self, group: Group) -> None:
        """It may have something to read, or a key that is free."""
        if group.goes_on():
            group.session.fall_behind(self._horizon.position)
        self.wake(group)

    def pause(self, group: Group) -> None:
        """Stops the read position while no member is connected; otherwise wakes the group."""
        if not group.is_reachable or group.session.resends:
            group.session.fall_behind(self._horizon.position)
        self.wake(group)

    def take(self) -> Place:
        """Take the next subscriber. There must be one."""
        subscriber = self._queue.popleft()
        subscriber.is_ready = False
        return subscriber
