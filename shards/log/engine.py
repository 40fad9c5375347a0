"""What an engine does for the log: keep frames of bytes by sequence, and add one only where it fits.

An engine knows nothing of epochs, chains and claims: that is `chained.py`, once for all of them. What is
asked of it is the one decision that has to be made where the data is, `put` only as the next one, and
answers about what a quorum agreed on. It blocks no longer than it is told, and does not try again: it says
that it does not know.
"""

from collections.abc import Sequence
from typing import Protocol


class Taken(Exception):
    """The last sequence is not the one before this; nothing was written by this call."""


class NoAnswer(Exception):
    """Nothing was heard in time, or a refusal that may pass. A `put` may have been done, or be done later."""


class Engine(Protocol):
    """One connection to an engine, which it makes and replaces itself. Errors: NoAnswer, Unfit."""

    def connect(self, timeout_s: float) -> None:
        """Be connected, and the place of the records be made. Raises Unfit."""

    @property
    def largest(self) -> int:
        """Most bytes of a frame; known once it was connected."""

    def put(self, seq: int, frame: bytes, timeout_s: float) -> None:
        """Return once the frame is durable on a quorum as `seq`. Raises Taken if `seq - 1` is not last."""

    def fetch(self, seq: int, count: int, timeout_s: float, *, is_sure: bool = True) -> Sequence[bytes]:
        """The frames from `seq` on, without a gap, `count` at most; none if `seq` is not there.

        Not `is_sure`: asked of whoever is near, which may lack what is there, or have it damaged.
        """

    def bounds(self, timeout_s: float) -> tuple[int, int]:
        """First and last sequence, asked of whoever decides about `put`; (1, 0) if there never was one."""

    def confirm(self, timeout_s: float) -> None:
        """Return once all that could be fetched before the call is durable on a quorum."""

    def drop(self, upto: int, timeout_s: float) -> None:
        """Give up the frames up to and with `upto`."""

    def close(self) -> None: ...
