"""An engine of the log in RAM: the model of the others.

A *shelf* holds the frames; each engine on it belongs to one node. It always answers at once. Tests inject
faults around an engine, whichever it is.
"""

from collections import deque
from dataclasses import dataclass, field

from shards.log.engine import LogState, NoAnswer, Origin, Taken
from shards.log.errors import NoLog

LARGEST = 64 << 20


@dataclass(slots=True)
class Shelf:
    """Frames by sequence, from `first` to `last`."""

    frames: dict[int, bytes] = field(default_factory=dict)
    first: int = 1
    last: int = 0
    is_made: bool = True
    origin: Origin = field(default_factory=Origin)
    max_bytes: int = 0
    """At this bound it is full; 0: never."""

    @property
    def used_bytes(self) -> int:
        return sum(map(len, self.frames.values()))


class MemoryEngine:
    """One node's engine on a shelf."""

    def __init__(self, shelf: Shelf, largest: int = LARGEST) -> None:
        self._shelf = shelf
        self._largest = largest
        self._taken: deque[bool] = deque()
        """Of each frame that was sent: whether its place was taken."""

    @property
    def largest(self) -> int:
        return self._largest

    @property
    def origin(self) -> Origin:
        return self._shelf.origin

    def connect(self, timeout_s: float) -> None:
        self._check()

    def make(self, after: int, origin: Origin, timeout_s: float) -> None:
        shelf = self._shelf
        if not shelf.is_made:
            shelf.is_made, shelf.origin, shelf.first, shelf.last = True, origin, 1, 0
        elif shelf.last > after:
            raise Taken
        shelf.frames.clear()
        shelf.first, shelf.last = after + 1, after

    def put(self, seq: int, frame: bytes, timeout_s: float) -> None:
        self._taken.clear()
        self._put(seq, frame)

    def _put(self, seq: int, frame: bytes) -> None:
        self._check()
        if seq != self._shelf.last + 1:
            raise Taken
        if 0 < self._shelf.max_bytes < self._shelf.used_bytes + len(frame):
            raise NoAnswer("maximum bytes exceeded")
        self._shelf.frames[seq] = frame
        self._shelf.last = seq

    def send(self, seq: int, frame: bytes, timeout_s: float) -> None:
        try:
            self._put(seq, frame)
        except Taken:
            self._taken.append(True)
        else:
            self._taken.append(False)

    def answer(self, timeout_s: float) -> bool:
        if not self._taken:
            raise NoAnswer("nothing was sent")
        if self._taken.popleft():
            self._taken.clear()
            raise Taken
        return True

    def nudge(self) -> None:
        """Nobody waits."""

    def fetch(
        self,
        seq: int,
        count: int,
        timeout_s: float,
        *,
        is_sure: bool = True,
    ) -> list[bytes]:
        self._check()
        found: list[bytes] = []
        while len(found) < count and (frame := self._shelf.frames.get(seq + len(found))) is not None:
            found.append(frame)
        return found

    def hear(self, seq: int, timeout_s: float) -> list[bytes] | None:
        """What is there. Nobody waits."""
        frame = self._shelf.frames.get(seq)
        return None if frame is None else [frame]

    def state(self, timeout_s: float) -> LogState:
        self._check()
        shelf = self._shelf
        return LogState(shelf.first, shelf.last, shelf.used_bytes, shelf.max_bytes)

    def limit(self, wanted_bytes: int, timeout_s: float) -> None:
        """None is set: tests set it."""

    def confirm(self, timeout_s: float) -> None:
        """Nothing to wait for: there is one copy."""

    def drop(self, upto: int, timeout_s: float) -> None:
        for seq in range(self._shelf.first, upto + 1):
            self._shelf.frames.pop(seq, None)
        self._shelf.first = max(self._shelf.first, upto + 1)

    def close(self) -> None:
        """Nothing to close."""

    def _check(self) -> None:
        """Raise NoLog if the shelf has been taken away."""
        if not self._shelf.is_made:
            raise NoLog("there is no shelf")
