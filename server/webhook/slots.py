"""Posts to full URLs share a bound: who may begin one now, and who is next when one has ended.

All origins share `capacity` posts. Each has a *lane*, which is of one of three kinds by its last post:

    quick      it took less than QUICK_MS            any post that is free
    unknown    there was none                        one, while three quarters of all are not used by others
    slow       it took longer                        while half of all is not used by slow ones

So origins that hang have half of the posts once they are known, a new one finds room beside them, and a
quick one beside these. A lane without a post under way may begin one whenever one is free for its kind. A
further one it may begin while it has less than a SHARE-th of what is free. A key may have three times what is
free for it: however many origins it names, others find room.

A lane that asks in vain and has nothing under way waits in the line of its key and kind. When posts have
ended, lines are served in turn, the first of each. Of unknown ones the newest and the oldest are served by
turns: behind 2,000 that hang a new one would wait for minutes. A lane that is served keeps its post for
GRANT_S, whoever asks meanwhile; if it has nothing to post by then the next one is served.

No more than BEGINS posts begin in a turn of the loop, however many are free: each takes some 0.3 ms of it.
A lane waits once, so the lines are bounded with the lanes.
"""

from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from enum import IntEnum

SHARE = 6
KEY_FREE = 3
QUICK_MS = 2_000.0
GRANT_S = 5.0
BEGINS = 20


class Kind(IntEnum):
    """What an origin's last post was like."""

    QUICK = 0
    UNKNOWN = 1
    SLOW = 2


class Lane:
    """The posts of one key to one origin."""

    __slots__ = ("_slots", "granted", "granted_s", "is_waiting", "kind", "open", "owner", "wake")

    def __init__(self, slots: "Slots", owner: str, wake: Callable[[], bool]) -> None:
        """`wake`: told that there may be room; whether there is something to post."""
        self._slots = slots
        self.wake = wake
        self.owner = owner
        self.kind = Kind.UNKNOWN
        self.open = 0
        """Posts under way."""
        self.granted: Kind | None = None
        """It was served, and counts as if it had begun a post of that kind, ..."""
        self.granted_s = 0.0
        """... until then."""
        self.is_waiting = False

    @property
    def has_room(self) -> bool:
        """Whether a post may begin now. If not, the lane is woken when one may."""
        return self._slots.has_room(self)

    def take(self) -> Kind:
        """Begin a post. What is returned is given back when it has ended."""
        return self._slots.take(self)

    def give(self, kind: Kind, took_ms: float) -> None:
        """A post has ended."""
        self._slots.give(self, kind, took_ms)
        self.wake()

    def close(self) -> None:
        """It asks no more. Posts that are under way are still given back."""
        self._slots.leave(self)


class Slots:
    """The posts that all lanes share."""

    def __init__(self, capacity: int, each: int, mono: Callable[[], float]) -> None:
        """`each`: posts of one lane at a time. `mono`: s of a clock that only elapses."""
        self._capacity = capacity
        self._each = each
        self._mono = mono
        self._open = [0, 0, 0]
        """Posts under way by kind, and those that are granted."""
        self._owners: Counter[str] = Counter()
        """The same by owner; nobody with none."""
        self._lines: OrderedDict[tuple[Kind, str], deque[Lane]] = OrderedDict()
        """Lanes that wait, by kind and owner, the line that is served next first; none is empty."""
        self._granted: deque[tuple[float, Lane]] = deque()
        self._is_changed = False
        """Somebody may be served since it was last tried."""
        self._is_newest_next = False
        self._begun = 0
        """Posts that have begun, or were granted, in this turn."""

    @property
    def open(self) -> int:
        return sum(self._open)

    def has_room(self, lane: Lane) -> bool:
        """Whether the lane may begin a post. One that has nothing under way waits for it from now on."""
        if lane.granted is not None:
            return True
        free = self._free(lane.kind, lane.owner) if self._begun < BEGINS else 0
        if lane.open:
            each = self._each if lane.kind is not Kind.UNKNOWN else 1
            return lane.open < min(each, free // SHARE)
        line = (lane.kind, lane.owner)
        if free > 0 and line not in self._lines:
            return True
        if not lane.is_waiting:
            lane.is_waiting = self._is_changed = True
            self._lines.setdefault(line, deque()).append(lane)
        return False

    def take(self, lane: Lane) -> Kind:
        kind, lane.granted = lane.granted, None
        if kind is None:
            kind = lane.kind
            self._begin(kind, lane.owner)
        lane.open += 1
        return kind

    def give(self, lane: Lane, kind: Kind, took_ms: float) -> None:
        self._count(kind, lane.owner, -1)
        lane.open -= 1
        lane.kind = Kind.QUICK if took_ms < QUICK_MS else Kind.SLOW
        self._serve()

    def leave(self, lane: Lane) -> None:
        """The lane is closed."""
        if lane.is_waiting:
            line = self._lines[lane.kind, lane.owner]
            line.remove(lane)
            lane.is_waiting = False
            if not line:
                del self._lines[lane.kind, lane.owner]
        self._release(lane)

    def step(self) -> None:
        """A turn begins: serve those that wait, as many as there is room for."""
        self._begun = 0
        granted, now_s = self._granted, self._mono()
        while granted and granted[0][0] <= now_s:
            until_s, lane = granted.popleft()
            if lane.granted_s == until_s:
                self._release(lane)
        self._serve()

    @property
    def is_behind(self) -> bool:
        """Whether more could be served in the next turn."""
        return self._is_changed and self._begun >= BEGINS

    def _serve(self) -> None:
        while self._is_changed and self._begun < BEGINS:
            self._is_changed = False
            for key in list(self._lines):
                if self._begun < BEGINS and self._free(*key) > 0:
                    self._grant(key, self._mono())
                    self._is_changed = True

    def _grant(self, key: tuple[Kind, str], now_s: float) -> None:
        """Grant one of a line its post; the line is served last from now on."""
        line = self._lines[key]
        self._is_newest_next = key[0] is Kind.UNKNOWN and not self._is_newest_next
        lane = line.pop() if self._is_newest_next else line.popleft()
        if line:
            self._lines.move_to_end(key)
        else:
            del self._lines[key]
        lane.is_waiting = False
        if lane.wake():
            lane.granted, lane.granted_s = key[0], now_s + GRANT_S
            self._begin(*key)
            self._granted.append((lane.granted_s, lane))

    def _begin(self, kind: Kind, owner: str) -> None:
        self._begun += 1
        self._count(kind, owner, 1)

    def _release(self, lane: Lane) -> None:
        if lane.granted is not None:
            self._count(lane.granted, lane.owner, -1)
            lane.granted = None

    def _count(self, kind: Kind, owner: str, more: int) -> None:
        self._open[kind] += more
        self._is_changed = self._is_changed or more < 0
        self._owners[owner] += more
        if not self._owners[owner]:
            del self._owners[owner]

    def _free(self, kind: Kind, owner: str) -> int:
        """How many more posts of that kind the owner may have."""
        quick, unknown, slow = self._open
        free = self._capacity - quick - unknown - slow
        if kind is not Kind.QUICK:
            free = min(free, self._capacity * 3 // 4 - unknown - slow)
        if kind is Kind.SLOW:
            free = min(free, self._capacity // 2 - slow)
        return min(free, -((self._owners[owner] - KEY_FREE * free) // (KEY_FREE + 1)))
