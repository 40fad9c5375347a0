"""The engine in RAM: the model of the others, and where faults are planted.

A *shelf* holds the frames; each engine on it is one node's connection, with a plan of what happens to its
next calls. `cut` is a partition: nothing it asks gets through until it is joined again.
"""

from collections import deque
from dataclasses import dataclass, field
from enum import Enum

from .contract import Clock
from .engine import NoAnswer, Taken

LARGEST = 64 << 20


class Loss(Enum):
    """What gets lost of one call."""

    NOTHING = "nothing"
    REQUEST = "request"
    ANSWER = "answer"
    DELAYED = "delayed"
    """No answer; the request arrives all the same, before the next but one of any engine on the shelf."""


@dataclass(frozen=True, slots=True)
class Fault:
    """The fate of one call. `after_s`: how long its answer takes."""

    loss: Loss = Loss.NOTHING
    after_s: float = 0.0


@dataclass(slots=True)
class Shelf:
    """Frames by sequence, and what is still on its way."""

    frames: dict[int, bytes] = field(default_factory=dict)
    first: int = 1
    last: int = 0
    delayed: list[tuple[int, bytes]] = field(default_factory=list)

    def put(self, seq: int, frame: bytes) -> None:
        if seq != self.last + 1:
            raise Taken
        self.frames[seq] = frame
        self.last = seq

    def arrive(self) -> None:
        """What was delayed is here."""
        for seq, frame in self.delayed:
            if seq == self.last + 1:
                self.put(seq, frame)
        self.delayed.clear()


class MemoryEngine:
    """One node's connection to a shelf."""

    def __init__(self, shelf: Shelf, clock: Clock, largest: int = LARGEST) -> None:
        self.faults: deque[Fault] = deque()
        self.is_cut = False
        self._shelf = shelf
        self._clock = clock
        self._largest = largest

    @property
    def largest(self) -> int:
        return self._largest

    def connect(self, timeout_s: float) -> None:
        if self.is_cut:
            self._unanswered(timeout_s)

    def put(self, seq: int, frame: bytes, timeout_s: float) -> None:
        fault = self._fault(timeout_s)
        if fault.loss is Loss.DELAYED:
            self._shelf.delayed.append((seq, frame))
        else:
            self._shelf.arrive()
            self._shelf.put(seq, frame)
        self._answer(fault, timeout_s)

    def fetch(self, seq: int, count: int, timeout_s: float) -> list[bytes]:
        fault, found = self._fault(timeout_s), list[bytes]()
        self._shelf.arrive()
        while len(found) < count and (frame := self._shelf.frames.get(seq + len(found))) is not None:
            found.append(frame)
        self._answer(fault, timeout_s)
        return found

    def bounds(self, timeout_s: float) -> tuple[int, int]:
        fault = self._fault(timeout_s)
        self._shelf.arrive()
        self._answer(fault, timeout_s)
        return self._shelf.first, self._shelf.last

    def confirm(self, timeout_s: float) -> None:
        self._answer(self._fault(timeout_s), timeout_s)

    def drop(self, upto: int, timeout_s: float) -> None:
        fault = self._fault(timeout_s)
        for seq in [seq for seq in self._shelf.frames if seq <= upto]:
            del self._shelf.frames[seq]
        self._shelf.first = max(self._shelf.first, upto + 1)
        self._answer(fault, timeout_s)

    def close(self) -> None:
        """Nothing is held."""

    def _fault(self, timeout_s: float) -> Fault:
        """What is planned for this call, if the request gets through."""
        fault = self.faults.popleft() if self.faults else Fault()
        if self.is_cut or fault.loss is Loss.REQUEST:
            self._unanswered(timeout_s)
        return fault

    def _answer(self, fault: Fault, timeout_s: float) -> None:
        if fault.loss is not Loss.NOTHING or fault.after_s > timeout_s:
            self._unanswered(timeout_s)
        if fault.after_s:
            self._clock.sleep(fault.after_s)

    def _unanswered(self, timeout_s: float) -> None:
        self._clock.sleep(timeout_s)
        raise NoAnswer(f"no answer within {timeout_s:.1f} s")
