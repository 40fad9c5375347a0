"""The engine in RAM: the model of the others.

A *shelf* holds the frames; each engine on it belongs to one node. It always answers at once. Tests inject
faults around an engine, whichever it is.
"""

from dataclasses import dataclass, field

from .engine import LogState, NoAnswer, Taken

LARGEST = 64 << 20


@dataclass(slots=True)
class Shelf:
    """Frames by sequence, from `first` to `last`."""

    frames: dict[int, bytes] = field(default_factory=dict)
    first: int = 1
    last: int = 0
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

    @property
    def largest(self) -> int:
        return self._largest

    def connect(self, timeout_s: float) -> None:
        """Always connected."""

    def put(self, seq: int, frame: bytes, timeout_s: float) -> None:
        if seq != self._shelf.last + 1:
            raise Taken
        if 0 < self._shelf.max_bytes < self._shelf.used_bytes + len(frame):
            raise NoAnswer("maximum bytes exceeded")
        self._shelf.frames[seq] = frame
        self._shelf.last = seq

    def fetch(
        self,
        seq: int,
        count: int,
        timeout_s: float,
        *,
        is_sure: bool = True,
    ) -> list[bytes]:
        found: list[bytes] = []
        while len(found) < count and (frame := self._shelf.frames.get(seq + len(found))) is not None:
            found.append(frame)
        return found

    def bounds(self, timeout_s: float) -> tuple[int, int]:
        return self._shelf.first, self._shelf.last

    def state(self, timeout_s: float) -> LogState:
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
