"""Bound of posts to full URLs: which lane may begin a post, and which is next when one has ended.

All origins share `capacity` posts. Each origin has a *lane* of one of three speeds, by its last post:

    quick      took less than QUICK_MS    may begin any free post
    unknown    no post yet                one post, while unknown and slow lanes use less than three quarters
    slow       took longer                while slow lanes use less than half

So hanging origins have at most half of the posts once they are known, which leaves room for new origins, and
both leave room for quick ones. A lane without a post under way may begin one whenever one is free for its
speed. It may begin further ones while it has less than a SHARE-th of the free posts. A key may have KEY_FREE
times the posts that are free for it, so a key with many origins leaves room for others.

A lane without room and without a post under way waits in the queue of its key and speed. When posts have
ended, the speeds are served in turn, and of each speed its queues, one lane each. Of the unknown lanes of a
key the newest and the oldest are served alternately: behind 2,000 that hang a new one would wait for minutes.
A served lane keeps its post for GRANT_S. If it has posted nothing by then, the next lane is served.

No more than BEGINS posts begin in a turn of the loop, as each takes some 0.3 ms. A lane waits at most once,
so the queues are bounded by the lanes.
"""

from asyncio import TimerHandle
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from enum import IntEnum
from functools import partial

SHARE = 6
KEY_FREE = 3
QUICK_MS = 2_000.0
GRANT_S = 5.0
BEGINS = 20


class Speed(IntEnum):
    """How fast the origin of a lane answers, by its last post."""

    QUICK = 0
    UNKNOWN = 1
    SLOW = 2


class Lane:
    """The posts of one key to one origin."""

    __slots__ = ("grant_end", "granted", "is_waiting", "open", "owner", "speed", "wake")

    def __init__(self, owner: str, wake: Callable[[], bool]) -> None:
        """`wake`: called when there may be room; returns whether there is a message to post."""
        self.wake = wake
        self.owner = owner
        self.speed = Speed.UNKNOWN
        self.open = 0
        """Posts under way."""
        self.granted: Speed | None = None
        """Speed of the post granted to a served lane, which counts as under way until `grant_end`."""
        self.grant_end: TimerHandle | None = None
        self.is_waiting = False


class Slots:
    """Posts shared by all lanes."""

    def __init__(
        self, capacity: int, each: int, later: Callable[[float, Callable[[], None]], TimerHandle]
    ) -> None:
        """`each`: bound of posts per lane. `later`: plans a call in so many seconds; 0: in the next turn."""
        self._capacity = capacity
        self._each = each
        self._later = later
        self._open = [0, 0, 0]
        """Posts under way or granted, by speed."""
        self._owners: Counter[str] = Counter()
        """The same by owner, without zeros."""
        self._queues: list[OrderedDict[str, deque[Lane]]] = [OrderedDict() for _ in Speed]
        """Queues of waiting lanes by speed and owner, next served first; none is empty. A speed without room
        costs one look: with 4,600 queues in one order each post that ended cost 11 ms."""
        self._newest_served: set[str] = set()
        """Owners with unknown lanes that wait, the last of which to be served was the newest."""
        self._begun = 0
        """Posts begun or granted in this turn of the loop. Below BEGINS no waiting lane has room."""

    def has_room(self, lane: Lane) -> bool:
        """Whether the lane may begin a post. If not, and without posts under way, it waits from now on until
        its `wake` is called."""
        if lane.granted is not None:
            return True
        free = self._free(lane.speed, lane.owner) if self._begun < BEGINS else 0
        if lane.open:
            each = self._each if lane.speed is not Speed.UNKNOWN else 1
            return lane.open < min(each, free // SHARE)
        queues = self._queues[lane.speed]
        if free > 0 and lane.owner not in queues:
            return True
        if not lane.is_waiting:
            lane.is_waiting = True
            queues.setdefault(lane.owner, deque()).append(lane)
        return False

    def take(self, lane: Lane) -> Speed:
        """Begin a post; returns the speed for `give`."""
        speed = lane.granted
        if speed is None:
            speed = lane.speed
            self._begin(speed, lane.owner)
        else:
            self._end_grant(lane)
        lane.open += 1
        return speed

    def give(self, lane: Lane, speed: Speed, took_ms: float) -> None:
        """End a post that took `took_ms`."""
        self._count(speed, lane.owner, -1)
        lane.open -= 1
        lane.speed = Speed.QUICK if took_ms < QUICK_MS else Speed.SLOW
        self._serve()
        lane.wake()

    def remove(self, lane: Lane) -> None:
        """Remove a closed lane: it waits no longer. Its posts under way still end by `give`."""
        if lane.is_waiting:
            queue = self._queues[lane.speed][lane.owner]
            queue.remove(lane)
            lane.is_waiting = False
            if not queue:
                self._end_queue(lane.speed, lane.owner)
        self._release(lane)

    def _turn(self) -> None:
        """A new turn of the loop: as many posts may begin again."""
        self._begun = 0
        self._serve()

    def _serve(self) -> None:
        """Serve waiting lanes while there is room."""
        is_served = True
        while is_served:
            is_served = False
            for speed in Speed:
                owner = self._next(speed) if self._begun < BEGINS else None
                if owner is not None:
                    self._grant(speed, owner)
                    is_served = True

    def _next(self, speed: Speed) -> str | None:
        """The owner whose queue of that speed is served next; None: there is no room, or no lane waits."""
        if not self._queues[speed] or self._room(speed) <= 0:
            return None
        return next((owner for owner in self._queues[speed] if self._free(speed, owner) > 0), None)

    def _grant(self, speed: Speed, owner: str) -> None:
        """Grant a post to a lane of a queue, and move the queue to the end."""
        queue = self._queues[speed][owner]
        is_newest = speed is Speed.UNKNOWN and owner not in self._newest_served
        if is_newest:
            self._newest_served.add(owner)
        elif speed is Speed.UNKNOWN:
            self._newest_served.remove(owner)
        lane = queue.pop() if is_newest else queue.popleft()
        if queue:
            self._queues[speed].move_to_end(owner)
        else:
            self._end_queue(speed, owner)
        lane.is_waiting = False
        if lane.wake():
            lane.granted, lane.grant_end = speed, self._later(GRANT_S, partial(self._release, lane))
            self._begin(speed, owner)

    def _end_queue(self, speed: Speed, owner: str) -> None:
        """Remove a queue that is empty."""
        del self._queues[speed][owner]
        if speed is Speed.UNKNOWN:
            self._newest_served.discard(owner)

    def _begin(self, speed: Speed, owner: str) -> None:
        if not self._begun:
            self._later(0, self._turn)
        self._begun += 1
        self._count(speed, owner, 1)

    def _release(self, lane: Lane) -> None:
        """Take back a grant."""
        if lane.granted is not None:
            self._count(lane.granted, lane.owner, -1)
            self._end_grant(lane)
            self._serve()

    def _end_grant(self, lane: Lane) -> None:
        assert lane.grant_end is not None
        lane.grant_end.cancel()
        lane.granted = lane.grant_end = None

    def _count(self, speed: Speed, owner: str, more: int) -> None:
        self._open[speed] += more
        self._owners[owner] += more
        if not self._owners[owner]:
            del self._owners[owner]

    def _room(self, speed: Speed) -> int:
        """Posts of that speed that may still begin."""
        quick, unknown, slow = self._open
        free = self._capacity - quick - unknown - slow
        if speed is not Speed.QUICK:
            free = min(free, self._capacity * 3 // 4 - unknown - slow)
        if speed is Speed.SLOW:
            free = min(free, self._capacity // 2 - slow)
        return free

    def _free(self, speed: Speed, owner: str) -> int:
        """Those of them that the owner may begin."""
        free = self._room(speed)
        return min(free, -((self._owners[owner] - KEY_FREE * free) // (KEY_FREE + 1)))
