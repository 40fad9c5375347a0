"""The contract of an engine: keep frames of bytes by sequence, and add one only as the next.

An engine knows nothing of epochs, chains and claims; `chained.py` adds them, once for all engines. An engine
makes the one decision that must be made where the data is: `put` only as the next one. And it answers from
what a quorum agreed on. It never blocks longer than its timeout and does not retry: it raises NoAnswer.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol


class Taken(Exception):
    """The last sequence is not the one before this. This call wrote nothing."""


class NoAnswer(Exception):
    """No answer in time, or a refusal that may pass. A `put` may have been done, or may still be done
    later."""


class LogState(NamedTuple):
    """First and last sequence, (1, 0) if there never was one; the bytes of all frames, with what the engine
    keeps beside each, and their bound; 0: none is known. `wall_ms`: the clock of the server that says so; 0:
    it does not."""

    first: int
    last: int
    used_bytes: int = 0
    max_bytes: int = 0
    wall_ms: int = 0


class Origin(NamedTuple):
    """What the storage for records was made for. Empty: it does not say."""

    timeline: str = ""
    """The timeline's id."""
    node: str = ""
    """The node that may write the first record without asking others."""


class Clock(Protocol):
    """Time that only elapses, in seconds. The module `time` is one."""

    def monotonic(self) -> float: ...

    def sleep(self, seconds: float, /) -> None: ...


class Engine(Protocol):
    """One connection to an engine, made and replaced by the engine itself. Errors: NoAnswer, Unfit, NoLog."""

    def connect(self, timeout_s: float) -> None:
        """Connect. Raises Unfit; NoLog: there is no storage for records."""

    def make(self, after: int, origin: Origin, timeout_s: float) -> None:
        """Create the storage for records if there is none, and empty it: the next sequence is `after + 1`.
        Raises Taken if there are later ones."""

    @property
    def origin(self) -> Origin:
        """What the storage was made for; known once connected."""

    @property
    def largest(self) -> int:
        """Maximum bytes of a frame; known once connected."""

    def put(self, seq: int, frame: bytes, timeout_s: float) -> None:
        """Return once the frame is durable on a quorum as `seq`. Raises Taken if `seq - 1` is not last. What
        was sent is forgotten."""

    def send(self, seq: int, frame: bytes, timeout_s: float) -> None:
        """Begin a `put` without waiting for its answer, behind others that were sent."""

    def answer(self, timeout_s: float) -> bool:
        """Wait for the oldest that was sent; True once it is durable. False: nudged. Raises Taken. After an
        error all that was sent is forgotten: each may have been done, or may still be done later."""

    def nudge(self) -> None:
        """Have a thread that waits in `answer` or `hear` return. From any thread."""

    def fetch(self, seq: int, count: int, timeout_s: float, *, is_sure: bool = True) -> Sequence[bytes]:
        """Up to `count` frames from `seq` on, without a gap; none if `seq` does not exist.

        Without `is_sure` a near server answers, which may lack frames or have damaged ones.
        """

    def hear(self, seq: int, timeout_s: float) -> Sequence[bytes] | None:
        """Frames from `seq` on, as soon as one is pushed, by a near server. Empty: none was in that time, or
        it was nudged. None: none is pushed now. No error."""

    def state(self, timeout_s: float) -> LogState:
        """Bounds and bytes, from the server that decides about `put`."""

    def limit(self, wanted_bytes: int, timeout_s: float) -> None:
        """Set a bound of the bytes if there is none: `wanted_bytes`, or less if the servers have less. At the
        servers' own limit some engines cannot even delete."""

    def confirm(self, timeout_s: float) -> None:
        """Return once all that was readable before the call is durable on a quorum."""

    def drop(self, upto: int, timeout_s: float) -> None:
        """Delete the frames up to and including `upto`."""

    def close(self) -> None: ...
